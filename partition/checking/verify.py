"""Proves that a partition folder is right, by reading it and the graph it was made from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ...datasets.arrays import check_sum
from ...datasets.opening import open_graph
from ...errors import FormatError
from ...graph import Graph
from ..partition import Progress
from ..parts.manifest import PartitionManifest
from ..parts.opening import open_manifest, open_part
from ..parts.part import Part
from ..parts.source import locate_source, open_source
from .field_check import check_fields
from .findings import Finding, Verification
from .list_check import check_evaluation, check_training
from .structure_check import check_edges, check_vertices

__all__ = ["verify_partition"]


def verify_partition(
    out: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Read every part and compare it with the graph it was made from.

    Proven are: all checksums; every training vertex is in exactly one part; each part holds what its seeds reach in as
    many hops as the manifest says, with every in-edge on the way, parallel ones counted, and its ids lead back to the
    source's; fields, degrees and masks equal the source's, bit for bit; every validation and test vertex that parts
    hold is in the list of one, where it lies nearest. The comparison does not use the code that extracts parts.
    Takes about 20 bytes a vertex of the whole graph, and a few chunks of 16 MiB.

    Args:
        out: What :func:`~pagraph.partition.write_partition` wrote; all parts must be there.
        source: The folder of the whole graph. Default: the one that the manifest names.
        progress: Called with the number of parts that are done and their number.

    Returns:
        What was compared, and what is wrong.

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
    if len(parts) == manifest.num_parts:  # otherwise what is wrong has been said, and the rest would follow from it
        findings += check_training(parts, manifest, whole)
        findings += check_evaluation(parts, manifest, whole)
    counts = (sum(len(part.train) for part in parts), sum(part.graph.num_nodes for part in parts))
    edges = sum(part.graph.num_edges for part in parts)
    missing = sum(entry.missing for entry in manifest.folders)
    return Verification(manifest.num_parts, *counts, edges, missing, tuple(findings))


def _open_whole(manifest: PartitionManifest, out: Path, source: str | os.PathLike[str] | None) -> Graph:
    if source is None and manifest.source is None:
        raise ValueError(f"source must be given, {out} does not say which graph it was made from")
    if source is not None:
        whole = open_graph(source, split="" if manifest.source is None else manifest.source.split)
    else:
        assert manifest.source is not None
        whole = open_source(manifest.source, out)
    if not whole.is_homogeneous or (whole.num_nodes, whole.num_edges) != (manifest.num_nodes, manifest.num_edges):
        want = f"{manifest.num_nodes} vertices and {manifest.num_edges} edges"
        raise ValueError(f"source must be the graph of {want} that {out} was made from, got {whole}")
    try:
        whole.csc.validate()
    except ValueError as error:
        raise FormatError(f"the source of {out} is corrupt: {error}") from error
    return whole


def _check_referenced(
    manifest: PartitionManifest, out: Path, source: str | os.PathLike[str] | None
) -> Iterator[Finding]:
    if manifest.source is None or not manifest.source.fields:
        return
    folder = locate_source(manifest.source, out) if source is None else Path(source)
    for entry in manifest.source.fields.values():
        try:
            check_sum(folder, entry)
        except FormatError as error:
            yield Finding("files", None, str(error))


def _check_part(part: Part, whole: Graph) -> Iterator[Finding]:
    """What is wrong with one part; later checks rely on earlier ones."""
    for check in (check_vertices, check_edges, check_fields):
        found = list(check(part, whole))
        yield from found
        if found:
            return
