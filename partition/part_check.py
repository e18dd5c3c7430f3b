"""Compares the vertices, edges and fields of a part with those of the whole graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.fields import FieldValue
from ..graph.graph import CSC, EdgeType, Graph
from ..graph.stored_rows import NarrowRows
from .extract import SelectedRows
from .manifest import SPLITS
from .numbering import of_type
from .opening import Part
from .writing import own_fields

__all__ = ["Finding", "check_edges", "check_fields", "check_vertices"]

_EDGES_AT_ONCE = 2**21
_BYTES_AT_ONCE = 16 * 2**20


@dataclass(frozen=True)
class Finding:
    """One fault in a part, or in all of them (None), with the broken rule and the value found;
    ``check`` is "files", "vertices", "edges", "fields", "training" or "evaluation"."""

    check: str
    part: int | None
    message: str

    def __str__(self) -> str:
        return self.message if self.part is None else f"part {self.part}: {self.message}"


def check_vertices(part: Part, whole: Graph) -> Iterator[Finding]:
    """Compare vertices: the seeds, and what they reach in as many hops as the partition has, in
    order of hops."""
    message = _wrong_ids(part, whole) or _wrong_seeds(part) or _wrong_hops(part, whole)
    if message is not None:
        yield Finding("vertices", part.index, message)


def _wrong_ids(part: Part, whole: Graph) -> str | None:
    for node_type in whole.node_types:
        ids, of, count = (
            part.global_ids_of(node_type),
            of_type(whole, node_type),
            whole.num_nodes_of(node_type),
        )
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= count):
            return (
                f"global_ids{of} must be in [0, {count}), got {int(ids.min())} to {int(ids.max())}"
            )
        distinct = int(_marked(whole, node_type, ids).sum())
        if distinct != len(ids):
            return f"global_ids{of} must be distinct, got {distinct} different ones of {len(ids)}"
    return None


def _wrong_seeds(part: Part) -> str | None:
    ids, end = part.global_ids_of(part.train_type), part.hop_ends_of(part.train_type)[0]
    lists = {name: getattr(part, name) for name in SPLITS}
    for name, listed in lists.items():
        if bool((torch.diff(listed) <= 0).any()):
            return f"{name} must be ascending, and is not"
    seeds = (
        torch.unique(torch.cat([*lists.values()]))
        if part.manifest.evaluation == "parts"
        else part.train
    )
    if not torch.equal(seeds, torch.arange(end, device="cpu")):
        return f"its seeds must be the first {end} vertices, got {len(seeds)} others"
    if not torch.equal(ids[:end], ids[:end].sort().values):
        return "its seeds must be in ascending order of their global ids, and are not"
    return None


def _wrong_hops(part: Part, whole: Graph) -> str | None:
    """Follows the source's edges from the seeds on its own: what extracts parts is not to be
    trusted here."""
    member = {name: _marked(whole, name, part.global_ids_of(name)) for name in whole.node_types}
    rings = {
        name: part.global_ids_of(name)[: part.hop_ends_of(name)[0]] for name in whole.node_types
    }
    reached = {name: _marked(whole, name, ring) for name, ring in rings.items()}
    for hop in range(1, part.hops + 1):
        new = {name: _marked(whole, name) for name in whole.node_types}
        for edge_type in whole.edge_types:
            csc, ring = whole.csc_of(edge_type), rings[edge_type[2]]
            for begin, end in _ranges(ring, csc):
                new[edge_type[0]][_Rows.of_source(csc, ring[begin:end]).sources] = True
        for name in whole.node_types:
            rings[name] = (new[name] & member[name] & ~reached[name]).nonzero().squeeze(1)
            reached[name][rings[name]] = True
            begin, end = part.hop_ends_of(name)[hop - 1 : hop + 1]
            ring, got, of = rings[name], part.global_ids_of(name)[begin:end], of_type(whole, name)
            if len(ring) != len(got):
                return f"{len(ring)} vertices{of} must be found at hop {hop}, got {len(got)}"
            if not torch.equal(ring, got):
                at = int((ring != got).nonzero()[0])
                vertex = f"vertex {begin + at}{of} (of hop {hop})"
                return f"{vertex} must be {int(ring[at])} of the source, got {int(got[at])}"
    return None


def _marked(whole: Graph, node_type: str, ids: Tensor | None = None) -> Tensor:
    """Mask of the whole graph's vertices of a type that is True at ``ids``."""
    mask = torch.zeros(whole.num_nodes_of(node_type), dtype=torch.bool, device="cpu")
    if ids is not None:
        mask[ids] = True
    return mask


