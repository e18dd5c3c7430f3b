"""HardNegatives: negative edges that are hard to tell from real ones, as one of DGL's negative
samplers."""

from __future__ import annotations

from typing import Any

from ..sampling.hard_negatives import HardNegatives as CoreNegatives
from ..seeds.keys import random_key
from .convert import core_graph
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.dataloading.negative_sampler import _BaseNegativeSampler  # noqa: E402

__all__ = ["HardNegatives"]


class HardNegatives(_BaseNegativeSampler):
    """Draws ``k`` edges for each edge of a batch, from its source to destinations that are hard to
    tell from its own.

    In the style of ``dgl.dataloading.negative_sampler.PerSourceUniform``. With
    ``pagraph.dgl.DataLoader`` it runs in the loader's threads, and its draws are a function of the
    loader's seed; otherwise the random key of each call comes from torch's default generator. A
    source that leads to all destinations gets no negative edge; see
    ``pagraph.sampling.HardNegatives``.

    Args:
        k: Negative edges for each edge.
        power: Draw in proportion to the in-degree to this power: 0 uniformly, 0.75 as word2vec.
        among: Draw these vertices only: ids, or a mask of all; or a mapping from vertex type to
            either.
        in_batch: Draw from the destinations of the batch's other edges.
        exclude_edges: Draw no destination that an edge of the type leads to from the source.

    Raises:
        TypeError: A value of the wrong type.
        ValueError: ``k`` is below 1; ``power`` negative, infinite or NaN, or given with
            ``in_batch``.

    Example:
        >>> import dgl, torch
        >>> graph = dgl.graph(([0, 0, 1], [1, 2, 2]))
        >>> HardNegatives(2)(graph, torch.tensor([0]))
        (tensor([0, 0]), tensor([0, 0]))
    """

    def __init__(
        self,
        k: int = 1,
        *,
        power: float = 0.0,
        among: Any = None,
        in_batch: bool = False,
        exclude_edges: bool = True,
    ) -> None:
        self.core = CoreNegatives(k, power, among, in_batch, exclude_edges)
        self.k = self.core.k

    def _generate(self, g: Any, eids: Any, canonical_etype: Any) -> tuple[Any, Any]:
        csc = core_graph(g).csc_of(canonical_etype)
        src, dst = csc.ends_at(csc.positions_of(eids))
        pairs = src.to(g.idtype), dst.to(g.idtype)
        return self.core.draw(csc, canonical_etype, pairs, random_key())
