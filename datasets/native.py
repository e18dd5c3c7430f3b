"""The native graph folder: memory-mapped ``.npy`` arrays, and a manifest with checksums."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import check_range
from ..graph.fields import FieldNote, Fields, FieldValue, FrameColumn
from ..graph.graph import CSC, EDGE_TYPE, NODE_TYPE, Graph
from ..graph.mapped import MappedFile, map_npy
from ..graph.row_form import WIDE, Decoding
from ..graph.stored_rows import IndexedRows, NarrowingRows, NarrowRows
from ..system.atomic import is_unfinished, new_folder
from ..system.checks import StrPath
from ..system.files import named_path, open_plain
from ..system.progress import Progress, Ticks
from ..system.threads import in_order, usable_cpus
from .manifest import ArrayEntry, EdgeEntry, Manifest, NodeEntry, stored_dtype
from .tables.schema import schema_of

Written = Callable[[int], None]
"""Called with a number of bytes just written."""

WORK_SUFFIX = ".column"
"""Suffix of temporary files in an unfinished folder."""

# Bytes that are read, hashed and written at once: large for the disk, small for memory.
_CHUNK_BYTES = 8 * 2**20
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class Rows(Protocol):
    """A tensor, or lazy rows that are read on indexing, for :class:`ArrayWriter`."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, with the number of rows first."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Some rows as a tensor."""


LabelledRows = tuple[str, Rows, FieldNote | None]
"""Label (for the file name), rows and note of an array."""


@dataclass(frozen=True)
class _Place:
    """The file of an array, its header, and whether it already has the rows."""

    path: Path
    header: bytes
    has_rows: bool = False


class ArrayWriter:
    """Writer of arrays as ``.npy`` files with checksums, in blocks of at most 8 MiB."""

    def __init__(self, folder: Path, written: Written | None = None) -> None:
        self._folder = folder
        self._written = written
        self._used: set[str] = set()
        self._stopped = threading.Event()

    def write(self, label: str, rows: Rows, note: FieldNote | None = None) -> ArrayEntry:
        """Write ``rows`` to a file named after ``label``, which may have any characters."""
        return self._write(self._placed(label, rows), rows, note)

    def write_all(self, arrays: Iterable[LabelledRows]) -> Generator[ArrayEntry]:
        """Write arrays like :meth:`write`, two at a time; yields their entries in order."""
        placed = [(self._placed(label, rows), rows, note) for label, rows, note in arrays]
        # One at a time for lazy rows, which may share their source and its memory.
        is_plain = all(isinstance(rows, Tensor) for _, rows, _ in placed)
        workers = min(2, usable_cpus()) if is_plain else 1

        def write(array: tuple[_Place, Rows, FieldNote | None]) -> ArrayEntry:
            return self._write(*array, is_synced=workers > 1)

        return in_order(write, placed, workers, self._stopped)

    def _placed(self, label: str, rows: Rows) -> _Place:
        """The file for the rows; a temporary file in this folder that holds them is renamed."""
        stored_rows, _ = _as_stored(rows)
        header = npy_header(check_storable(label, stored_rows), tuple(stored_rows.shape))
        path = self._folder / self._file_name(label)
        mapping = MappedFile.of(rows) if isinstance(rows, Tensor) else None
        if mapping is None:
            return _Place(path, header)
        work = Path(mapping.path)
        is_whole = (
            isinstance(rows, Tensor)
            and work.parent == self._folder.absolute()
            and work.suffix == WORK_SUFFIX
            and rows.is_contiguous()
            and rows.data_ptr() == mapping.address + len(header)
            and rows.nbytes + len(header) == len(mapping)
        )
        if is_whole:
            work.rename(path)
            mapping.path = str(path.absolute())
        return _Place(path, header, is_whole)

    def _write(
        self, place: _Place, rows: Rows, note: FieldNote | None, *, is_synced: bool = False
    ) -> ArrayEntry:
        values = rows.values if isinstance(rows, NarrowingRows) else rows
        mapping = MappedFile.of(values) if isinstance(values, Tensor) else None
        rows, decoding = _as_stored(rows)
        stored = stored_dtype(_torch_name(rows))
        digest = hashlib.sha256()
        count = rows.shape[0]
        shape = tuple(rows.shape)
        step = max(1, _CHUNK_BYTES // max(1, math.prod(shape[1:]) * stored.itemsize))
        mode = "r+b" if place.has_rows else "wb"
        with open(place.path, mode) as file:
            file.write(place.header)
            digest.update(place.header)
            for begin in range(0, count, step):
                # After Ctrl-C, or when another array failed.
                if self._stopped.is_set():
                    raise InterruptedError(f"{place.path} is not wanted any more")
                data = _as_bytes(rows[begin : min(begin + step, count)], stored)
                if not place.has_rows:
                    file.write(data)
                digest.update(data)
                if mapping is not None:
                    mapping.forget_pages()
                if self._written is not None:
                    self._written(len(data))
            size = file.seek(0, os.SEEK_END)
            if is_synced:
                file.flush()
                # Synced here, while the other thread computes a digest, rather than at the end.
                os.fsync(file.fileno())
        name = place.path.name
        if decoding is None:
            entry = ArrayEntry(name, _torch_name(rows), shape, size, digest.hexdigest())
        else:
            shape = (count, *decoding.row_shape)
            dtype = _torch_name(decoding)
            entry = ArrayEntry(name, dtype, shape, size, digest.hexdigest(), decoding.form.name)
        if note is None:
            return entry
        frame = tuple(asdict(column) for column in note.frame)
        return replace(entry, unit=note.unit, words=note.words, frame=frame)

    def _file_name(self, label: str) -> str:
        """A unique plain file name for ``label``."""
        # Cut, as types' names may have any length, and file names at most 255 bytes.
        stem = re.sub(r"[^A-Za-z0-9_.+-]", "_", label)[:100]
        name = f"{stem}.npy"
        count = 1
        # Compared in lower case, since some file systems ignore case.
        while name.lower() in self._used:
            count += 1
            name = f"{stem}+{count}.npy"
        self._used.add(name.lower())
        return name


def check_storable(label: str, rows: Rows) -> np.dtype[Any]:
    """The dtype of ``rows`` in a file; ValueError if name, dtype or layout is not storable."""
    if not label.isprintable():
        raise ValueError(f"names must be printable characters to be stored, got {label!r}")
    try:
        stored = stored_dtype(_torch_name(rows))
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
    if isinstance(rows, Tensor) and rows.layout != torch.strided:
        raise ValueError(f"{label}: layout must be strided, got {rows.layout}")
    return stored


def _as_stored(rows: Rows) -> tuple[Rows, Decoding | None]:
    """The rows as stored in a file, and how they become values."""
    if isinstance(rows, NarrowRows):
        return rows.stored, rows.decoding
    return rows, getattr(rows, "decoding", None)


def _torch_name(rows: Rows | Decoding) -> str:
    return str(rows.dtype).removeprefix("torch.")


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Header of version 1.0, padded so that the array starts at a multiple of 64 bytes."""
    # Not NumPy's, which may change between versions: equal graphs must have equal bytes. Magic,
    # version and length take 10 bytes, the newline one.
    text = repr({"descr": dtype.str, "fortran_order": False, "shape": shape})
    padding = -(10 + len(text) + 1) % 64
    body = (text + " " * padding + "\n").encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def _as_bytes(block: Tensor, stored: np.dtype[Any]) -> memoryview:
    # Resolve lazy conjugation and negation.
    flat = block.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.int16)
    elif flat.dtype in _FLOAT8:
        flat = flat.view(torch.uint8)
    array = flat.numpy()
    assert array.dtype == stored
    return array.view(np.uint8).data


