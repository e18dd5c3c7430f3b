"""Manifest of a partition folder: options, content of each part, location of the graph."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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
    read_manifest_json,
    take,
    take_count,
    take_digest,
    take_name,
    take_optional,
    take_word,
    version_of,
    write_manifest_json,
)
from ..datasets.paths import is_partition
from ..errors import FormatError
from ..options.partitioning import MAX_HOPS
from .source import SourceEntry

FORMAT = PARTITION_FORMAT
SPLITS = ("train", "val", "test")
"""The three lists of local ids that every part has."""
_TYPED = 3
"""Version of a folder whose graph has several types; those of one type are as :data:`VERSIONS`
are."""
_COUNTS = ("num_edges", "dropped", "missing")
_PLAIN = (
    *("origin", "method", "hops", "seed", "capped", "max_replication"),
    *("features", "evaluation", "num_nodes", "num_edges"),
)


def part_folder(out: Path, part: int) -> Path:
    """Folder of one part."""
    return out / f"part-{part}"


def train_digest(train: Tensor) -> str:
    """SHA-256 of vertex ids, each as 8 bytes, lowest first."""
    return hashlib.sha256(train.numpy().astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True)
class PartEntry:
    """One part of a partition.

    Attributes:
        hop_ends: Numbers of vertices within 0, 1, ... hops: ``hops + 1`` numbers.
        ends_by_type: The same for each vertex type; empty where the graph has one type of each.
        dropped: Number of vertices that the part's seeds reach but the part does not hold.
        missing: Number of in-edges that it does not hold for that reason.
        splits: The files of ``train``, ``val`` and ``test``.
        sha256: Digest of the part's own ``manifest.json``.
    """

    hop_ends: tuple[int, ...]
    num_edges: int
    dropped: int
    missing: int
    splits: dict[str, ArrayEntry]
    sha256: str
    ends_by_type: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """Number of vertices."""
        return self.hop_ends[-1]

    @classmethod
    def parse(cls, value: Any, hops: int, node_types: Mapping[str, int], where: str) -> PartEntry:
        """Check and parse one part's JSON object.

        ``node_types`` is empty for a graph with one type of each.
        """
        by_type: dict[str, tuple[int, ...]] = {}
        if node_types:
            given = take(value, "hop_ends", dict, where)
            by_type = {
                name: _hop_ends(given, name, hops, f"{where}: hop_ends") for name in node_types
            }
            ends = tuple(map(sum, zip(*by_type.values(), strict=True)))
        else:
            ends = _hop_ends(value, "hop_ends", hops, where)
        counts = [take_count(value, name, where) for name in _COUNTS]
        splits = {
            name: ArrayEntry.parse(take(value, name, dict, where), f"{where}, {name}")
            for name in SPLITS
        }
        for name, entry in splits.items():
            if entry.dtype != "int64" or len(entry.shape) != 1 or entry.shape[0] > ends[-1]:
                rule = f"int64 of shape [n], n at most {ends[-1]}"
                raise FormatError(
                    f"{where}: {name} must be {rule}, got {entry.dtype} of shape "
                    f"{list(entry.shape)}"
                )
        return cls(
            ends, counts[0], counts[1], counts[2], splits, take_digest(value, where), by_type
        )

    def to_json(self) -> dict[str, Any]:
        """This entry as a JSON object."""
        splits = {name: entry.to_json() for name, entry in self.splits.items()}
        counts = {name: getattr(self, name) for name in _COUNTS}
        ends = {name: list(ends) for name, ends in self.ends_by_type.items()} or list(self.hop_ends)
        return {"hop_ends": ends, **counts, **splits, "sha256": self.sha256}


@dataclass(frozen=True)
class PartitionManifest:
    """Content of a partition's ``manifest.json``.

    Attributes:
        hops: Number of hops of in-neighbours in a part.
        num_nodes: Vertices of the whole graph.
        num_edges: Edges of the whole graph.
        node_types: Vertex type to its number of vertices; empty where the graph has one type of
            each.
        train_type: The type of the training vertices; "" where the graph has one type of each.
        train_sha256: The :func:`train_digest` of all training vertices.
        train_is_mask: Whether the graph's field ``train_mask`` marks exactly these.
        features: "copy", or "reference": wide fields are those of the source.
        evaluation: "source", or "parts": parts hold the neighbourhoods of validation and test
            vertices as well.
        outside: Numbers of validation and test vertices that no part lists.
        source: The folder of the whole graph; None if it was in memory.
        seed: Seed of the method's random choices; None if unknown.
        max_replication: Limit on the replication factor; None if unknown or without a limit.
        capped: Whether parts may lack vertices that their seeds reach.
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
    node_types: dict[str, int] = field(default_factory=dict)
    train_type: str = ""

    def __repr__(self) -> str:
        what = f"num_nodes={self.num_nodes}, num_edges={self.num_edges}, features={self.features!r}"
        return (
            f"PartitionManifest({self.num_parts} parts, hops={self.hops}, "
            f"method={self.method!r}, {what})"
        )

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
        """Read and check the manifest of ``folder``, but not the parts.

        Raises:
            FormatError: There is no manifest of a version that this release reads.
        """
        hint = f': "pagraph partition {folder} OUT -k K" divides a graph into K parts'
        if is_partition(folder.parent):
            hint = f": it is a part of the partition {str(folder.parent)!r}"
        value = read_manifest_json(
            folder / MANIFEST, FORMAT, (*VERSIONS, _TYPED), hints={GRAPH_FORMAT: hint}
        )
        where = str(folder / MANIFEST)
        hops = take(value, "hops", int, where)
        if not 1 <= hops <= MAX_HOPS:
            raise FormatError(f"{where}: hops must be from 1 to {MAX_HOPS}, got {hops}")
        entries = enumerate(take(value, "folders", list, where))
        outside = take(value, "outside", dict, where)
        source = take_optional(value, "source", dict, where)
        train = take(value, "train", dict, where)
        typed = value["version"] == _TYPED
        source_entry = None
        if source is not None:
            source_entry = SourceEntry.parse(source, f"{where}: source", typed=typed)
        train_type = take_name(train, "node_type", f"{where}: train") if typed else ""
        counts = take(value, "node_types", dict, where) if typed else {}
        node_types = {name: take_count(counts, name, f"{where}: node_types") for name in counts}
        if typed and not node_types:
            raise FormatError(
                f"{where}: node_types must hold at least 1 type in version {_TYPED}, got 0"
            )
        manifest = cls(
            take_name(value, "method", where),
            hops,
            take_count(value, "num_nodes", where),
            take_count(value, "num_edges", where),
            tuple(
                PartEntry.parse(entry, hops, node_types, f"{where}: part {part}")
                for part, entry in entries
            ),
            take_digest(train, f"{where}: train"),
            take(train, "is_mask", bool, f"{where}: train"),
            take_word(value, "features", ("copy", "reference"), where),
            take_word(value, "evaluation", ("source", "parts"), where),
            {name: take_count(outside, name, where) for name in SPLITS[1:]},
            source_entry,
            take_optional(value, "seed", int, where),
            take(value, "capped", bool, where),
            take_optional(value, "max_replication", float, where),
            dict(take(value, "origin", dict, where)),
            node_types,
            train_type,
        )
        manifest._check(value, where)
        return manifest

    def _check(self, value: dict[str, Any], where: str) -> None:
        if self.num_nodes < 1:
            raise FormatError(f"{where}: num_nodes must be at least 1, got {self.num_nodes}")
        in_all = sum(self.node_types.values())
        has_type = self.train_type in self.node_types
        if self.node_types and (in_all != self.num_nodes or not has_type):
            got = f"{self.num_nodes} and {self.train_type!r}"
            raise FormatError(
                f"{where}: num_nodes and train must be of {self.node_types}, got {got}"[:300]
            )
        if not self.folders:
            raise FormatError(f"{where}: folders must hold at least 1 part, got 0")
        if self.features == "reference" and self.source is None:
            raise FormatError(f"{where}: source must be given if features is 'reference', got None")
        for entry in self.folders:
            if entry.num_nodes > self.num_nodes or entry.num_edges > self.num_edges:
                got = f"{entry.num_nodes} vertices and {entry.num_edges} edges"
                whole = f"{self.num_nodes} and {self.num_edges}"
                raise FormatError(
                    f"{where}: a part must not be larger than the graph ({whole}), got {got}"
                )
            # Seeds are training vertices, so other types have no vertex within 0 hops.
            for name, ends in entry.ends_by_type.items():
                if ends[-1] > self.node_types[name] or (ends[0] and name != self.train_type):
                    rule = (
                        f"at most {self.node_types[name]} {name!r}, with seeds of "
                        f"{self.train_type!r} alone"
                    )
                    raise FormatError(f"{where}: a part must hold {rule}, got {list(ends)}"[:300])
        # Only people read these numbers. If they contradict the parts, the file was changed after
        # it was written.
        for name, derived in self._summary().items():
            if value.get(name) != derived:
                raise FormatError(
                    f"{where}: {name} must be {derived} as the parts say, got {value.get(name)!r}"[
                        :300
                    ]
                )

    def _summary(self) -> dict[str, Any]:
        """Numbers that follow from the parts, for people."""
        return {
            "parts": self.num_parts,
            **{
                f"{name}_per_part": list(getattr(self, f"{name}_per_part"))
                for name in (*SPLITS, "vertices", "edges")
            },
            "replication_factor": self.replication_factor,
        }

    def write(self, folder: Path) -> None:
        """Write the manifest into ``folder``, after all parts."""
        write_manifest_json(folder / MANIFEST, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """JSON object of the manifest; nothing in it depends on the time."""
        arrays = [] if self.source is None else self.source.arrays
        train = {"sha256": self.train_sha256, "is_mask": self.train_is_mask}
        return {
            "format": FORMAT,
            "version": _TYPED if self.node_types else version_of(entry for _, _, entry in arrays),
            **{name: getattr(self, name) for name in _PLAIN},
            **self._summary(),
            "outside": self.outside,
            "train": {**train, "node_type": self.train_type} if self.node_types else train,
            **({"node_types": self.node_types} if self.node_types else {}),
            "source": None if self.source is None else self.source.to_json(),
            "folders": [entry.to_json() for entry in self.folders],
        }


def _hop_ends(value: Any, key: str, hops: int, where: str) -> tuple[int, ...]:
    ends = tuple(take(value, key, list, where))
    if not all(type(end) is int and end >= 0 for end in ends) or list(ends) != sorted(ends):
        raise FormatError(f"{where}: {key} must be ascending numbers, got {list(ends)}"[:300])
    if len(ends) != hops + 1:
        raise FormatError(f"{where}: {key} must be {hops + 1} numbers, got {len(ends)}")
    return ends
