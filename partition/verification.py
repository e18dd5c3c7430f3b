"""Verification of a partition folder against the graph it was made from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..datasets.native import check_sum
from ..datasets.opening import open_graph
from ..errors import FormatError
from ..graph.field_value import mask_of
from ..graph.graph import Graph
from ..system.progress import Progress
from .manifest import SPLITS, PartitionManifest, train_digest
from .opening import Part, open_manifest, open_part
from .part_check import Finding, check_edges, check_fields, check_vertices
from .source import locate_source, open_source

__all__ = ["Verification", "check_evaluation", "check_training", "verify_partition"]

_NO_HOP = 255


@dataclass(frozen=True)
class Verification:
    """Outcome of :func:`verify_partition`: what is wrong, and numbers of what was compared with the
    source; ``missing`` are in-edges that the source has and parts do without, because replication
    was limited."""

    num_parts: int
    train: int
    vertices: int
    edges: int
    missing: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether the partition is proven right."""
        return not self.findings

    def raise_if_wrong(self) -> None:
        """Raise a FormatError if there is any finding."""
        if self.findings:
            more = len(self.findings) - 1
            raise FormatError(f"{self.findings[0]}{f' (and {more} more)' if more else ''}")


def verify_partition(
    out: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Verify a partition folder: read every part and compare it with the graph it was made from.

    Checks all checksums; that every training vertex is in exactly one part; that each part holds
    what its seeds reach in so many hops, with every in-edge on the way, parallel ones counted, and
    its ids lead back to the source's; that fields, degrees and masks equal the source's, bit for
    bit; that every validation and test vertex of the parts is in the list of one, where it lies
    nearest. The code that extracts parts is not used. Takes about 20 bytes a vertex of the whole
    graph, and a few chunks of 16 MiB.

    Args:
        out: Folder that :func:`~pagraph.partition.write_partition` wrote; all parts must be there.
        source: Folder of the whole graph. Default: the one that the manifest names.
        progress: Called with the number of parts that are done and their number.

    Raises:
        FileNotFoundError: There is no such folder.
        FormatError: It holds no partition, or its source is not to be found or damaged.
        ValueError: ``source`` must be given, or is a graph of another size.
    """
    manifest, folder = open_manifest(out), Path(out)
    whole = _open_whole(manifest, folder, source)
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
    # Otherwise what is wrong has been said, and the rest would follow from it.
    if len(parts) == manifest.num_parts:
        findings += check_training(parts, manifest, whole)
        findings += check_evaluation(parts, manifest, whole)
    counts = (sum(len(part.train) for part in parts), sum(part.graph.num_nodes for part in parts))
    edges = sum(part.graph.num_edges for part in parts)
    missing = sum(entry.missing for entry in manifest.folders)
    return Verification(manifest.num_parts, *counts, edges, missing, tuple(findings))


def _open_whole(
    manifest: PartitionManifest, out: Path, source: str | os.PathLike[str] | None
) -> Graph:
    if source is not None:
        whole = open_graph(source, split="" if manifest.source is None else manifest.source.split)
    elif manifest.source is not None:
        whole = open_source(manifest.source, out)
    else:
        raise ValueError(f"source must be given, {out} does not say which graph it was made from")
    typed = {} if whole.is_homogeneous else whole.num_nodes_by_type
    sizes = (whole.num_nodes, whole.num_edges, typed)
    if sizes != (manifest.num_nodes, manifest.num_edges, manifest.node_types):
        want = (
            f"{manifest.node_types or manifest.num_nodes} vertices and {manifest.num_edges} edges"
        )
        raise ValueError(
            f"source must be the graph of {want} that {out} was made from, got {whole}"
        )
    try:
        for edge_type in whole.edge_types:
            whole.csc_of(edge_type).validate()
    except ValueError as error:
        raise FormatError(f"the source of {out} is corrupt: {error}") from error
    return whole


def _check_referenced(
    manifest: PartitionManifest, out: Path, source: str | os.PathLike[str] | None
) -> Iterator[Finding]:
    if manifest.source is None or not any(manifest.source.arrays):
        return
    folder = locate_source(manifest.source, out) if source is None else Path(source)
    for _, _, entry in manifest.source.arrays:
        try:
            check_sum(folder, entry)
        except FormatError as error:
            yield Finding("files", None, str(error))


def _check_part(part: Part, whole: Graph) -> Iterator[Finding]:
    """Findings of one part; later checks rely on earlier ones."""
    for check in (check_vertices, check_edges, check_fields):
        found = list(check(part, whole))
        yield from found
        if found:
            return


def check_training(
    parts: list[Part], manifest: PartitionManifest, whole: Graph
) -> Iterator[Finding]:
    """Check that each training vertex is in exactly one part, and no other vertex."""
    node_type = parts[0].train_type
    lists = [part.global_ids_of(node_type)[part.train] for part in parts]
    of_part, findings = _disjoint("training", lists, whole.num_nodes_of(node_type))
    yield from findings
    found = (of_part >= 0).nonzero().squeeze(1)
    mask = mask_of(whole.node_fields(node_type), "train_mask")
    if manifest.train_is_mask and mask is not None:
        wrong = (mask != (of_part >= 0)).nonzero().squeeze(1)
        if len(wrong):
            vertex = int(wrong[0])
            what = "be in a part" if mask[vertex] else "not be a training vertex"
            message = (
                f"vertex {vertex} of the source must {what} ({len(wrong)} differ from its "
                "train_mask)"
            )
            yield Finding("training", None, message)
    elif train_digest(found) != manifest.train_sha256:
        yield Finding(
            "training",
            None,
            f"the training vertices must be those that were divided, got {len(found)} others",
        )


def check_evaluation(
    parts: list[Part], manifest: PartitionManifest, whole: Graph
) -> Iterator[Finding]:
    """Check that each validation and test vertex that parts hold is listed by one that holds it at
    the lowest hop."""
    node_type = parts[0].train_type
    fields, num_nodes = whole.node_fields(node_type), whole.num_nodes_of(node_type)
    lowest = torch.full((num_nodes,), _NO_HOP, dtype=torch.uint8, device="cpu")
    if manifest.evaluation == "source":
        for part in parts:
            ids = part.global_ids_of(node_type)
            lowest[ids] = torch.minimum(lowest[ids], _hops(part))
    for name in SPLITS[1:]:
        found = mask_of(fields, f"{name}_mask")
        mask = torch.zeros(num_nodes, dtype=torch.bool, device="cpu") if found is None else found
        lists = [part.global_ids_of(node_type)[getattr(part, name)] for part in parts]
        of_part, findings = _disjoint(name, lists, num_nodes)
        yield from findings
        for part, ids in zip(parts, lists, strict=True):
            yield from _check_list(part, name, ids, mask, lowest)
        lost = (mask & (lowest != _NO_HOP) & (of_part < 0)).nonzero().squeeze(1)
        if len(lost):
            message = (
                f"{name} vertex {int(lost[0])} of the source must be in a part's list, got none"
            )
            yield Finding("evaluation", None, f"{message} ({len(lost)} are missing)")
        outside = int((mask & (of_part < 0)).sum())
        if outside != manifest.outside[name]:
            message = (
                f"{name} vertices in no part's list must be {manifest.outside[name]}, got {outside}"
            )
            yield Finding("evaluation", None, message)


def _check_list(
    part: Part, name: str, ids: Tensor, mask: Tensor, lowest: Tensor
) -> Iterator[Finding]:
    """Findings of the vertices ``ids`` that a part lists; ``lowest`` says at which hop any part
    holds each."""
    strange = ids[~mask[ids]]
    if len(strange):
        message = (
            f"vertex {int(strange[0])} of the source must be in no {name} list "
            f"({len(strange)} are wrong)"
        )
        yield Finding("evaluation", part.index, message)
    hops = _hops(part)[getattr(part, name)]
    far = (hops > lowest[ids]).nonzero().squeeze(1)
    if len(far):
        vertex, least, got = int(ids[far[0]]), int(lowest[ids[far[0]]]), int(hops[far[0]])
        message = (
            f"vertex {vertex} of the source must be in the {name} list of a part that holds "
            f"it at hop {least}"
        )
        yield Finding(
            "evaluation", part.index, f"{message}, got one at hop {got} ({len(far)} are wrong)"
        )


def _hops(part: Part) -> Tensor:
    """Hop at which a part holds each of its vertices of the type that is trained on, uint8."""
    ends = torch.tensor((0, *part.hop_ends_of(part.train_type)), device="cpu")
    return torch.repeat_interleave(
        torch.arange(part.hops + 1, dtype=torch.uint8, device="cpu"), torch.diff(ends)
    )


def _disjoint(name: str, lists: list[Tensor], num_nodes: int) -> tuple[Tensor, list[Finding]]:
    """Part that lists each vertex, -1 where none does, and the vertices listed twice."""
    of_part = torch.full((num_nodes,), -1, dtype=torch.int32, device="cpu")
    findings = []
    for part, ids in enumerate(lists):
        taken = ids[of_part[ids] >= 0]
        if len(taken):
            vertex = int(taken[0])
            message = (
                f"{name} vertex {vertex} of the source must be in one part, got "
                f"{int(of_part[vertex])} and {part}"
            )
            findings.append(
                Finding("training" if name == "training" else "evaluation", None, message)
            )
        of_part[ids] = part
    return of_part, findings
