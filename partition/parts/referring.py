"""Fields of a part that are rows of the whole graph's."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ...datasets.arrays import check_sum, open_array
from ...errors import FormatError
from ...graph import Graph
from ...indexed_rows import IndexedRows
from .manifest import PartitionManifest
from .source import locate_source

__all__ = ["attach_referenced", "open_referenced"]


def attach_referenced(graph: Graph, ids: Tensor, manifest: PartitionManifest, out: Path, *, verify: bool) -> None:
    """Give a part's graph the fields that its partition refers to; ``ids`` are its vertices in the whole graph.

    The fields are the source's files, mapped, and read through ``ids``: parts opened by several processes of a machine
    have one copy in memory.

    Raises:
        FormatError: The source is gone, or is not what it was, or ``ids`` are not its.
    """
    for name, source in open_referenced(manifest, out, verify=verify).items():
        try:
            graph.set_field(name, IndexedRows(source, ids))
        except (TypeError, ValueError) as error:
            raise FormatError(f"{out}: field {name!r} of a part: {error}") from error


def open_referenced(manifest: PartitionManifest, out: Path, *, verify: bool = False) -> dict[str, Tensor]:
    """The source's fields that parts refer to, mapped: one row per vertex of the whole graph.

    Raises:
        FormatError: The source is gone, or is not what it was.
    """
    if manifest.source is None or not manifest.source.fields:
        return {}
    folder = locate_source(manifest.source, out)
    found = {}
    for name, entry in manifest.source.fields.items():
        if entry.shape[:1] != (manifest.num_nodes,):
            raise FormatError(f"{out}: field {name!r} must have {manifest.num_nodes} rows, got {list(entry.shape)}")
        if verify:
            check_sum(folder, entry)
        found[name] = open_array(folder, entry, random=True)
    return found
