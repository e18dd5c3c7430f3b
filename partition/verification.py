"""Verification of a partition folder against the graph it was made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..datasets.native import check_sum
from ..datasets.opening import open_graph
from ..errors import FormatError
from ..graph.fields import mask_of
from ..graph.graph import Graph
from ..system.checks import StrPath
from ..system.progress import Progress
from .manifest import SPLITS, PartitionManifest, train_digest
from .opening import Part, check_whole, open_manifest, open_part
from .part_check import Finding, check_part
from .source import SourceEntry, locate_source, open_source

_NO_HOP = 255  # above every hop, which end at 253


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
            found = list(check_part(part, whole))
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
