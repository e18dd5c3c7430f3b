"""Writes, opens and reads PaGraph's own partition format.

For part ``i``, whose local ids ascend with the global ids:

- ``subadj_<i>.npz``: scipy CSR of uint8 ones, ``[source, destination]``, parallel edges merged;
- ``sub_train2fullid_<i>.npy``: the global id of each vertex, int64;
- ``sub_trainid_<i>.npy``: local ids of its training vertices, ascending, int64;
- ``sub_label_<i>.npy``: their labels, in the same order.

PaGraph keeps the folder in that of the graph, as ``<number of parts>naive``, and reads features and
other labels there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets.matrices import load_sparse
from ..datasets.opening import open_graph
from ..errors import FormatError
from ..graph.csc import CSC, id_range
from ..graph.fields import mask_of
from ..graph.graph import Graph
from ..graph.mapped import map_npy
from ..options.partitioning import MAX_HOPS
from ..system.atomic import is_unfinished, new_folder
from ..system.checks import StrPath
from ..system.files import check_inside
from ..system.progress import Progress
from ..system.units import shortened
from .extract import PartStructure, extract_part, extract_structure
from .partition import Partition, PartVertices, vertices_within


@dataclass(frozen=True, eq=False, repr=False)
class PagraphPart:
    """One part of a folder in PaGraph's form; ids are local.

    Attributes:
        graph: The part's vertices and in-edges, parallel edges merged, with the vertex field
            ``global_ids``.
        train: Local ids of its training vertices, ascending, int64.
        labels: Their labels, one row each.
        global_ids: The vertices' ids in the whole graph, shape ``(num_nodes,)``, int64.
        index: The part's number, below ``num_parts``.
    """

    graph: Graph
    train: Tensor
    labels: Tensor
    global_ids: Tensor
    index: int
    num_parts: int

    def __repr__(self) -> str:
        return (
            f"PagraphPart({self.index} of {self.num_parts}, train={len(self.train)}, {self.graph})"
        )


def is_pagraph_partition(folder: StrPath) -> bool:
    """Whether ``folder`` holds a part in PaGraph's form."""
    return _file(Path(folder), "subadj", 0).is_file()


def write_pagraph_partition(
    partition: Partition, out: StrPath, *, progress: Progress | None = None
) -> None:
    """Write a partition as PaGraph does, whole or not at all.

    Training vertices without edges are kept. PaGraph's partitioners replace them by the part's
    first vertex.

    Args:
        partition: The partition; its graph has the field ``label``.
        out: Must not exist yet.
        progress: Called with the parts written and all parts.

    Raises:
        FileExistsError: ``out`` exists.
        ValueError: The graph has several types or no labels, or parts hold neighbourhoods of
            evaluated vertices, which the format cannot tell from training vertices.
    """
    if not partition.graph.is_homogeneous:
        raise ValueError(
            "partition must be of one vertex type and one edge type in PaGraph's form, got "
            f"{partition}"
        )
    if partition.evaluated is not None:
        raise ValueError(
            "partition must be for training only in PaGraph's form, got one with evaluated vertices"
        )
    labels = partition.graph.ndata.get("label")
    if labels is None:
        raise ValueError(
            "graph must have the field label for PaGraph's form, got "
            f"{shortened([*partition.graph.ndata])}"
        )
    with new_folder(out) as folder:
        for part in range(partition.num_parts):
            structure = extract_part(partition, part)
            _write_part(folder, part, structure, partition.train_of(part), labels)
            if progress is not None:
                progress(part + 1, partition.num_parts)


def _write_part(
    folder: Path, part: int, structure: PartStructure, train: Tensor, labels: Tensor
) -> None:
    import scipy.sparse

    # Our parts are sorted by hop, PaGraph's by global id.
    ids, places = structure.vertices.ids.sort()
    adjacency = _adjacency_of(structure, places)
    # Uncompressed like PaGraph's own files: each process loads a part when it starts.
    scipy.sparse.save_npz(_file(folder, "subadj", part), adjacency, compressed=False)
    np.save(_file(folder, "sub_trainid", part), torch.searchsorted(ids, train).numpy())
    np.save(_file(folder, "sub_train2fullid", part), ids.numpy())
    np.save(_file(folder, "sub_label", part), labels[train].numpy())


