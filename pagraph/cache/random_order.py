"""The random policy: what a cache serves that knows nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..sampling.keys import derive_key

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["random_order"]


def random_order(graph: Graph, seeds: Any, sampler: object, seed: int) -> dict[str, Tensor]:
    """All vertices in a random order: a function of ``seed`` and their number alone.

    Without scores, so that each type gets its share of the budget.
    """
    return {ntype: _shuffled(graph.num_nodes_of(ntype), seed, i) for i, ntype in enumerate(graph.node_types)}


def _shuffled(count: int, seed: int, number: int) -> Tensor:
    rng = np.random.Generator(np.random.Philox(key=derive_key(seed, number)))
    return torch.from_numpy(rng.permutation(count))