def open_array(folder: Path, entry: ArrayEntry, *, random: bool = False) -> Tensor:
    """Memory-map the file of ``entry``; FormatError if its size, dtype or shape differs."""
    file = named_file(folder, entry)
    # Checked before mapping: reading a mapping past the end of its file kills the process.
    size = file.stat().st_size
    if size != entry.bytes:
        raise FormatError(f"{file} must have {entry.bytes} bytes as the manifest says, got {size}")
    tensor = map_npy(file, random_access=random)
    stored = stored_dtype(entry.file_dtype)
    dtype = getattr(torch, entry.file_dtype)
    got = str(tensor.dtype).removeprefix("torch.")
    if got != stored.name or tuple(tensor.shape) != entry.file_shape:
        raise FormatError(
            f"{file} must hold {stored.name} of shape {list(entry.file_shape)} as the manifest "
            "says, "
            f"got {got} of shape {list(tensor.shape)}"
        )
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def open_field(folder: Path, entry: ArrayEntry, ids: Tensor | None = None) -> FieldValue:
    """Memory-map a field, or its rows ``ids`` by reference; FormatError as :func:`open_array`."""
    # Features are read at random; labels and masks sequentially.
    tensor = open_array(folder, entry, random=len(entry.shape) > 1)
    rows = tensor if ids is None else IndexedRows(tensor, ids)
    return rows if entry.stored is None else NarrowRows(rows, getattr(torch, entry.dtype))