def _adjacency_of(structure: PartStructure, places: Tensor) -> Any:
    """A part as CSR of ones, ``[source, destination]``, parallel edges merged.

    Its vertex ``i`` is the structure's ``places[i]``.
    """
    import scipy.sparse

    new_ids = torch.empty_like(places)
    new_ids[places] = torch.arange(len(places), device="cpu")
    ends = (
        new_ids[structure.csc.indices.long()].numpy(),
        new_ids[structure.csc.destinations().long()].numpy(),
    )
    ones = np.ones(len(ends[0]), dtype=np.uint8)
    adjacency = scipy.sparse.coo_matrix((ones, ends), shape=(len(places), len(places))).tocsr()
    # tocsr adds parallel edges up, and 256 of them would overflow a uint8 to 0.
    adjacency.data[:] = 1
    return adjacency


def open_pagraph_part(folder: StrPath, index: int) -> PagraphPart:
    """Open one part of a folder in PaGraph's form; only its four files are needed.

    A training vertex that is listed twice, as PaGraph's partitioners do, appears once.

    Args:
        folder: Folder that :func:`write_pagraph_partition` or PaGraph wrote.
        index: Number of the part.

    Raises:
        FileNotFoundError: There is no such folder.
        FormatError: It is not of that form, unfinished, or the part is missing or damaged.
        ValueError: ``index`` does not match the number of parts.
    """
    path = Path(folder)
    num_parts = count_parts(path)
    if not 0 <= index < num_parts:
        raise ValueError(
            f"index must be in [0, {num_parts}), the number of parts in {folder}, got {index}"
        )
    adjacency_file = _file(path, "subadj", index)
    ids_file = _file(path, "sub_train2fullid", index)
    train_file = _file(path, "sub_trainid", index)
    label_file = _file(path, "sub_label", index)
    for file in (adjacency_file, ids_file, train_file, label_file):
        check_inside(path, file)
    adjacency = load_sparse(adjacency_file)
    num_nodes = adjacency.shape[0]
    if num_nodes != adjacency.shape[1]:
        raise FormatError(f"{adjacency_file} must be square, got shape {tuple(adjacency.shape)}")
    global_ids = _ids(ids_file, num_nodes, None)
    if len(global_ids) and (int(global_ids.min()) < 0 or len(np.unique(global_ids)) < num_nodes):
        raise FormatError(
            f"{ids_file} must hold distinct ids from 0 on, got repeated or negative ones"
        )
    listed = _ids(train_file, None, num_nodes)
    labels = _array(label_file)
    if labels.shape[:1] != listed.shape:
        raise FormatError(
            f"{label_file} must have {len(listed)} rows, got shape {list(labels.shape)}"
        )
    # Sorted, each once, with the row of its first label.
    train, rows = np.unique(listed.numpy(), return_index=True)
    graph = Graph.from_scipy(adjacency, ndata={"global_ids": global_ids})
    return PagraphPart(
        graph, torch.from_numpy(train), labels[torch.from_numpy(rows)], global_ids, index, num_parts
    )


def count_parts(folder: Path) -> int:
    """Number of parts in a folder in PaGraph's form."""
    if not folder.is_dir():
        raise FileNotFoundError(f"folder must exist, got {str(folder)!r}")
    if is_unfinished(folder):
        raise FormatError(
            f"folder must be finished, got {str(folder)!r}, which its writer did not complete"
        )
    count = 0
    while _file(folder, "subadj", count).is_file():
        count += 1
    if not count:
        raise FormatError(
            f"folder must hold a partition in PaGraph's form, got {str(folder)!r} without "
            "subadj_0.npz"
        )
    return count


