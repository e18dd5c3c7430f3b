"""Partition: which part every training vertex is in, and so what each part must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph import Graph
from .closure import PartVertices, vertices_within

__all__ = ["Partition", "Progress"]

Progress = Callable[[int, int], None]
"""Called with the work done so far and the whole of it."""


@dataclass(frozen=True, eq=False)
class Partition:
    """A graph's training vertices divided over parts; each part also holds what its own reach in ``hops`` hops.

    Attributes:
        graph: The whole graph, with one vertex type and one edge type.
        train: Ids of the training vertices, ascending, shape ``(n,)``, int64.
        parts: The part of each of them, shape ``(n,)``, int32, in ``[0, num_parts)``.
        num_parts: Number of parts.
        hops: In-neighbours of up to so many hops go with the training vertices.
        method: The name of the method that divided them.
        evaluation: The part of every vertex of ``evaluated``, int32; None where parts are for training only.
        evaluated: Ids of the validation and test vertices whose neighbourhoods parts hold as well, ascending, int64.
        dropped: For each part the ids of halo vertices that it does without (int64, ascending); None: it lacks none.
        lost: Of the neighbours that training would draw, the share that parts do without; None where nobody limited it.

    Example:
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 3])
        >>> partition = Partition(graph, torch.tensor([1, 3]), torch.tensor([0, 1], dtype=torch.int32), 2, 1, "hash")
        >>> [partition.vertices(part).ids.tolist() for part in range(2)]
        [[1, 0], [3, 2]]
    """

    graph: Graph
    train: Tensor
    parts: Tensor
    num_parts: int
    hops: int
    method: str
    evaluation: Tensor | None = None
    evaluated: Tensor | None = None
    dropped: tuple[Tensor, ...] | None = None
    lost: float | None = None

    def __repr__(self) -> str:
        how = f"hops={self.hops}, method={self.method!r}, train={len(self.train)}"
        return f"Partition({self.num_parts} parts, {how}, {self.graph})"

    def train_of(self, part: int) -> Tensor:
        """Ids of the training vertices of a part, ascending, int64."""
        chosen: Tensor = self.train[self.parts == part]
        return chosen

    def seeds_of(self, part: int) -> Tensor:
        """Ids of all vertices whose whole neighbourhood the part holds, ascending, int64: its training vertices, and
        with ``evaluated`` its validation and test vertices."""
        train = self.train_of(part)
        if self.evaluated is None or self.evaluation is None:
            return train
        seeds: Tensor = torch.unique(torch.cat([train, self.evaluated[self.evaluation == part]]))
        return seeds

    def vertices(self, part: int) -> PartVertices:
        """All vertices of a part by hop: its seeds, then their in-neighbours hop by hop."""
        without = None if self.dropped is None else self.dropped[part]
        return vertices_within(self.graph, self.seeds_of(part), self.hops, without=without)
