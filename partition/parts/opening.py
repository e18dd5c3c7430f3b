"""Opens one part of a partition folder."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from ...datasets.arrays import check_sum, file_digest, open_array
from ...datasets.manifest import MANIFEST
from ...datasets.native import open_native
from ...datasets.opening import existing_folder
from ...errors import FormatError
from ...graph import Graph
from ...integers import as_integer
from ..formats.pagraph_format import is_pagraph_partition
from .manifest import SPLITS, PartEntry, PartitionManifest, part_folder
from .part import Part
from .referring import attach_referenced

__all__ = ["open_manifest", "open_part", "open_partition"]


def open_partition(
    out: str | os.PathLike[str], rank: int, *, world_size: int | None = None, verify: bool = False
) -> Part:
    """Open the part of one process, in milliseconds; arrays are mapped and read when they are touched.

    Of the parts only that one needs to be there.

    Args:
        out: What :func:`~pagraph.partition.write_partition` wrote.
        rank: The number of the part.
        world_size: How many processes there are, which must be the number of parts. Default: not compared.
        verify: Read everything once: compare the checksums and check every id.

    Raises:
        TypeError: ``rank`` is no integer.
        FileNotFoundError: There is no such folder.
        NotADirectoryError: It is a file.
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
    attach_referenced(part.graph, part.global_ids, manifest, Path(out), verify=verify)
    return part


def open_manifest(out: str | os.PathLike[str]) -> PartitionManifest:
    """What a partition folder says of all its parts.

    Raises:
        FileNotFoundError: There is no such folder.
        NotADirectoryError: It is a file.
        FormatError: It holds no partition, or an unfinished one.
    """
    path = existing_folder(out, name="out")
    if is_pagraph_partition(path) and not (path / MANIFEST).is_file():
        rule = "out must be written by write_partition, not in PaGraph's form, which read_pagraph_partition reads"
        raise FormatError(f"{rule}, got {str(out)!r}")
    if not (path / MANIFEST).is_file():
        raise FormatError(f"out must hold a partition, got {str(out)!r} without {MANIFEST}")
    return PartitionManifest.read(path)


def open_part(out: Path, manifest: PartitionManifest, part: int, *, verify: bool = False) -> Part:
    """One part of a partition whose manifest has been read, without the fields that it refers to.

    Raises:
        FormatError: It is missing or damaged.
    """
    folder, entry = part_folder(out, part), manifest.folders[part]
    if not folder.is_dir():
        raise FormatError(f"{folder} is missing, and {out / MANIFEST} names it")
    _check_belongs(folder, entry)
    graph = open_native(folder, verify=verify)
    _check_counts(folder, graph, entry)
    if verify:
        for array in entry.splits.values():
            check_sum(folder, array)
    train, val, test = (_open_list(folder, entry, name) for name in SPLITS)
    ids = graph.ndata["global_ids"]
    return Part(graph, train, val, test, ids, entry.hop_ends, part, manifest, out)


def _check_belongs(folder: Path, entry: PartEntry) -> None:
    """Parts of several partitions look alike."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FormatError(f"{path} is missing")
    if (got := file_digest(path)) != entry.sha256:
        want = entry.sha256[:16]
        raise FormatError(f"{path} must be the one written with the partition, of SHA-256 {want}..., got {got[:16]}...")


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
