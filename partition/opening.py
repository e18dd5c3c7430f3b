"""Opens one part of a partition folder, for the process that trains on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..datasets.manifest import MANIFEST
from ..datasets.native import check_sum, file_digest, open_array, open_field, open_native
from ..datasets.opening import open_graph
from ..datasets.paths import existing_folder
from ..errors import FormatError
from ..graph.csc import id_range
from ..graph.graph import EdgeType, Graph
from ..system.checks import StrPath, as_integer
from ..system.files import check_inside
from .manifest import SPLITS, PartEntry, PartitionManifest, part_folder
from .pagraph_format import is_pagraph_partition
from .source import locate_source, open_source


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """One part of a partition; its ids are local, ``global_ids`` maps them to the whole graph.

    Attributes:
        graph: The part's vertices, their in-edges except those of the last hop, and fields. With
            one vertex and one edge type, the vertex fields ``in_degrees`` and ``out_degrees`` are
            degrees in the whole graph. ``self_loops``, present if the graph has any, counts the
            self-loops among these edges.
        train: Local ids of its training vertices (of ``train_type``), ascending, int64. The part
            holds their whole neighbourhood of ``hops`` hops, unless a limit on replication dropped
            vertices.
        val: Local ids of the validation vertices that this part evaluates; no other part does.
        test: The same for test vertices.
        index: The part's number.
        manifest, folder: Manifest and folder of the partition.
        source: The given folder of the whole graph on this machine. None: where the manifest says.
    """

    graph: Graph
    train: Tensor
    val: Tensor
    test: Tensor
    index: int
    manifest: PartitionManifest
    folder: Path
    source: Path | None = None

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.manifest.num_parts

    @property
    def hops(self) -> int:
        """Number of hops of in-neighbours that are in the part."""
        return self.manifest.hops

    @property
    def train_type(self) -> str:
        """Vertex type of ``train``, ``val`` and ``test``."""
        return self.manifest.train_type or self.graph.only_node_type

    @property
    def global_ids(self) -> Tensor:
        """The vertices' ids in the whole graph, shape ``(num_nodes,)``, int64; for one type."""
        return self.global_ids_of(self.graph.only_node_type)

    def global_ids_of(self, node_type: str) -> Tensor:
        """The ids in the whole graph of the vertices of a type, int64."""
        ids: Tensor = self.graph.node_fields(node_type)["global_ids"]
        return ids

    @property
    def global_edge_ids(self) -> Tensor:
        """The edges' ids in the whole graph, shape ``(num_edges,)``; for one type.

        int32 where they fit.
        """
        ids: Tensor = self.graph.edata["global_ids"]
        return ids

    def global_edge_ids_of(self, edge_type: EdgeType) -> Tensor:
        """The ids in the whole graph of the edges of a type, int32 where they fit."""
        ids: Tensor = self.graph.edge_fields(edge_type)["global_ids"]
        return ids

    @property
    def hop_ends(self) -> tuple[int, ...]:
        """Vertices ``[0, hop_ends[h])`` are those within ``h`` hops; for one type.

        ``hops + 1`` numbers.
        """
        return self.hop_ends_of(self.graph.only_node_type)

    def hop_ends_of(self, node_type: str) -> tuple[int, ...]:
        """The same for the vertices of a type."""
        entry = self.manifest.folders[self.index]
        return entry.ends_by_type.get(node_type, entry.hop_ends)

    def open_source(self) -> Graph:
        """Open the whole graph; FormatError if it is gone, changed, or was never in a folder."""
        if self.manifest.source is not None:
            return open_source(self.manifest.source, self.folder, self.source)
        if self.source is None:
            raise FormatError(
                f"{self.folder}: the whole graph must be in a folder that write_partition was "
                "given as source, or that source= names, got none"
            )
        whole = open_graph(self.source)
        check_whole(whole, self.manifest, self.folder)
        return whole

    def __repr__(self) -> str:
        return (
            f"Part({self.index} of {self.num_parts}, hops={self.hops}, train={len(self.train)}, "
            f"{self.graph})"
        )


