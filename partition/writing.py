"""Writes a partition as a folder of self-contained parts, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..datasets.manifest import MANIFEST, ArrayEntry, EdgeEntry, Manifest, NodeEntry
from ..datasets.native import ArrayWriter, Written, check_storable, file_digest
from ..datasets.paths import folder_form
from ..graph.fields import mask_of, stored_row_bytes
from ..graph.graph import EdgeType, Graph
from ..options.partitioning import FEATURES
from ..system.atomic import check_absent, new_folder
from ..system.checks import StrPath
from ..system.progress import Progress, Ticks
from .extract import PartEdges, PartFields, PartStructure, extract_part, nearest_part
from .manifest import SPLITS, PartEntry, PartitionManifest, part_folder, train_digest
from .partition import Partition, PartVertices, of_type
from .source import SourceEntry, describe_source

OWN_FIELDS = ("global_ids", "in_degrees", "out_degrees", "self_loops")
"""Vertex fields that parts add, ``self_loops`` only if the graph has any.

With several types, and for edges, only ``global_ids`` is added.
"""

_OWN_BYTES_PER_VERTEX = 8 * 4 + 1  # global ids, two degrees, indptr, a mask
_OWN_BYTES_PER_EDGE = 8  # index and global id
_FILES = {"label": "labels"}  # field to file where they differ, as in graph folders


@dataclass(frozen=True, eq=False)
class PartContent:
    """The fields and lists of vertices that parts take from the whole graph.

    Attributes:
        partition: The graph and how it was divided.
        owner: The part that evaluates each vertex of the type that is trained on, int32; -1 if none
            does.
        fields: Gives the fields of a part's vertices and edges.
    """

    partition: Partition
    owner: Tensor
    fields: PartFields

    def splits(self, ids: Tensor, part: int) -> dict[str, Tensor]:
        """Local ids of a part's training, validation and test vertices, ascending.

        ``ids`` are all vertices of the part of the type that is trained on.
        """
        chosen = {"train": torch.isin(ids, self.partition.train_of(part), assume_unique=True)}
        own = self.owner[ids] == part
        fields = self.partition.graph.node_fields(self.partition.train_type)
        for name in SPLITS[1:]:
            mask = mask_of(fields, f"{name}_mask")
            chosen[name] = torch.zeros_like(own) if mask is None else own & mask[ids]
        return {name: mask.nonzero().squeeze(1) for name, mask in chosen.items()}


def own_fields(graph: Graph) -> tuple[str, ...]:
    """Names of the vertex fields that every part has, whatever fields the graph has."""
    return OWN_FIELDS if graph.is_homogeneous else OWN_FIELDS[:1]


def write_part(
    folder: Path, content: PartContent, structure: PartStructure, part: int, written: Written
) -> PartEntry:
    """Write a part into a new ``folder``; ``written`` is called with the bytes of every block."""
    folder.mkdir()
    partition = content.partition
    single_type = partition.graph.is_homogeneous
    write = ArrayWriter(folder, written).write
    lists = content.splits(structure.types[partition.train_type].ids, part)
    splits = {name: write(name, local_ids) for name, local_ids in lists.items()}
    edges = [
        _write_edges(write, content.fields, edge_type, own)
        for edge_type, own in structure.edges.items()
    ]
    nodes = []
    for node_type, vertices in structure.types.items():
        entries = {}
        notes = partition.graph.node_fields(node_type).notes
        for name, rows in content.fields.of_vertices(node_type, vertices.ids, lists).items():
            file = _FILES.get(name, name) if single_type else f"node-{node_type}-{name}"
            entries[name] = write(file, rows, notes.get(name))
        nodes.append(NodeEntry(node_type, len(vertices.ids), entries))
    origin = {"method": partition.method, "parts": partition.num_parts, "hops": partition.hops}
    # Written last: its digest in the partition's manifest covers the checksums of all files.
    Manifest(nodes, edges, {"partition": origin, "part": part}).write(folder)
    ends_by_type = {}
    if not single_type:
        ends_by_type = {name: found.hop_ends for name, found in structure.types.items()}
    return PartEntry(
        structure.vertices.hop_ends,
        structure.num_edges,
        structure.dropped,
        structure.missing,
        splits,
        file_digest(folder / MANIFEST),
        ends_by_type,
    )


def _write_edges(
    write: Callable[..., ArrayEntry],
    fields: PartFields,
    edge_type: EdgeType,
    edges: PartEdges,
) -> EdgeEntry:
    # With one type, file names are those of a graph folder; with several, the type comes first.
    prefix = ""
    field_prefix = "edge-"
    ids_name = "edge_ids"
    if not fields.graph.is_homogeneous:
        prefix = f"edge-{'-'.join(edge_type)}-"
        field_prefix = f"{prefix}field-"
        ids_name = f"{prefix}ids"
    csc = edges.csc
    indptr = write(f"{prefix}indptr", csc.indptr)
    indices = write(f"{prefix}indices", csc.indices)
    entries = {}
    notes = fields.graph.edge_fields(edge_type).notes
    for name, rows in fields.of_edges(edge_type, edges.edge_ids).items():
        file = ids_name if name == "global_ids" else f"{field_prefix}{name}"
        entries[name] = write(file, rows, notes.get(name))
    return EdgeEntry(edge_type, csc.num_edges, indptr, indices, None, entries)


def write_partition(
    partition: Partition,
    out: StrPath,
    *,
    features: str = "copy",
    source: StrPath | None = None,
    split: str = "",
    seed: int | None = None,
    max_replication: float | None = None,
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> PartitionManifest:
    """Write self-contained parts for training; the documentation describes the folder.

    A failure leaves nothing behind. A killed process leaves a hidden folder that cannot be opened.
    Needs about 25 bytes per vertex of the whole graph, the structure of one part, and a few chunks
    of 8 MiB of its fields.

    Args:
        partition: The graph and how it was divided.
        out: Must not exist yet, nor be inside ``source``.
        features: With "copy", parts hold their rows of all fields and may be moved anywhere. With
            "reference", they read floating-point fields of 2 or more dimensions from the source.
        source: The folder the graph was opened from. Without it parts can neither refer to features
            nor find the graph.
        split: The split it was opened with; see :func:`~pagraph.datasets.open_graph`.
        seed: Seed of the method's random choices, for the manifest.
        max_replication: Limit on the replication factor, for the manifest.
        origin: Notes for readers: anything that JSON can hold.
        progress: Called with the bytes written and the bytes to write.

    Returns:
        The manifest that was written.

    Raises:
        FileExistsError: ``out`` exists.
        ValueError: ``out`` is inside ``source``, ``source`` holds another graph, a field cannot be
            stored or referred to, or a field has a name that parts add.
    """
    if features not in FEATURES:
        raise ValueError(f"features must be one of {', '.join(FEATURES)}, got {features!r}")
    target = check_out(out, source)
    notes = dict(origin or {})
    json.dumps(notes)  # before the long work: what JSON cannot hold raises TypeError
    graph = partition.graph
    train_type = partition.train_type
    check_fields(graph)
    entry = _source_entry(graph, source, target, features, split)
    arrays = () if entry is None else entry.arrays
    referenced = frozenset((train_type if of is None else of, name) for of, name, _ in arrays)
    owner, total = _survey(partition, referenced)
    content = PartContent(partition, owner, PartFields(graph, train_type, referenced))
    mask = mask_of(graph.node_fields(train_type), "train_mask")
    evaluation = "source" if partition.evaluated is None else "parts"
    limit = None if max_replication is None else float(max_replication)
    # The manifest names types only if there are several.
    node_types = {} if graph.is_homogeneous else graph.num_nodes_by_type
    named_type = "" if graph.is_homogeneous else train_type
    train_is_mask = mask is not None and torch.equal(mask.nonzero().squeeze(1), partition.train)
    with new_folder(target) as folder:
        ticks = Ticks(progress, total)
        entries = []
        for part in range(partition.num_parts):
            structure = extract_part(partition, part)
            place = part_folder(folder, part)
            entries.append(write_part(place, content, structure, part, ticks.add))
            del structure  # before the next one is made: only one is in memory
        manifest = PartitionManifest(
            method=partition.method,
            hops=partition.hops,
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            folders=tuple(entries),
            train_sha256=train_digest(partition.train),
            train_is_mask=train_is_mask,
            features=features,
            evaluation=evaluation,
            outside=_outside(graph.node_fields(train_type), owner),
            source=entry,
            seed=seed,
            capped=partition.dropped is not None,
            max_replication=limit,
            origin=notes,
            node_types=node_types,
            train_type=named_type,
        )
        manifest.write(folder)
        ticks.finish()
    return manifest


def check_out(out: StrPath, source: StrPath | None = None) -> Path:
    """Path of a folder that a partition of ``source`` may be written to.

    Raises:
        FileExistsError: It exists.
        ValueError: It is inside ``source``.
    """
    path = check_absent(out)
    if source is not None:
        whole = Path(os.path.realpath(source))
        if whole in Path(os.path.realpath(path)).parents:
            raise ValueError(
                f"out must not be inside the graph's folder {str(source)!r}, got {str(out)!r}"
            )
    return path


def check_fields(graph: Graph) -> None:
    """Raise ValueError for a field that cannot be stored, or has a name that parts add."""
    groups = [
        (f"vertices{of_type(graph, t)}", graph.node_fields(t), own_fields(graph))
        for t in graph.node_types
    ]
    groups += [
        (f"edges{of_type(graph, t)}", graph.edge_fields(t), OWN_FIELDS[:1])
        for t in graph.edge_types
    ]
    for owner, fields, own in groups:
        for name, value in fields.items():
            check_storable(f"field {name!r} of the {owner}", value)
            if name in own:
                raise ValueError(
                    f"graph must not have a field with a name that parts use, got {name!r}"
                )


def _source_entry(
    graph: Graph, source: StrPath | None, out: Path, features: str, split: str
) -> SourceEntry | None:
    if source is None:
        if features == "reference":
            raise ValueError("source must be given if features is 'reference', got None")
        return None
    if folder_form(source) == "native":
        entry = Manifest.read(Path(source))
        nodes = sum(n.num_nodes for n in entry.node_types)
        edges = sum(e.num_edges for e in entry.edge_types)
        counts = {n.name: n.num_nodes for n in entry.node_types}
        other = not graph.is_homogeneous and counts != graph.num_nodes_by_type
        if other or (nodes, edges) != (graph.num_nodes, graph.num_edges):
            got = f"{nodes} vertices and {edges} edges in {str(source)!r}"
            raise ValueError(
                f"source must hold the graph of {graph.num_nodes} and {graph.num_edges}, got {got}"
            )
    referenced = _wide_fields(graph) if features == "reference" else {}
    return describe_source(source, out, referenced=referenced, split=split)


def _wide_fields(graph: Graph) -> dict[str | None, dict[str, Any]]:
    """Vertex type, or None for the only one, to the fields that parts may refer to."""
    wide: dict[str | None, dict[str, Any]] = {}
    for node_type in graph.node_types:
        # Labels and masks are narrow. A part copies them and needs the source for features only.
        found = {}
        for name, rows in graph.node_fields(node_type).items():
            if rows.is_floating_point() and rows.dim() > 1:
                found[name] = rows
        wide[None if graph.is_homogeneous else node_type] = found
    return wide


def _survey(partition: Partition, referenced: frozenset[tuple[str, str]]) -> tuple[Tensor, int]:
    """Part that evaluates each vertex of the trained type, and the bytes of all parts at most."""
    graph = partition.graph
    per_vertex = {}
    per_edge = {}
    bytes_of_parts: list[int] = []
    for node_type in graph.node_types:
        copied = (
            rows
            for name, rows in graph.node_fields(node_type).items()
            if (node_type, name) not in referenced
        )
        per_vertex[node_type] = _OWN_BYTES_PER_VERTEX + _row_bytes(copied)
    for edge_type in graph.edge_types:
        graph.csc_of(edge_type).validate()
        per_edge[edge_type] = _OWN_BYTES_PER_EDGE + _row_bytes(
            graph.edge_fields(edge_type).values()
        )

    # Both in one pass: finding a part's vertices follows all its edges.
    def each() -> Iterator[PartVertices]:
        for part in range(partition.num_parts):
            vertices = partition.vertices(part)
            types = vertices.by_type(partition.numbering)
            bytes_of_parts.extend(
                per_vertex[name] * len(found.ids) for name, found in types.items()
            )
            for edge_type, width in per_edge.items():
                indptr = graph.csc_of(edge_type).indptr
                found = types[edge_type[2]]
                inner = found.ids[: found.hop_ends[-2]]
                bytes_of_parts.append(width * int((indptr[inner + 1] - indptr[inner]).sum()))
            yield vertices

    owner = nearest_part(graph.num_nodes, each())[partition.numbering.rows(partition.train_type)]
    if partition.evaluated is not None and partition.evaluation is not None:
        owner.fill_(-1)  # a part does not hold what only other parts reach
        owner[partition.evaluated] = partition.evaluation
    return owner, sum(bytes_of_parts)


def _row_bytes(fields: Any) -> int:
    return sum(map(stored_row_bytes, fields))


def _outside(fields: Mapping[str, Any], owner: Tensor) -> dict[str, int]:
    masks = {name: mask_of(fields, f"{name}_mask") for name in SPLITS[1:]}
    return {
        name: 0 if mask is None else int((mask & (owner < 0)).sum()) for name, mask in masks.items()
    }
