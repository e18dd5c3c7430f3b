"""Manifest of a partition folder: options of the division, content of each part, location of the graph."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..datasets.manifest import FORMAT as GRAPH_FORMAT
from ..datasets.manifest import (
    MANIFEST,
    PARTITION_FORMAT,
    VERSIONS,
    ArrayEntry,
    Manifest,
    read_manifest_json,
    size_of,
    take,
    take_digest,
    take_name,
    take_optional,
    version_of,
    write_manifest_json,
)
from ..datasets.native import file_digest
from ..datasets.opening import ADJACENCY, folder_form, open_graph
from ..errors import FormatError
from ..graph.field_value import FieldValue
from ..graph.graph import Graph
from ..graph.narrow_rows import NarrowRows
from .partition import MAX_HOPS

__all__ = [
    "FORMAT",
    "SPLITS",
    "PartEntry",
    "PartitionManifest",
    "SourceEntry",
    "describe_source",
    "is_partition",
    "locate_source",
    "open_source",
    "part_folder",
    "train_digest",
]

FORMAT = PARTITION_FORMAT
SPLITS = ("train", "val", "test")
"""The three lists of local ids that every part has."""
_COUNTS = ("num_edges", "dropped", "missing")
_PLAIN = (
    *("origin", "method", "hops", "seed", "capped", "max_replication"),
    *("features", "evaluation", "num_nodes", "num_edges"),
)
_IDENTITY = {"native": MANIFEST, "pagraph": ADJACENCY}


@dataclass(frozen=True)
class SourceEntry:
    """Location and identity of the graph that a partition was made from.

    Attributes:
        path: Its folder, relative to the partition's (the two may be moved together); ``absolute``: where it was.
        form: "native" or "pagraph".
        sha256: Digest of its ``manifest.json``, or its ``adj.npz``.
        split: Split that was taken; see :func:`~pagraph.datasets.open_graph`.
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
    source: str | os.PathLike[str], out: Path, referenced: dict[str, FieldValue], split: str
) -> SourceEntry:
    """Manifest entry of the graph folder ``source``; ValueError for a referenced field that is no file of it."""
    folder = Path(os.path.realpath(source))
    form = folder_form(folder)
    path = os.path.relpath(folder, os.path.realpath(out))
    entries = {name: _field_entry(folder, form, name, tensor) for name, tensor in referenced.items()}
    return SourceEntry(path, str(folder), form, file_digest(folder / _IDENTITY[form]), split, entries)


def _field_entry(folder: Path, form: str, name: str, tensor: FieldValue) -> ArrayEntry:
    entry, dtype = None, str(tensor.dtype).removeprefix("torch.")
    stored = tensor.form.name if isinstance(tensor, NarrowRows) else None
    if form == "native":
        nodes = Manifest.read(folder).node_types
        entry = nodes[0].fields.get(name) if len(nodes) == 1 else None
    elif name == "feat" and (file := folder / "feat.npy").is_file():
        entry = ArrayEntry(file.name, dtype, tuple(tensor.shape), file.stat().st_size, file_digest(file))
    if entry is None or (entry.dtype, entry.shape, entry.stored) != (dtype, tuple(tensor.shape), stored):
        raise ValueError(f"features must be 'copy' for fields that are no .npy file of the source, got {name!r}")
    return entry


def locate_source(entry: SourceEntry, out: Path) -> Path:
    """Folder of the source, at the relative or absolute path; FormatError if it is gone, or another graph by now."""
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


def open_source(entry: SourceEntry, out: Path) -> Graph:
    """Open the whole graph; FormatError if it is not there, or is another graph by now."""
    return open_graph(locate_source(entry, out), split=entry.split)


def part_folder(out: Path, part: int) -> Path:
    """Folder of one part."""
    return out / f"part-{part}"


def is_partition(folder: Path) -> bool:
    """Whether the manifest in ``folder`` is a partition's."""
    try:
        value = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("format") == FORMAT


def train_digest(train: Tensor) -> str:
    """SHA-256 of vertex ids, each as 8 bytes, lowest first."""
    return hashlib.sha256(train.numpy().astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True)