def open_partition(
    out: StrPath,
    rank: int,
    *,
    world_size: int | None = None,
    source: StrPath | None = None,
    verify: bool = False,
) -> Part:
    """Open the part of one process. Arrays are memory-mapped, so this takes milliseconds.

    Args:
        out: Folder that :func:`~pagraph.partition.write_partition` wrote; other parts may be
            missing.
        rank: Number of the part.
        world_size: Number of processes, which must be the number of parts. Default: not checked.
        source: Folder of the whole graph on this machine, for parts that refer to its features and
            for ``Part.open_source``. Default: its old path, relative to ``out`` or absolute.
        verify: Read everything once, compare the checksums and check every id.

    Raises:
        TypeError: ``rank`` is not an integer.
        FileNotFoundError, NotADirectoryError: There is no such folder.
        FormatError: The folder holds no partition or an unfinished one, the part is missing or
            damaged, or ``source`` is not the graph that it was made from.
        ValueError: ``rank`` or ``world_size`` does not match the number of parts.

    Example:
        >>> import os, tempfile
        >>> from pagraph.datasets import sbm
        >>> from pagraph.partition import partition_graph, write_partition
        >>> target = os.path.join(tempfile.mkdtemp(), "parts")
        >>> _ = write_partition(partition_graph(sbm(1000), 2, hops=2, method="hash"), target)
        >>> part = open_partition(target, 1, world_size=2)
        >>> part.index, part.num_parts, len(part.hop_ends)
        (1, 2, 3)
    """
    manifest = open_manifest(out)
    rank = as_integer("rank", rank)
    if not 0 <= rank < manifest.num_parts:
        raise ValueError(
            f"rank must be in [0, {manifest.num_parts}), the number of parts in {out}, got {rank}"
        )
    if world_size is not None and world_size != manifest.num_parts:
        raise ValueError(
            f"world_size must be the number of parts {manifest.num_parts} in {out}, got "
            f"{world_size}"
        )
    # Fail now rather than when the graph is first needed, perhaps after an epoch.
    if source is not None and manifest.source is not None:
        locate_source(manifest.source, Path(out), source)
    part = open_part(Path(out), manifest, rank, source=source, verify=verify)
    _attach_referenced(part, verify=verify)
    return part


def open_manifest(out: StrPath) -> PartitionManifest:
    """Read the manifest of a partition folder; raises as :func:`open_partition`."""
    path = existing_folder(out, name="out")
    # Both formats are folders of parts: name the function that reads the other one.
    if is_pagraph_partition(path) and not (path / MANIFEST).is_file():
        rule = (
            "out must be written by write_partition, not in PaGraph's form, which "
            "read_pagraph_partition reads"
        )
        raise FormatError(f"{rule}, got {str(out)!r}")
    if not (path / MANIFEST).is_file():
        raise FormatError(f"out must hold a partition, got {str(out)!r} without {MANIFEST}")
    return PartitionManifest.read(path)


def check_whole(whole: Graph, manifest: PartitionManifest, out: Path) -> None:
    """Raise ValueError unless the graph has the sizes of the one that was divided."""
    # The manifest names types only if there are several.
    typed = {} if whole.is_homogeneous else whole.num_nodes_by_type
    sizes = (whole.num_nodes, whole.num_edges, typed)
    if sizes != (manifest.num_nodes, manifest.num_edges, manifest.node_types):
        want = (
            f"{manifest.node_types or manifest.num_nodes} vertices and {manifest.num_edges} edges"
        )
        raise ValueError(
            f"source must be the graph of {want} that {out} was made from, got {whole}"
        )


