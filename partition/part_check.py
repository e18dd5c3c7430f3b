"""Compares the vertices, edges and fields of a part with those of the whole graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.field_value import FieldValue
from ..graph.graph import Graph
from ..graph.narrow_rows import NarrowRows
from .extract import SelectedRows
from .manifest import SPLITS
from .opening import Part
from .writing import OWN_FIELDS

__all__ = ["Finding", "check_edges", "check_fields", "check_vertices"]

_EDGES_AT_ONCE = 2**21
_BYTES_AT_ONCE = 16 * 2**20


@dataclass(frozen=True)
class Finding:
    """One fault in a part, or in all of them (None), with the broken rule and the value found; ``check`` is "files",
    "vertices", "edges", "fields", "training" or "evaluation"."""

    check: str
    part: int | None
    message: str

    def __str__(self) -> str:
        return self.message if self.part is None else f"part {self.part}: {self.message}"


def check_vertices(part: Part, whole: Graph) -> Iterator[Finding]:
    """Compare vertices: the seeds, and what they reach in as many hops as the partition has, in order of hops."""
    message = _wrong_vertices(part, whole)
    if message is not None:
        yield Finding("vertices", part.index, message)


def _wrong_vertices(part: Part, whole: Graph) -> str | None:
    ids, ends = part.global_ids, part.hop_ends
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= whole.num_nodes):
        return f"global_ids must be in [0, {whole.num_nodes}), got {int(ids.min())} to {int(ids.max())}"
    member = torch.zeros(whole.num_nodes, dtype=torch.bool, device="cpu")
    member[ids] = True
    if int(member.sum()) != len(ids):
        return f"global_ids must be distinct, got {int(member.sum())} different ones of {len(ids)}"
    lists = {name: getattr(part, name) for name in SPLITS}
    for name, listed in lists.items():
        if bool((torch.diff(listed) <= 0).any()):
            return f"{name} must be ascending, and is not"
    seeds = torch.unique(torch.cat([*lists.values()])) if part.manifest.evaluation == "parts" else part.train
    if not torch.equal(seeds, torch.arange(ends[0], device="cpu")):
        return f"its seeds must be the first {ends[0]} vertices, got {len(seeds)} others"
    if not torch.equal(ids[: ends[0]], ids[: ends[0]].sort().values):
        return "its seeds must be in ascending order of their global ids, and are not"
    return _wrong_hops(part, whole, member)


def _wrong_hops(part: Part, whole: Graph, member: Tensor) -> str | None:
    """Follows the source's edges from the seeds on its own: what extracts parts is not to be trusted here."""
    ids, ends = part.global_ids, part.hop_ends
    ring = ids[: ends[0]]
    reached = torch.zeros(whole.num_nodes, dtype=torch.bool, device="cpu")
    reached[ring] = True
    for hop in range(1, len(ends)):
        new = torch.zeros(whole.num_nodes, dtype=torch.bool, device="cpu")
        for begin, end in _ranges(ring, whole):
            new[_Rows.of_source(whole, ring[begin:end]).sources] = True
        ring = (new & member & ~reached).nonzero().squeeze(1)
        reached[ring] = True
        got = ids[ends[hop - 1] : ends[hop]]
        if len(ring) != len(got):
            return f"{len(ring)} vertices must be found at hop {hop}, got {len(got)}"
        if not torch.equal(ring, got):
            at = int((ring != got).nonzero()[0])
            vertex = f"vertex {ends[hop - 1] + at} (of hop {hop})"
            return f"{vertex} must be {int(ring[at])} of the source, got {int(got[at])}"
    return None


def check_edges(part: Part, whole: Graph) -> Iterator[Finding]:
    """Compare in-edges of vertices (checked by now) up to the last hop but one, with parallel ones and their order."""
    member = torch.zeros(whole.num_nodes, dtype=torch.bool, device="cpu")
    member[part.global_ids] = True
    missing, sources = 0, torch.zeros(whole.num_nodes, dtype=torch.bool, device="cpu")
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


