"""HGTSampler: a number of vertices of each type, drawn by how strongly they are connected to the
batch so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..graph.subgraph import SampledEdges, Subgraph
from ..seeds.keys import derive_key
from ..system.checks import as_integer
from .hop import HopMemory
from .induced import induced_edges, known_edges
from .pickers import UniformPicker
from .sampler import BatchRun, EdgeField, HopSampler, check_per_hop, id_dtype_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from ..graph.graph import EdgeType, Graph
    from ..system.buffers import BufferPools
    from .hop import Picker, VertexTable

MOST_NEIGHBORS = 50
"""In-neighbours that a vertex gives shares to: a hub's many would fill the budget with shares of
next to nothing."""


@dataclass(frozen=True)
class HGTSampler(HopSampler):
    """Draws a number of vertices of each type in each hop, and takes all edges that the graph has
    among them.

    HGSampling (Hu et al., "Heterogeneous Graph Transformer", WWW 2020, Algorithm 2), as
    torch-sparse's ``hgt_sample`` does it. Every vertex divides 1 among its in-neighbours along each
    edge type, of more than 50 among 50 drawn uniformly; what a vertex gets in sum is its share of
    its type's budget. A hop draws from the budget of each type, without replacement, in proportion
    to the squares of the shares; then those drawn divide theirs. The edges are all among the
    vertices, as in the paper.

    Args:
        sizes: Vertices drawn in each hop, the first hop first: of each type, or by a mapping from
            vertex type.
        most_edges: Look at so many in-edges of a vertex along an edge type, drawn uniformly,
            instead of all of them: those among them that come from a vertex of the batch are its
            edges. torch-sparse looks at 50.

    Raises:
        TypeError: A number is not an integer.
        ValueError: A size is negative, or ``most_edges`` below 1.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2, 3, 0], [1, 2, 3, 0, 2])
        >>> batch = HGTSampler([5, 1]).sample(graph, torch.tensor([2]))
        >>> batch.input_nodes["_N"].tolist(), batch.hop_ends["_N"]
        ([2, 1, 0, 3], [1, 3, 4])
    """

    sizes: Sequence[int | Mapping[str, int]]
    most_edges: int | None = None
    edge_dir = "in"
    prob = None

    def __post_init__(self) -> None:
        sizes: Any = self.sizes
        checked = check_per_hop(
            "sizes", sizes, lambda size, least: as_integer("sizes", size, least=least), least=0
        )
        object.__setattr__(self, "sizes", checked)
        if self.most_edges is not None:
            object.__setattr__(
                self, "most_edges", as_integer("most_edges", self.most_edges, least=1)
            )

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        return len(self.sizes)

    def size(self, hop: int, node_type: str) -> int:
        """Vertices of a type drawn in hop number ``hop``; KeyError where the hop's sizes do not
        name the type."""
        size = self.sizes[hop]
        if not isinstance(size, Mapping):
            return size
        if node_type not in size:
            raise KeyError(
                f"sizes must name every vertex type, got {list(size)} without {node_type!r}"
            )
        return size[node_type]

    def picker(self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField) -> Picker:
        """The edges along which a vertex gives shares."""
        return UniformPicker(MOST_NEIGHBORS)

    def sample(
        self,
        graph: Graph,
        seeds: Tensor | Mapping[str, Tensor],
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
    ) -> Subgraph:
        """Sample one mini-batch; see :meth:`SubgraphSampler.sample`. KeyError for a type without a
        size."""
        return _HGTRun(self, graph, seeds, key, dtype, pools, None).subgraph()


class _Budget:
    """The shares of the vertices of one type; -1 for those that are in the batch already."""

    def __init__(self, seen: VertexTable) -> None:
        self.seen = seen
        self._shares: npt.NDArray[np.float64] = np.full(seen.count, -1.0)

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """A share for each vertex that was seen."""
        if len(self._shares) < self.seen.count:
            known = self._shares
            self._shares = np.zeros(2 * self.seen.count)
            self._shares[: len(known)] = known
        return self._shares[: self.seen.count]


class _HGTRun(BatchRun):
    """One batch."""

    sampler: HGTSampler

    def subgraph(self) -> Subgraph:
        """Sample all hops, and all edges among their vertices."""
        # Two tables for each type: the batch's vertices, and those that ever got a share. Both
        # begin with the seeds, so that the budget knows that they are taken.
        budgets: dict[str, _Budget] = {}
        for ntype, table in self.tables.items():
            seen = self.scratch.table(f"budget {ntype}")
            for each in (table, seen):
                each.reset(
                    self.seeds.get(ntype), self.graph.num_nodes_of(ntype), id_dtype_of(self.graph)
                )
            budgets[ntype] = _Budget(seen)
        # A vertex gives its shares once, in the hop after the one that found it.
        begins = dict.fromkeys(self.tables, 0)
        known = self.counts()
        ends = {ntype: [count] for ntype, count in known.items()}
        for number in range(self.sampler.num_hops):
            self._give(number, begins, budgets)
            for index, ntype in enumerate(self.tables):
                self._take(number, index, ntype, budgets[ntype])
            begins, known = known, self.counts()
            for ntype, count in known.items():
                ends[ntype].append(count)
        nodes = {}
        for ntype, table in self.tables.items():
            nodes[ntype] = self.pools(("nodes", ntype)).take((table.count,), self.dtype)
            nodes[ntype].numpy()[:] = table.nodes
        edges = {
            etype: self._edges(index, etype) for index, etype in enumerate(self.graph.edge_types)
        }
        return Subgraph(dict(self.seeds), nodes, edges, ends)

    def _edges(self, index: int, etype: EdgeType) -> SampledEdges:
        """The edges of type number ``index`` among the batch's vertices."""
        from .kernels import hgt

        if self.sampler.most_edges is None:
            return induced_edges(self.graph, etype, self.nodes, self.dtype, self.pools)
        frontier = self.tables[etype[2]].nodes
        known = self.tables[etype[0]].lookup
        # The key of the hop after the last: no hop has drawn shares with it.
        hop = self.hop(
            self.sampler.num_hops,
            index,
            frontier,
            torch.int32,
            HopMemory(self.scratch, ("edges", index)),
        )
        drawn = UniformPicker(self.sampler.most_edges).pick(hop)
        positions = drawn.positions.numpy()
        places = self.read_sources(hop, drawn)
        indptr = self.scratch.array("kept", len(frontier) + 1, np.int64)
        kept = hgt.keep_known(drawn.indptr.numpy(), positions, places, *known, indptr)
        return known_edges(
            hop.csc, etype, (indptr, positions[:kept], places[:kept]), self.dtype, self.pools
        )

    def _give(self, number: int, begins: Mapping[str, int], budgets: Mapping[str, _Budget]) -> None:
        """Add the shares that the vertices found by the hop before give."""
        from .kernels import hgt

        for index, etype in enumerate(self.graph.edge_types):
            frontier, budget = self.tables[etype[2]].nodes[begins[etype[2]] :], budgets[etype[0]]
            memory = HopMemory(self.scratch, ("hop", index))
            hop = self.hop(number, index, frontier, torch.int32, memory)
            edges = self.sampler.pick(self.graph, hop, number, etype, self.field)
            places = edges.indices.numpy()
            budget.seen.relabel(self.read_sources(hop, edges), places)
            hgt.add_shares(edges.indptr.numpy(), places, budget.shares)

    def _take(self, number: int, index: int, ntype: str, budget: _Budget) -> None:
        """Draw vertices of type number ``index``."""
        from .kernels import hgt

        count = budget.seen.count
        size = min(self.sampler.size(number, ntype), count)
        keys = self.scratch.array("share keys", count, np.float64)
        places = self.scratch.array("share places", count, np.int64)
        drawn = self.scratch.array("drawn", size, np.int64)
        # The picks of this hop use the numbers of the edge types for their keys.
        key = np.uint64(derive_key(self.key, number, len(self.graph.edge_types) + index))
        taken = hgt.take_shares(budget.seen.nodes, budget.shares, size, key, keys, places, drawn)
        self.tables[ntype].relabel(
            drawn[:taken], self.scratch.array("drawn places", taken, np.int64)
        )
