"""Graphs from OGB's files and objects: edges compressed in memory or in files, labels and masks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.graph import EdgeType, Graph
from ..graph.mapped import spilled
from .edge_graph import GivenEdges, copied
from .edge_sort import InFiles
from .edges import check_size
from .paths import PARTS

SETS = dict(zip(PARTS, ("train", "valid", "test"), strict=True))
"""OGB's names of the sets of a split."""
LINKS_LEFT = "sets of links, of which masks hold none; pagraph train --task links draws some"

# Rows per block, if all may not fit into memory.
_BLOCK_ROWS = 2**20


class Raw(Protocol):
    """The content of a folder or an object, by type."""

    is_typed: bool
    counts: dict[str, int]
    edge_types: list[EdgeType]

    def edges(self, etype: EdgeType) -> GivenEdges:
        """The edges of a type, with their fields."""

    def node_fields(self, ntype: str) -> dict[str, Tensor]:
        """The fields of the vertices of a type."""


def graph_of(
    raw: Raw, where: str, *, undirected: bool = False, files: InFiles | None = None
) -> Graph:
    """The graph, without masks; bit-identical in memory and in files.

    Args:
        raw: Edges and fields.
        where: Their source, for errors.
        undirected: Add the other direction of each edge.
        files: For data larger than memory. Default: all is in memory.

    Raises:
        FormatError: An id is out of range, or a field has a wrong number of rows.
    """
    for count in raw.counts.values():
        check_size(where, count)
    csc = {}
    edata = {}
    # One type at a time, so that only its temporary files exist.
    for etype in raw.edge_types:
        edges = raw.edges(etype)
        csc[etype], edata[etype] = edges.compressed(files, undirected=undirected)
        edges.ends.src.remove()
        edges.ends.dst.remove()
    graph = Graph(csc, raw.counts)
    for etype in raw.edge_types:
        for name, values in edata[etype].items():
            graph.set_field(name, values, edge_type=etype)
    for ntype in raw.counts:
        for name, values in raw.node_fields(ntype).items():
            rows = class_labels(values, files) if name == "label" else values
            try:
                graph.set_field(name, rows, node_type=ntype)
            except ValueError as error:
                of_type = f" of {ntype}" if raw.is_typed else ""
                raise FormatError(f"{where}{of_type}: {error}") from None
    return graph


def class_labels(labels: Tensor, files: InFiles | None = None) -> Tensor:
    """Labels as in OGB's loaders: int64 if all are integers, float32 with NaN if some are missing.

    Fractional labels, as in a regression, are unchanged.
    """
    if not labels.is_floating_point():
        return _converted(labels, torch.int64, files)
    has_missing = False
    for begin in range(0, len(labels), _BLOCK_ROWS):
        rows = labels[begin : begin + _BLOCK_ROWS]
        missing = rows.isnan()
        # At most 2**24, beyond which float32 skips integers.
        is_class = (rows == rows.round()) & (rows.abs() <= 2**24)
        if not bool((is_class | missing).all()):
            return labels
        has_missing = has_missing or bool(missing.any())
    dtype = torch.float32 if has_missing else torch.int64
    return _converted(labels, dtype, files)


def _converted(values: Tensor, dtype: torch.dtype, files: InFiles | None) -> Tensor:
    if values.dtype == dtype or files is None:
        return values.to(dtype)
    return copied(values, dtype, files).mapped().reshape(values.shape)


Sets = Mapping[str, tuple[Path | str, Any]]
"""Name of a set in :data:`PARTS` to its source and the ids of its vertices."""


def set_masks(graph: Graph, ntype: str, sets: Sets, files: InFiles | None = None) -> None:
    """Set the masks of a split for the vertices of a type.

    Raises:
        FormatError: Ids are not integers or out of range, or sets overlap.
    """
    count = graph.num_nodes_of(ntype)
    masks: dict[str, Tensor] = {}
    for part in PARTS:
        if part not in sets:
            continue
        where, given = sets[part]
        ids = _ids(where, given, count)
        for other, taken in masks.items():
            common = ids[taken[ids]]
            if len(common):
                raise FormatError(
                    f"{where} must have no vertex in common with {sets[other][0]}, got "
                    f"{len(common)}, such as {int(common[0])}"
                )
        if files is None:
            mask = torch.zeros(count, dtype=torch.bool, device="cpu")
        else:
            mask = spilled((count,), torch.bool, files.scratch.folder)
        mask[ids] = True
        masks[part] = mask
    for part, mask in masks.items():
        graph.set_field(f"{part}_mask", mask, node_type=ntype)


def _ids(where: Path | str, given: Any, count: int) -> Tensor:
    if not isinstance(given, Tensor):
        raise FormatError(f"{where} must hold tensors of ids, got a {type(given).__name__}")
    ids = given.reshape(len(given)) if given.shape[1:] == (1,) else given
    is_sound = ids.dim() == 1 and not (ids.is_floating_point() or ids.is_complex())
    if ids.numel() and not (is_sound and int(ids.min()) >= 0 and int(ids.max()) < count):
        raise FormatError(f"{where} must hold ids of vertices, one a line and each below {count}")
    return ids.reshape(-1).long()
