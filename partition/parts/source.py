"""Where the graph that was divided lies, and whether it is still the same one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ...datasets.arrays import file_digest
from ...datasets.checked_json import take, take_digest
from ...datasets.manifest import MANIFEST, ArrayEntry, Manifest
from ...datasets.opening import folder_form, open_graph
from ...datasets.pagraph_folder import ADJACENCY
from ...errors import FormatError
from ...graph import Graph

__all__ = ["SourceEntry", "describe_source", "locate_source", "open_source"]

_IDENTITY = {"native": MANIFEST, "pagraph": ADJACENCY}


@dataclass(frozen=True)
class SourceEntry:
    """The source as a partition's manifest has it.

    Attributes:
        path: Its folder, relative to the partition's folder: the two may be moved together.
        absolute: Its folder where the partition was made.
        form: "native" or "pagraph".
        sha256: Of its ``manifest.json``, or its ``adj.npz``.
        split: Which of its splits was taken; see :func:`~pagraph.datasets.open_graph`.
        fields: The fields that parts refer to: files of the folder with one row per vertex of the whole graph.
    """

    path: str
    absolute: str
    form: str
    sha256: str
    split: str = ""
    fields: dict[str, ArrayEntry] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Any, where: str) -> SourceEntry:
        """Check and take the JSON object."""
        path, absolute, form, split = (take(value, key, str, where) for key in ("path", "absolute", "form", "split"))
        if form not in _IDENTITY:
            raise FormatError(f"{where}: form must be one of {', '.join(_IDENTITY)}, got {form!r}"[:300])
        if "\0" in path + absolute:
            raise FormatError(f"{where}: path must not hold a NUL character")
        fields = take(value, "fields", dict, where)
        entries = {name: ArrayEntry.parse(item, f"{where}, field {name!r}") for name, item in fields.items()}
        return cls(path, absolute, form, take_digest(value, where), split, entries)

    def to_json(self) -> dict[str, Any]:
        """This entry as a JSON object."""
        return {**vars(self), "fields": {name: entry.to_json() for name, entry in self.fields.items()}}


def describe_source(
    source: str | os.PathLike[str], out: Path, referenced: dict[str, Tensor], split: str
) -> SourceEntry:
    """What the manifest of the partition ``out`` shall say of the folder ``source``.

    Args:
        source: The graph folder.
        out: Where the partition will be.
        referenced: The fields that parts shall refer to.
        split: As for :func:`~pagraph.datasets.open_graph`.

    Raises:
        ValueError: A field cannot be referred to: it is no plain file of the folder.
    """
    folder = Path(os.path.realpath(source))
    form = folder_form(folder)
    path = os.path.relpath(folder, os.path.realpath(out))
    entries = {name: _field_entry(folder, form, name, tensor) for name, tensor in referenced.items()}
    return SourceEntry(path, str(folder), form, file_digest(folder / _IDENTITY[form]), split, entries)


def _field_entry(folder: Path, form: str, name: str, tensor: Tensor) -> ArrayEntry:
    entry = None
    if form == "native":
        nodes = Manifest.read(folder).node_types
        entry = nodes[0].fields.get(name) if len(nodes) == 1 else None
    elif name == "feat" and (file := folder / "feat.npy").is_file():
        dtype = str(tensor.dtype).removeprefix("torch.")
        entry = ArrayEntry(file.name, dtype, tuple(tensor.shape), file.stat().st_size, file_digest(file))
    if entry is None or (entry.dtype, entry.shape) != (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)):
        raise ValueError(f"features must be 'copy' for fields that are no .npy file of the source, got {name!r}")
    return entry


def locate_source(entry: SourceEntry, out: Path) -> Path:
    """The source's folder, at the relative path or else the absolute one; checked to be the one that was divided.

    Raises:
        FormatError: It is at neither, or is another graph by now.
    """
    found = [Path(os.path.realpath(out), entry.path), Path(entry.absolute)]
    identity = _IDENTITY[entry.form]
    there = [Path(os.path.normpath(folder)) for folder in found if (folder / identity).is_file()]
    if not there:
        places = " or ".join(dict.fromkeys(repr(os.path.normpath(folder)) for folder in found))
        raise FormatError(f"{out}: the graph it was made from must be at {places}, got no {identity} there")
    for folder in there:
        if file_digest(folder / identity) == entry.sha256:
            return folder
    raise FormatError(f"{there[0] / identity} must be that of the graph that {out} was made from, got another SHA-256")


def open_source(entry: SourceEntry, out: Path, *, folder: Path | None = None) -> Graph:
    """The whole graph, at ``folder`` or where it was.

    Raises:
        FormatError: It is not there, or is another graph by now.
    """
    if folder is None:
        folder = locate_source(entry, out)
    return open_graph(folder, split=entry.split)