def check_edges(part: Part, whole: Graph) -> Iterator[Finding]:
    """Compare in-edges of vertices (checked by now) up to the last hop but one, with parallel ones
    and their order."""
    absent = {name: _marked(whole, name) for name in whole.node_types}
    missing, entry = 0, part.manifest.folders[part.index]
    for edge_type in whole.edge_types:
        message, left_out = _compare_edges(part, whole, edge_type, absent[edge_type[0]])
        missing += left_out
        if message is not None:
            yield _edges(part, f"{message}{of_type(whole, edge_type)}")
            return
    if missing and not part.manifest.capped:
        yield _edges(part, f"the in-neighbourhood must be complete, got {missing} in-edges missing")
    counts = (missing, sum(int(mask.sum()) for mask in absent.values()))
    if counts != (entry.missing, entry.dropped):
        got = f"{counts[0]} from {counts[1]}"
        yield _edges(
            part,
            f"in-edges missing must be {entry.missing} from {entry.dropped} vertices, got {got}",
        )


def _compare_edges(
    part: Part, whole: Graph, edge_type: EdgeType, absent: Tensor
) -> tuple[str | None, int]:
    """Fault in the edges of a type, and how many the part lacks, whose sources are marked in
    ``absent``."""
    member = _marked(whole, edge_type[0], part.global_ids_of(edge_type[0]))
    ids, inner, missing = part.global_ids_of(edge_type[2]), part.hop_ends_of(edge_type[2])[-2], 0
    for begin, end in _ranges(ids[:inner], whole.csc_of(edge_type)):
        want = _Rows.of_source(whole.csc_of(edge_type), ids[begin:end])
        there = member[want.sources]
        missing += int((~there).sum())
        absent[want.sources[~there]] = True
        message = _compare(ids, begin, want.only(there), _Rows.of_part(part, edge_type, begin, end))
        if message is not None:
            return message, missing
    csc = part.graph.csc_of(edge_type)
    if int(csc.indptr[inner]) != csc.num_edges:
        extra = csc.num_edges - int(csc.indptr[inner])
        return f"vertices of the last hop must have no in-edges, got {extra}", missing
    return None, missing


@dataclass(frozen=True, eq=False)
class _Rows:
    """In-edges of consecutive vertices: how many each has, and the edges' sources and ids in the
    whole graph."""

    counts: Tensor
    sources: Tensor
    edge_ids: Tensor

    @classmethod
    def of_source(cls, csc: CSC, ids: Tensor) -> _Rows:
        starts = csc.indptr[ids].long()
        counts = csc.indptr[ids + 1].long() - starts
        first = counts.cumsum(0) - counts
        positions = torch.arange(int(counts.sum()), device="cpu") + torch.repeat_interleave(
            starts - first, counts
        )
        edge_ids = positions if csc.edge_ids is None else csc.edge_ids[positions].long()
        return cls(counts, csc.indices[positions].long(), edge_ids)

    @classmethod
    def of_part(cls, part: Part, edge_type: EdgeType, begin: int, end: int) -> _Rows:
        csc = part.graph.csc_of(edge_type)
        indptr = csc.indptr[begin : end + 1].long()
        edges = slice(int(indptr[0]), int(indptr[-1]))
        sources = part.global_ids_of(edge_type[0])[csc.indices[edges].long()]
        return cls(torch.diff(indptr), sources, part.global_edge_ids_of(edge_type)[edges].long())

    def only(self, kept: Tensor) -> _Rows:
        ends = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), kept.long().cumsum(0)])
        rows = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), self.counts.cumsum(0)])
        return _Rows(torch.diff(ends[rows]), self.sources[kept], self.edge_ids[kept])