def open_part(
    out: Path,
    manifest: PartitionManifest,
    part: int,
    *,
    source: StrPath | None = None,
    verify: bool = False,
) -> Part:
    """Open a part without the fields that it refers to; FormatError if it is missing or damaged."""
    folder = part_folder(out, part)
    entry = manifest.folders[part]
    if not folder.is_dir():
        raise FormatError(f"{folder} is missing, and {out / MANIFEST} names it")
    check_inside(out, folder)  # a link may lead out of a folder from elsewhere
    path = folder / MANIFEST
    if not path.is_file():
        raise FormatError(f"{path} is missing")
    # Parts of several partitions look alike; only the digest detects one that was mixed in.
    got = file_digest(path)
    if got != entry.sha256:
        want = entry.sha256[:16]
        raise FormatError(
            f"{path} must be the one written with the partition, of SHA-256 {want}..., got "
            f"{got[:16]}..."
        )
    graph = open_native(folder, verify=verify)
    _check_counts(folder, graph, manifest, entry)
    if verify:
        for array in entry.splits.values():
            check_sum(folder, array)
    # Lists hold ids of the type that is trained on; with one type `ends_by_type` is empty.
    num_listed = entry.ends_by_type.get(manifest.train_type, entry.hop_ends)[-1]
    train, val, test = (_open_list(folder, entry, name, num_listed) for name in SPLITS)
    place = None if source is None else Path(source)
    return Part(graph, train, val, test, part, manifest, out, place)


def _check_counts(
    folder: Path, graph: Graph, manifest: PartitionManifest, entry: PartEntry
) -> None:
    want = f"{entry.num_nodes} vertices and {entry.num_edges} edges"
    right = (graph.num_nodes, graph.num_edges) == (entry.num_nodes, entry.num_edges)
    if manifest.node_types:
        counts = {name: ends[-1] for name, ends in entry.ends_by_type.items()}
        want = f"vertices {counts} and {entry.num_edges} edges"
        right = right and graph.num_nodes_by_type == counts
    if not right or graph.is_homogeneous == bool(manifest.node_types):
        raise FormatError(
            f"{folder} must hold {want} as the partition's manifest says, got {graph}"
        )
    # Rows of edge fields are in order of position; other ids would read the wrong rows.
    if any(graph.csc_of(edge_type).edge_ids is not None for edge_type in graph.edge_types):
        raise FormatError(f"{folder} must number its edges by position, got edge_ids")
    own = [("vertices", graph.node_fields(name), [torch.int64]) for name in graph.node_types]
    own += [
        ("edges", graph.edge_fields(name), [torch.int64, torch.int32]) for name in graph.edge_types
    ]
    for owner, fields, dtypes in own:
        ids = fields.get("global_ids")
        if ids is None or ids.dim() != 1 or ids.dtype not in dtypes:
            got = None if ids is None else f"{ids.dtype} of shape {list(ids.shape)}"
            raise FormatError(f"{folder} must hold the {owner}' global_ids, got {got}")


def _open_list(folder: Path, entry: PartEntry, name: str, num_nodes: int) -> Tensor:
    ids = open_array(folder, entry.splits[name])
    # Checked even without `verify`: lists are short, and they index everything else.
    low, high = id_range(ids)
    if low < 0 or high >= num_nodes:
        raise FormatError(f"{folder / entry.splits[name].file} must hold ids in [0, {num_nodes})")
    return ids


def _attach_referenced(part: Part, *, verify: bool) -> None:
    """Attach the fields that parts refer to, as rows of the source's mapped files."""
    # A machine's processes share one copy of the files in the page cache.
    manifest = part.manifest
    out = part.folder
    if manifest.source is None or not any(manifest.source.arrays):
        return
    folder = locate_source(manifest.source, out, part.source)
    for node_type, name, entry in manifest.source.arrays:
        num_nodes = manifest.num_nodes if node_type is None else manifest.node_types.get(node_type)
        if entry.shape[:1] != (num_nodes,):
            raise FormatError(
                f"{out}: field {name!r} must have {num_nodes} rows, got {list(entry.shape)}"
            )
        if verify:
            check_sum(folder, entry)
        try:
            own = part.graph.only_node_type if node_type is None else node_type
            rows = open_field(folder, entry, part.global_ids_of(own))
            part.graph.set_field(name, rows, node_type=own)
        except (TypeError, ValueError) as error:
            raise FormatError(f"{out}: field {name!r} of a part: {error}") from error
