"""A training step to measure loading with: GraphSAGE in plain torch on the batches of ``pagraph.Loader``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ..minibatch import Block, MiniBatch

__all__ = ["SageStep"]


class SageStep:
    """Forward, backward and one step of Adam, with mean aggregation and 64 hidden values.

    Its work is that of real training, its result is not: the label of every vertex is class 0.

    Attributes:
        description: What is computed, in words.

    Args:
        fields: Names of the input fields; their rows are flattened and put side by side.
        width: Values in these rows.
        hops: Layers.
        hidden: Width of the hidden layers.
        classes: Width of the last.
        device: Where the batches are.
    """

    def __init__(
        self,
        fields: Sequence[str],
        *,
        width: int,
        hops: int,
        hidden: int = 64,
        classes: int = 16,
        device: str | torch.device = "cpu",
    ) -> None:
        sizes = [width, *[hidden] * (hops - 1), classes]
        self.description = f"one step of GraphSAGE on {device} ({hops} layers, {hidden} hidden values)"
        self._fields = list(fields)
        self._layers = nn.ModuleList(nn.Linear(2 * a, b) for a, b in pairwise(sizes)).to(device)
        self._optimizer = torch.optim.Adam(self._layers.parameters())

    def __call__(self, batch: MiniBatch) -> float:
        """Train on one batch; the loss."""
        x = torch.cat([batch.features[name].flatten(1).float() for name in self._fields], 1)
        for i, (block, layer) in enumerate(zip(batch.blocks, self._layers, strict=True)):
            x = layer(torch.cat([x[: block.num_dst], _mean(block, x)], 1))
            x = x if i == len(self._layers) - 1 else x.relu()
        loss = nn.functional.cross_entropy(x, torch.zeros(len(x), dtype=torch.int64, device=x.device))
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return float(loss.detach())


def _mean(block: Block, x: Tensor) -> Tensor:
    """The mean of each destination vertex's sampled in-neighbours; zeros where there is none."""
    degrees = (block.indptr[1:] - block.indptr[:-1]).long()
    ends = torch.repeat_interleave(torch.arange(block.num_dst, device=x.device), degrees)
    total = torch.zeros(block.num_dst, x.shape[1], device=x.device).index_add_(0, ends, x[block.indices.long()])
    return total / degrees.clamp(min=1).unsqueeze(1)
