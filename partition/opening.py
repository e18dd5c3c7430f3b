"""Opens one part of a partition folder, for the process that trains on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..datasets.manifest import MANIFEST
from ..datasets.native import check_sum, file_digest, open_array, open_field, open_native
from ..datasets.opening import existing_folder
from ..errors import FormatError
from ..graph.graph import Graph
from ..system.checks import as_integer
from .manifest import SPLITS, PartEntry, PartitionManifest, locate_source, open_source, part_folder
from .pagraph_format import is_pagraph_partition

__all__ = ["Part", "open_manifest", "open_part", "open_partition"]


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """One part of a partition; all its ids are local, ``global_ids`` maps them to the whole graph.

    Attributes:
        graph: The part's vertices and their in-edges, with fields; those of vertices at the last hop are not there.
            The vertex fields ``in_degrees`` and ``out_degrees`` are degrees in the whole graph; ``self_loops``, there
            where the graph has any, says how many of the edges that they count are self-loops.
        train: Local ids of its training vertices, ascending, int64. Their whole neighbourhood of ``hops`` hops is
            in the part, except where a limit on replication left vertices out.
        val: Local ids of the validation vertices that are its to evaluate; each is in at most one part's.
        test: The same for test vertices.
        global_ids: The vertices' ids in the whole graph, shape ``(num_nodes,)``, int64.
        hop_ends: Vertices ``[0, hop_ends[h])`` are those within ``h`` hops; ``hops + 1`` numbers.
        index: The part's number; ``manifest`` and ``folder`` are those of all parts.
    """

    graph: Graph
    train: Tensor
    val: Tensor
    test: Tensor
    global_ids: Tensor
    hop_ends: tuple[int, ...]
    index: int
    manifest: PartitionManifest
    folder: Path

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.manifest.num_parts

    @property
    def hops(self) -> int:
        """In-neighbours of up to so many hops are in the part."""
        return self.manifest.hops

    @property
    def global_edge_ids(self) -> Tensor:
        """The edges' ids in the whole graph, shape ``(num_edges,)``, int32 where they fit."""
        ids: Tensor = self.graph.edata["global_ids"]
        return ids

    def open_source(self) -> Graph:
        """Open the whole graph; FormatError if it is gone, is another one by now, or was never in a folder."""
        if self.manifest.source is None:
            raise FormatError(
                f"{self.folder}: the whole graph must be in a folder that write_partition was given as source, got none"
            )
        return open_source(self.manifest.source, self.folder)

    def __repr__(self) -> str:
        return f"Part({self.index} of {self.num_parts}, hops={self.hops}, train={len(self.train)}, {self.graph})"


def open_partition(
    out: str | os.PathLike[str], rank: int, *, world_size: int | None = None, verify: bool = False
) -> Part:
    """Open the part of one process, in milliseconds; arrays are mapped and read when they are touched.

    Args:
        out: Folder that :func:`~pagraph.partition.write_partition` wrote; of the parts only this one must be there.
        rank: Number of the part.
        world_size: Number of processes, which must be that of parts. Default: not compared.
        verify: Read everything once: compare the checksums and check every id.

    Raises:
        TypeError: ``rank`` is no integer.
        FileNotFoundError, NotADirectoryError: There is no such folder.
        FormatError: It holds no partition, an unfinished one, or the part is missing or damaged.
        ValueError: ``rank`` or ``world_size`` does not go with the number of parts.

    Example:
        >>> import tempfile
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
        raise ValueError(f"rank must be in [0, {manifest.num_parts}), the number of parts in {out}, got {rank}")
    if world_size is not None and world_size != manifest.num_parts:
        raise ValueError(f"world_size must be the number of parts {manifest.num_parts} in {out}, got {world_size}")
    part = open_part(Path(out), manifest, rank, verify=verify)
    _attach_referenced(part.graph, part.global_ids, manifest, Path(out), verify=verify)
    return part


def open_manifest(out: str | os.PathLike[str]) -> PartitionManifest:
    """Read the manifest of a partition folder; raises as :func:`open_partition`."""
    path = existing_folder(out, name="out")
    if is_pagraph_partition(path) and not (path / MANIFEST).is_file():
        rule = "out must be written by write_partition, not in PaGraph's form, which read_pagraph_partition reads"
        raise FormatError(f"{rule}, got {str(out)!r}")
    if not (path / MANIFEST).is_file():
        raise FormatError(f"out must hold a partition, got {str(out)!r} without {MANIFEST}")
    return PartitionManifest.read(path)


def open_part(out: Path, manifest: PartitionManifest, part: int, *, verify: bool = False) -> Part:
    """Open a part without the fields that it refers to; FormatError if it is missing or damaged."""
    folder, entry = part_folder(out, part), manifest.folders[part]
    if not folder.is_dir():
        raise FormatError(f"{folder} is missing, and {out / MANIFEST} names it")
    path = folder / MANIFEST
    if not path.is_file():
        raise FormatError(f"{path} is missing")
    if (got := file_digest(path)) != entry.sha256:  # parts of several partitions look alike
        want = entry.sha256[:16]
        raise FormatError(f"{path} must be the one written with the partition, of SHA-256 {want}..., got {got[:16]}...")
    graph = open_native(folder, verify=verify)
    _check_counts(folder, graph, entry)
    if verify:
        for array in entry.splits.values():
            check_sum(folder, array)
    train, val, test = (_open_list(folder, entry, name) for name in SPLITS)
    ids = graph.ndata["global_ids"]
    return Part(graph, train, val, test, ids, entry.hop_ends, part, manifest, out)


def _check_counts(folder: Path, graph: Graph, entry: PartEntry) -> None:
    if not graph.is_homogeneous or (graph.num_nodes, graph.num_edges) != (entry.num_nodes, entry.num_edges):
        want = f"{entry.num_nodes} vertices and {entry.num_edges} edges"
        raise FormatError(f"{folder} must hold {want} as the partition's manifest says, got {graph}")
    if graph.csc.edge_ids is not None:
        raise FormatError(f"{folder} must number its edges by position, got edge_ids")
    own = (("vertices", graph.ndata, (torch.int64,)), ("edges", graph.edata, (torch.int64, torch.int32)))
    for owner, fields, dtypes in own:
        ids = fields.get("global_ids")
        if ids is None or ids.dim() != 1 or ids.dtype not in dtypes:
            got = None if ids is None else f"{ids.dtype} of shape {list(ids.shape)}"
            raise FormatError(f"{folder} must hold the {owner}' global_ids, got {got}")


def _open_list(folder: Path, entry: PartEntry, name: str) -> Tensor:
    ids = open_array(folder, entry.splits[name])
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= entry.num_nodes):
        raise FormatError(f"{folder / entry.splits[name].file} must hold ids in [0, {entry.num_nodes})")
    return ids


def _attach_referenced(graph: Graph, ids: Tensor, manifest: PartitionManifest, out: Path, *, verify: bool) -> None:
    """Attach fields that parts refer to: the source's mapped files, of which a machine's processes share one copy."""
    if manifest.source is None or not manifest.source.fields:
        return
    folder = locate_source(manifest.source, out)
    for name, entry in manifest.source.fields.items():
        if entry.shape[:1] != (manifest.num_nodes,):
            raise FormatError(f"{out}: field {name!r} must have {manifest.num_nodes} rows, got {list(entry.shape)}")
        if verify:
            check_sum(folder, entry)
        try:
            graph.set_field(name, open_field(folder, entry, ids))
        except (TypeError, ValueError) as error:
            raise FormatError(f"{out}: field {name!r} of a part: {error}") from error