def named_file(folder: Path, entry: ArrayEntry) -> Path:
    """Path of the file of ``entry``, or FormatError if ``folder`` lacks it."""
    return named_path(folder, entry.file, "the manifest")


def file_digest(file: Path, read: Written | None = None) -> str:
    """SHA-256 of a file in hexadecimal; ``read`` is called with the bytes of each block."""
    digest = hashlib.sha256()
    with open_plain(file) as stream:
        while block := stream.read(_CHUNK_BYTES):
            digest.update(block)
            if read is not None:
                read(len(block))
    return digest.hexdigest()


def check_sum(folder: Path, entry: ArrayEntry, read: Written | None = None) -> None:
    """Raise FormatError if the checksum of ``entry``'s file differs.

    For ``read`` see :func:`file_digest`.
    """
    got = file_digest(named_file(folder, entry), read)
    if got != entry.sha256:
        want = entry.sha256[:16]
        raise FormatError(
            f"{folder / entry.file} is corrupt: its SHA-256 must be {want}..., got {got[:16]}..."
        )


def write_graph(
    graph: Graph,
    folder: StrPath,
    *,
    origin: Mapping[str, Any] | None = None,
    computed: Mapping[str, Rows] | None = None,
    store: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Write ``graph`` with all its fields as a native folder, atomically.

    A failure leaves nothing. A killed process leaves only a hidden folder that cannot be opened.

    Args:
        graph: The graph; its ids are checked.
        folder: Must not exist yet.
        origin: Where the graph is from, for people; any JSON object.
        computed: Further vertex fields, for one vertex type; their rows are read in blocks.
        store: "float16", "bfloat16" or "int8": the form in which 2-D float32 and float64 fields are
            stored, see ``NarrowRows``. They are still read in their dtype. None: unchanged.
        progress: Called with the bytes written and the bytes to write.

    Raises:
        FileExistsError: ``folder`` exists.
        ValueError: The graph's ids are out of range, a field's dtype or layout is not storable, or
            ``store`` cannot hold a value; the error names the row.

    Example:
        >>> import os, tempfile
        >>> target = os.path.join(tempfile.mkdtemp(), "graph")
        >>> write_graph(Graph.from_coo([0, 1], [1, 2]), target)
        >>> Graph.open(target)
        Graph(num_nodes=3, num_edges=2, ids=int32)
    """
    if origin is not None and not isinstance(origin, Mapping):
        raise TypeError(f"origin must be a mapping, got {origin!r}"[:300])
    json.dumps(dict(origin or {}))  # raises TypeError before the long work
    for edge_type in graph.edge_types:
        graph.csc_of(edge_type).validate()
    with new_folder(folder) as part:
        write_into(part, graph, origin=origin, computed=computed, store=store, progress=progress)


def write_into(
    part: Path,
    graph: Graph,
    *,
    origin: Mapping[str, Any] | None = None,
    computed: Mapping[str, Rows] | None = None,
    store: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Write ``graph`` with checked ids into an unfinished folder; see :func:`write_graph`."""
    more = computed or {}
    vertices = {name: {**graph.node_fields(name), **more} for name in graph.node_types}
    arrays: list[LabelledRows] = []
    for name, fields in vertices.items():
        prefix = "node" if name == NODE_TYPE else f"node-{name}"
        arrays += _labelled(prefix, fields, graph.node_fields(name).notes, store)
    for edge_type in graph.edge_types:
        prefix = "edge" if edge_type == EDGE_TYPE else "edge-" + "-".join(edge_type)
        csc = graph.csc_of(edge_type)
        arrays += [(f"{prefix}-indptr", csc.indptr, None), (f"{prefix}-indices", csc.indices, None)]
        if csc.edge_ids is not None:
            arrays.append((f"{prefix}-ids", csc.edge_ids, None))
        own = graph.edge_fields(edge_type)
        arrays += _labelled(f"{prefix}-field", own, own.notes, store)
    total = 0
    for _, given, _ in arrays:
        rows, _ = _as_stored(given)
        total += math.prod(rows.shape) * rows.dtype.itemsize
    columns = [] if graph.tables is None else schema_of(graph).entries()
    manifest = Manifest([], [], dict(origin or {}), columns)
    writer = ArrayWriter(part, Ticks(progress, total).add)
    # Always closed, so that no thread writes into the folder while it is removed.
    with closing(writer.write_all(arrays)) as entries:
        # In the order of the arrays above.
        for name, fields in vertices.items():
            found = {key: next(entries) for key in fields}
            manifest.node_types.append(NodeEntry(name, graph.num_nodes_of(name), found))
        for edge_type in graph.edge_types:
            csc = graph.csc_of(edge_type)
            indptr = next(entries)
            indices = next(entries)
            ids = None if csc.edge_ids is None else next(entries)
            found = {key: next(entries) for key in graph.edge_fields(edge_type)}
            entry = EdgeEntry(edge_type, csc.num_edges, indptr, indices, ids, found)
            manifest.edge_types.append(entry)
    manifest.write(part)


def _labelled(
    prefix: str, fields: Mapping[str, Rows], notes: Mapping[str, FieldNote], store: str | None
) -> Iterator[LabelledRows]:
    """Fields as arrays of a folder, with 2-D floats in the form ``store``."""
    for key, rows in fields.items():
        label = f"{prefix}-{key}"
        is_wide = rows.dtype in WIDE and len(rows.shape) == 2 and not isinstance(rows, NarrowRows)
        stored = NarrowingRows(rows, store, label) if store is not None and is_wide else rows
        yield label, stored, notes.get(key)


def open_native(
    folder: StrPath, *, verify: bool = False, progress: Progress | None = None
) -> Graph:
    """Open a native folder of any size in milliseconds.

    Arrays are read on access. With ``verify``, all are read and checked now, and ``progress``
    counts bytes. FormatError if the folder does not match its manifest.
    """
    path = Path(folder)
    if is_unfinished(path):
        raise FormatError(
            f"folder must be finished, got {str(path)!r}, which its writer did not complete"
        )
    manifest = Manifest.read(path)
    if verify:
        entries = manifest.arrays()
        read = Ticks(progress, sum(entry.bytes for entry in entries)).add
        for entry in entries:
            check_sum(path, entry, read)
    try:
        graph = _assemble(path, manifest)
        if verify:
            _check_all_ids(graph)
    except FormatError:  # a ValueError too
        raise
    # The graph's own checks find arrays that do not match.
    except (ValueError, TypeError) as error:
        raise FormatError(f"{path}: {error}") from error
    return graph


def _assemble(path: Path, manifest: Manifest) -> Graph:
    counts = {node.name: node.num_nodes for node in manifest.node_types}
    csc = {}
    for edge in manifest.edge_types:
        ids = None if edge.edge_ids is None else open_array(path, edge.edge_ids)
        indptr = open_array(path, edge.indptr)
        indices = open_array(path, edge.indices)
        csc[edge.type] = CSC(indptr, indices, counts[edge.type[0]], ids)
    graph = Graph(csc, counts)
    for node in manifest.node_types:
        _open_fields(path, node.fields, graph.node_fields(node.name))
    for edge in manifest.edge_types:
        _open_fields(path, edge.fields, graph.edge_fields(edge.type))
    return graph


def _open_fields(path: Path, entries: Mapping[str, ArrayEntry], fields: Fields) -> None:
    """Map the fields of a type into ``fields``, with their notes."""
    for name, entry in entries.items():
        fields[name] = open_field(path, entry)
        if entry.unit or entry.words or entry.frame:
            fields.notes[name] = note_of(entry)


def note_of(entry: ArrayEntry) -> FieldNote:
    """The note of a field, from its manifest entry."""
    columns = tuple(FrameColumn(**column) for column in map(_known_keys, entry.frame))
    return FieldNote(entry.unit, entry.words, columns)


def _known_keys(column: Mapping[str, Any]) -> dict[str, Any]:
    # Ignore keys of newer versions.
    return {key: column[key] for key in ("name", "width", "stats")}


def _check_all_ids(graph: Graph) -> None:
    for edge_type in graph.edge_types:
        csc = graph.csc_of(edge_type)
        csc.validate()
        if csc.edge_ids is not None:
            # With fields, ids index their rows; without, they are only returned.
            limit = csc.num_edges if graph.edge_fields(edge_type) else 2**63
            check_range("edge_ids", csc.edge_ids, limit)
