"""Node-wise neighbour sampling: a pure function from graph, seeds, fan-outs and a key to blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .block_sampler import BlockSampler, EdgeField
from .uniform import UniformPicker

if TYPE_CHECKING:
    from ..graph import EdgeType, Graph
    from .hop import Picker

__all__ = ["NeighborSampler", "check_fanout"]

_MOST = 2**31 - 1


@dataclass(frozen=True)
class NeighborSampler(BlockSampler):
    """Draws neighbours uniformly, hop by hop (GraphSAGE's sampling, as DGL's ``NeighborSampler`` does it).

    Every known vertex is expanded again in each hop, as in DGL. The result depends on the graph, the seeds and the
    key alone, never on threads or on what was sampled before.

    Args:
        fanouts: Neighbours per vertex and edge type for each hop in DGL's order: the last entry serves the seeds. -1
            takes all. An entry may be a mapping from edge type to a number, where 0 draws nothing.
        replace: Draw with replacement.
        edge_dir: "in" draws from in-edges; "out" from out-edges (the out-neighbours become the block's sources), for
            graphs with one vertex type.

    Raises:
        TypeError: A fan-out is not an integer.
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

    def __post_init__(self) -> None:
        fanouts = tuple(self.fanouts)
        if not fanouts:
            raise ValueError("fanouts must have at least 1 entry, got none")
        if self.edge_dir not in ("in", "out"):
            raise ValueError(f"edge_dir must be 'in' or 'out', got {self.edge_dir!r}")
        object.__setattr__(self, "fanouts", tuple(self._checked(fanout) for fanout in fanouts))

    def _checked(self, fanout: Any) -> int | dict[EdgeType, int]:
        if isinstance(fanout, Mapping):
            return {etype: check_fanout(n, self.replace, least=0) for etype, n in fanout.items()}
        return check_fanout(fanout, self.replace)

    @property
    def num_hops(self) -> int:
        """Blocks per mini-batch."""
        return len(self.fanouts)

    def fanout(self, hop: int, edge_type: EdgeType) -> int:
        """Neighbours drawn in hop number ``hop`` (0 serves the seeds).

        Raises:
            KeyError: The hop's fan-outs do not name the edge type.
        """
        fanout = self.fanouts[-1 - hop]
        return fanout[edge_type] if isinstance(fanout, Mapping) else fanout

    def picker(self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField) -> Picker | None:
        """See :meth:`BlockSampler.picker`."""
        fanout = self.fanout(hop, edge_type)
        return UniformPicker(fanout, self.replace) if fanout else None


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
