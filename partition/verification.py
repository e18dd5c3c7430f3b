"""Verification of a partition folder against the graph it was made from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..datasets.native import check_sum
from ..datasets.opening import open_graph
from ..errors import FormatError
from ..graph.csc import CSC, id_range
from ..graph.fields import FieldValue, mask_of
from ..graph.graph import EdgeType, Graph
from ..graph.stored_rows import NarrowRows
from ..system.checks import StrPath
from ..system.progress import Progress
from .extract import PartFields, SelectedRows, edge_id_dtype, edges_inside, local_ids
from .manifest import SPLITS, PartitionManifest, train_digest
from .opening import Part, check_whole, open_manifest, open_part
from .partition import LEFT_OUT, UNREACHED, of_type
from .source import SourceEntry, locate_source, open_source

_NO_HOP = 255  # above every hop, which end at 253
# Edges and bytes of rows to compare at a time, so that a part need not fit into memory. 2 M edges
# take 32 MiB with their ids; fields are read in blocks of the size they are written in.
_EDGES_AT_ONCE = 2**21
_BYTES_AT_ONCE = 16 * 2**20


@dataclass(frozen=True)
class Verification:
    """Outcome of :func:`verify_partition`: what is wrong, and how much was compared.

    Attributes:
        missing: Number of in-edges that parts lack because replication was limited.
    """

    num_parts: int
    train: int
    vertices: int
    edges: int
    missing: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def raise_if_wrong(self) -> None:
        """Raise a FormatError if there is any finding."""
        if self.findings:
            more = len(self.findings) - 1
            others = f" (and {more} more)" if more else ""
            raise FormatError(f"{self.findings[0]}{others}")


def verify_partition(
    out: StrPath,
    *,
    source: StrPath | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Compare every part of a partition folder with the graph it was made from.

    Checks that

    - all checksums are right;
    - every training vertex is in exactly one part;
    - each part holds everything its seeds reach, with all in-edges on the way, parallel ones
      included;
    - ids are those of the source;
    - fields, degrees and masks equal the source's, bit for bit;
    - every validation and test vertex that parts hold is listed by one part, which holds it at the
      lowest hop.

    Parts are extracted again, a few million edges and 16 MiB of rows at a time. Needs about 10
    bytes per vertex of the whole graph.

    Args:
        out: Folder that :func:`~pagraph.partition.write_partition` wrote; all parts must be there.
        source: Folder of the whole graph. Default: the one that the manifest names.
        progress: Called with the number of parts done and the number of all parts.

    Raises:
        FileNotFoundError: There is no such folder.
        FormatError: It holds no partition, or its source is missing or damaged.
        ValueError: ``source`` must be given, or is a graph of another size.
    """
    manifest = open_manifest(out)
    folder = Path(out)
    whole = open_whole(manifest.source, folder, source)
    check_whole(whole, manifest, folder)
    validate_whole(whole, folder)
    findings = list(_check_referenced(manifest, folder, source))
    parts: list[Part] = []
    for index in range(manifest.num_parts):
        try:
            part = open_part(folder, manifest, index, verify=True)
        except FormatError as error:
            findings.append(Finding("files", index, str(error)))
        else:
            found = list(_check_part(part, whole))
            findings += found
            if not any(finding.check == "vertices" for finding in found):
                parts.append(part)
        if progress is not None:
            progress(index + 1, manifest.num_parts)
    # If a part cannot be read or has wrong vertices, others would look missing or listed twice.
    if len(parts) == manifest.num_parts:
        findings += _check_training(parts, manifest, whole)
        findings += _check_evaluation(parts, manifest, whole)
    return Verification(
        manifest.num_parts,
        train=sum(len(part.train) for part in parts),
        vertices=sum(part.graph.num_nodes for part in parts),
        edges=sum(part.graph.num_edges for part in parts),
        missing=sum(entry.missing for entry in manifest.folders),
        findings=tuple(findings),
    )


def open_whole(entry: SourceEntry | None, out: Path, source: StrPath | None) -> Graph:
    """The graph that ``out`` was made from: in the folder ``source``, or the one that ``entry``
    names.

    Raises:
        FormatError: That folder is missing or damaged.
        ValueError: Both are None.
    """
    if source is not None:
        split = "" if entry is None else entry.split
        return open_graph(source, split=split)
    if entry is None:
        raise ValueError(f"source must be given, as {out} does not name the graph it was made from")
    return open_source(entry, out)


def validate_whole(whole: Graph, out: Path) -> None:
    """Raise FormatError if ids of the graph that ``out`` was made from are wrong."""
    try:
        for edge_type in whole.edge_types:
            whole.csc_of(edge_type).validate()
    except ValueError as error:
        raise FormatError(f"the source of {out} is corrupt: {error}") from error


def _check_referenced(
    manifest: PartitionManifest, out: Path, source: StrPath | None
) -> Iterator[Finding]:
    if manifest.source is None or not any(manifest.source.arrays):
        return
    folder = locate_source(manifest.source, out) if source is None else Path(source)
    for _, _, entry in manifest.source.arrays:
        try:
            check_sum(folder, entry)
        except FormatError as error:
            yield Finding("files", None, str(error))


