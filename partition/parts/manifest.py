"""The manifest of a partition folder: how the graph was divided, what each part holds, and of which graph.

The folder holds ``manifest.json`` and for each part a native graph folder ``part-<i>``, with three arrays of local ids
beside the graph's manifest: ``train.npy``, ``val.npy`` and ``test.npy``. A part needs only itself and the manifest
above it: parts may lie on different machines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ...datasets.checked_json import read_manifest_json, size_of, take, take_digest, take_optional, write_manifest_json
from ...datasets.manifest import FORMAT as GRAPH_FORMAT
from ...datasets.manifest import MANIFEST, PARTITION_FORMAT, ArrayEntry
from ...errors import FormatError
from ..closure import MAX_HOPS
from .source import SourceEntry

__all__ = [
    "FORMAT",
    "SPLITS",
    "VERSION",
    "PartEntry",
    "PartitionManifest",
    "is_partition",
    "part_folder",
    "train_digest",
]

FORMAT = PARTITION_FORMAT
VERSION = 1
SPLITS = ("train", "val", "test")
"""The three lists of local ids that every part has."""


def part_folder(out: Path, part: int) -> Path:
    """Where part number ``part`` is."""
    return out / f"part-{part}"


def is_partition(folder: Path) -> bool:
    """Whether ``folder`` says of itself that it holds a partition."""
    try:
        value = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("format") == FORMAT


def train_digest(train: Tensor) -> str:
    """SHA-256 of ids, each as 8 bytes, lowest first."""
    return hashlib.sha256(train.numpy().astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True)
class PartEntry:
    """One part.

    Attributes:
        hop_ends: Numbers of vertices within 0, 1, ... hops: ``hops + 1`` numbers.
        num_edges: Number of edges.
        dropped: Vertices that the part does without although its seeds reach them.
        missing: In-edges that it does without for that reason.
        splits: The files of ``train``, ``val`` and ``test``.
        sha256: Of the part's own ``manifest.json``.
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
        counts = [size_of(take(value, name, int, where), name, where) for name in ("num_edges", "dropped", "missing")]
        splits = {name: ArrayEntry.parse(take(value, name, dict, where), f"{where}, {name}") for name in SPLITS}
        for name, entry in splits.items():
            if entry.dtype != "int64" or len(entry.shape) != 1 or entry.shape[0] > ends[-1]:
                rule = f"int64 of shape [n], n at most {ends[-1]}"
                raise FormatError(f"{where}: {name} must be {rule}, got {entry.dtype} of shape {list(entry.shape)}")
        return cls(ends, counts[0], counts[1], counts[2], splits, take_digest(value, where))

    def to_json(self) -> dict[str, Any]:
        """This entry as a JSON object."""
        return {
            "hop_ends": list(self.hop_ends),
            "num_edges": self.num_edges,
            "dropped": self.dropped,
            "missing": self.missing,
            **{name: entry.to_json() for name, entry in self.splits.items()},
            "sha256": self.sha256,
        }


