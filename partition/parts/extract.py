"""The graph of one part: the in-edges of its inner vertices under local ids."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...csc import CSC, id_dtype
from ...graph import Graph
from ..closure import PartVertices
from ..partition import Partition

__all__ = ["PartStructure", "extract_part", "extract_structure"]


@dataclass(frozen=True, eq=False)
class PartStructure:
    """What a part holds of the graph; vertex ``i`` of it is ``vertices.ids[i]``.

    Attributes:
        vertices: The vertices, nearest first.
        csc: In-edges under local ids, each vertex's in the order they have in the whole graph. Vertices found at the
            last hop have none.
        edge_ids: The id in the whole graph of each edge of ``csc``, shape ``(num_edges,)``, int32 where they fit.
        missing: How many in-edges of the inner vertices are left out, because the part does without their source.
        dropped: How many vertices those edges come from.
    """

    vertices: PartVertices
    csc: CSC
    edge_ids: Tensor
    missing: int
    dropped: int


def extract_part(partition: Partition, part: int) -> PartStructure:
    """The structure of a part: all in-edges, of vertices up to the last hop but one, whose source is in the part.

    Takes one id a vertex of the whole graph, and the part itself; the graph may be mapped, its rows are read in
    ascending order once for each hop and pass.

    Raises:
        ValueError: ``part`` is not one of the partition's.

    Example:
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 3])
        >>> partition = Partition(graph, torch.tensor([1, 3]), torch.tensor([0, 1], dtype=torch.int32), 2, 1, "hash")
        >>> structure = extract_part(partition, 1)
        >>> structure.csc.indptr.tolist(), structure.csc.indices.tolist(), structure.edge_ids.tolist()
        ([0, 1, 1], [1], [2])
    """
    if not 0 <= part < partition.num_parts:
        raise ValueError(f"part must be in [0, {partition.num_parts}), got {part}")
    partition.graph.csc.validate()
    return extract_structure(partition.graph, partition.vertices(part))


def extract_structure(graph: Graph, vertices: PartVertices) -> PartStructure:
    """The in-edges among ``vertices`` of all but those of the last hop; the graph's ids have been checked."""
    from . import _extract

    whole, ids = graph.csc, vertices.ids
    inner = vertices.hop_ends[max(len(vertices.hop_ends) - 2, 0)]
    local = torch.full((whole.num_dst,), -1, dtype=id_dtype(len(ids), 0))
    _extract.number(ids.numpy(), local.numpy())
    rows = (whole.indptr.numpy(), whole.indices.numpy())
    counts = torch.zeros(len(ids), dtype=torch.int64)
    missing, dropped = _extract.count_inside(*rows, ids.numpy(), inner, local.numpy(), counts.numpy())
    ends = counts.cumsum(0)
    num_edges = int(ends[-1]) if len(ids) else 0
    dtype = id_dtype(len(ids), num_edges)
    indptr = torch.zeros(len(ids) + 1, dtype=dtype)
    indptr[1:] = ends
    indices = torch.empty(num_edges, dtype=dtype)
    whole_ids = torch.empty(0, dtype=dtype) if whole.edge_ids is None else whole.edge_ids
    largest = whole.num_edges if whole.edge_ids is None or not len(whole_ids) else int(whole_ids.max())
    edge_ids = torch.empty(num_edges, dtype=id_dtype(0, largest))
    _extract.copy_inside(*rows, whole_ids.numpy(), ids.numpy(), inner, local.numpy(), indices.numpy(), edge_ids.numpy())
    return PartStructure(vertices, CSC(indptr, indices, len(ids)), edge_ids, int(missing), int(dropped))
