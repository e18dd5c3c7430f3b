"""The manifest of a graph folder: JSON with its arrays' shapes, dtypes, sizes and checksums."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import FormatError
from ..system.files import read_small

if TYPE_CHECKING:
    import numpy as np

    from ..graph.graph import EdgeType

# Lower case only, like `hexdigest`: digests are compared as text.
_SHA256 = re.compile(r"[0-9a-f]{64}")
_T = TypeVar("_T")


def read_manifest_json(
    path: Path, form: str, versions: tuple[int, ...], *, hints: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Load the JSON object in ``path``; FormatError for another format or version.

    ``hints`` are added to the error by format.
    """
    try:
        content = read_small(path)
        value = json.loads(content)
    except FormatError:  # a ValueError too
        raise
    # RecursionError: a hostile file may nest lists deeply.
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON: {error}") from error
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(value, dict) or value.get("format") != form:
        got = value.get("format") if isinstance(value, dict) else type(value).__name__
        hint = (hints or {}).get(got, "") if isinstance(got, str) else ""
        raise FormatError(f"{path}: format must be {form!r}, got {got!r}{hint}")
    # Not isinstance: True is an int, and equals version 1.
    if type(value.get("version")) is not int or value["version"] not in versions:
        wanted = " or ".join(map(str, versions))
        raise FormatError(
            f"{path}: version must be {wanted}, got {value.get('version')!r}: a newer pagraph may "
            "read it"
        )
    if _CHECKSUM in value:  # older ones have none
        said = value.pop(_CHECKSUM)
        found = _checksum(value)
        if said != found:
            raise FormatError(
                f"{path} is damaged: its {_CHECKSUM} must begin with {found[:16]}, got "
                f"{str(said)[:16]!r}"
            )
    return value


def write_manifest_json(path: Path, value: dict[str, Any]) -> None:
    """Write a manifest for :func:`read_manifest_json`, reproducibly."""
    content = json.loads(json.dumps(value))  # as it is read
    content[_CHECKSUM] = _checksum(content)
    path.write_text(json.dumps(content, indent=2) + "\n")


_CHECKSUM = "checksum"


def _checksum(content: dict[str, Any]) -> str:
    """SHA-256 of a manifest's values, whatever their layout in the file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def take(value: Any, key: str, kind: type[_T], where: str) -> _T:
    """Get ``value[key]``, which must be a ``kind`` (bool is not int), or raise FormatError."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        # Cut, since the value may be megabytes of text.
        raise FormatError(f"{where}: {key} must be a JSON {kind.__name__}, got {found!r}"[:300])
    return found


def take_name(value: Any, key: str, where: str) -> str:
    """Get the printable name ``value[key]`` (no terminal control codes), or raise FormatError."""
    found = take(value, key, str, where)
    if not found.isprintable():
        raise FormatError(f"{where}: {key} must be printable characters, got {found!r}"[:300])
    return found


def take_count(value: Any, key: str, where: str) -> int:
    """Get the number ``value[key]``, which must be at least 0, or raise FormatError."""
    count = take(value, key, int, where)
    if count < 0:
        raise FormatError(f"{where}: {key} must be at least 0, got {count}")
    return count


def take_word(value: Any, key: str, allowed: Collection[str], where: str) -> str:
    """Get ``value[key]``, which must be one of ``allowed``, or raise FormatError."""
    found = take(value, key, str, where)
    if found not in allowed:
        words = ", ".join(allowed)
        raise FormatError(f"{where}: {key} must be one of {words}, got {found!r}"[:300])
    return found


def take_optional(value: Any, key: str, kind: type[_T], where: str) -> _T | None:
    """Get ``value[key]``, which must be a ``kind`` or null, or raise FormatError."""
    return None if key in value and value[key] is None else take(value, key, kind, where)


def take_digest(value: Any, where: str) -> str:
    """Get ``value["sha256"]``, which must be 64 hexadecimal digits, or raise FormatError."""
    digest = take(value, "sha256", str, where)
    if not _SHA256.fullmatch(digest):
        raise FormatError(f"{where}: sha256 must be 64 hexadecimal digits, got {digest!r}"[:300])
    return digest


