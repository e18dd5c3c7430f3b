"""How likely things are to be in a batch."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["chance_of_some"]


def chance_of_some(counts: Tensor, total: int, drawn: int) -> Tensor:
    """How likely ``drawn`` of ``total`` different things hold at least one of ``counts`` of them, float64.

    >>> chance_of_some(torch.tensor([0, 1, 2, 4]), 5, 2).tolist()
    [0.0, 0.4, 0.7, 1.0]
    """
    missed = torch.arange(int(counts.max()) if len(counts) else 0, dtype=torch.float64)
    log = torch.log(((total - drawn - missed) / (total - missed)).clamp(min=0.0))
    table = torch.cat([torch.zeros(1, dtype=torch.float64), -torch.expm1(log.cumsum(0))])
    if len(table) > 1:
        table[1] = drawn / total  # exactly, for the usual seeds
    return table[counts]
