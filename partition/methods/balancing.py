"""Balance of parts: bounds of their sizes, and moves that enforce them after METIS."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...system.arrays import Float64Array, Int32Array, Int64Array

Ties = Callable[[Int64Array], Float64Array]
"""Returns the ties of training vertices (given by index) to all parts: shape ``(vertices,
parts)``."""


def largest_size(num_train: int, num_parts: int) -> int:
    """Maximum training vertices of a part: 1 % above the mean, or the mean rounded up."""
    return max(-(-num_train // num_parts), int(1.01 * num_train / num_parts))


def smallest_size(num_train: int, num_parts: int) -> int:
    """Minimum training vertices that moves leave in a part: 1 % below the mean, or the mean rounded
    down."""
    return max(1, min(num_train // num_parts, -int(-0.99 * num_train // num_parts)))


def balance_parts(parts: Int32Array, num_parts: int, ties: Ties) -> None:
    """Move vertices out of parts above :func:`largest_size`, and one into each empty part; changes
    ``parts``.

    Vertices that lose the fewest ties are moved first. ``ties`` is called once per move out of a
    part.
    """
    limit = largest_size(len(parts), num_parts)
    sizes = np.bincount(parts, minlength=num_parts)
    # Empty parts first: taking vertices for them may bring a large part below the limit.
    empty = np.flatnonzero(sizes == 0)
    for part in empty:
        _move(parts, sizes, int(sizes.argmax()), 1, np.array([part]), 1, ties)
    for part in np.flatnonzero(sizes > limit):
        others = np.delete(np.arange(num_parts), part)
        _move(parts, sizes, int(part), int(sizes[part]) - limit, others, limit, ties)


def deal_out(parts: Int32Array, num_parts: int) -> None:
    """Assign vertices without a part (-1) to the smallest parts, consecutive ids together; changes
    ``parts``."""
    missing = np.flatnonzero(parts < 0)
    sizes = np.bincount(parts[parts >= 0], minlength=num_parts)
    # Binary search for the lowest level at which filling all parts up to it has room for all.
    low = 0
    level = int(sizes.max()) + len(missing)
    while low < level:
        middle = (low + level) // 2
        if np.maximum(middle - sizes, 0).sum() >= len(missing):
            level = middle
        else:
            low = middle + 1
    room = np.maximum(level - sizes, 0)
    # There may be too much room at that level, by less than one per part that takes some.
    room[np.flatnonzero(room)[: room.sum() - len(missing)]] -= 1
    parts[missing] = np.repeat(np.arange(num_parts), room)


def _move(
    parts: Int32Array,
    sizes: Int64Array,
    giver: int,
    count: int,
    takers: Int64Array,
    limit: int,
    ties: Ties,
) -> None:
    """Move ``count`` vertices of part ``giver`` to ``takers`` below ``limit``, which must have
    enough room."""
    members = np.flatnonzero(parts == giver)
    tied = ties(members)
    gain = tied[:, takers] - tied[:, [giver]]
    left = np.ones(len(members), dtype=bool)
    while count > 0:
        # When a taker is full, its vertices need another one: sort again, at most once per taker.
        gain[:, sizes[takers] >= limit] = -np.inf
        best = gain.argmax(1)
        order = np.argsort(-gain[np.arange(len(members)), best], kind="stable")
        for i in order[left[order]]:
            taker = takers[best[i]]
            if count == 0 or sizes[taker] >= limit:
                break
            parts[members[i]] = taker
            left[i] = False
            sizes[taker] += 1
            sizes[giver] -= 1
            count -= 1
