"""Graphs of what OGB's files and objects hold: edges compressed in memory or in files, labels and
masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.graph import CSC, EdgeType, Graph
from ..graph.mapped import spilled
from ..system.arrays import Int64Array
from ..system.progress import Progress
from .column_files import Scratch
from .edge_rows import EdgeRows
from .edge_sort import EdgeStream, sort_edges
from .edges import check_size, mirrored
from .ogb_arrays import EdgeArrays
from .paths import PARTS

SETS = dict(zip(PARTS, ("train", "valid", "test"), strict=True))
"""What OGB calls the sets of a split."""
LINKS_LEFT = "sets of links, of which masks hold none; pagraph train --task links draws some"

# Rows or edges at a time, where not all of them need fit into memory.
_BLOCK_ROWS = 2**20


@dataclass(frozen=True)
class InFiles:
    """Where arrays go that need not fit into memory.

    Attributes:
        scratch: Makes the files.
        room: Bytes for edges in work.
        progress: Called with the work done on edges and all of it.
    """

    scratch: Scratch
    room: int
    progress: Progress | None = None


@dataclass(frozen=True, eq=False)
class TableEdges:
    """Edges of one type, read from a table into files; else as :class:`EdgeArrays`."""

    where: str
    rows: EdgeRows
    fields: dict[str, Tensor]

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.rows)

    def read(self, begin: int, end: int) -> tuple[Int64Array, Int64Array]:
        """Sources and destinations of some edges."""
        src, dst = self.rows.ends(begin, end)
        return src.astype("int64"), dst.astype("int64")


class Raw(Protocol):
    """What a folder or an object holds, by type."""

    is_typed: bool
    counts: dict[str, int]
    edge_types: list[EdgeType]

    def edges(self, etype: EdgeType) -> EdgeArrays | TableEdges:
        """The edges of a type, with their fields."""

    def node_fields(self, ntype: str) -> dict[str, Tensor]:
        """The fields of the vertices of a type."""


def graph_of(
    raw: Raw, where: str, *, undirected: bool = False, files: InFiles | None = None
) -> Graph:
    """The graph, without its masks; the same bits in memory and in files.

    Args:
        raw: Edges and fields.
        where: What holds them, for errors.
        undirected: Add the other direction of each edge.
        files: For what need not fit into memory. Default: all is in memory.

    Raises:
        FormatError: An id is out of range, or a field has another number of rows than there are
            vertices or edges.
    """
    for count in raw.counts.values():
        check_size(where, count)
    csc = {}
    edata = {}
    # One type after the other, so that files of edges in work are there for one alone.
    for etype in raw.edge_types:
        edges = raw.edges(etype)
        _check_rows(edges)
        ends = raw.counts[etype[0]], raw.counts[etype[2]]
        if files is None:
            csc[etype], edata[etype] = _in_memory(edges, ends, undirected)
        else:
            csc[etype], edata[etype] = _in_files(edges, ends, undirected, files)
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


def _check_rows(edges: EdgeArrays | TableEdges) -> None:
    for name, values in edges.fields.items():
        if len(values) != edges.num_edges:
            raise FormatError(
                f"{edges.where}: field {name!r} must have a row per edge ({edges.num_edges}), got "
                f"{len(values)}"
            )


def _in_memory(
    edges: EdgeArrays | TableEdges, counts: tuple[int, int], undirected: bool
) -> tuple[CSC, dict[str, Tensor]]:
    src, dst = edges.read(0, edges.num_edges)
    fields = edges.fields
    if undirected:
        src, dst, fields = mirrored(src, dst, fields)
    try:
        return CSC.from_coo(src, dst, counts), fields
    except ValueError as error:
        raise FormatError(f"{edges.where}: {error}") from error


@dataclass(frozen=True)
class _Stream:
    """Edges whose ids were checked, for :func:`sort_edges`."""

    num_nodes: int
    edges: EdgeArrays | TableEdges

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.edges.num_edges

    def read(self, begin: int, end: int) -> tuple[Int64Array, Int64Array]:
        """Sources and destinations of some edges."""
        return self.edges.read(begin, end)


def _in_files(
    edges: EdgeArrays | TableEdges, counts: tuple[int, int], undirected: bool, files: InFiles
) -> tuple[CSC, dict[str, Tensor]]:
    num_src, num_dst = counts
    _check_ids(edges, counts)
    # The sort knows one number of vertices: the offsets of destinations that are not there go.
    stream: EdgeStream = _Stream(max(counts), edges)
    csc = sort_edges(
        stream,
        files.scratch,
        room=files.room,
        mirrored=undirected,
        numbered=True,
        progress=files.progress,
    )
    csc = CSC(csc.indptr[: num_dst + 1], csc.indices, num_src, csc.edge_ids)
    fields = edges.fields
    if undirected:
        fields = {name: _both_ways(edges, rows, files) for name, rows in fields.items()}
    if isinstance(edges, TableEdges):
        edges.rows.remove()
    return csc, fields


def _blocks(count: int) -> Iterator[slice]:
    return (slice(begin, min(begin + _BLOCK_ROWS, count)) for begin in range(0, count, _BLOCK_ROWS))


def _check_ids(edges: EdgeArrays | TableEdges, counts: tuple[int, int]) -> None:
    """Raise FormatError as :func:`_in_memory` does where an id is out of range."""
    bounds = [[0, -1], [0, -1]]
    for block in _blocks(edges.num_edges):
        for end, ids in enumerate(edges.read(block.start, block.stop)):
            bounds[end][0] = min(bounds[end][0], int(ids.min()))
            bounds[end][1] = max(bounds[end][1], int(ids.max()))
    for name, (low, high), count in zip(("src", "dst"), bounds, counts, strict=True):
        if low < 0 or high >= count:
            got = low if low < 0 else high
            raise FormatError(f"{edges.where}: {name} must be in [0, {count}), got {got}")


def _both_ways(edges: EdgeArrays | TableEdges, rows: Tensor, files: InFiles) -> Tensor:
    """The rows of all edges, then those of the other direction, in the order that
    :func:`sort_edges` numbers them."""
    column = files.scratch.column(rows[:0].numpy().dtype)
    for block in _blocks(len(rows)):
        column.append(rows[block].numpy().reshape(-1))
    for block in _blocks(len(rows)):
        src, dst = edges.read(block.start, block.stop)
        # A self-loop is its own other direction.
        column.append(rows[block].numpy()[src != dst].reshape(-1))
    return column.mapped().reshape(-1, *rows.shape[1:])


def class_labels(labels: Tensor, files: InFiles | None = None) -> Tensor:
    """Labels as OGB's loaders give them: int64 where all are whole, float32 where some are missing.

    Missing ones are NaN. Labels that are fractions, as of a regression, stay as they are.
    """
    if not labels.is_floating_point():
        return _converted(labels, torch.int64, files)
    has_missing = False
    for block in _blocks(len(labels)):
        rows = labels[block]
        missing = rows.isnan()
        # Not above 2**24, from where on float32 leaves out integers.
        is_class = (rows == rows.round()) & (rows.abs() <= 2**24)
        if not bool((is_class | missing).all()):
            return labels
        has_missing = has_missing or bool(missing.any())
    return _converted(labels, torch.float32 if has_missing else torch.int64, files)


def _converted(values: Tensor, dtype: torch.dtype, files: InFiles | None) -> Tensor:
    if values.dtype == dtype or files is None:
        return values.to(dtype)
    column = files.scratch.column(torch.empty(0, dtype=dtype, device="cpu").numpy().dtype)
    for block in _blocks(len(values)):
        column.append(values[block].to(dtype).numpy().reshape(-1))
    return column.mapped().reshape(values.shape)


Sets = Mapping[str, tuple[Path | str, Any]]
"""Name of a set in :data:`PARTS` to what holds it, and the ids of its vertices."""


def set_masks(graph: Graph, ntype: str, sets: Sets, files: InFiles | None = None) -> None:
    """Give vertices of a type the masks of the sets of a split.

    Raises:
        FormatError: Ids are no integers or out of range, or sets have vertices in common.
    """
    count = graph.num_nodes_of(ntype)
    masks: dict[str, Tensor] = {}
    for part in PARTS:
        if part not in sets:
            continue
        where, ids = sets[part][0], _ids(*sets[part], count)
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
