"""Writes a graph with its vertices at other places as a native folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..graph.field_value import FieldValue
from ..graph.graph import EDGE_TYPE, NODE_TYPE, EdgeType, Graph
from ..graph.narrow_rows import NarrowRows
from ..system.atomic import new_folder
from .manifest import EdgeEntry, Manifest, NodeEntry
from .moved_rows import MovedRows, Places, Scratch, source_rows
from .native import ArrayWriter
from .original_ids import ORIGINAL_ID

__all__ = ["new_indptr", "write_moved"]

Array = npt.NDArray[Any]


def write_moved(
    graph: Graph,
    folder: str | os.PathLike[str],
    places: Mapping[str, Array],
    offsets: Mapping[EdgeType, Array],
    *,
    bucket_bytes: int,
    chunk_bytes: int = 32 * 2**20,
    origin: Mapping[str, Any] | None = None,
    tick: Callable[[int], None] = lambda count: None,
) -> None:
    """Write a graph with its vertices at ``places``, whole or not at all; see :func:`pagraph.datasets.reorder`.

    Args:
        graph: The graph, whose ids were checked.
        folder: Must not exist yet.
        places: Vertex type to the new id of each vertex, a permutation.
        offsets: Edge type to :func:`new_indptr`.
        bucket_bytes: Bytes of rows that may be in memory at once; up to twice for fields of edges.
        chunk_bytes: Bytes of rows that are read at once.
        origin: Where the graph is from, for people.
        tick: Called with numbers of bytes that were read or written.

    Raises:
        FileExistsError: ``folder`` exists.
        ValueError: Edges with fields have ids that are not all those below their number.
    """
    with new_folder(folder) as part:
        buckets = part / "buckets"
        buckets.mkdir()
        scratch = Scratch(buckets, bucket_bytes, tick, chunk_bytes=chunk_bytes)
        writer = _Writer(part, graph, places, offsets, scratch)
        manifest = Manifest(
            [writer.node_type(name) for name in graph.node_types],
            [writer.edge_type(etype) for etype in graph.edge_types],
            dict(origin or {}),
        )
        buckets.rmdir()
        manifest.write(part)


def new_indptr(graph: Graph, etype: EdgeType, place: Array) -> Array:
    """The ``indptr`` of an edge type whose destinations are at ``place``."""
    from . import _moved_rows

    indptr = graph.csc_of(etype).indptr.numpy()
    out = np.empty_like(indptr)
    _moved_rows.new_offsets(indptr, place, out)
    return out


class _Writer:
    """Writes the arrays of one graph at their new places, and returns the manifest's entries."""

    def __init__(
        self,
        folder: Path,
        graph: Graph,
        places: Mapping[str, Array],
        offsets: Mapping[EdgeType, Array],
        scratch: Scratch,
    ) -> None:
        self._graph, self._places, self._offsets, self._scratch = graph, places, offsets, scratch
        self._arrays = ArrayWriter(folder, scratch.tick)

    def node_type(self, name: str) -> NodeEntry:
        """Write the fields of a vertex type."""
        prefix = "node" if name == NODE_TYPE else f"node-{name}"
        place, fields = self._places[name], self._graph.node_fields(name)
        where: Places = lambda begin, end: place[begin:end]  # noqa: E731
        entries = {key: self._field(f"{prefix}-{key}", value, where) for key, value in fields.items()}
        if ORIGINAL_ID not in fields:
            rows = self._moved(_counting, where, (len(place),), torch.int64, f"{prefix}-{ORIGINAL_ID}")
            entries[ORIGINAL_ID] = self._write(f"{prefix}-{ORIGINAL_ID}", rows)
        return NodeEntry(name, len(place), entries)

    def edge_type(self, etype: EdgeType) -> EdgeEntry:
        """Write the edges of a type, and their fields."""
        prefix = "edge" if etype == EDGE_TYPE else "edge-" + "-".join(etype)
        csc, fields = self._graph.csc_of(etype), self._graph.edge_fields(etype)
        where = _edge_places(csc.indptr.numpy(), self._places[etype[2]], self._offsets[etype])
        sources, read = torch.from_numpy(self._places[etype[0]]), source_rows(csc.indices)
        indices = self._moved(
            lambda begin, end: sources[read(begin, end).long()].to(csc.indices.dtype),
            *(where, (csc.num_edges,), csc.indices.dtype, "edges"),
        )
        by_id, inverse = where, None
        if csc.edge_ids is not None and fields:
            inverse = self._inverse(csc.edge_ids, where)
            by_id = _read_places(inverse)
        entries = {key: self._field(f"{prefix}-field-{key}", value, by_id) for key, value in fields.items()}
        if inverse is not None:
            inverse.close()
        if ORIGINAL_ID not in fields and (fields or csc.edge_ids is not None):
            ids = _counting if csc.edge_ids is None else source_rows(csc.edge_ids)
            dtype = torch.int64 if csc.edge_ids is None else csc.edge_ids.dtype
            rows = self._moved(ids, where, (csc.num_edges,), dtype, "edges")
            entries[ORIGINAL_ID] = self._write(f"{prefix}-field-{ORIGINAL_ID}", rows)
        indptr = self._arrays.write(f"{prefix}-indptr", torch.from_numpy(self._offsets[etype]))
        return EdgeEntry(etype, csc.num_edges, indptr, self._write(f"{prefix}-indices", indices), None, entries)

    def _inverse(self, edge_ids: Tensor, where: Places) -> MovedRows:
        """New places of edges in the order of their ids."""
        read, ids = source_rows(edge_ids), "edge ids of a graph with edge fields"
        places = lambda begin, end: _in_range(read(begin, end).numpy(), len(edge_ids))  # noqa: E731
        new = lambda begin, end: torch.from_numpy(where(begin, end))  # noqa: E731
        return self._moved(new, places, (len(edge_ids),), torch.int64, ids)

    def _field(self, label: str, values: FieldValue, where: Places) -> Any:
        stored = values.stored if isinstance(values, NarrowRows) else values
        rows = self._moved(source_rows(stored), where, tuple(stored.shape), stored.dtype, label)
        rows.decoding = values.decoding if isinstance(values, NarrowRows) else None
        return self._write(label, rows)

    def _moved(
        self, source: Callable[[int, int], Tensor], where: Places, shape: tuple[int, ...], dtype: torch.dtype, name: str
    ) -> MovedRows:
        return MovedRows(source, where, shape, dtype, self._scratch, name=name)

    def _write(self, label: str, rows: MovedRows) -> Any:
        entry = self._arrays.write(label, rows)
        rows.close()
        return entry


def _counting(begin: int, end: int) -> Tensor:
    return torch.arange(begin, end, device="cpu")


def _in_range(ids: Array, limit: int) -> Array:
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < limit:
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise ValueError(f"edge ids of a graph with edge fields must be in [0, {limit}), got {wrong}")
    return ids


def _read_places(inverse: MovedRows) -> Places:
    return lambda begin, end: inverse[begin:end].numpy()


def _edge_places(indptr: Array, place: Array, offsets: Array) -> Places:
    from . import _moved_rows

    def where(begin: int, end: int) -> Array:
        out = np.empty(end - begin, np.int64)
        vertex = int(np.searchsorted(indptr, indptr.dtype.type(begin), side="right")) - 1
        _moved_rows.edge_places(indptr, place, offsets, vertex, begin, out)
        return out

    return where
