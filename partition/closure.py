"""What vertices reach in L hops along in-edges: the halo a part copies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph import Graph

__all__ = ["MAX_HOPS", "PartVertices", "vertices_within"]

MAX_HOPS = 253
"""Hops are counted in one byte."""


@dataclass(frozen=True, eq=False)
class PartVertices:
    """The vertices of a part, nearest first; a vertex's place is its local id.

    Attributes:
        ids: Global ids, shape ``(n,)``, int64: the seeds ascending, then those of hop 1 ascending, and so on.
        hop_ends: ``ids[:hop_ends[h]]`` are those within ``h`` hops; ``hops + 1`` numbers.
    """

    ids: Tensor
    hop_ends: tuple[int, ...]

    @property
    def num_seeds(self) -> int:
        """How many of the vertices are seeds."""
        return self.hop_ends[0]


def vertices_within(graph: Graph, seeds: Tensor, hops: int, *, without: Tensor | None = None) -> PartVertices:
    """The seeds and all that they reach in ``hops`` hops against the edges' direction.

    Takes one byte a vertex beside the graph, and reads each in-edge at most once: the graph may be mapped.

    Args:
        graph: One vertex type and one edge type.
        seeds: Distinct vertex ids, ascending, int64.
        hops: From 1 to 253 (0: the seeds alone).
        without: Ids of vertices that are left out, and so are not expanded either; seeds stay in any case.
    """
    from . import _closure

    csc = graph.csc
    hop_of = torch.full((csc.num_dst,), 255, dtype=torch.uint8)
    if without is not None:
        hop_of[without] = 254
    hop_of[seeds] = 0
    found, ends = [seeds], [len(seeds)]
    for hop in range(1, hops + 1):
        count = _closure.mark_sources(csc.indptr.numpy(), csc.indices.numpy(), found[-1].numpy(), hop, hop_of.numpy())
        found.append((hop_of == hop).nonzero().squeeze(1) if count else seeds[:0])
        ends.append(ends[-1] + count)
    return PartVertices(torch.cat(found), tuple(ends))