@dataclass(frozen=True, eq=False)
class _Rows:
    """In-edges of consecutive vertices: how many each has, and the edges' sources and ids in the whole graph."""

    counts: Tensor
    sources: Tensor
    edge_ids: Tensor

    @classmethod
    def of_source(cls, whole: Graph, ids: Tensor) -> _Rows:
        csc = whole.csc
        starts = csc.indptr[ids].long()
        counts = csc.indptr[ids + 1].long() - starts
        first = counts.cumsum(0) - counts
        positions = torch.arange(int(counts.sum()), device="cpu") + torch.repeat_interleave(starts - first, counts)
        edge_ids = positions if csc.edge_ids is None else csc.edge_ids[positions].long()
        return cls(counts, csc.indices[positions].long(), edge_ids)

    @classmethod
    def of_part(cls, part: Part, begin: int, end: int) -> _Rows:
        indptr, indices = part.graph.csc.indptr[begin : end + 1].long(), part.graph.csc.indices
        edges = slice(int(indptr[0]), int(indptr[-1]))
        sources = part.global_ids[indices[edges].long()]
        return cls(torch.diff(indptr), sources, part.global_edge_ids[edges].long())

    def only(self, kept: Tensor) -> _Rows:
        ends = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), kept.long().cumsum(0)])
        rows = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), self.counts.cumsum(0)])
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


def _edges(part: Part, message: str) -> Finding:
    return Finding("edges", part.index, message)


def check_fields(part: Part, whole: Graph) -> Iterator[Finding]:
    """Compare fields, bit for bit: rows of the source, degrees, masks; vertices and edges have been checked."""
    ids, csc = part.global_ids, whole.csc
    want: dict[str, Tensor | SelectedRows] = {
        "in_degrees": (csc.indptr[ids + 1] - csc.indptr[ids]).long(),
        "out_degrees": csc.source_counts[ids],
    }
    if csc.loop_counts.any():
        want["self_loops"] = csc.loop_counts[ids].long()
    for name in SPLITS:
        if name == "train" or f"{name}_mask" in whole.ndata:
            want[f"{name}_mask"] = torch.zeros(len(ids), dtype=torch.bool, device="cpu").index_fill_(
                0, getattr(part, name), True
            )
    referenced = {} if part.manifest.source is None else part.manifest.source.fields
    for name, value in whole.ndata.items():
        if name not in want and name not in referenced:
            want[name] = SelectedRows(value, ids, as_stored=True)
    yield from _compare_all(part, "vertices", want, part.graph.ndata, OWN_FIELDS)
    edges = {name: SelectedRows(value, part.global_edge_ids, as_stored=True) for name, value in whole.edata.items()}
    yield from _compare_all(part, "edges", edges, part.graph.edata, ("global_ids",))


def _compare_all(
    part: Part,
    owner: str,
    want: Mapping[str, Tensor | SelectedRows],
    got: Mapping[str, FieldValue],
    own: tuple[str, ...],
) -> Iterator[Finding]:
    for name in want.keys() | (got.keys() - set(own)):
        message = _difference(want.get(name), got.get(name))
        if message is not None:
            yield Finding("fields", part.index, f"field {name!r} of its {owner} {message}")


def _difference(want: Tensor | SelectedRows | None, got: FieldValue | None) -> str | None:
    if want is None:
        return "must not be there, the source has none"
    if got is None:
        return "must be there as in the source, got none"
    decoding = getattr(want, "decoding", None)
    if decoding != (got.decoding if isinstance(got, NarrowRows) else None):
        return f"must be stored as in the source, {decoding}, got {got!r}"
    got = got.stored if isinstance(got, NarrowRows) else got
    if (want.dtype, tuple(want.shape)) != (got.dtype, tuple(got.shape)):
        return f"must be {want.dtype} of shape {list(want.shape)}, got {got.dtype} of shape {list(got.shape)}"
    rows = got.shape[0]
    step = max(1, _BYTES_AT_ONCE // max(1, got[:1].numel() * got.element_size()))
    for begin in range(0, rows, step):
        some = slice(begin, min(begin + step, rows))
        different = (_bits(want[some]) != _bits(got[some])).any(1)
        if different.any():
            row = begin + int(different.nonzero()[0])
            return f"must have the source's rows, row {row} differs"
    return None


def _bits(rows: Tensor) -> Tensor:
    """Bytes of each row: NaN equals itself."""
    return rows.contiguous().reshape(len(rows), math.prod(rows.shape[1:])).view(torch.uint8)