def _check_training(
    parts: list[Part], manifest: PartitionManifest, whole: Graph
) -> Iterator[Finding]:
    """Check that each training vertex is in exactly one part, and no other vertex."""
    node_type = parts[0].train_type
    lists = [part.global_ids_of(node_type)[part.train] for part in parts]
    of_part, findings = _listed_once("training", lists, whole.num_nodes_of(node_type))
    yield from findings
    in_a_part = of_part >= 0
    mask = mask_of(whole.node_fields(node_type), "train_mask")
    # The mask comes before the digest, since it tells which vertex is wrong.
    if manifest.train_is_mask and mask is not None:
        wrong = (mask != in_a_part).nonzero().squeeze(1)
        if len(wrong):
            vertex = int(wrong[0])
            rule = "be in a part" if mask[vertex] else "not be a training vertex"
            count = f"({len(wrong)} differ from its train_mask)"
            yield Finding("training", None, f"vertex {vertex} of the source must {rule} {count}")
        return
    found = in_a_part.nonzero().squeeze(1)
    # Without a mask only the digest of the training set is known; it cannot tell which vertex.
    if train_digest(found) != manifest.train_sha256:
        rule = "the training vertices must be those that were divided"
        yield Finding("training", None, f"{rule}, got {len(found)} others")


def _check_evaluation(
    parts: list[Part], manifest: PartitionManifest, whole: Graph
) -> Iterator[Finding]:
    """Check that evaluated vertices that parts hold are listed once, where their hop is lowest."""
    node_type = parts[0].train_type
    num_nodes = whole.num_nodes_of(node_type)
    lowest = torch.full((num_nodes,), _NO_HOP, dtype=torch.uint8, device="cpu")
    # Parts that evaluate on their own list their own seeds, wherever else those are held: then
    # nothing is lower than _NO_HOP.
    if manifest.evaluation == "source":
        for part in parts:
            ids = part.global_ids_of(node_type)
            lowest[ids] = torch.minimum(lowest[ids], _hops(part))
    for name in SPLITS[1:]:
        mask = mask_of(whole.node_fields(node_type), f"{name}_mask")
        if mask is None:
            mask = torch.zeros(num_nodes, dtype=torch.bool, device="cpu")
        lists = [part.global_ids_of(node_type)[getattr(part, name)] for part in parts]
        of_part, findings = _listed_once(name, lists, num_nodes)
        yield from findings
        for part, ids in zip(parts, lists, strict=True):
            for message in _wrong_list(part, name, ids, mask, lowest):
                yield Finding("evaluation", part.index, message)
        outside = mask & (of_part < 0)
        lost = (outside & (lowest != _NO_HOP)).nonzero().squeeze(1)
        if len(lost):
            vertex = f"{name} vertex {int(lost[0])} of the source"
            message = f"must be in a part's list, got none ({len(lost)} are missing)"
            yield Finding("evaluation", None, f"{vertex} {message}")
        count = int(outside.sum())
        if count != manifest.outside[name]:
            rule = f"{name} vertices in no part's list must be {manifest.outside[name]}"
            yield Finding("evaluation", None, f"{rule}, got {count}")


def _wrong_list(part: Part, name: str, ids: Tensor, mask: Tensor, lowest: Tensor) -> Iterator[str]:
    """Faults of the vertices ``ids`` that a part lists; ``lowest`` is each one's lowest hop."""
    strange = ids[~mask[ids]]
    if len(strange):
        vertex = f"vertex {int(strange[0])} of the source"
        yield f"{vertex} must be in no {name} list ({len(strange)} are wrong)"
    hops = _hops(part)[getattr(part, name)]
    far = (hops > lowest[ids]).nonzero().squeeze(1)
    if len(far):
        first = far[0]
        hop = int(lowest[ids[first]])
        vertex = f"vertex {int(ids[first])} of the source"
        rule = f"must be in the {name} list of a part that holds it at hop {hop}"
        yield f"{vertex} {rule}, got one at hop {int(hops[first])} ({len(far)} are wrong)"


def _hops(part: Part) -> Tensor:
    """Hop of each of a part's vertices of the trained type, by local id, uint8."""
    # Local ids ascend by hop, see `PartVertices`.
    ends = torch.tensor((0, *part.hop_ends_of(part.train_type)), device="cpu")
    hops = torch.arange(part.hops + 1, dtype=torch.uint8, device="cpu")
    return torch.repeat_interleave(hops, torch.diff(ends))


def _listed_once(name: str, lists: list[Tensor], num_nodes: int) -> tuple[Tensor, list[Finding]]:
    """Part that lists each vertex, -1 if none, and a finding for each part that lists one again."""
    of_part = torch.full((num_nodes,), -1, dtype=torch.int32, device="cpu")
    check = "training" if name == "training" else "evaluation"
    findings = []
    for part, ids in enumerate(lists):
        again = ids[of_part[ids] >= 0]
        if len(again):
            vertex = int(again[0])
            rule = f"{name} vertex {vertex} of the source must be in one part"
            findings.append(Finding(check, None, f"{rule}, got {int(of_part[vertex])} and {part}"))
        of_part[ids] = part
    return of_part, findings


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


def _check_part(part: Part, whole: Graph) -> Iterator[Finding]:
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
