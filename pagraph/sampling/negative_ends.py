"""NegativeEnds: vertices drawn as ends of negative pairs, uniformly or by weight, none that is there too late."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

__all__ = ["NegativeEnds"]


class NegativeEnds:
    """Draws vertices of one type, with replacement, as a pure function of a key; safe from any number of threads.

    What it is made of is copied, and sorted and summed up once.

    Args:
        num_nodes: Vertices of the type.
        weight: Shape ``(num_nodes,)``, finite and not negative: vertices are drawn in proportion to it. Default: all
            are as likely.
        time: Shape ``(num_nodes,)``, int64: a vertex is no end of a pair that is older.
        name: What errors call the weight.

    Raises:
        TypeError: The weight is no tensor of numbers.
        ValueError: There is not one weight per vertex, one is negative, infinite or NaN, or all are 0.

    Example:
        >>> NegativeEnds(3, weight=torch.tensor([0.0, 2.0, 0.0])).draw(4, key=1)
        tensor([1, 1, 1, 1])
    """

    def __init__(
        self, num_nodes: int, weight: Tensor | None = None, time: Tensor | None = None, *, name: str = "weight"
    ) -> None:
        self.num_nodes = num_nodes
        self._weights = None if weight is None else _checked(weight, num_nodes, name)
        self._order: Array | None = None
        self._times: Array | None = None
        if time is not None:
            times = time.numpy()
            self._order = np.argsort(times, kind="stable")
            self._times = times[self._order]
        self._sums: Array | None = None
        if self._weights is not None:
            self._sums = np.cumsum(self._weights if self._order is None else self._weights[self._order])

    def draw(self, count: int, key: int, until: Tensor | None = None) -> Tensor:
        """Some vertices.

        Args:
            count: How many.
            key: Any 64-bit number.
            until: Shape ``(count,)``, int64: the latest time each may have. Where no vertex (of any weight) is that
                early, the earliest of all is taken, as in PyG. Needs ``time``.

        Returns:
            Shape ``(count,)``, int64.

        Raises:
            ValueError: Something is to be drawn from no vertices.
        """
        from . import _negative_ends

        places: Array = np.empty(count, np.int64)
        if count and not self.num_nodes:
            raise ValueError(f"negative pairs need at least 1 vertex to draw from, got 0 for {count} pairs")
        if until is None or self._times is None:
            limits = np.full(count, self.num_nodes, np.int64)
        else:
            limits = np.searchsorted(self._times, until.numpy(), side="right").astype(np.int64)
        if self._sums is None:
            _negative_ends.uniform_places(np.uint64(key), limits, places)
        else:
            _negative_ends.weighted_places(np.uint64(key), limits, self._sums, places)
        return torch.from_numpy(places if self._order is None else self._order[places])

    @property
    def chances(self) -> Tensor:
        """How likely each vertex is to be drawn where time does not matter, shape ``(num_nodes,)``, float64."""
        if self._weights is None:
            return torch.full((self.num_nodes,), 1 / max(1, self.num_nodes), dtype=torch.float64)
        return torch.from_numpy(self._weights / self._weights.sum())

    @property
    def _identity(self) -> tuple[int, str]:
        return self.num_nodes, self._digest

    @cached_property
    def _digest(self) -> str:
        parts = [hashlib.blake2b(b"" if a is None else a.data) for a in (self._weights, self._order, self._times)]
        return "-".join(part.hexdigest()[:16] for part in parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NegativeEnds) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"NegativeEnds({self.num_nodes}, {self._digest})"


def _checked(weight: Any, num_nodes: int, name: str) -> Array:
    """The weights as float64."""
    if not isinstance(weight, Tensor) or weight.is_complex():
        got = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"{name} must be a tensor of numbers, got {got}")
    if weight.dim() != 1 or len(weight) != num_nodes:
        raise ValueError(f"{name} must have one number per vertex ({num_nodes}), got shape {tuple(weight.shape)}")
    weights: Array = weight.detach().cpu().to(torch.float64, copy=True).numpy()
    wrong = ~((weights >= 0) & np.isfinite(weights))
    if wrong.any():
        raise ValueError(f"{name} must be finite and not negative, got {weights[wrong][0]}")
    if num_nodes and not weights.any():
        raise ValueError(f"{name} must have a positive number, all are 0")
    return weights
