"""MemoryPlan: bytes of host memory that a loader of a graph on disk gives to each of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..system.budget import beyond_share, least_memory
from ..system.tables import Table, Tabled
from ..system.units import bytes_text, percent

QUARTER = 4
"""A control group of ``memory`` plus a quarter of it is never exceeded.

The quarter is for the model's computation and for pages of files.
"""

# The window gets at most a third of what the batches leave: it saves only those reads that come
# twice within a group, where rows that are kept save reads of the whole epoch.
_WINDOW_SHARE = 3
# Batches to look ahead at most. Groups of 8 read 0.47 and 0.75 of the pages that 8 batches read one
# by one (two real graphs); larger groups read less still, with falling gains.
_AHEAD = 32


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes that each part could use, and what they would save.

    Attributes:
        process: Bytes that the process holds: interpreter, libraries, model, what is in memory of
            the graph.
        batch: Bytes of one batch with its rows.
        batches: Batches that are in memory at once.
        staging: Bytes of pinned buffers.
        ahead: Bytes that the look-ahead window takes for each batch of a group, those of the groups
            beside it included.
        ahead_rows: Bytes of a batch's rows that lie on disk.
        lookahead: Batches to look ahead; None: as many as are of use.
        num_batches: Batches of an epoch.
        topology: Bytes of the graph's edges that lie on disk.
        topology_reads: Bytes that an epoch reads of them, in whole pages.
        cache: Bytes of all rows on disk that a static cache could hold, and of its tables.
        growing: Bytes of these tables that only a cache has which windows fill: of the rows that
            are there, by field.
        cache_reads: Bytes that an epoch reads of these rows, in whole pages.
        cache_given: Bytes that the cache was given; None: as many as are of use.
    """

    process: int = 0
    batch: int = 0
    batches: int = 0
    staging: int = 0
    ahead: int = 0
    ahead_rows: int = 0
    lookahead: int | None = None
    num_batches: int = 1
    topology: int = 0
    topology_reads: float = 0.0
    cache: int = 0
    growing: int = 0
    cache_reads: float = 0.0
    cache_given: int | None = None

    @property
    def in_flight(self) -> int:
        """Bytes of all batches at once."""
        return self.batch * self.batches