class PartEntry:
    """One part of a partition.

    Attributes:
        hop_ends: Numbers of vertices within 0, 1, ... hops: ``hops + 1`` numbers.
        dropped: Number of vertices that the part does without although its seeds reach them.
        missing: Number of in-edges that it does without for that reason.
        splits: The files of ``train``, ``val`` and ``test``.
        sha256: Digest of the part's own ``manifest.json``.
    """

    hop_ends: tuple[int, ...]
    num_edges: int
    dropped: int
    missing: int
    splits: dict[str, ArrayEntry]
    sha256: str

    @property
    def num_nodes(self) -> int:
        """Number of vertices."""
        return self.hop_ends[-1]

    @classmethod
    def parse(cls, value: Any, hops: int, where: str) -> PartEntry:
        """Check and take one part's JSON object."""
        ends = tuple(take(value, "hop_ends", list, where))
        if not all(type(end) is int and end >= 0 for end in ends) or list(ends) != sorted(ends):
            raise FormatError(f"{where}: hop_ends must be ascending numbers, got {list(ends)}"[:300])
        if len(ends) != hops + 1:
            raise FormatError(f"{where}: hop_ends must be {hops + 1} numbers, got {len(ends)}")
        counts = [_count(value, name, where) for name in _COUNTS]
        splits = {name: ArrayEntry.parse(take(value, name, dict, where), f"{where}, {name}") for name in SPLITS}
        for name, entry in splits.items():
            if entry.dtype != "int64" or len(entry.shape) != 1 or entry.shape[0] > ends[-1]:
                rule = f"int64 of shape [n], n at most {ends[-1]}"
                raise FormatError(f"{where}: {name} must be {rule}, got {entry.dtype} of shape {list(entry.shape)}")
        return cls(ends, counts[0], counts[1], counts[2], splits, take_digest(value, where))

    def to_json(self) -> dict[str, Any]:
        """This entry as a JSON object."""
        splits = {name: entry.to_json() for name, entry in self.splits.items()}
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {"hop_ends": list(self.hop_ends), **counts, **splits, "sha256": self.sha256}


