"""A folder of parts in PaGraph's form as a partition of its graph, which can be written in any form."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...datasets.opening import open_graph
from ...errors import FormatError
from ...graph import Graph
from ..closure import MAX_HOPS, vertices_within
from ..partition import Partition
from ..parts.extract import extract_part
from .pagraph_format import PagraphPart, count_parts, open_pagraph_part

__all__ = ["read_pagraph_partition"]


def read_pagraph_partition(folder: str | os.PathLike[str], graph: Graph | None = None) -> Partition:
    """The partition that a folder in PaGraph's form holds, compared with the graph edge by edge.

    ``hops`` is the most that a part holds; vertices that a part does without are its ``dropped``. PaGraph's
    partitioners lose training vertices without edges and list a part's first vertex instead: such a vertex is taken
    out where it is no training vertex of the graph, or where another part has it. The lost ones are in no part.

    One part at a time is in memory.

    Args:
        folder: What PaGraph or :func:`~pagraph.partition.write_pagraph_partition` wrote.
        graph: The graph that was divided. Default: that in the folder above, where PaGraph has it.

    Raises:
        FileNotFoundError: There is no such folder.
        FormatError: It is not of that form, a part is missing or damaged, or they are not parts of that graph.

    Example:
        >>> import tempfile
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
    claims, hops = [], 1
    for index in range(num_parts):
        part = open_pagraph_part(path, index)
        _check_ids(path, part, whole)
        claims.append(_Claim.of(part, whole))
        hops = max(hops, _depth(part))
    kept = _settle(claims, whole)
    for index, train in enumerate(kept):
        if not len(train):
            raise FormatError(f"{path}: part {index} must have training vertices of its own, got none")
    dropped = tuple(_dropped(path, open_pagraph_part(path, i), whole, train, hops) for i, train in enumerate(kept))
    ids, order = torch.cat(kept).sort()
    parts = torch.cat([torch.full((len(train),), i, dtype=torch.int32) for i, train in enumerate(kept)])[order]
    none_dropped = not any(len(lacking) for lacking in dropped)
    partition = Partition(whole, ids, parts, num_parts, hops, "imported", dropped=None if none_dropped else dropped)
    for index in range(num_parts):
        _check_edges(path, open_pagraph_part(path, index), partition)
    return partition


@dataclass(frozen=True, eq=False)
class _Claim:
    """The training vertices that a part lists.

    Attributes:
        train: Their ids.
        first: Of them the part's first vertex, which may stand for others: one id or none.
        complete: Whether all in-neighbours of the first vertex are in the part.
    """

    train: Tensor
    first: Tensor
    complete: bool

    @classmethod
    def of(cls, part: PagraphPart, graph: Graph) -> _Claim:
        """What a part lists."""
        train = part.global_ids[part.train]
        if not len(part.train) or int(part.train[0]) != 0:
            return cls(train, train[:0], True)
        return cls(train, train[:1], _distinct_sources(part.graph, 0) == _distinct_sources(graph, int(train[0])))


def _distinct_sources(graph: Graph, vertex: int) -> int:
    csc = graph.csc
    return len(set(csc.indices[int(csc.indptr[vertex]) : int(csc.indptr[vertex + 1])].tolist()))


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
    """How many hops of in-edges the part holds: one more than the furthest vertex has that has any."""
    found = vertices_within(part.graph, part.train, MAX_HOPS)
    has_edges = part.graph.in_degrees()[found.ids] > 0
    last = int(has_edges.nonzero().max()) if bool(has_edges.any()) else -1
    return sum(end <= last for end in found.hop_ends) + 1


def _settle(claims: list[_Claim], graph: Graph) -> list[Tensor]:
    """Ids of each part's training vertices, ascending, without first vertices that stand for others.

    Raises:
        FormatError: A vertex is left in two parts.
    """
    mask = graph.ndata.get("train_mask")
    listed = torch.bincount(torch.cat([claim.train for claim in claims]), minlength=graph.num_nodes)
    kept = [claim.train.sort().values for claim in claims]
    # Of several parts that list a vertex, one with all its in-neighbours keeps it.
    for index in sorted(range(len(claims)), key=lambda i: claims[i].complete):
        first = claims[index].first
        if len(first) and (int(listed[first]) > 1 or (mask is not None and not bool(mask[first]))):
            listed[first] -= 1
            kept[index] = kept[index][kept[index] != first]
    if bool((listed > 1).any()):
        vertex = int((listed > 1).nonzero()[0])
        owners = [index for index, train in enumerate(kept) if bool((train == vertex).any())]
        raise FormatError(f"a training vertex must be in one part, got {vertex} in parts {owners}")
    return kept


def _dropped(path: Path, part: PagraphPart, graph: Graph, train: Tensor, hops: int) -> Tensor:
    """Ids of the vertices that the part does without although its training vertices reach them, ascending."""
    reached = vertices_within(graph, train, hops).ids
    lacking: Tensor = reached[~torch.isin(reached, part.global_ids)]
    return lacking.sort().values


def _check_edges(path: Path, part: PagraphPart, partition: Partition) -> None:
    """Refuse a part that is not what the partition says it holds.

    Raises:
        FormatError: Its edges differ.
    """
    structure = extract_part(partition, part.index)
    want = _edge_keys(structure.csc.indices, structure.csc.destinations(), structure.vertices.ids, partition.graph)
    csc = part.graph.csc
    got = _edge_keys(csc.indices, csc.destinations(), part.global_ids, partition.graph)
    if not torch.equal(want, got):
        found = f"{len(got)} edges where {len(want)} are needed"
        raise FormatError(f"{path}: part {part.index} must hold the edges of {partition.graph}, got {found}")


def _edge_keys(src: Tensor, dst: Tensor, ids: Tensor, graph: Graph) -> Tensor:
    """One number for each pair of vertices with an edge, ascending."""
    keys: Tensor = torch.unique(ids[src.long()] * graph.num_nodes + ids[dst.long()])
    return keys