@dataclass(frozen=True)
class MemoryPlan(Tabled):
    """Bytes of host memory for each part of a loader; ``str()`` is a table, as in a notebook.

    Attributes:
        total: Bytes that were given, or are free less a reserve.
        process: Bytes that the process holds already, beyond an eighth of ``total``.
        batches: Bytes of the batches that are made, wait, and are in the reader's hands.
        staging: Bytes of pinned buffers on the way to a device.
        window: Bytes of the look-ahead: sampled batches, and each row that they miss once.
        topology: Bytes of edges that are kept in memory.
        cache: Bytes of the static cache of rows on the CPU, with its tables.
        needs: What there was to divide between.
        ranked: What the cache's rows are ranked by where it is not the policy, which takes too much
            memory.
        reason: Why nothing is planned; empty where something is.
    """

    total: int
    process: int = 0
    batches: int = 0
    staging: int = 0
    window: int = 0
    topology: int = 0
    cache: int = 0
    needs: MemoryNeeds = MemoryNeeds()
    ranked: str = ""
    reason: str = ""

    @property
    def taken(self) -> int:
        """Bytes that the loader may take."""
        return self.batches + self.staging + self.window + self.topology + self.cache

    @property
    def cached(self) -> int:
        """Bytes of the cache without the tables by which it grows."""
        return max(0, self.cache - self.needs.growing * (self.window > 0))

    @property
    def left(self) -> int:
        """Bytes that no part has use for."""
        return max(0, self.total - self.process - self.taken)

    @property
    def lookahead(self) -> int:
        """Batches of a group that the window has room for."""
        return self.window // self.needs.ahead if self.needs.ahead else 0

    @property
    def group_rows(self) -> int:
        """Bytes of the rows that a group may miss."""
        return self.window * self.needs.ahead_rows // self.needs.ahead if self.needs.ahead else 0

    def to_dict(self) -> dict[str, int]:
        """Bytes by part, "total" and "left" among them, for TensorBoard or W&B."""
        names = ("total", "process", "batches", "staging", "window", "topology", "cache", "left")
        return {name: getattr(self, name) for name in names}

    def _tables(self) -> list[Table]:
        if self.reason:
            title = f"memory: nothing is planned, {self.reason}"
            return [Table([["part", "bytes"]], title, left=(0,))]
        needs = self.needs
        lines: list[Sequence[str]] = [("part", "bytes", "of what it could use", "")]

        def add(part: str, nbytes: int, remark: str, most: int | None = None) -> None:
            share = "" if most is None else _share(nbytes, most)
            lines.append((part, bytes_text(nbytes), share, remark))

        add("process", self.process, f"of the {bytes_text(needs.process)} that it holds")
        flying = f"{needs.batches} of {bytes_text(needs.batch)}: made, waiting, in your hands"
        add("batches", self.batches, flying)
        if self.staging:
            add("staging", self.staging, "pinned, on the way to the device")
        ahead = "no look-ahead"
        if self.window:
            misses = bytes_text(needs.ahead_rows)
            ahead = f"groups of {self.lookahead} batches, which miss {misses} each at most"
        add("window", self.window, ahead)
        add("topology", self.topology, "edges on disk", needs.topology)
        add("cache", self.cache, f"rows on disk{self.ranked}", needs.cache)
        add("left", self.left, "")
        quarter = bytes_text(self.total // QUARTER)
        title = (
            f"memory: {bytes_text(self.total)}; {quarter} more are for what computes and the "
            "system's pages"
        )
        return [Table(lines, title, left=(0, 3))]


def _share(nbytes: int, most: int) -> str:
    return percent(nbytes / most if most else None)


def usable_memory(available: int, process: int) -> int:
    """Bytes that a loader may plan with where none are given: a quarter of them is left of what
    there is.

    Args:
        available: Bytes that are free.
        process: Bytes that the process holds already.
    """
    return (max(0, available) + max(0, process)) * QUARTER // (QUARTER + 1)


def divide_memory(total: int, needs: MemoryNeeds, *, given: bool = True) -> MemoryPlan:
    """Divide memory by what a byte of each part saves.

    Batches in flight come first, as there is nothing without them; then the look-ahead for one
    batch, without which an epoch from a disk took four times as long, and for more of them up to a
    third of what is left. The rest is shared by the edges and the rows that are kept: with ``r``
    bytes read an epoch of ``n``, the best ``b`` bytes are taken to save ``r * sqrt(b / n)``, which
    gives each ``r ** 2 / n`` parts, up to all of it.

    Args:
        total: Bytes to divide.
        needs: What the parts could use.
        given: ``total`` was asked for: refuse one that is too small. Else the plan has the batches,
            and no more.

    Raises:
        ValueError: ``total`` is below what the batches and a cache of a given size need; it says
            how much that is.
    """
    process = beyond_share(total, needs.process)
    rest = total - process - needs.in_flight - needs.staging
    cache = min(needs.cache, needs.cache_given or 0)
    if given and rest < cache:
        raise ValueError(_too_small(total, needs, cache))
    rest = max(0, rest)
    cache = min(cache, rest)
    rest -= cache
    # Half where the user asks for a look-ahead: he knows that it pays on his disk.
    share = rest // (_WINDOW_SHARE if needs.lookahead is None else 2)
    # At least one batch, even beyond the share: without any an epoch from a disk took four times as
    # long.
    window = min(_window(needs), max(share, min(rest, needs.ahead)))
    rest -= window
    if window < needs.ahead:
        window = 0  # too small for a single batch, and of no use
    wants_cache = 0 if needs.cache_given is not None else needs.cache
    topology, more = _shared(
        rest, (needs.topology, needs.topology_reads), (wants_cache, needs.cache_reads)
    )
    return MemoryPlan(
        total, process, needs.in_flight, needs.staging, window, topology, cache + more, needs
    )


def _window(needs: MemoryNeeds) -> int:
    """Bytes that the look-ahead could use."""
    return needs.ahead * min(
        needs.num_batches, _AHEAD if needs.lookahead is None else needs.lookahead
    )


def _shared(nbytes: int, first: tuple[int, float], second: tuple[int, float]) -> tuple[int, int]:
    """Bytes for two parts of (bytes, bytes read), neither more than it has."""
    # To maximise r1 sqrt(b1 / n1) + r2 sqrt(b2 / n2) with b1 + b2 fixed, set the derivatives equal:
    # b1 : b2 = r1**2 / n1 : r2**2 / n2.
    weights = [reads**2 / size if size else 0.0 for size, reads in (first, second)]
    if first[0] + second[0] <= nbytes:
        return first[0], second[0]
    whole = sum(weights)
    part = int(nbytes * (weights[0] / whole if whole else first[0] / (first[0] + second[0])))
    # What one part cannot use goes to the other.
    mine = max(min(part, first[0]), nbytes - second[0], 0)
    return mine, min(nbytes - mine, second[0])


def _too_small(total: int, needs: MemoryNeeds, cache: int) -> str:
    """Why ``total`` does not do, and the least that does."""
    base = needs.in_flight + needs.staging + cache
    least = least_memory(base, needs.process)
    parts = [
        f"{needs.batches} batches of {bytes_text(needs.batch)} in memory at once (fewer with "
        "prefetch=0)"
    ]
    parts += [f"{bytes_text(needs.staging)} of pinned buffers"] if needs.staging else []
    parts += [f"a cache of {bytes_text(cache)}"] if cache else []
    parts += [
        f"the {bytes_text(needs.process)} that the process holds, of which an eighth of memory is "
        "free"
    ]
    return (
        f"memory must be at least {least} bytes ({bytes_text(least)}) for {', '.join(parts)}; "
        f"got {total}"
    )