def _compare(ids: Tensor, begin: int, want: _Rows, got: _Rows) -> str | None:
    """Fault in the in-edges of the vertices from ``begin`` on, whose ids in the source are ``ids``;
    None: none."""
    if not torch.equal(want.counts, got.counts):
        at = int((want.counts != got.counts).nonzero()[0])
        vertex = f"vertex {begin + at} ({int(ids[begin + at])} of the source)"
        return f"{vertex} must have {int(want.counts[at])} in-edges, got {int(got.counts[at])}"
    for what, wanted, found in (
        ("come from vertex", want.sources, got.sources),
        ("be edge", want.edge_ids, got.edge_ids),
    ):
        if not torch.equal(wanted, found):
            at = int((wanted != found).nonzero()[0])
            row = begin + int(torch.searchsorted(want.counts.cumsum(0), at, right=True))
            edge = f"an in-edge of vertex {row} ({int(ids[row])} of the source)"
            return f"{edge} must {what} {int(wanted[at])} of the source, got {int(found[at])}"
    return None


def _ranges(ids: Tensor, csc: CSC) -> Iterator[tuple[int, int]]:
    """Runs of ``ids`` with at most two million in-edges together, or of one vertex."""
    ends = (csc.indptr[ids + 1].long() - csc.indptr[ids].long()).cumsum(0)
    begin = 0
    while begin < len(ids):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(torch.searchsorted(ends, before + _EDGES_AT_ONCE, right=True)))
        yield begin, end
        begin = end


def _edges(part: Part, message: str) -> Finding:
    return Finding("edges", part.index, message)


def check_fields(part: Part, whole: Graph) -> Iterator[Finding]:
    """Compare fields, bit for bit: rows of the source, degrees, masks; vertices and edges have been
    checked."""
    for node_type in whole.node_types:
        owner, own = f"vertices{of_type(whole, node_type)}", own_fields(whole)
        got = part.graph.node_fields(node_type)
        yield from _compare_all(part, owner, _wanted_fields(part, whole, node_type), got, own)
    for edge_type in whole.edge_types:
        ids, got = part.global_edge_ids_of(edge_type), part.graph.edge_fields(edge_type)
        want = {
            name: SelectedRows(v, ids, as_stored=True)
            for name, v in whole.edge_fields(edge_type).items()
        }
        yield from _compare_all(
            part, f"edges{of_type(whole, edge_type)}", want, got, ("global_ids",)
        )


def _wanted_fields(part: Part, whole: Graph, node_type: str) -> Mapping[str, Tensor | SelectedRows]:
    """Fields that the part's vertices of a type must have, but those that it refers to."""
    ids, fields = part.global_ids_of(node_type), whole.node_fields(node_type)
    want: dict[str, Tensor | SelectedRows] = {}
    if whole.is_homogeneous:
        csc = whole.csc
        want["in_degrees"] = (csc.indptr[ids + 1] - csc.indptr[ids]).long()
        want["out_degrees"] = csc.source_counts[ids]
        if csc.loop_counts.any():
            want["self_loops"] = csc.loop_counts[ids].long()
    for name in SPLITS if node_type == part.train_type else ():
        if name == "train" or f"{name}_mask" in fields:
            want[f"{name}_mask"] = torch.zeros(
                len(ids), dtype=torch.bool, device="cpu"
            ).index_fill_(0, getattr(part, name), True)
    source = part.manifest.source
    referenced = (
        set()
        if source is None
        else {name for of, name, _ in source.arrays if of in (None, node_type)}
    )
    for name, value in fields.items():
        if name not in want and name not in referenced:
            want[name] = SelectedRows(value, ids, as_stored=True)
    return want


def _compare_all(
    part: Part,
    owner: str,
    want: Mapping[str, Tensor | SelectedRows] | Mapping[str, SelectedRows],
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
        return (
            f"must be {want.dtype} of shape {list(want.shape)}, got {got.dtype} of shape "
            f"{list(got.shape)}"
        )
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
