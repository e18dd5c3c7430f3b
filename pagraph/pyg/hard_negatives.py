"""HardNegatives: negative links that are hard to tell from real ones, as a ``neg_sampling`` of
PyG's loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..sampling.hard_negatives import HardNegatives as CoreNegatives
from ..sampling.hard_negatives import HardPairs
from .package import import_pyg

import_pyg()
from torch_geometric.sampler import NegativeSampling  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

    from ..graph.graph import Graph

__all__ = ["HardNegatives"]


class HardNegatives(NegativeSampling):
    """Draws negative destinations for the sources of links that are hard to tell from the links'
    own.

    For ``neg_sampling=`` of ``pagraph.pyg.LinkNeighborLoader``, beside PyG's ``NegativeSampling``.
    A source that leads to all destinations gets no negative in binary mode, and is an error in
    triplets, which need theirs. See ``pagraph.sampling.HardNegatives``.

    Args:
        mode: ``"binary"`` or ``"triplet"``. A binary negative has the source of its link, too (PyG
            draws another).
        amount: Negatives for each link; in triplets a whole number.
        power: Draw in proportion to the in-degree to this power: 0 uniformly, 0.75 as word2vec.
        among: Draw these vertices only: ids, or a mask of all; or a mapping from vertex type to
            either.
        in_batch: Draw from the destinations of the batch's other links.
        exclude_edges: Draw no destination that an edge of the links' type leads to from the source.

    Raises:
        ValueError: PyG's, for mode and amount; ``power`` negative, infinite or NaN, or given with
            ``in_batch``.
        TypeError: A value of the wrong type.

    Example:
        >>> import torch
        >>> from pagraph.pyg import HardNegatives, LinkNeighborLoader
        >>> from torch_geometric.data import Data
        >>> data = Data(edge_index=torch.tensor([[0, 0, 1], [1, 2, 2]]), num_nodes=3)
        >>> loader = LinkNeighborLoader(data, [1], torch.tensor([[0], [1]]), neg_sampling=HardNegatives("binary"))
        >>> batch = next(iter(loader))
        >>> batch.n_id[batch.edge_label_index].tolist(), batch.edge_label.tolist()
        ([[0, 0], [1, 0]], [1.0, 0.0])
    """

    def __init__(
        self,
        mode: Any,
        amount: float = 1,
        *,
        power: float = 0.0,
        among: Any = None,
        in_batch: bool = False,
        exclude_edges: bool = True,
    ) -> None:
        super().__init__(mode, amount)
        self.core = CoreNegatives(1, power, among, in_batch, exclude_edges)

    def sample(self, *args: Any, **kwargs: Any) -> Tensor:
        """Raise NotImplementedError: PyG's own samplers do not say which sources negatives are
        for."""
        raise NotImplementedError(
            "HardNegatives are drawn by pagraph.pyg's loader and sampler alone"
        )

    def of(
        self, graph: Graph, edge_type: tuple[str, str, str] | None, *, temporal: bool
    ) -> HardPairs:
        """The core's negatives of the links of one type (None: the only one).

        Raises:
            ValueError: Links have times, or the graph has no such edges.
        """
        if temporal:
            raise ValueError(
                "neg_sampling must be PyG's NegativeSampling for links with times, got "
                "HardNegatives"
            )
        etype = graph.edge_types[0] if edge_type is None else edge_type
        if etype not in graph.edge_types:
            raise ValueError(
                f"HardNegatives need the edges of {etype}, the graph has {graph.edge_types}"
            )
        return HardPairs(
            self.amount, self.core.ends(graph.csc_of(etype), etype[2]), self.is_binary()
        )
