"""Partition of a graph: the part of each training vertex, and the L-hop in-neighbourhood (halo)
each part holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.graph import Graph
from .numbering import Numbering, merged

__all__ = ["MAX_HOPS", "PartVertices", "Partition", "vertices_within"]

MAX_HOPS = 253
"""Largest number of hops, which are counted in one byte."""


@dataclass(frozen=True, eq=False)
class PartVertices:
    """Vertices of a part, nearest first; a vertex's place is its local id.

    Attributes:
        ids: Ids in the whole graph, shape ``(n,)``, int64: the seeds ascending, then those of hop 1
            ascending, and so on.
        hop_ends: ``ids[:hop_ends[h]]`` are those within ``h`` hops; ``hops + 1`` numbers.
    """

    ids: Tensor
    hop_ends: tuple[int, ...]

    @property
    def num_seeds(self) -> int:
        """Number of seeds."""
        return self.hop_ends[0]

    def by_type(self, numbering: Numbering) -> dict[str, PartVertices]:
        """The vertices of each type, ``ids`` being numbers over all types and those of the result
        within the type."""
        if len(numbering.num_nodes) == 1:
            return dict.fromkeys(numbering.num_nodes, self)
        hop_ends, found = torch.tensor(self.hop_ends, device="cpu"), {}
        for name, places in numbering.places(self.ids).items():
            ends = torch.searchsorted(places, hop_ends).tolist()
            found[name] = PartVertices(self.ids[places] - numbering.begin(name), tuple(ends))
        return found


def vertices_within(
    graph: Graph, seeds: Tensor, hops: int, *, without: Tensor | None = None
) -> PartVertices:
    """L-hop in-neighbourhood of seeds: the seeds and all that they reach against the edges'
    direction.

    Takes one byte a vertex beside the graph, and reads each in-edge at most once: the graph may be
    mapped.

    Args:
        graph: One vertex type and one edge type.
        seeds: Distinct vertex ids, ascending, int64.
        hops: From 0 to 253.
        without: Ids of vertices that are left out and not expanded either, unless they are seeds.
    """
    from . import _kernels

    csc = graph.csc
    hop_of = torch.full((csc.num_dst,), 255, dtype=torch.uint8, device="cpu")
    if without is not None:
        hop_of[without] = 254
    hop_of[seeds] = 0
    found, ends = [seeds], [len(seeds)]
    for hop in range(1, hops + 1):
        count = _kernels.mark_sources(
            csc.indptr.numpy(), csc.indices.numpy(), found[-1].numpy(), hop, hop_of.numpy()
        )
        found.append((hop_of == hop).nonzero().squeeze(1) if count else seeds[:0])
        ends.append(ends[-1] + count)
    return PartVertices(torch.cat(found), tuple(ends))


@dataclass(frozen=True, eq=False)
class Partition:
    """Assignment of a graph's training vertices to parts; each part also holds what its own reach
    in ``hops`` hops.

    Attributes:
        graph: The whole graph.
        train: Ids of the training vertices, which are of one type, ascending, shape ``(n,)``,
            int64.
        parts: The part of each of them, shape ``(n,)``, int32, in ``[0, num_parts)``.
        hops: In-neighbours of up to so many hops go with the training vertices.
        method: The name of the method that divided them.
        evaluation: The part of every vertex of ``evaluated``, int32; None where parts are for
            training only.
        evaluated: Ids of the validation and test vertices whose neighbourhoods parts hold as well,
            ascending, int64.
        dropped: For each part the ids of halo vertices that it does without (int64, ascending), of
            several types their numbers over all types; None: it lacks none.
        lost: Share of the neighbours that training would draw that parts do without; None where
            there is no limit.
        node_type: Type of the training and evaluated vertices; None: the only one.

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
    node_type: str | None = None

    def __repr__(self) -> str:
        how = f"hops={self.hops}, method={self.method!r}, train={len(self.train)}"
        return f"Partition({self.num_parts} parts, {how}, {self.graph})"

    @property
    def train_type(self) -> str:
        """Type of the training and evaluated vertices."""
        return self.graph.only_node_type if self.node_type is None else self.node_type

    @property
    def numbering(self) -> Numbering:
        """Numbers of the vertices over all types; for one type, their ids."""
        return Numbering(self.graph.num_nodes_by_type)

    @property
    def merged(self) -> Graph:
        """The graph with all types as one, see :func:`pagraph.partition.numbering.merged`."""
        return merged(self.graph)

    def train_of(self, part: int) -> Tensor:
        """Ids of the training vertices of a part, ascending, int64."""
        chosen: Tensor = self.train[self.parts == part]
        return chosen

    def seeds_of(self, part: int) -> Tensor:
        """Vertices whose whole neighbourhood the part holds, trained on or ``evaluated``: their
        numbers over all types, ascending, int64."""
        seeds = self.train_of(part)
        if self.evaluated is not None:
            seeds = torch.unique(torch.cat([seeds, self.evaluated[self.evaluation == part]]))
        return seeds + self.numbering.begin(self.train_type)

    def vertices(self, part: int) -> PartVertices:
        """Vertices of a part, by their numbers over all types: its seeds, then their in-neighbours
        hop by hop."""
        without = None if self.dropped is None else self.dropped[part]
        return vertices_within(self.merged, self.seeds_of(part), self.hops, without=without)