def _file(folder: Path, name: str, part: int) -> Path:
    ending = "npz" if name == "subadj" else "npy"
    return folder / f"{name}_{part}.{ending}"


def _array(file: Path) -> Tensor:
    try:
        return map_npy(file)
    except FileNotFoundError:
        raise FormatError(f"{file} is missing") from None


def _ids(file: Path, count: int | None, limit: int | None) -> Tensor:
    """1-D integers as int64, checked to be ``count`` and below ``limit`` unless these are None."""
    found = _array(file)
    dtype = found.dtype
    are_integers = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
    if found.dim() != 1 or not are_integers:
        raise FormatError(
            f"{file} must hold a list of integers, got {found.dtype} of shape {list(found.shape)}"
        )
    if count is not None and len(found) != count:
        raise FormatError(f"{file} must hold {count} ids, one for each vertex, got {len(found)}")
    ids = found.long()
    low, high = id_range(ids)
    if limit is not None and (low < 0 or high >= limit):
        raise FormatError(f"{file} must hold ids in [0, {limit}), got {low} to {high}")
    return ids


def read_pagraph_partition(folder: StrPath, graph: Graph | None = None) -> Partition:
    """Read a folder in PaGraph's form as a partition, compared with the graph edge by edge.

    ``hops`` is that of the deepest part; vertices that a part does without are its ``dropped``.
    PaGraph's partitioners lose training vertices without edges and list a part's first vertex
    instead. Such a vertex is taken out if it is not a training vertex of the graph, or if another
    part has it. One part at a time is in memory.

    Args:
        folder: Folder that PaGraph or :func:`~pagraph.partition.write_pagraph_partition` wrote.
        graph: The graph that was divided. Default: the one in the parent folder, where PaGraph has
            it.

    Raises:
        FileNotFoundError: There is no such folder.
        FormatError: It is not of that form, a part is missing or damaged, or they are not parts of
            that graph.

    Example:
        >>> import os, tempfile
        >>> from pagraph.datasets import sbm
        >>> from pagraph.partition import partition_graph, write_pagraph_partition
        >>> graph, target = sbm(300), os.path.join(tempfile.mkdtemp(), "2naive")
        >>> write_pagraph_partition(partition_graph(graph, 2, hops=1, method="hash"), target)
        >>> read_pagraph_partition(target, graph).hops
        1
    """
    path = Path(folder)
    num_parts = count_parts(path)
    whole = open_graph(path.resolve().parent) if graph is None else graph
    if not whole.is_homogeneous:
        raise ValueError(f"graph must have one vertex type and one edge type, got {whole}")
    whole.csc.validate()
    claims = []
    hops = 1
    for index in range(num_parts):
        part = open_pagraph_part(path, index)
        _check_ids(path, part, whole)
        claims.append(_Claim.of(part, whole))
        hops = max(hops, _depth(part))
    kept = _settle(claims, whole)
    for index, train in enumerate(kept):
        if not len(train):
            raise FormatError(
                f"{path}: part {index} must have training vertices of its own, got none"
            )
    dropped = []
    # Opened again: only now the training vertices and hops are known.
    for index, train in enumerate(kept):
        part = open_pagraph_part(path, index)
        # Vertices that the training vertices reach but the part does not hold.
        reached = vertices_within(whole, train, hops).ids
        without = reached[~torch.isin(reached, part.global_ids)].sort().values
        _check_edges(path, part, whole, vertices_within(whole, train, hops, without=without))
        dropped.append(without)
    ids, order = torch.cat(kept).sort()
    sizes = torch.tensor([len(train) for train in kept], device="cpu")
    numbers = torch.arange(num_parts, dtype=torch.int32, device="cpu")
    parts = numbers.repeat_interleave(sizes)[order]
    lacking = tuple(dropped) if any(map(len, dropped)) else None
    return Partition(whole, ids, parts, num_parts, hops, "imported", dropped=lacking)


