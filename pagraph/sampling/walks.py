"""RandomWalks: uniform, weighted, biased (node2vec) and metapath random walks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import CSC, as_ids, check_range
from ..seeds.keys import derive_key
from ..system.checks import as_integer
from .edge_values import EdgeWeights, edge_weights
from .hop import raise_bad_row, raise_bad_source
from .sampler import check_edge_dir, check_prob, own_fields

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from .edge_values import EdgeField


@dataclass(frozen=True, eq=False)
class Walks:
    """Walks, one per row.

    Attributes:
        vertices: Shape ``(n, num_steps + 1)``, int64: the start, and the vertex after each step; -1
            after a walk's end.
        edges: Shape ``(n, num_steps)``, int64: ids of the edges taken, -1 for none; None unless
            asked for.
    """

    vertices: Tensor
    edges: Tensor | None = None


@dataclass(frozen=True)
class RandomWalks:
    """Samples random walks; each step draws an edge of the current vertex.

    A walk ends at a vertex without edges. Its draws depend only on the key and on its index among
    the starts.

    With ``p`` and ``q``, walks are biased (node2vec: Grover and Leskovec, KDD 2016, section 3.2).
    At ``v``, reached from ``u``, the weight of an edge to ``x`` is divided by ``p`` if ``x`` is
    ``u``, and by ``q`` if ``x`` is another vertex without an edge ``(x, u)``. That direction is
    DGL's and torch-cluster's; the paper's graphs have edges in both. The first step is not biased.

    Args:
        steps: Number of steps, for a graph of one edge type; or the edge type of each step.
        prob: Name of an edge field: edges are drawn in proportion to it, and never with weight 0.
            Edge types without the field are drawn from uniformly. For its dtypes and values see
            ``edge_weights``.
        p: Return parameter: the larger, the less likely a step back.
        q: In-out parameter: the larger, the closer a walk stays to where it was.
        end_prob: Probability to end before a step: one number, or one per step.
        edge_dir: "out" walks along the edges, "in" against them. The edge types of ``steps`` are
            the graph's in both cases.
        stay: Stay at a vertex without edges instead of ending the walk.

    Raises:
        TypeError: ``steps`` is neither an integer nor edge types, ``prob`` is not a string, or
            another argument is not a number.
        ValueError: There is no step; an edge type does not begin where the previous one ends; ``p``
            or ``q`` is not positive and finite, or given for several edge types; or ``end_prob`` is
            outside [0, 1] or does not have one entry per step.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 0])
        >>> RandomWalks(4).sample(graph, torch.tensor([0, 2])).vertices.tolist()
        [[0, 1, 2, 0, 1], [2, 0, 1, 2, 0]]
    """

    steps: int | Sequence[EdgeType]
    prob: str | None = None
    p: float = 1.0
    q: float = 1.0
    end_prob: float | Sequence[float] = 0.0
    edge_dir: str = "out"
    stay: bool = False

    def __post_init__(self) -> None:
        check_edge_dir(self.edge_dir)
        check_prob(self.prob)
        for name in ("p", "q"):
            number = _as_number(name, getattr(self, name))
            if not (number > 0 and math.isfinite(number) and math.isfinite(1 / number)):
                raise ValueError(f"{name} must be positive and finite, got {number}")
            object.__setattr__(self, name, number)
        if isinstance(self.steps, str) or not isinstance(self.steps, Sequence):
            object.__setattr__(self, "steps", as_integer("steps", self.steps, least=1))
        else:
            object.__setattr__(self, "steps", self._checked_path(tuple(self.steps)))
        object.__setattr__(self, "end_prob", self._checked_end_prob())

    def _checked_path(self, path: tuple[Any, ...]) -> tuple[EdgeType, ...]:
        if not path:
            raise ValueError("steps must be at least 1, got an empty path")
        for etype in path:
            if not isinstance(etype, tuple) or len(etype) != 3:
                raise TypeError(
                    f"steps must be a number or edge types, such as ('a', 'to', 'b'), got {etype!r}"
                )
        begin, end = (0, 2) if self.edge_dir == "out" else (2, 0)
        for before, after in zip(path[:-1], path[1:], strict=True):
            if before[end] != after[begin]:
                raise ValueError(
                    f"steps must lead on from {before[end]!r}, where {before} ends, got {after}"
                )
        if self.looks_back and len(set(path)) > 1:
            raise ValueError(
                f"p and q must be 1 for walks along several edge types, got {self.p} and {self.q}"
            )
        return path

    def _checked_end_prob(self) -> float | tuple[float, ...]:
        several = isinstance(self.end_prob, Sequence) and not isinstance(self.end_prob, str)
        given: Any = self.end_prob if several else [self.end_prob]
        checked = tuple(_as_number("end_prob", each) for each in given)
        if several and len(checked) != self.num_steps:
            raise ValueError(
                f"end_prob must have one entry for each of {self.num_steps} steps, got "
                f"{len(checked)}"
            )
        for each in checked:
            if not 0 <= each <= 1:
                raise ValueError(f"end_prob must be in [0, 1], got {each}")
        return checked if several else checked[0]

    @property
    def num_steps(self) -> int:
        """Maximum number of steps."""
        return self.steps if isinstance(self.steps, int) else len(self.steps)

    @property
    def looks_back(self) -> bool:
        """Whether a step depends on the previous one."""
        return self.p != 1.0 or self.q != 1.0

    def sample(
        self,
        graph: Graph,
        starts: Tensor,
        key: int = 0,
        *,
        with_edges: bool = False,
        field: EdgeField | None = None,
    ) -> Walks:
        """Sample a walk from each start; thread-safe.

        Args:
            graph: The graph.
            starts: Shape ``(n,)``, int32 or int64, on the CPU: vertices of the type that the first
                step leaves.
            key: Any 64-bit number; equal keys give equal walks.
            with_edges: Also return the ids of the edges taken.
            field: Returns edge weights. Default: the graph's own fields.

        Returns:
            The walks, int64.

        Raises:
            IndexError: A start is outside the graph.
            KeyError: The graph does not have an edge type.
            TypeError: Starts are not integers, or the field ``prob`` does not hold numbers.
            ValueError: ``steps`` is a number and there are several edge types; or the field does
                not hold one finite number >= 0 per edge.
        """
        path = self._path(graph)
        edges = {etype: self._edges(graph, etype) for etype in dict.fromkeys(path)}
        starts = as_ids("starts", starts, IndexError)
        check_range("starts", starts, edges[path[0]].num_dst, IndexError)
        weights = {
            etype: self._weights(etype, csc, field or own_fields(graph))
            for etype, csc in edges.items()
        }
        traces = torch.empty((len(starts), self.num_steps + 1), dtype=torch.int64, device="cpu")
        traces[:, 0] = starts
        shape = (len(starts), self.num_steps) if with_edges else (0, 0)
        taken = torch.empty(shape, dtype=torch.int64, device="cpu")
        first = 0
        # One kernel call for consecutive steps along one edge type.
        for etype, run in groupby(path):
            stop = first + len(list(run))
            self._walk(edges[etype], weights[etype], key, first, stop, traces, taken)
            first = stop
        return Walks(traces, taken if with_edges else None)

    def _path(self, graph: Graph) -> Sequence[EdgeType]:
        if not isinstance(self.steps, int):
            return self.steps
        if len(graph.edge_types) != 1:
            raise ValueError(
                f"steps must name edge types among {graph.edge_types} for a graph with several, "
                f"got {self.steps}"
            )
        etype = graph.edge_types[0]
        if self.steps > 1 and etype[0] != etype[2]:
            raise ValueError(
                f"steps must be 1 along edges between different vertex types {etype}, got "
                f"{self.steps}"
            )
        return [etype] * self.steps

    def _edges(self, graph: Graph, edge_type: EdgeType) -> CSC:
        csc = graph.csc_of(edge_type) if self.edge_dir == "in" else graph.out_csc_of(edge_type)
        # A step that looks back must find an edge: by binary search, in ascending rows.
        return csc.with_ascending_rows if self.looks_back else csc

    def _weights(self, edge_type: EdgeType, csc: CSC, field: EdgeField) -> EdgeWeights | None:
        values = None if self.prob is None else field(edge_type, self.prob)
        return (
            None if values is None else edge_weights(csc, values, name=f"edge field {self.prob!r}")
        )

    def _walk(
        self,
        csc: CSC,
        weights: EdgeWeights | None,
        key: int,
        first: int,
        stop: int,
        traces: Tensor,
        taken: Tensor,
    ) -> None:
        """Take the steps ``first`` to ``stop - 1``, all along one edge type."""
        from .kernels import walks

        own = csc.scattered
        indptr = own.indptr.numpy()
        indices = own.indices.numpy()
        rows = indptr, len(indices), indices[:0]
        tables: Any = np.empty(0, np.float32), np.empty(0, np.float64), np.empty(0, np.int32)
        if weights is not None:
            if weights.kept is not None:
                kept = weights.kept
                rows = kept.indptr.numpy(), kept.num_edges, kept.indices.numpy()
            if weights.values is not None:
                tables = weights.values.numpy(), *weights.tables()
        outcome, vertex = walks.walk(
            (indptr, indices, csc.num_src),
            rows,
            tables,
            self._chances(),
            self._ends(),
            (np.uint64(derive_key(key, 0)), np.uint64(derive_key(key, 1))),
            self.stay,
            first,
            stop,
            traces.numpy(),
            taken.numpy(),
        )
        if outcome == walks.BAD_ROW:
            raise_bad_row(vertex)
        if outcome == walks.BAD_SOURCE:
            raise_bad_source(vertex, csc.num_src)
        # The kernel writes positions in the CSC, and -1 after a walk's end.
        if len(taken) and csc.edge_ids is not None:
            part = taken[:, first:stop]
            there = part >= 0
            part[there] = csc.ids_at(part[there]).long()

    def _chances(self) -> tuple[float, float, float]:
        """Factors of the weights of edges back, to a neighbour of the previous vertex, and to any
        other; scaled to a maximum of 1."""
        most = max(1 / self.p, 1.0, 1 / self.q)
        return 1 / self.p / most, 1 / most, 1 / self.q / most

    def _ends(self) -> Any:
        """Probability to end before each step, float64; empty if that is 0."""
        if self.end_prob == 0.0:
            return np.empty(0)
        # Own memory: a read-only array would be another signature, which compiles anew.
        return np.full(self.num_steps, self.end_prob, np.float64)


def most_visited(
    walks: Tensor, per_start: int, every: int, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The vertices that the walks of each start visit most often (PinSAGE: Ying et al., KDD 2018,
    section 3.1).

    Args:
        walks: Shape ``(n * per_start, num_steps + 1)``, int64: :attr:`Walks.vertices`, start by
            start.
        per_start: Number of walks per start.
        every: Steps between visits that count. The start counts only if a walk returns to it.
        most: Maximum number of vertices per start.

    Returns:
        The vertices, and the start and number of visits of each, int64. Those of a start are
        ordered by visits, then by id, both descending.
    """
    from .kernels import walks as kernels

    room = len(walks) // per_start * min(most, per_start * ((walks.shape[1] - 1) // every))
    found = [torch.empty(room, dtype=torch.int64, device="cpu") for _ in range(3)]
    count = kernels.most_visited(
        walks.numpy(), per_start, every, most, *(part.numpy() for part in found)
    )
    sources, starts, counts = (part[:count] for part in found)
    return sources, starts, counts


def _as_number(name: str, value: Any) -> float:
    """An argument as a float; TypeError if it is not a number."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)
