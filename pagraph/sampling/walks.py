"""RandomWalks: walks over a graph's edges, any number of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import CSC, check_range
from ..seeds.keys import derive_key
from ..system.checks import as_integer
from .hop import raise_bad_row, raise_bad_source

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph

__all__ = ["RandomWalks", "Walks"]


@dataclass(frozen=True, eq=False)
class Walks:
    """Walks in rows, each as long as the longest may be.

    Attributes:
        vertices: Shape ``(n, num_steps + 1)``: the start, and the vertex after each step; -1 after a walk's end.
        edges: Shape ``(n, num_steps)``: ids of the edges taken, -1 where there is none; None where not asked for.
    """

    vertices: Tensor
    edges: Tensor | None = None


@dataclass(frozen=True)
class RandomWalks:
    """Walks from given vertices, each step along an edge drawn from those of the vertex it is at.

    A walk ends at a vertex without edges. What it draws depends on the key and on its place among the starts alone.

    Args:
        steps: Number of steps along a graph's one edge type, or the edge type of each step.
        end_prob: Probability to end before a step: one number, or one for each step.
        edge_dir: "out" walks along the edges, "in" against them, and then the types are those passed backwards.
        stay: Stay at a vertex without edges, in place of ending there.

    Raises:
        TypeError: ``steps`` is neither an integer nor edge types.
        ValueError: There is no step, an edge type does not begin where the one before ends, or ``end_prob`` is outside
            [0, 1] or not one for each step.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 0])
        >>> RandomWalks(4).sample(graph, torch.tensor([0, 2])).vertices.tolist()
        [[0, 1, 2, 0, 1], [2, 0, 1, 2, 0]]
    """

    steps: int | Sequence[EdgeType]
    end_prob: float | Sequence[float] = 0.0
    edge_dir: str = "out"
    stay: bool = False

    def __post_init__(self) -> None:
        if self.edge_dir not in ("in", "out"):
            raise ValueError(f"edge_dir must be 'in' or 'out', got {self.edge_dir!r}")
        if isinstance(self.steps, str) or not isinstance(self.steps, Sequence):
            object.__setattr__(self, "steps", as_integer("steps", self.steps, least=1))
        else:
            object.__setattr__(self, "steps", self._check_path(tuple(self.steps)))
        object.__setattr__(self, "end_prob", self._check_end_prob())

    def _check_path(self, path: tuple[Any, ...]) -> tuple[EdgeType, ...]:
        if not path:
            raise ValueError("steps must be at least 1, got an empty path")
        for etype in path:
            if not isinstance(etype, tuple) or len(etype) != 3:
                raise TypeError(f"steps must be a number or edge types, such as ('a', 'to', 'b'), got {etype!r}")
        begin, end = (0, 2) if self.edge_dir == "out" else (2, 0)
        for before, after in zip(path[:-1], path[1:], strict=True):
            if before[end] != after[begin]:
                raise ValueError(
                    f"steps must lead from one to the next, {after} does not begin at {before[end]!r}, where {before} ends"
                )
        return path

    def _check_end_prob(self) -> float | tuple[float, ...]:
        given: Any = self.end_prob
        several = [given] if isinstance(given, int | float) else [float(each) for each in given]
        if not isinstance(given, int | float) and len(several) != self.num_steps:
            raise ValueError(f"end_prob must have one entry for each of {self.num_steps} steps, got {len(several)}")
        for each in several:
            if not 0 <= each <= 1:
                raise ValueError(f"end_prob must be in [0, 1], got {each}")
        return float(given) if isinstance(given, int | float) else tuple(several)

    @property
    def num_steps(self) -> int:
        """Steps of a walk that does not end before."""
        return self.steps if isinstance(self.steps, int) else len(self.steps)

    def sample(
        self,
        graph: Graph,
        starts: Tensor,
        key: int = 0,
        *,
        dtype: torch.dtype = torch.int64,
        edges: bool = False,
    ) -> Walks:
        """Walk from each of the starts.

        Args:
            graph: Vertices and edges.
            starts: Shape ``(n,)``, int32 or int64, on the CPU: vertices of the type that the first step leaves.
            key: Any 64-bit number; equal keys give equal walks.
            dtype: Dtype of the result, int32 or int64.
            edges: Return the ids of the edges taken, too.

        Raises:
            IndexError: A start is not in the graph.
            KeyError: The graph has no such edge type.
            ValueError: There are several edge types, and ``steps`` is a number.
        """
        path = [self._adjacency(graph, etype) for etype in self._path(graph)]
        check_range("starts", starts, path[0].num_dst, IndexError)
        vertices = torch.empty((len(starts), self.num_steps + 1), dtype=dtype, device="cpu")
        vertices[:, 0] = starts
        taken = torch.empty((len(starts), self.num_steps) if edges else (0, 0), dtype=dtype, device="cpu")
        first = 0
        for csc, run in groupby(path):
            stop = first + len(list(run))
            self._walk(csc, vertices, taken, first, stop, key)
            first = stop
        return Walks(vertices, taken if edges else None)

    def _path(self, graph: Graph) -> Sequence[EdgeType]:
        if not isinstance(self.steps, int):
            return self.steps
        if len(graph.edge_types) != 1:
            raise ValueError(f"steps must be edge types for a graph of several, {graph.edge_types}; got {self.steps}")
        etype = graph.edge_types[0]
        if etype[0] != etype[2] and self.steps > 1:
            raise ValueError(f"steps must be 1 along edges between different vertex types {etype}, got {self.steps}")
        return [etype] * self.steps

    def _adjacency(self, graph: Graph, edge_type: EdgeType) -> CSC:
        return graph.csc_of(edge_type) if self.edge_dir == "in" else graph.out_csc_of(edge_type)

    def _walk(self, csc: CSC, vertices: Tensor, taken: Tensor, first: int, stop: int, key: int) -> None:
        """Take the steps ``first`` to ``stop - 1``, all along one edge type."""
        from .kernels import walks

        ends = (
            np.empty(0) if self.end_prob == 0.0 else np.broadcast_to(np.asarray(self.end_prob), self.num_steps).copy()
        )
        outcome, vertex = walks.uniform_walks(
            csc.indptr.numpy(),
            csc.indices.numpy(),
            csc.num_src,
            vertices.numpy(),
            taken.numpy(),
            first,
            stop,
            np.uint64(derive_key(key, 0)),
            0,
            ends,
            np.uint64(derive_key(key, 1)),
            self.stay,
        )
        if outcome == walks.BAD_ROW:
            raise_bad_row(vertex)
        if outcome == walks.BAD_SOURCE:
            raise_bad_source(vertex, csc.num_src)
        if len(taken) and csc.edge_ids is not None:
            part = taken[:, first:stop]
            part.copy_(torch.where(part < 0, -1, csc.edge_ids[part.clamp(min=0).long()]))
