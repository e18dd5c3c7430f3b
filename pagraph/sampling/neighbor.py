"""Node-wise neighbour sampling: a pure function from graph, seeds, fan-outs and a key to blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .block_sampler import BlockSampler
from .pickers import UniformPicker, WeightedPicker
from .sampler import EdgeField, check_per_hop, of_edge_type
from .small_batch import UniformHops

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from .hop import Picker

__all__ = ["NeighborSampler", "check_fanout", "neighbor_picker"]

_MOST = 2**31 - 1


@dataclass(frozen=True)
class NeighborSampler(BlockSampler):
    """Draws neighbours hop by hop (GraphSAGE's sampling, as DGL's ``NeighborSampler`` does it), uniformly or by weight.

    Every known vertex is expanded again in each hop, as in DGL. The result depends on the graph, the seeds and the
    key alone, never on threads or on what was sampled before.

    Args:
        fanouts: Neighbours per vertex and edge type for each hop in DGL's order: the last entry serves the seeds. -1
            takes all. An entry may be a mapping from edge type to a number, where 0 draws nothing.
        replace: Draw with replacement.
        edge_dir: "in" draws from in-edges; "out" from out-edges (the out-neighbours become the block's sources), for
            graphs with one vertex type.
        prob: Name of an edge field: neighbours are drawn in proportion to it, those of weight 0 (or False) never. See
            ``edge_weights`` for what it may hold. An edge type without the field is drawn from uniformly, as in DGL.

    Raises:
        TypeError: A fan-out is not an integer, or ``prob`` not a string.
        ValueError: No fan-out, one that is 0 or below -1, or an unknown direction.

    Example:
        >>> import torch
        >>> from pagraph.graph import Graph
        >>> batch = NeighborSampler([-1]).sample(Graph.from_coo([0, 1, 2], [1, 2, 2]), torch.tensor([2]))
        >>> batch.input_nodes.tolist(), batch.blocks
        ([2, 1], [Block(num_src=2, num_dst=1, num_edges=2)])
    """

    fanouts: Sequence[int | Mapping[EdgeType, int]]
    replace: bool = False
    edge_dir: str = "in"
    prob: str | None = None

    def __post_init__(self) -> None:
        fanouts = check_per_hop("fanouts", self.fanouts, lambda n, least: check_fanout(n, self.replace, least=least))
        self.check_edges()
        object.__setattr__(self, "fanouts", fanouts)

    @property
    def num_hops(self) -> int:
        """Blocks per mini-batch."""
        return len(self.fanouts)

    def fanout(self, hop: int, edge_type: EdgeType) -> int:
        """Neighbours drawn in hop number ``hop`` (0 serves the seeds).

        Raises:
            KeyError: The hop's fan-outs do not name the edge type.
        """
        return of_edge_type(self.fanouts[-1 - hop], edge_type)

    def picker(self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField) -> Picker | None:
        """See :meth:`BlockSampler.picker`.

        Raises:
            TypeError: The field ``prob`` holds something else than numbers.
            ValueError: It does not hold one finite number per edge, or a negative one.
        """
        return neighbor_picker(self, graph, hop, edge_type, field)

    def uniform_hops(self, edge_type: EdgeType) -> UniformHops | None:
        """See :meth:`HopSampler.uniform_hops`; a subclass may pick otherwise."""
        return UniformHops.of(self, edge_type) if self.prob is None and type(self) is NeighborSampler else None


def neighbor_picker(sampler: Any, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField) -> Picker | None:
    """What picks the edges of a sampler with ``fanout(hop, edge_type)``, ``replace`` and weights; None: no edges."""
    fanout = sampler.fanout(hop, edge_type)
    if not fanout:
        return None
    weights = sampler.weights(graph, edge_type, field)
    if weights is None:
        return UniformPicker(fanout, sampler.replace)
    return WeightedPicker(fanout, sampler.replace, weights)


def check_fanout(fanout: Any, replace: bool, *, least: int = 1) -> int:
    """A fan-out as an int.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is neither -1 nor at least ``least``, or too large to draw with replacement.
    """
    if isinstance(fanout, bool) or not isinstance(fanout, int | np.integer):
        raise TypeError(f"fanouts must be integers, got {fanout!r}")
    if fanout != -1 and fanout < least:
        raise ValueError(f"fanouts must be positive or -1 (all neighbours), got {fanout}")
    if replace and fanout > _MOST:
        raise ValueError(f"fanouts must be below 2**31 with replacement, got {fanout}")
    return min(int(fanout), _MOST)  # without replacement a huge fan-out is a way to say "all"
