"""Which part owns a vertex: for engines that divide all vertices, not only those for training."""

from __future__ import annotations

import torch
from torch import Tensor

from .partition import Partition

__all__ = ["vertex_owners"]


def vertex_owners(partition: Partition) -> Tensor:
    """One part for every vertex of the graph, shape ``(num_nodes,)``, int32.

    A training vertex is owned by its part. Any other goes to the part that reaches it in the fewest hops, among equals
    to the one that owns fewest so far, and one that no part reaches to the smallest part. Takes a byte for each vertex
    and part.
    """
    from . import _owners

    num_nodes = partition.graph.num_nodes
    hop_of = torch.full((partition.num_parts, num_nodes), 255, dtype=torch.uint8)
    for part in range(partition.num_parts):
        found = partition.vertices(part)
        ends = torch.tensor([0, *found.hop_ends])
        hops = torch.arange(len(found.hop_ends), dtype=torch.uint8)
        hop_of[part, found.ids] = torch.repeat_interleave(hops, torch.diff(ends))
    owner = torch.full((num_nodes,), -1, dtype=torch.int32)
    owner[partition.train] = partition.parts
    counts = torch.bincount(partition.parts, minlength=partition.num_parts)
    _owners.take_nearest(hop_of.numpy(), owner.numpy(), counts.numpy())
    return owner