@dataclass(frozen=True)
class PartitionManifest:
    """Content of a partition's ``manifest.json``.

    Attributes:
        hops: In-neighbours of up to so many hops are in a part.
        num_nodes: Vertices of the whole graph, ``num_edges`` its edges.
        train_sha256: The :func:`train_digest` of all training vertices.
        train_is_mask: Whether they are those of the graph's field ``train_mask``.
        features: "copy", or "reference": wide fields are those of the source.
        evaluation: "source", or "parts": parts hold the neighbourhoods of validation and test vertices as well.
        outside: Numbers of validation and test vertices that no part has in its lists.
        source: The folder of the whole graph; None if it was in memory.
        seed: Seed of the method's random choices, where it is known, as ``max_replication`` is.
        capped: Whether parts may do without vertices that their seeds reach.
        origin: Free-form notes for people.
    """

    method: str
    hops: int
    num_nodes: int
    num_edges: int
    folders: tuple[PartEntry, ...]
    train_sha256: str
    train_is_mask: bool
    features: str = "copy"
    evaluation: str = "source"
    outside: dict[str, int] = field(default_factory=lambda: {"val": 0, "test": 0})
    source: SourceEntry | None = None
    seed: int | None = None
    capped: bool = False
    max_replication: float | None = None
    origin: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        what = f"num_nodes={self.num_nodes}, num_edges={self.num_edges}, features={self.features!r}"
        return f"PartitionManifest({self.num_parts} parts, hops={self.hops}, method={self.method!r}, {what})"

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.folders)

    @property
    def train_per_part(self) -> tuple[int, ...]:
        """Number of training vertices of each part."""
        return self._listed("train")

    @property
    def val_per_part(self) -> tuple[int, ...]:
        """Number of validation vertices that each part evaluates."""
        return self._listed("val")

    @property
    def test_per_part(self) -> tuple[int, ...]:
        """Number of test vertices that each part evaluates."""
        return self._listed("test")

    @property
    def vertices_per_part(self) -> tuple[int, ...]:
        """Number of vertices of each part."""
        return tuple(entry.num_nodes for entry in self.folders)

    @property
    def edges_per_part(self) -> tuple[int, ...]:
        """Number of edges of each part."""
        return tuple(entry.num_edges for entry in self.folders)

    @property
    def replication_factor(self) -> float:
        """Sum of the parts' vertices over the vertices of the whole graph."""
        return sum(self.vertices_per_part) / self.num_nodes

    def _listed(self, split: str) -> tuple[int, ...]:
        return tuple(entry.splits[split].shape[0] for entry in self.folders)

    @classmethod
    def read(cls, folder: Path) -> PartitionManifest:
        """Read and check the manifest of ``folder``, but not the parts; FormatError if there is none of our version."""
        hint = f': "pagraph partition {folder} OUT -k K" divides a graph into K parts'
        if is_partition(folder.parent):
            hint = f": it is a part of the partition {str(folder.parent)!r}"
        value = read_manifest_json(folder / MANIFEST, FORMAT, VERSIONS, hints={GRAPH_FORMAT: hint})
        where = str(folder / MANIFEST)
        hops = take(value, "hops", int, where)
        if not 1 <= hops <= MAX_HOPS:
            raise FormatError(f"{where}: hops must be from 1 to {MAX_HOPS}, got {hops}")
        entries = enumerate(take(value, "folders", list, where))
        outside = take(value, "outside", dict, where)
        source = take_optional(value, "source", dict, where)
        train = take(value, "train", dict, where)
        manifest = cls(
            take_name(value, "method", where),
            hops,
            _count(value, "num_nodes", where),
            _count(value, "num_edges", where),
            tuple(PartEntry.parse(entry, hops, f"{where}: part {part}") for part, entry in entries),
            take_digest(train, f"{where}: train"),
            take(train, "is_mask", bool, f"{where}: train"),
            _one_of(value, "features", ("copy", "reference"), where),
            _one_of(value, "evaluation", ("source", "parts"), where),
            {name: _count(outside, name, where) for name in SPLITS[1:]},
            None if source is None else SourceEntry.parse(source, f"{where}: source"),
            take_optional(value, "seed", int, where),
            take(value, "capped", bool, where),
            take_optional(value, "max_replication", float, where),
            dict(take(value, "origin", dict, where)),
        )
        manifest._check(value, where)
        return manifest

    def _check(self, value: dict[str, Any], where: str) -> None:
        if self.num_nodes < 1:
            raise FormatError(f"{where}: num_nodes must be at least 1, got {self.num_nodes}")
        if not self.folders:
            raise FormatError(f"{where}: folders must hold at least 1 part, got 0")
        if self.features == "reference" and self.source is None:
            raise FormatError(f"{where}: source must be there where features is 'reference', got None")
        for entry in self.folders:
            if entry.num_nodes > self.num_nodes or entry.num_edges > self.num_edges:
                got = f"{entry.num_nodes} vertices and {entry.num_edges} edges"
                whole = f"{self.num_nodes} and {self.num_edges}"
                raise FormatError(f"{where}: a part must not be larger than the graph ({whole}), got {got}")
        for name, derived in self._summary().items():
            if value.get(name) != derived:
                raise FormatError(f"{where}: {name} must be {derived} as the parts say, got {value.get(name)!r}"[:300])

    def _summary(self) -> dict[str, Any]:
        """Numbers that follow from the parts, for people."""
        return {
            "parts": self.num_parts,
            **{f"{name}_per_part": list(getattr(self, f"{name}_per_part")) for name in (*SPLITS, "vertices", "edges")},
            "replication_factor": self.replication_factor,
        }

    def write(self, folder: Path) -> None:
        """Write the manifest into ``folder``, which holds all parts by now."""
        write_manifest_json(folder / MANIFEST, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """JSON object of the manifest; nothing in it depends on the time."""
        return {
            "format": FORMAT,
            "version": version_of([] if self.source is None else self.source.fields.values()),
            **{name: getattr(self, name) for name in _PLAIN},
            **self._summary(),
            "outside": self.outside,
            "train": {"sha256": self.train_sha256, "is_mask": self.train_is_mask},
            "source": None if self.source is None else self.source.to_json(),
            "folders": [entry.to_json() for entry in self.folders],
        }


def _count(value: Any, key: str, where: str) -> int:
    return size_of(take(value, key, int, where), key, where)


def _one_of(value: Any, key: str, allowed: tuple[str, ...], where: str) -> str:
    found = take(value, key, str, where)
    if found not in allowed:
        raise FormatError(f"{where}: {key} must be one of {', '.join(allowed)}, got {found!r}"[:300])
    return found