FORMAT = "pagraph-graph"
PARTITION_FORMAT = "pagraph-partition"
"""Format of a folder of parts, each a graph folder; see :mod:`pagraph.partition.manifest`."""
VERSIONS = (1, 2)
"""Versions of the folder. The second is only written for fields stored in fewer bytes."""
MANIFEST = "manifest.json"

# Plain file names: no separators, no "..", nothing hidden.
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\.npy")
_NATIVE = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
# Dtypes that NumPy lacks are stored as integers of the same width.
_VIEWED = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def stored_dtype(name: str) -> np.dtype[Any]:
    """The dtype in the ``.npy`` file of torch's dtype ``name``; ValueError if unsupported.

    >>> stored_dtype("float32"), stored_dtype("bfloat16")
    (dtype('float32'), dtype('int16'))
    """
    if name not in (*_NATIVE, *_VIEWED):
        raise ValueError(f"dtype must be one of {[*_NATIVE, *_VIEWED]}, got {name!r}")
    # Imported here: recognising a manifest needs no NumPy.
    import numpy as np

    return np.dtype(_VIEWED.get(name, name))


UNITS = ("seconds", "microseconds", "nanoseconds")
"""Units of times."""

_FORMS = {"float16": ("float16", 0), "bfloat16": ("bfloat16", 0), "int8": ("uint8", 4)}
"""Forms of fields in fewer bytes (see ``NarrowRows``): torch's dtype in the file, and the bytes
before a row's values."""

# Keys that older versions do not know and can ignore; only written if set.
_OPTIONAL = ("stored", "unit", "words", "frame")


@dataclass(frozen=True)
class ArrayEntry:
    """Manifest entry of an array.

    Attributes:
        file: Its file.
        dtype: Torch's dtype of its values when read.
        shape: Shape of its values.
        bytes: Bytes of the whole file.
        sha256: Digest of the file.
        stored: Form of a float32 or float64 field in fewer bytes; None: unchanged.
        unit: For times: their unit since 1970; else empty.
        words: For codes: the words of codes 0, 1, ...
        frame: For a part of a frame: name, width and statistics of each column.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    sha256: str
    stored: str | None = None
    unit: str = ""
    words: tuple[str, ...] = ()
    frame: tuple[dict[str, Any], ...] = ()

    @property
    def file_dtype(self) -> str:
        """Torch's dtype of the array in the file."""
        return self.dtype if self.stored is None else _FORMS[self.stored][0]

    @property
    def file_shape(self) -> tuple[int, ...]:
        """The shape of the array in the file."""
        head = 0 if self.stored is None else _FORMS[self.stored][1]
        # int8 rows start with their scale.
        return (self.shape[0], self.shape[1] + head) if head else self.shape

    @classmethod
    def parse(cls, value: Any, where: str) -> ArrayEntry:
        """Check and convert one array's JSON object."""
        name = take(value, "file", str, where)
        dtype = take(value, "dtype", str, where)
        shape = tuple(take(value, "shape", list, where))
        size = take(value, "bytes", int, where)
        digest = take_digest(value, where)
        if not _SAFE_NAME.fullmatch(name):
            raise FormatError(f"{where}: file must be the plain name of a .npy file, got {name!r}")
        if not all(type(n) is int and n >= 0 for n in shape):
            raise FormatError(f"{where}: shape must be a list of sizes, got {list(shape)}")
        stored = take_optional(value, "stored", str, where) if "stored" in value else None
        if stored is not None and (stored not in _FORMS or dtype not in ("float32", "float64")):
            rule = f"one of {', '.join(_FORMS)}, of a field of float32 or float64"
            raise FormatError(f"{where}: stored must be {rule}, got {stored!r} and {dtype}"[:300])
        if stored is not None and (not shape or (_FORMS[stored][1] and len(shape) != 2)):
            raise FormatError(
                f"{where}: shape must have rows, for int8 of one dimension, got {list(shape)}"
            )
        unit = take_word(value, "unit", UNITS, where) if "unit" in value else ""
        words = tuple(take(value, "words", list, where)) if "words" in value else ()
        if not all(isinstance(word, str) for word in words):
            raise FormatError(f"{where}: words must be a list of texts")
        frame = tuple(take(value, "frame", list, where)) if "frame" in value else ()
        for column in frame:
            take_name(column, "name", f"{where}, frame")
            take_count(column, "width", f"{where}, frame")
            take(column, "stats", dict, f"{where}, frame")
        entry = cls(name, dtype, shape, size, digest, stored, unit, words, frame)
        try:
            least = math.prod(entry.file_shape) * stored_dtype(entry.file_dtype).itemsize
        except ValueError as error:
            raise FormatError(f"{where}: {error}") from None
        # Not an equation, since the header's size depends on the writer. The file's own header is
        # compared when it is mapped.
        if size <= least:
            raise FormatError(
                f"{where}: bytes must be above {least} for {list(entry.file_shape)} "
                f"{entry.file_dtype}, got {size}"
            )
        return entry

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        return _to_json(self)


