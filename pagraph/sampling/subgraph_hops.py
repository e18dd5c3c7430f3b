"""Hops of a subgraph sampler: picks before a time, times of the seeds, induced edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.subgraph import SampledEdges
from .edge_values import as_times
from .hop import raise_bad_source
from .pickers import UniformPicker, measure_frontier, measure_rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..graph.csc import CSC
    from ..graph.graph import Graph
    from .edge_values import EdgeTimes
    from .hop import EdgeMemory, Hop, HopEdges, Scratch, VertexTable
    from .sampler import EdgeField

    Array = npt.NDArray[Any]

__all__ = ["TimedPicker", "check_time_field", "induced_edges", "limits_of_trees"]


@dataclass(frozen=True)
class TimedPicker:
    """Draws ``fanout`` in-edges of each vertex among those whose time is at most the vertex's limit (``Hop.until``).

    A vertex with at most ``fanout`` such edges gives all of them, in the order of time (equal times in CSC order).

    Args:
        fanout: Edges per vertex; -1 takes all.
        replace: Draw with replacement.
        latest: Draw among the latest ``fanout`` of the edges only: without replacement these are the picks.
        times: Times of the edges that the hop draws from.
    """

    fanout: int
    replace: bool
    latest: bool
    times: EdgeTimes

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`.

        Raises:
            ValueError: The times are those of another graph.
        """
        from .kernels import hop as _cpu

        times = self.times
        if times.num_edges != hop.csc.num_edges:
            raise ValueError(f"times must be of the graph's {hop.csc.num_edges} edges, got those of {times.num_edges}")
        edges = UniformPicker(self.fanout, self.replace).pick_from(hop, self._valid_rows(hop))
        if times.order is not None:
            positions = edges.positions.numpy()
            _cpu.read_neighbors(times.order.numpy(), positions, positions)
        return edges

    def _valid_rows(self, hop: Hop) -> tuple[Array, Array, Array]:
        """As ``measure_rows``, of the edges that may be drawn."""
        from .kernels import subgraph

        assert hop.until is not None
        starts, degrees, _ = measure_rows(hop, self.fanout, self.replace)
        offsets = hop.scratch.array("valid offsets", len(hop.frontier) + 1, np.int64)
        settings = self.fanout, self.replace, self.latest
        subgraph.cut_rows(self.times.values.numpy(), hop.until, *settings, starts, degrees, offsets)
        return starts, degrees, offsets


def check_time_field(graph: Graph, name: str, field: EdgeField) -> None:
    """Refuse a name that tells nothing, or that is both of vertices and of edges.

    Raises:
        ValueError: As said.
    """
    nodes = [ntype for ntype in graph.node_types if name in graph.node_fields(ntype)]
    edges = [etype for etype in graph.edge_types if field(etype, name) is not None]
    if bool(nodes) == bool(edges):
        got = f"of vertices {nodes} and of edges {edges}" if nodes else "neither"
        raise ValueError(f"time must name a field of vertices or a field of edges, got {name!r}: {got}")


def limits_of_trees(
    graph: Graph, name: str, seeds: Mapping[str, Tensor], seed_times: Tensor | Mapping[str, Tensor] | None
) -> Tensor:
    """The time of every seed, over all types in the graph's order, shape ``(num_seeds,)``, int64.

    Args:
        graph: What is sampled.
        name: The field of times.
        seeds: Vertex type to the seeds.
        seed_times: Their times, as ``SubgraphSampler.sample`` takes them; seeds of other types have their own values of
            the field.

    Raises:
        KeyError: There are times for a type without seeds.
        TypeError: Times are no integers on the CPU.
        ValueError: There is not one time per seed; or neither a time nor a field for the vertices of a type.
    """
    if seed_times is not None and not isinstance(seed_times, Tensor | Mapping):
        got = type(seed_times).__name__
        raise TypeError(f"seed_times must be a tensor or a mapping from vertex type, got {got}")
    given = {graph.only_node_type: seed_times} if isinstance(seed_times, Tensor) else seed_times or {}
    for ntype in given:
        if ntype not in seeds:
            raise KeyError(f"seed_times must be of the seeds' types {list(seeds)}, got {ntype!r}")
    limits = [_limits(graph, name, t, seeds[t], given.get(t)) for t in graph.node_types if t in seeds]
    return torch.cat(limits) if limits else torch.empty(0, dtype=torch.int64)


def _limits(graph: Graph, name: str, ntype: str, seeds: Tensor, times: Tensor | None) -> Tensor:
    if times is not None:
        return as_times(f"seed_times[{ntype!r}]", times, len(seeds), "seed").long()
    values = graph.node_fields(ntype).get(name)
    if values is None:
        raise ValueError(f"seed_times must be given for seeds of type {ntype!r}, which has no vertex field {name!r}")
    values = as_times(f"vertex field {name!r}", values, graph.num_nodes_of(ntype), "vertex")
    return values.index_select(0, seeds).long()


def induced_edges(
    csc: CSC,
    vertices: npt.NDArray[Any],
    sources: VertexTable,
    scratch: Scratch,
    pool: EdgeMemory,
    dtype: torch.dtype,
) -> SampledEdges:
    """Every in-edge of some vertices that comes from a known source, in the order of the vertices and of the CSC.

    A vertex that is there twice has its edges twice; they lead to the first copy of their source. The edges are looked
    up twice, which costs less memory than remembering the answers: most in-edges of a hub come from elsewhere.

    Args:
        csc: The edges.
        vertices: The destinations, shape ``(n,)``.
        sources: The vertices that the batch has of the sources' type.
        scratch: This thread's working memory.
        pool: Where the result's memory comes from.
        dtype: Of local ids.

    Raises:
        FormatError: The CSC's arrays lead out of the graph (a damaged file).
    """
    from .kernels import subgraph

    indices = csc.indices.numpy()
    starts, degrees, indptr = measure_frontier(csc, vertices, scratch, -1, False)
    bad = subgraph.count_known(indices, starts, degrees, csc.num_src, *sources.lookup, indptr)
    if bad >= 0:
        raise_bad_source(int(indices[bad]), csc.num_src)
    total = int(indptr[-1])
    edge_index, ids = pool.take_many(((2, total), dtype), ((total,), torch.int64))
    src, dst = edge_index.numpy()
    edge_ids = np.empty(0, np.int64) if csc.edge_ids is None else csc.edge_ids.numpy()
    subgraph.put_known(indices, starts, degrees, edge_ids, *sources.lookup, indptr, src, dst, ids.numpy())
    return SampledEdges(edge_index, ids, [0])
