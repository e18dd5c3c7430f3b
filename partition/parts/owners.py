"""Which part a vertex belongs to: where it is evaluated, and for engines that divide all vertices where it lives."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..closure import PartVertices
from ..methods.balancing import deal_out
from ..partition import Partition

__all__ = ["nearest_part", "vertex_owners"]

_HALVINGS = 50


def nearest_part(num_nodes: int, parts: Iterable[PartVertices]) -> Tensor:
    """The part that holds each vertex at the lowest hop, shape ``(num_nodes,)``, int32; -1: none does.

    Of several such parts a hash chooses, so that parts have equally many as far as that goes. (Where two hops reach
    everything from everywhere, a fixed order would give nearly all to one part.) Takes 5 bytes a vertex beside one part
    at a time.
    """
    from . import _owners

    owner = torch.full((num_nodes,), -1, dtype=torch.int32)
    nearest = np.full(num_nodes, 255, np.uint8)
    sizes = np.zeros(0, np.int64)
    for part, vertices in enumerate(parts):
        sizes, tied = np.append(sizes, 0), np.zeros(part + 1, np.int64)
        rings = (vertices.ids.numpy(), np.array(vertices.hop_ends, np.int64), part, owner.numpy(), nearest, sizes)
        _owners.take_nearer(*rings, tied)
        _owners.take_ties(*rings, _shares(sizes, tied))
    return owner


def _shares(sizes: npt.NDArray[np.int64], tied: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Which share of its ``tied`` vertices each part gives to the last one, so that none that gives ends up smaller."""
    low, high = float(sizes[-1]), float(sizes[-1] + tied.sum())
    for _ in range(_HALVINGS):  # of where the level lies that givers fall to and the taker rises to
        level = (low + high) / 2
        enough = sizes[-1] + np.clip(sizes - level, 0, tied).sum() <= level
        low, high = (low, level) if enough else (level, high)
    shares: npt.NDArray[np.float64] = np.clip(sizes - high, 0, tied) / np.maximum(tied, 1)
    return shares


def vertex_owners(partition: Partition) -> Tensor:
    """One part for every vertex of the graph, shape ``(num_nodes,)``, int32.

    A training vertex is owned by its part, any other by the :func:`nearest_part`; those that no part reaches go to the
    parts that own fewest.
    """
    vertices = (partition.vertices(part) for part in range(partition.num_parts))
    owner = nearest_part(partition.graph.num_nodes, vertices)
    owner[partition.train] = partition.parts
    deal_out(owner.numpy(), partition.num_parts)
    return owner