@dataclass(frozen=True, eq=False)
class _Claim:
    """Training vertices that a part lists.

    Attributes:
        train: Their ids in the whole graph.
        first: The part's first vertex if it is listed, as it may stand for others; else empty.
        complete: Whether all in-neighbours of that vertex are in the part.
    """

    train: Tensor
    first: Tensor
    complete: bool

    @classmethod
    def of(cls, part: PagraphPart, graph: Graph) -> _Claim:
        train = part.global_ids[part.train]
        if not len(part.train) or int(part.train[0]) != 0:
            return cls(train, train[:0], True)
        # The form merges parallel edges, so sources are compared, and not in-degrees.
        own = _distinct_sources(part.graph, 0)
        return cls(train, train[:1], own == _distinct_sources(graph, int(train[0])))


def _distinct_sources(graph: Graph, vertex: int) -> int:
    csc = graph.csc
    edges = slice(int(csc.indptr[vertex]), int(csc.indptr[vertex + 1]))
    return len(set(csc.indices[edges].tolist()))


def _check_ids(path: Path, part: PagraphPart, graph: Graph) -> None:
    if len(part.global_ids) and (largest := int(part.global_ids.max())) >= graph.num_nodes:
        raise FormatError(f"{path}: part {part.index} must be of {graph}, got the vertex {largest}")
    labels = graph.ndata.get("label")
    if labels is None:
        return
    want = labels[part.global_ids[part.train]]
    if want.shape != part.labels.shape or not bool((want == part.labels).all()):
        raise FormatError(f"{path}: part {part.index} must have the labels of {graph}, got others")


def _depth(part: PagraphPart) -> int:
    """Hops of in-edges in the part: one more than the distance of the furthest vertex with any."""
    found = vertices_within(part.graph, part.train, MAX_HOPS)
    has_edges = part.graph.in_degrees()[found.ids] > 0
    last = int(has_edges.nonzero().max()) if bool(has_edges.any()) else -1
    # Hop h ends at or before `last` for every h below that of `last`.
    return sum(end <= last for end in found.hop_ends) + 1


def _settle(claims: list[_Claim], graph: Graph) -> list[Tensor]:
    """Ids of each part's training vertices, ascending, without stand-ins."""
    mask = mask_of(graph.ndata, "train_mask")
    listed = torch.bincount(torch.cat([claim.train for claim in claims]), minlength=graph.num_nodes)
    kept = [claim.train.sort().values for claim in claims]
    # Of several parts that list a vertex, one with all its in-neighbours keeps it. So incomplete
    # claims give way first.
    for index in sorted(range(len(claims)), key=lambda i: claims[i].complete):
        first = claims[index].first
        if not len(first):
            continue
        is_doubled = int(listed[first]) > 1
        is_untrained = mask is not None and not bool(mask[first])
        if is_doubled or is_untrained:
            listed[first] -= 1
            kept[index] = kept[index][kept[index] != first]
    if bool((listed > 1).any()):
        vertex = int((listed > 1).nonzero()[0])
        owners = [index for index, train in enumerate(kept) if bool((train == vertex).any())]
        raise FormatError(f"a training vertex must be in one part, got {vertex} in parts {owners}")
    return kept


def _check_edges(path: Path, part: PagraphPart, whole: Graph, vertices: PartVertices) -> None:
    """Raise FormatError unless the part's edges are those of ``vertices`` in the whole graph."""
    want = _edge_keys(extract_structure(whole, vertices).csc, vertices.ids, whole)
    got = _edge_keys(part.graph.csc, part.global_ids, whole)
    if not torch.equal(want, got):
        found = f"{len(got)} edges where {len(want)} are needed"
        raise FormatError(f"{path}: part {part.index} must hold the edges of {whole}, got {found}")


def _edge_keys(csc: CSC, ids: Tensor, whole: Graph) -> Tensor:
    """One number for each pair of vertices with an edge, ascending."""
    src = ids[csc.indices.long()]
    dst = ids[csc.destinations().long()]
    # The format merges parallel edges, so only pairs can be compared.
    keys: Tensor = torch.unique(src * whole.num_nodes + dst)
    return keys