@dataclass(frozen=True)
class NodeEntry:
    """Manifest entry of a vertex type: number of vertices, and their fields."""

    name: str
    num_nodes: int
    fields: dict[str, ArrayEntry] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Any, where: str) -> NodeEntry:
        """Check and convert one vertex type's JSON object."""
        name = take_name(value, "name", where)
        where = f"{where} {name!r}"
        count = take_count(value, "num_nodes", where)
        return cls(name, count, _parse_fields(value, count, where))


@dataclass(frozen=True)
class EdgeEntry:
    """Manifest entry of an edge type: CSC arrays and fields.

    Without ``edge_ids``, an edge's id is its position.
    """

    type: EdgeType
    num_edges: int
    indptr: ArrayEntry
    indices: ArrayEntry
    edge_ids: ArrayEntry | None = None
    fields: dict[str, ArrayEntry] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Any, where: str) -> EdgeEntry:
        """Check and convert one edge type's JSON object."""
        names = take(value, "type", list, where)
        if len(names) != 3 or not all(isinstance(n, str) and n.isprintable() for n in names):
            raise FormatError(
                f"{where}: type must be three names of printable characters, got {names}"
            )
        where = f"{where} {'/'.join(names)!r}"
        count = take_count(value, "num_edges", where)
        indptr = ArrayEntry.parse(take(value, "indptr", dict, where), f"{where}, indptr")
        indices = ArrayEntry.parse(take(value, "indices", dict, where), f"{where}, indices")
        # Null or missing: an edge's id is its position.
        ids = value.get("edge_ids")
        edge_ids = None if ids is None else ArrayEntry.parse(ids, f"{where}, edge_ids")
        for label, entry in (("indices", indices), ("edge_ids", edge_ids)):
            if entry is not None and entry.shape != (count,):
                raise FormatError(
                    f"{where}: {label} must have shape [{count}], got {list(entry.shape)}"
                )
        fields = _parse_fields(value, count, where)
        return cls((names[0], names[1], names[2]), count, indptr, indices, edge_ids, fields)


@dataclass(frozen=True)
class ColumnEntry:
    """What became of a column of a table that the graph was made of, as a note for people.

    Attributes:
        table: The table; empty for an edge list.
        column: The column.
        becomes: Dtype and name of a field, "key", "edges", or "nothing".
        missing: Number of rows without a value.
        notes: Unit, words, how values were changed, or why it becomes nothing.
    """

    table: str
    column: str
    becomes: str
    missing: int = 0
    notes: str = ""

    @classmethod
    def parse(cls, value: Any, where: str) -> ColumnEntry:
        """Check and convert one column's JSON object."""
        return cls(
            take_name(value, "table", where),
            take_name(value, "column", where),
            take_name(value, "becomes", where),
            take_count(value, "missing", where),
            take_name(value, "notes", where),
        )


