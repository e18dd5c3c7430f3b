"""Writes a partition as a folder of self-contained parts, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...atomic import check_absent, new_folder
from ...datasets.arrays import check_storable
from ...datasets.manifest import Manifest
from ...datasets.opening import folder_form
from ...graph import Graph
from ..closure import PartVertices
from ..partition import Partition, Progress
from .extract import extract_part
from .manifest import SPLITS, PartitionManifest, part_folder, train_digest
from .owners import nearest_part
from .part_writing import OWN_FIELDS, PartContent, write_part
from .source import SourceEntry, describe_source

__all__ = ["check_fields", "check_out", "write_partition"]

_FEATURES = ("copy", "reference")
_OWN_BYTES_PER_VERTEX = 8 * 4 + 1  # global ids, two degrees, indptr, a mask
_OWN_BYTES_PER_EDGE = 8


def write_partition(
    partition: Partition,
    out: str | os.PathLike[str],
    *,
    features: str = "copy",
    source: str | os.PathLike[str] | None = None,
    split: str = "",
    seed: int | None = None,
    max_replication: float | None = None,
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> PartitionManifest:
    """Write every part with all it needs for training; see :mod:`pagraph.partition.parts.manifest` for the folder.

    The folder appears under its name when everything is on the disk; a failure leaves nothing, a killed process only
    a hidden folder that cannot be opened. In memory are about 25 bytes a vertex of the whole graph,
    the structure of one part, and a few chunks of 16 MiB of its fields.

    Args:
        partition: The graph and how it was divided.
        out: Must not exist yet, nor be inside ``source``.
        features: "copy": parts hold their rows of all fields, and may be moved anywhere. "reference": floating-point
            fields of 2 or more dimensions stay where they are; parts read the source's rows.
        source: The folder the graph was opened from. Without it, features cannot be referred to, nor the whole graph
            be found again.
        split: The split it was opened with; see :func:`~pagraph.datasets.open_graph`.
        seed: Of the method's random choices, for the manifest.
        max_replication: What the replication factor was limited to, for the manifest.
        origin: For people: anything that JSON can hold.
        progress: Called with the bytes written and the bytes to write.

    Returns:
        The manifest that was written.

    Raises:
        FileExistsError: ``out`` exists.
        ValueError: ``out`` is inside ``source``, ``source`` holds another graph, or a field cannot be stored or
            referred to, or has the name of one that parts have on their own account.
    """
    if features not in _FEATURES:
        raise ValueError(f"features must be one of {', '.join(_FEATURES)}, got {features!r}")
    target = check_out(out, source)
    notes = dict(origin or {})
    json.dumps(notes)  # before the long work: what JSON cannot hold raises TypeError
    graph = partition.graph
    check_fields(graph)
    entry = _source_entry(graph, source, target, features, split)
    referenced = frozenset(entry.fields) if entry is not None else frozenset[str]()
    owner, total = _survey(partition, referenced)
    content = PartContent.of(partition, owner, referenced)
    with new_folder(target) as folder:
        tally = _Tally(total, progress)
        folders = tuple(
            write_part(part_folder(folder, part), content, extract_part(partition, part), part, tally.written)
            for part in range(partition.num_parts)
        )
        manifest = PartitionManifest(
            method=partition.method,
            hops=partition.hops,
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            folders=folders,
            train_sha256=train_digest(partition.train),
            train_is_mask=_train_is_mask(partition),
            features=features,
            evaluation="source" if partition.evaluated is None else "parts",
            outside=_outside(graph, owner),
            source=entry,
            seed=seed,
            capped=partition.dropped is not None,
            max_replication=None if max_replication is None else float(max_replication),
            origin=notes,
        )
        manifest.write(folder)
        tally.finish()
    return manifest


def check_out(out: str | os.PathLike[str], source: str | os.PathLike[str] | None = None) -> Path:
    """The path of a folder that a partition of ``source`` may be written to; long work calls this before it starts.

    Raises:
        FileExistsError: There is something at that path already.
        ValueError: It is inside ``source``.
    """
    path = check_absent(out)
    if source is not None:
        whole = Path(os.path.realpath(source))
        if whole in Path(os.path.realpath(path)).parents:
            raise ValueError(f"out must not be inside the graph's folder {str(source)!r}, got {str(out)!r}")
    return path


def check_fields(graph: Graph) -> None:
    """Refuse a graph whose fields cannot be written with a part; long work calls this before it starts.

    Raises:
        ValueError: A field cannot be stored, or has the name of one that parts have on their own account.
    """
    for owner, fields, own in (("vertices", graph.ndata, OWN_FIELDS), ("edges", graph.edata, ("global_ids",))):
        for name, value in fields.items():
            check_storable(f"field {name!r} of the {owner}", value)
            if name in own:
                raise ValueError(f"graph must have no field of a name that parts use themselves, got {name!r}")


class _Tally:
    """Adds up what was written; the last call says that all is done."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0

    def written(self, count: int) -> None:
        self._done = min(self._done + count, self._total)
        if self._progress is not None:
            self._progress(self._done, self._total)

    def finish(self) -> None:
        self.written(self._total)


