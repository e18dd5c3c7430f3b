"""Compares a part with a second extraction from the whole graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.csc import CSC, id_range
from ..graph.fields import FieldValue
from ..graph.graph import EdgeType, Graph
from ..graph.stored_rows import NarrowRows
from .extract import PartFields, SelectedRows, edge_id_dtype, edges_inside, local_ids
from .manifest import SPLITS
from .opening import Part
from .partition import LEFT_OUT, UNREACHED, of_type

# Edges and bytes of rows to compare at a time, so that a part need not fit into memory. 2 M edges
# take 32 MiB with their ids; fields are read in blocks of the size they are written in.
_EDGES_AT_ONCE = 2**21
_BYTES_AT_ONCE = 16 * 2**20


@dataclass(frozen=True)
class Finding:
    """One fault in a part, or in the partition (part None): the rule, and what was found instead.

    ``check`` is "files", "vertices", "edges", "fields", "training" or "evaluation".
    """

    check: str
    part: int | None
    message: str

    def __str__(self) -> str:
        return self.message if self.part is None else f"part {self.part}: {self.message}"


def check_part(part: Part, whole: Graph) -> Iterator[Finding]:
    """Yield the findings of the first check of a part that finds anything."""
    # Each check relies on the ones before: wrong ids would make every edge wrong.
    for check, messages in (
        ("vertices", _check_vertices(part, whole)),
        ("edges", _check_edges(part, whole)),
        ("fields", _check_fields(part, whole)),
    ):
        found = [Finding(check, part.index, message) for message in messages]
        yield from found
        if found:
            return


def _check_vertices(part: Part, whole: Graph) -> Iterator[str]:
    message = _wrong_ids(part, whole) or _wrong_seeds(part) or _wrong_hops(part, whole)
    if message is not None:
        yield message


def _wrong_ids(part: Part, whole: Graph) -> str | None:
    # The range first: ids are indices below.
    for node_type in whole.node_types:
        ids = part.global_ids_of(node_type)
        name = f"global_ids{of_type(whole, node_type)}"
        count = whole.num_nodes_of(node_type)
        low, high = id_range(ids)
        if low < 0 or high >= count:
            return f"{name} must be in [0, {count}), got {low} to {high}"
        seen = torch.zeros(count, dtype=torch.bool, device="cpu")
        seen[ids] = True
        distinct = int(seen.sum())
        if distinct != len(ids):
            return f"{name} must be distinct, got {distinct} different ones of {len(ids)}"
    return None


def _wrong_seeds(part: Part) -> str | None:
    lists = {name: getattr(part, name) for name in SPLITS}
    for name, listed in lists.items():
        if bool((torch.diff(listed) <= 0).any()):
            return f"{name} must be ascending, and is not"
    seeds = part.train
    if part.manifest.evaluation == "parts":
        seeds = torch.unique(torch.cat([*lists.values()]))
    end = part.hop_ends_of(part.train_type)[0]
    if not torch.equal(seeds, torch.arange(end, device="cpu")):
        return f"its seeds must be the first {end} vertices, got {len(seeds)} others"
    ids = part.global_ids_of(part.train_type)[:end]
    if not torch.equal(ids, ids.sort().values):
        return "its seeds must be in ascending order of their global ids, and are not"
    return None


def _wrong_hops(part: Part, whole: Graph) -> str | None:
    """Follow the source's edges from the seeds, through the part's vertices alone."""
    from . import _kernels

    # By type: the graph with all types merged would be a copy of all edges.
    hop_of = {}
    ring = {}
    for name in whole.node_types:
        ids = part.global_ids_of(name)
        ring[name] = ids[: part.hop_ends_of(name)[0]]
        hop_of[name] = torch.full(
            (whole.num_nodes_of(name),), LEFT_OUT, dtype=torch.uint8, device="cpu"
        )
        hop_of[name][ids] = UNREACHED
        hop_of[name][ring[name]] = 0
    for hop in range(1, part.hops + 1):
        for edge_type in whole.edge_types:
            source, _, target = edge_type
            csc = whole.csc_of(edge_type)
            rows = (*csc.arrays, ring[target].numpy())
            _kernels.mark_sources(*rows, hop, hop_of[source].numpy())
        for name, hops in hop_of.items():
            ring[name] = (hops == hop).nonzero().squeeze(1)
            begin, end = part.hop_ends_of(name)[hop - 1 : hop + 1]
            got = part.global_ids_of(name)[begin:end]
            of = of_type(whole, name)
            if len(ring[name]) != len(got):
                return f"{len(ring[name])} vertices{of} must be found at hop {hop}, got {len(got)}"
            at = _first_difference(ring[name], got)
            if at is not None:
                vertex = f"vertex {begin + at}{of} (of hop {hop})"
                return f"{vertex} must be {int(ring[name][at])} of the source, got {int(got[at])}"
    return None


def _first_difference(want: Tensor, got: Tensor) -> int | None:
    """First place where two equally long lists differ."""
    if torch.equal(want, got):
        return None
    return int((want != got).nonzero()[0])


def _check_edges(part: Part, whole: Graph) -> Iterator[str]:
    """Compare the in-edges of the inner vertices in order, then the counts of missing ones."""
    # One table for all runs and types: it also marks which dropped vertices were counted.
    local = local_ids(whole, {name: part.global_ids_of(name) for name in whole.node_types})
    missing = 0
    dropped = 0
    for edge_type in whole.edge_types:
        csc = whole.csc_of(edge_type)
        dtype = edge_id_dtype(csc)
        inner = part.hop_ends_of(edge_type[2])[-2]
        ids = part.global_ids_of(edge_type[2])[:inner]
        for begin, end in _runs(ids, csc):
            want = edges_inside(csc, ids[begin:end], local[edge_type[0]], dtype)
            missing += want.missing
            dropped += want.dropped
            counts = torch.diff(part.graph.csc_of(edge_type).indptr[begin : end + 1])
            at = _first_difference(want.counts, counts)
            if at is not None:
                message = f"must have {int(want.counts[at])} in-edges, got {int(counts[at])}"
                yield f"{_vertex(part, edge_type, begin + at)} {message}{of_type(whole, edge_type)}"
                return
            fault = _wrong_edge(part, edge_type, begin, end, want.sources, want.edge_ids)
            if fault is not None:
                yield f"{fault}{of_type(whole, edge_type)}"
                return
        own = part.graph.csc_of(edge_type)
        extra = own.num_edges - int(own.indptr[inner])
        if extra:
            message = f"vertices of the last hop must have no in-edges, got {extra}"
            yield f"{message}{of_type(whole, edge_type)}"
            return
    if missing and not part.manifest.capped:
        yield f"the in-neighbourhood must be complete, got {missing} in-edges missing"
    entry = part.manifest.folders[part.index]
    if (missing, dropped) != (entry.missing, entry.dropped):
        rule = f"in-edges missing must be {entry.missing} from {entry.dropped} vertices"
        yield f"{rule}, got {missing} from {dropped}"


def _runs(ids: Tensor, csc: CSC) -> Iterator[tuple[int, int]]:
    """Runs of ``ids`` with at most two million in-edges together, or of a single vertex."""
    ends = (csc.indptr[ids + 1].long() - csc.indptr[ids].long()).cumsum(0)
    begin = 0
    while begin < len(ids):
        before = int(ends[begin - 1]) if begin else 0
        end = int(torch.searchsorted(ends, before + _EDGES_AT_ONCE, right=True))
        end = max(begin + 1, end)  # a vertex with more in-edges than that
        yield begin, end
        begin = end


def _wrong_edge(
    part: Part, edge_type: EdgeType, begin: int, end: int, sources: Tensor, edge_ids: Tensor
) -> str | None:
    """The first fault in the in-edges of vertices ``begin`` to ``end``; their number is right.

    ``sources`` are the local ids and ``edge_ids`` the ids that they must have.
    """
    csc = part.graph.csc_of(edge_type)
    first = int(csc.indptr[begin])
    edges = slice(first, first + len(sources))
    names = part.global_ids_of(edge_type[0])
    what = "come from vertex"
    want = sources
    got = csc.indices[edges]
    at = _first_difference(want, got)
    if at is not None:
        # Messages speak of the source's ids, which its owner knows.
        want = names[want.long()]
        got = names[got.long()]
    else:
        what = "be edge"
        want = edge_ids
        got = part.global_edge_ids_of(edge_type)[edges]
        at = _first_difference(want, got)
    if at is None:
        return None
    row = int(torch.searchsorted(csc.indptr[begin : end + 1], first + at, right=True)) - 1
    edge = f"an in-edge of {_vertex(part, edge_type, begin + row)}"
    return f"{edge} must {what} {int(want[at])} of the source, got {int(got[at])}"


def _vertex(part: Part, edge_type: EdgeType, local_id: int) -> str:
    """A destination, named by both of its ids."""
    return f"vertex {local_id} ({int(part.global_ids_of(edge_type[2])[local_id])} of the source)"


def _check_fields(part: Part, whole: Graph) -> Iterator[str]:
    """Compare fields bit for bit: rows of the source, degrees, masks."""
    source = part.manifest.source
    arrays = () if source is None else source.arrays
    referenced = {(part.train_type if of is None else of, name) for of, name, _ in arrays}
    fields = PartFields(whole, part.train_type, referenced)
    lists = {name: getattr(part, name) for name in SPLITS}
    for node_type in whole.node_types:
        ids = part.global_ids_of(node_type)
        owner = f"vertices{of_type(whole, node_type)}"
        want = fields.of_vertices(node_type, ids, lists)
        yield from _compare_fields(owner, want, part.graph.node_fields(node_type))
    for edge_type in whole.edge_types:
        edge_ids = part.global_edge_ids_of(edge_type)
        owner = f"edges{of_type(whole, edge_type)}"
        want = fields.of_edges(edge_type, edge_ids)
        yield from _compare_fields(owner, want, part.graph.edge_fields(edge_type))


def _compare_fields(
    owner: str, want: dict[str, Tensor | SelectedRows], got: dict[str, FieldValue]
) -> Iterator[str]:
    for name in dict.fromkeys([*want, *got]):
        message = _difference(want.get(name), got.get(name))
        if message is not None:
            yield f"field {name!r} of its {owner} {message}"


def _difference(want: Tensor | SelectedRows | None, got: FieldValue | None) -> str | None:
    if want is None:
        return "must not be there, the source has none"
    if got is None:
        return "must be there as in the source, got none"
    want_form = want.decoding if isinstance(want, SelectedRows) else None
    got_form = got.decoding if isinstance(got, NarrowRows) else None
    if want_form != got_form:
        return f"must be stored as in the source, {want_form}, got {got!r}"
    rows = got.stored if isinstance(got, NarrowRows) else got
    if (want.dtype, tuple(want.shape)) != (rows.dtype, tuple(rows.shape)):
        rule = f"must be {want.dtype} of shape {list(want.shape)}"
        return f"{rule}, got {rows.dtype} of shape {list(rows.shape)}"
    row_bytes = rows[:1].numel() * rows.element_size()
    step = max(1, _BYTES_AT_ONCE // max(1, row_bytes))  # rows of no columns have 0 bytes
    for begin in range(0, len(rows), step):
        some = slice(begin, begin + step)
        different = (_bits(want[some]) != _bits(rows[some])).any(1)
        if different.any():
            row = begin + int(different.nonzero()[0])
            return f"must have the source's rows, row {row} differs"
    return None


def _bits(rows: Tensor) -> Tensor:
    """Bytes of each row."""
    # As bytes NaN equals itself, and -0.0 is not 0.0.
    return rows.contiguous().reshape(len(rows), math.prod(rows.shape[1:])).view(torch.uint8)
