"""Locates the graph that a partition was made from, and checks that it is unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..datasets.manifest import MANIFEST, ArrayEntry, Manifest, take, take_digest, take_word
from ..datasets.native import file_digest
from ..datasets.opening import open_graph
from ..datasets.paths import ADJACENCY, folder_form
from ..errors import FormatError
from ..graph.fields import FieldValue
from ..graph.graph import Graph
from ..graph.stored_rows import NarrowRows
from ..system.checks import StrPath

_IDENTITY = {"native": MANIFEST, "pagraph": ADJACENCY}


@dataclass(frozen=True)
class SourceEntry:
    """Location and identity of the graph that a partition was made from.

    Attributes:
        path: Its folder relative to the partition's, so that the two may be moved together.
        absolute: Its absolute path when the partition was written.
        form: "native" or "pagraph".
        sha256: Digest of its ``manifest.json``, or its ``adj.npz``.
        split: Split that was taken; see :func:`~pagraph.datasets.open_graph`.
        fields: Vertex type to the fields that parts refer to: files of the folder with one row per
            vertex of the whole graph; None is the type of a graph with one type of each.
    """

    path: str
    absolute: str
    form: str
    sha256: str
    split: str = ""
    fields: Mapping[str | None, dict[str, ArrayEntry]] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Any, where: str, *, typed: bool) -> SourceEntry:
        """Check and take the JSON object."""
        path = take(value, "path", str, where)
        absolute = take(value, "absolute", str, where)
        split = take(value, "split", str, where)
        form = take_word(value, "form", _IDENTITY, where)
        if "\0" in path + absolute:
            raise FormatError(f"{where}: path must not hold a NUL character")
        fields = take(value, "fields", dict, where)
        entries = {}
        for node_type in fields if typed else [None]:
            own = fields if node_type is None else take(fields, node_type, dict, where)
            entries[node_type] = {
                k: ArrayEntry.parse(item, f"{where}, field {k!r}") for k, item in own.items()
            }
        return cls(path, absolute, form, take_digest(value, where), split, entries)

    @property
    def arrays(self) -> Iterator[tuple[str | None, str, ArrayEntry]]:
        """Vertex type, name and file of each field that parts refer to."""
        for node_type, fields in self.fields.items():
            for name, entry in fields.items():
                yield node_type, name, entry

    def to_json(self) -> dict[str, Any]:
        """This entry as a JSON object."""
        fields = {
            node_type: {name: entry.to_json() for name, entry in own.items()}
            for node_type, own in self.fields.items()
        }
        return {**vars(self), "fields": fields.get(None, fields)}


def describe_source(
    source: StrPath,
    out: Path,
    referenced: Mapping[str | None, dict[str, FieldValue]],
    split: str,
) -> SourceEntry:
    """Manifest entry of the graph folder ``source``; ValueError for a referenced field that is no
    file of it."""
    folder = Path(os.path.realpath(source))
    form = folder_form(folder)
    path = os.path.relpath(folder, os.path.realpath(out))
    entries = {}
    for node_type, own in referenced.items():
        found = {}
        for name, rows in own.items():
            found[name] = _field_entry(folder, form, node_type, name, rows)
        entries[node_type] = found
    digest = file_digest(folder / _IDENTITY[form])
    return SourceEntry(path, str(folder), form, digest, split, entries)


def _field_entry(
    folder: Path, form: str, node_type: str | None, name: str, tensor: FieldValue
) -> ArrayEntry:
    entry = None
    dtype = str(tensor.dtype).removeprefix("torch.")
    stored = tensor.form.name if isinstance(tensor, NarrowRows) else None
    if form == "native":
        nodes = Manifest.read(folder).node_types
        # Without a type, the only one.
        own = [node.fields for node in nodes if node_type in (node.name, None)]
        entry = own[0].get(name) if len(own) == 1 else None
    elif name == "feat" and (file := folder / "feat.npy").is_file():
        entry = ArrayEntry(
            file.name, dtype, tuple(tensor.shape), file.stat().st_size, file_digest(file)
        )
    wanted = (dtype, tuple(tensor.shape), stored)
    if entry is None or (entry.dtype, entry.shape, entry.stored) != wanted:
        raise ValueError(
            f"features must be 'copy' for fields that are no .npy file of the source, got {name!r}"
        )
    return entry


def has_source(entry: SourceEntry, out: Path) -> bool:
    """Whether a graph is at one of the places that the manifest names; it may be another one."""
    return any((folder / _IDENTITY[entry.form]).is_file() for folder in _places(entry, out))


def _places(entry: SourceEntry, out: Path) -> list[Path]:
    # The relative one first: both folders may have been moved, or copied, together.
    return [Path(os.path.normpath(Path(os.path.realpath(out), entry.path))), Path(entry.absolute)]


def locate_source(entry: SourceEntry, out: Path, given: StrPath | None = None) -> Path:
    """Folder of the source: ``given``, or else at the relative or the absolute path.

    Raises:
        FormatError: It is gone, or holds another graph.
    """
    found = _places(entry, out) if given is None else [Path(given)]
    identity = _IDENTITY[entry.form]
    there = [folder for folder in found if (folder / identity).is_file()]
    if not there:
        places = " or ".join(dict.fromkeys(repr(str(folder)) for folder in found))
        raise FormatError(
            f"{out}: the graph it was made from must be at {places}, got no {identity} there "
            "(give another place by source= or --source)"
        )
    for folder in there:
        if file_digest(folder / identity) == entry.sha256:
            return folder
    raise FormatError(
        f"{there[0] / identity} must be that of the graph that {out} was made from, got another "
        "SHA-256"
    )


def open_source(entry: SourceEntry, out: Path, given: StrPath | None = None) -> Graph:
    """Open the whole graph; raises as :func:`locate_source`."""
    return open_graph(locate_source(entry, out, given), split=entry.split)