@dataclass(frozen=True)
class PartitionManifest:
    """Everything that a partition's ``manifest.json`` says.

    Attributes:
        method: The name of the method that divided the training vertices.
        hops: In-neighbours of up to so many hops are in a part.
        num_nodes: Vertices of the whole graph.
        num_edges: Edges of the whole graph.
        folders: The parts.
        train_sha256: Of the ids of all training vertices, ascending, 8 bytes each, lowest first.
        train_is_mask: Whether they are those of the graph's field ``train_mask``.
        features: "copy", or "reference": wide fields are those of the source.
        evaluation: "source", or "parts": parts hold the neighbourhoods of validation and test vertices as well.
        outside: Numbers of validation and test vertices that no part has in its lists.
        source: The folder of the whole graph; None if it was in memory.
        seed: Of the method's random choices, where it is known.
        capped: Whether parts may do without vertices that their seeds reach.
        max_replication: What the replication factor was limited to, where it is known.
        origin: For people: anything.
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
        return self._per_part(lambda entry: entry.splits["train"].shape[0])

    @property
    def val_per_part(self) -> tuple[int, ...]:
        """Number of validation vertices that each part evaluates."""
        return self._per_part(lambda entry: entry.splits["val"].shape[0])

    @property
    def test_per_part(self) -> tuple[int, ...]:
        """Number of test vertices that each part evaluates."""
        return self._per_part(lambda entry: entry.splits["test"].shape[0])

    @property
    def vertices_per_part(self) -> tuple[int, ...]:
        """Number of vertices of each part."""
        return self._per_part(lambda entry: entry.num_nodes)

    @property
    def edges_per_part(self) -> tuple[int, ...]:
        """Number of edges of each part."""
        return self._per_part(lambda entry: entry.num_edges)

    @property
    def replication_factor(self) -> float:
        """Sum of the parts' vertices over the vertices of the whole graph."""
        return sum(self.vertices_per_part) / self.num_nodes

    def _per_part(self, count: Callable[[PartEntry], int]) -> tuple[int, ...]:
        return tuple(count(entry) for entry in self.folders)

    @classmethod
    def read(cls, folder: Path) -> PartitionManifest:
        """Read and check the manifest of ``folder``, on its own: the parts are not looked at.

        Raises:
            FormatError: There is none, or it is no manifest of a version that this package reads.
        """
        hint = f': "pagraph partition {folder} OUT -k K" divides a graph into K parts'
        if is_partition(folder.parent):
            hint = f": it is a part of the partition {str(folder.parent)!r}"
        value = read_manifest_json(folder / MANIFEST, FORMAT, VERSION, hints={GRAPH_FORMAT: hint})
        where = str(folder / MANIFEST)
        hops = take(value, "hops", int, where)
        if not 1 <= hops <= MAX_HOPS:
            raise FormatError(f"{where}: hops must be from 1 to {MAX_HOPS}, got {hops}")
        entries = enumerate(take(value, "folders", list, where))
        outside = take(value, "outside", dict, where)
        source = take_optional(value, "source", dict, where)
        train = take(value, "train", dict, where)
        manifest = cls(
            take(value, "method", str, where),
            hops,
            size_of(take(value, "num_nodes", int, where), "num_nodes", where),
            size_of(take(value, "num_edges", int, where), "num_edges", where),
            tuple(PartEntry.parse(entry, hops, f"{where}: part {part}") for part, entry in entries),
            take_digest(train, f"{where}: train"),
            take(train, "is_mask", bool, f"{where}: train"),
            _one_of(value, "features", ("copy", "reference"), where),
            _one_of(value, "evaluation", ("source", "parts"), where),
            {name: size_of(take(outside, name, int, where), name, where) for name in SPLITS[1:]},
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
        """What follows from the parts, for people."""
        return {
            "parts": self.num_parts,
            "train_per_part": list(self.train_per_part),
            "val_per_part": list(self.val_per_part),
            "test_per_part": list(self.test_per_part),
            "vertices_per_part": list(self.vertices_per_part),
            "edges_per_part": list(self.edges_per_part),
            "replication_factor": self.replication_factor,
        }

    def write(self, folder: Path) -> None:
        """Write the manifest into ``folder``, which holds all parts by now."""
        write_manifest_json(folder / MANIFEST, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The manifest as a JSON object; nothing in it depends on the time."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "origin": self.origin,
            "method": self.method,
            "hops": self.hops,
            "seed": self.seed,
            "capped": self.capped,
            "max_replication": self.max_replication,
            "features": self.features,
            "evaluation": self.evaluation,
            "num_nodes": self.num_nodes,
            "num_edges": self.num_edges,
            **self._summary(),
            "outside": self.outside,
            "train": {"sha256": self.train_sha256, "is_mask": self.train_is_mask},
            "source": None if self.source is None else self.source.to_json(),
            "folders": [entry.to_json() for entry in self.folders],
        }


def _one_of(value: Any, key: str, allowed: tuple[str, ...], where: str) -> str:
    found = take(value, key, str, where)
    if found not in allowed:
        raise FormatError(f"{where}: {key} must be one of {', '.join(allowed)}, got {found!r}"[:300])
    return found