def _source_entry(
    graph: Graph, source: str | os.PathLike[str] | None, out: Path, features: str, split: str
) -> SourceEntry | None:
    wide = {k: v for k, v in graph.ndata.items() if v.is_floating_point() and v.dim() > 1}
    if source is None:
        if features == "reference":
            raise ValueError("source must be given where features are 'reference', got None")
        return None
    if folder_form(source) == "native":
        entry = Manifest.read(Path(source))
        nodes, edges = sum(n.num_nodes for n in entry.node_types), sum(e.num_edges for e in entry.edge_types)
        if (nodes, edges) != (graph.num_nodes, graph.num_edges):
            got = f"{nodes} vertices and {edges} edges in {str(source)!r}"
            raise ValueError(f"source must hold the graph of {graph.num_nodes} and {graph.num_edges}, got {got}")
    return describe_source(source, out, referenced=wide if features == "reference" else {}, split=split)


def _survey(partition: Partition, referenced: frozenset[str]) -> tuple[Tensor, int]:
    """Who evaluates each vertex, and at most how many bytes all parts have."""
    graph, bytes_of_parts = partition.graph, []
    graph.csc.validate()
    per_vertex = _OWN_BYTES_PER_VERTEX + _row_bytes(v for k, v in graph.ndata.items() if k not in referenced)
    per_edge = _OWN_BYTES_PER_EDGE + _row_bytes(graph.edata.values())

    def each() -> Iterator[PartVertices]:
        for part in range(partition.num_parts):
            vertices = partition.vertices(part)
            inner = vertices.ids[: vertices.hop_ends[-2]]
            edges = int((graph.csc.indptr[inner + 1] - graph.csc.indptr[inner]).sum())
            bytes_of_parts.append(per_vertex * len(vertices.ids) + per_edge * edges)
            yield vertices

    owner = nearest_part(graph.num_nodes, each())
    if partition.evaluated is not None and partition.evaluation is not None:
        owner.fill_(-1)  # a part does not hold what others reach
        owner[partition.evaluated] = partition.evaluation
    return owner, sum(bytes_of_parts)


def _row_bytes(fields: Any) -> int:
    return sum(value[:1].numel() * value.element_size() for value in fields)


def _train_is_mask(partition: Partition) -> bool:
    mask = partition.graph.ndata.get("train_mask")
    return mask is not None and torch.equal(mask.bool().nonzero().squeeze(1), partition.train)


def _outside(graph: Graph, owner: Tensor) -> dict[str, int]:
    masks = {name: graph.ndata.get(f"{name}_mask") for name in SPLITS[1:]}
    return {name: 0 if mask is None else int((mask.bool() & (owner < 0)).sum()) for name, mask in masks.items()}
