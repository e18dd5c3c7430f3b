"""Compares the vertices and edges of a part with those of the whole graph."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...graph import Graph
from ..parts.part import Part
from .findings import Finding

__all__ = ["check_edges", "check_vertices"]

_EDGES_AT_ONCE = 2**21


def check_vertices(part: Part, whole: Graph) -> Iterator[Finding]:
    """The seeds, and what they reach in as many hops as the partition has: nothing else, and in order of hops."""
    ids, ends = part.global_ids, part.hop_ends
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= whole.num_nodes):
        yield _vertices(part, f"global_ids must be in [0, {whole.num_nodes}), got {int(ids.min())} to {int(ids.max())}")
        return
    member = torch.zeros(whole.num_nodes, dtype=torch.bool)
    member[ids] = True
    if int(member.sum()) != len(ids):
        yield _vertices(part, f"global_ids must be distinct, got {int(member.sum())} different ones of {len(ids)}")
        return
    for name, listed in (("train", part.train), ("val", part.val), ("test", part.test)):
        if bool((torch.diff(listed) <= 0).any()):
            yield _vertices(part, f"{name} must be ascending, and is not")
            return
    lists = [part.train, part.val, part.test] if part.manifest.evaluation == "parts" else [part.train]
    seeds = torch.unique(torch.cat(lists))
    if not torch.equal(seeds, torch.arange(ends[0])):
        yield _vertices(part, f"its seeds must be the first {ends[0]} vertices, got {len(seeds)} others")
        return
    seeds = ids[: ends[0]]
    if not torch.equal(seeds, seeds.sort().values):
        yield _vertices(part, "its seeds must be in ascending order of their global ids, and are not")
        return
    yield from _check_hops(part, whole, member)


def _check_hops(part: Part, whole: Graph, member: Tensor) -> Iterator[Finding]:
    """Follows the source's edges from the seeds on its own: what extracts parts is not to be trusted here."""
    ids, ends = part.global_ids, part.hop_ends
    ring = ids[: ends[0]]
    reached = torch.zeros(whole.num_nodes, dtype=torch.bool)
    reached[ring] = True
    for hop in range(1, len(ends)):
        new = torch.zeros(whole.num_nodes, dtype=torch.bool)
        for begin, end in _ranges(ring, whole):
            new[_Rows.of_source(whole, ring[begin:end]).sources] = True
        ring = (new & member & ~reached).nonzero().squeeze(1)
        reached[ring] = True
        got = ids[ends[hop - 1] : ends[hop]]
        if len(ring) != len(got):
            yield _vertices(part, f"{len(ring)} vertices must be found at hop {hop}, got {len(got)}")
            return
        if not torch.equal(ring, got):
            at = int((ring != got).nonzero()[0])
            vertex = f"vertex {ends[hop - 1] + at} (of hop {hop})"
            yield _vertices(part, f"{vertex} must be {int(ring[at])} of the source, got {int(got[at])}")
            return


def check_edges(part: Part, whole: Graph) -> Iterator[Finding]:
    """All in-edges of vertices up to the last hop but one, parallel ones and their order included; no others.

    The part's vertices have been checked.
    """
    member = torch.zeros(whole.num_nodes, dtype=torch.bool)
    member[part.global_ids] = True
    missing, sources = 0, torch.zeros(whole.num_nodes, dtype=torch.bool)
    inner, entry = part.hop_ends[-2], part.manifest.folders[part.index]
    for begin, end in _ranges(part.global_ids[:inner], whole):
        want = _Rows.of_source(whole, part.global_ids[begin:end])
        there = member[want.sources]
        missing += int((~there).sum())
        sources[want.sources[~there]] = True
        finding = _compare(part, begin, want.only(there), _Rows.of_part(part, begin, end))
        if finding is not None:
            yield finding
            return
    if int(part.graph.csc.indptr[inner]) != part.graph.num_edges:
        extra = part.graph.num_edges - int(part.graph.csc.indptr[inner])
        yield _edges(part, f"vertices of the last hop must have no in-edges, got {extra}")
    if missing and not part.manifest.capped:
        yield _edges(part, f"the in-neighbourhood must be complete, got {missing} in-edges missing")
    counts = (missing, int(sources.sum()))
    if counts != (entry.missing, entry.dropped):
        got = f"{counts[0]} from {counts[1]}"
        yield _edges(part, f"in-edges missing must be {entry.missing} from {entry.dropped} vertices, got {got}")


class _Rows:
    """In-edges of consecutive vertices: how many each has, and the edges' sources and ids in the whole graph."""

    def __init__(self, counts: Tensor, sources: Tensor, edge_ids: Tensor) -> None:
        self.counts = counts
        self.sources = sources
        self.edge_ids = edge_ids

    @classmethod
    def of_source(cls, whole: Graph, ids: Tensor) -> _Rows:
        csc = whole.csc
        starts = csc.indptr[ids].long()
        counts = csc.indptr[ids + 1].long() - starts
        first = counts.cumsum(0) - counts
        positions = torch.arange(int(counts.sum())) + torch.repeat_interleave(starts - first, counts)
        edge_ids = positions if csc.edge_ids is None else csc.edge_ids[positions].long()
        return cls(counts, csc.indices[positions].long(), edge_ids)

    @classmethod
    def of_part(cls, part: Part, begin: int, end: int) -> _Rows:
        indptr, indices = part.graph.csc.indptr[begin : end + 1].long(), part.graph.csc.indices
        edges = slice(int(indptr[0]), int(indptr[-1]))
        sources = part.global_ids[indices[edges].long()]
        return cls(torch.diff(indptr), sources, part.global_edge_ids[edges].long())

    def only(self, kept: Tensor) -> _Rows:
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), kept.long().cumsum(0)])
        rows = torch.cat([torch.zeros(1, dtype=torch.int64), self.counts.cumsum(0)])
        return _Rows(torch.diff(ends[rows]), self.sources[kept], self.edge_ids[kept])


def _compare(part: Part, begin: int, want: _Rows, got: _Rows) -> Finding | None:
    if not torch.equal(want.counts, got.counts):
        at = int((want.counts != got.counts).nonzero()[0])
        vertex = f"vertex {begin + at} ({int(part.global_ids[begin + at])} of the source)"
        return _edges(part, f"{vertex} must have {int(want.counts[at])} in-edges, got {int(got.counts[at])}")
    for what, wanted, found in (
        ("come from vertex", want.sources, got.sources),
        ("be edge", want.edge_ids, got.edge_ids),
    ):
        if not torch.equal(wanted, found):
            at = int((wanted != found).nonzero()[0])
            row = begin + int(torch.searchsorted(want.counts.cumsum(0), at, right=True))
            edge = f"an in-edge of vertex {row} ({int(part.global_ids[row])} of the source)"
            return _edges(part, f"{edge} must {what} {int(wanted[at])} of the source, got {int(found[at])}")
    return None


def _ranges(ids: Tensor, whole: Graph) -> Iterator[tuple[int, int]]:
    """Runs of ``ids`` with at most two million in-edges together, or of one vertex."""
    ends = (whole.csc.indptr[ids + 1].long() - whole.csc.indptr[ids].long()).cumsum(0)
    begin = 0
    while begin < len(ids):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(torch.searchsorted(ends, before + _EDGES_AT_ONCE, right=True)))
        yield begin, end
        begin = end


def _vertices(part: Part, message: str) -> Finding:
    return Finding("vertices", part.index, message)


def _edges(part: Part, message: str) -> Finding:
    return Finding("edges", part.index, message)