@dataclass(frozen=True)
class Manifest:
    """Parsed ``manifest.json``: vertex and edge types in order, and the graph's ``origin``.

    A graph that was made of tables also has notes about their ``columns``.
    """

    node_types: list[NodeEntry]
    edge_types: list[EdgeEntry]
    origin: dict[str, Any] = field(default_factory=dict)
    columns: list[ColumnEntry] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read and check the manifest of ``folder``, but no arrays; FormatError if invalid."""
        where = str(folder / MANIFEST)
        hint = f": its parts are graph folders, such as {str(folder / 'part-0')!r}"
        value = read_manifest_json(
            folder / MANIFEST, FORMAT, VERSIONS, hints={PARTITION_FORMAT: hint}
        )
        nodes = [
            NodeEntry.parse(v, f"{where}: vertex type")
            for v in take(value, "node_types", list, where)
        ]
        edges = [
            EdgeEntry.parse(v, f"{where}: edge type")
            for v in take(value, "edge_types", list, where)
        ]
        listed = take(value, "columns", list, where) if "columns" in value else []
        columns = [ColumnEntry.parse(v, f"{where}: column") for v in listed]
        manifest = cls(nodes, edges, dict(take(value, "origin", dict, where)), columns)
        manifest._check_types(where)
        return manifest

    def _check_types(self, where: str) -> None:
        # Constraints between entries.
        counts = {node.name: node.num_nodes for node in self.node_types}
        kinds = {edge.type for edge in self.edge_types}
        if len(counts) != len(self.node_types) or len(kinds) != len(self.edge_types):
            raise FormatError(f"{where}: each vertex type and edge type must be listed once")
        if not self.edge_types:
            raise FormatError(f"{where}: edge_types must hold at least 1 edge type, got 0")
        for edge in self.edge_types:
            source, _, target = edge.type
            if source not in counts or target not in counts:
                raise FormatError(
                    f"{where}: {edge.type} must join vertex types of {sorted(counts)}"
                )
            if edge.indptr.shape != (counts[target] + 1,):
                raise FormatError(
                    f"{where}: indptr of {'/'.join(edge.type)!r} must have shape "
                    f"[{counts[target] + 1}], "
                    f"got {list(edge.indptr.shape)}"
                )

    def write(self, folder: Path) -> None:
        """Write the manifest into ``folder``, after all arrays."""
        write_manifest_json(folder / MANIFEST, self.to_json())

    def arrays(self) -> list[ArrayEntry]:
        """List the entries of all arrays."""
        found = [entry for node in self.node_types for entry in node.fields.values()]
        for edge in self.edge_types:
            found += [edge.indptr, edge.indices, *([edge.edge_ids] if edge.edge_ids else [])]
            found += edge.fields.values()
        return found

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object that does not depend on the time or the machine."""
        columns = {"columns": [asdict(column) for column in self.columns]} if self.columns else {}
        return {
            "format": FORMAT,
            "version": version_of(self.arrays()),
            "origin": self.origin,
            **columns,
            "node_types": [_to_json(node) for node in self.node_types],
            "edge_types": [_to_json(edge) for edge in self.edge_types],
        }


def _parse_fields(value: Any, rows: int, where: str) -> dict[str, ArrayEntry]:
    fields = {}
    for name, item in take(value, "fields", dict, where).items():
        if not name.isprintable():
            raise FormatError(
                f"{where}: a field's name must be printable characters, got {name!r}"[:300]
            )
        fields[name] = ArrayEntry.parse(item, f"{where}, field {name!r}")
        if fields[name].shape[:1] != (rows,):
            raise FormatError(
                f"{where}: field {name!r} must have {rows} rows, got shape "
                f"{list(fields[name].shape)}"
            )
    return fields


def version_of(entries: Iterable[ArrayEntry]) -> int:
    """The lowest version that can hold these arrays."""
    return VERSIONS[1] if any(entry.stored is not None for entry in entries) else VERSIONS[0]


def _to_json(entry: ArrayEntry | NodeEntry | EdgeEntry) -> dict[str, Any]:
    """An entry as JSON: lists for tuples, without empty optional keys."""

    def without_empty(item: dict[str, Any]) -> dict[str, Any]:
        # A field may also have such a name, but its entry is never empty.
        return {key: value for key, value in item.items() if key not in _OPTIONAL or value}

    value: dict[str, Any] = json.loads(json.dumps(asdict(entry)), object_hook=without_empty)
    return value
