"""Ways to read: which of them this system allows, and idle queues of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .queues import Advice, Aio, Queue, Threads

WAYS: dict[str, type[Queue]] = {kind.way: kind for kind in (Aio, Advice, Threads)}
"""Ways by name, the best first.

Cold requests/s of 1, 4 and 16 KiB, 128 at once, and microseconds of processor for one of 4 KiB, on
a virtual disk, past the page cache: AIO 151,000, 120,000, 53,000, 2.8; threads 131,000, 108,000,
57,000, 7.9. io_uring, which containers often forbid, gave 125,000, 94,000, 43,000, 4.3. Through the
page cache: advice 141,000, 122,000, 52,000, 4.0; threads 114,000, 96,000, 45,000, 9.5.
"""


_refused: dict[str, OSError | None] = {}


def refusal(way: str) -> OSError | None:
    """Why this system does not allow a way, None if it does; asked once."""
    if way not in _refused:
        try:
            WAYS[way].check()
            _refused[way] = None
        except OSError as error:
            _refused[way] = error
    return _refused[way]


def usable_way(way: str | None = None, *, direct: bool) -> str:
    """The best way to read, of those that this system allows; or the given one, if it is.

    Raises:
        OSError: The system refuses the given way.
        ValueError: It does not fit to descriptors that are, or are not, of O_DIRECT.
    """
    if way is not None:
        kind = WAYS[way]
        if kind.direct not in (None, direct):
            raise ValueError(
                f"way must be one of reads that are {'' if direct else 'not '}direct, got {way!r}"
            )
        if error := refusal(way):
            raise error
        return way
    return next(
        name
        for name, kind in WAYS.items()
        if kind.direct in (None, direct) and refusal(name) is None
    )


# Queues are kept for the next reader; each holds kernel memory, of which there is a limit for all
# users.
_MOST_IDLE = 8
_idle: dict[str, list[Queue]] = {way: [] for way in WAYS}


@contextmanager
def queue(way: str) -> Iterator[Queue]:
    """A queue for the time of the ``with`` block, from those that are idle or a new one; safe from
    any thread.

    Threads serve where the system has no more descriptors or contexts.
    """
    try:
        taken = _idle[way].pop()
    except IndexError:
        try:
            taken = WAYS[way]()
        except OSError:
            taken = Threads()
    yield taken
    idle = _idle[taken.way]
    # Not after an exception: who knows what still uses it.
    if not taken.is_lost and len(idle) < _MOST_IDLE:
        idle.append(taken)


def _forget() -> None:
    for idle in _idle.values():
        idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
