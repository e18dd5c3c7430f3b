"""The paper's baseline: training vertices go to parts in turn, whatever the edges are."""

from __future__ import annotations

import torch
from torch import Tensor

from ...graph import Graph
from ..partition import Progress

__all__ = ["hash_parts"]


def hash_parts(
    graph: Graph, train: Tensor, num_parts: int, hops: int, *, seed: int = 0, progress: Progress | None = None
) -> Tensor:
    """The parts of training vertices in a random order, dealt out in turn: sizes differ by one at most.

    See :mod:`pagraph.partition.methods` for the contract.
    """
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    parts = torch.empty(len(train), dtype=torch.int32)
    parts[order] = (torch.arange(len(train)) % num_parts).int()
    return parts
