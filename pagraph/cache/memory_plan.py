"""MemoryPlan: division of host memory between the parts of a loader of a graph on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..system.budget import beyond_share, least_memory
from ..system.tables import Table, Tabled
from ..system.units import bytes_text, percent

QUARTER = 4
"""A control group of 1.25 ``memory`` is never exceeded.

The extra quarter is for the model's computation and for the page cache.
"""

# The window gets at most a third of what the batches leave. It saves only repeated reads within a
# group, where cached rows save reads of the whole epoch.
_WINDOW_SHARE = 3
# Maximal look-ahead in batches. On two real graphs, groups of 8 read 0.47 and 0.75 of the pages
# that 8 single batches read; larger groups gain less and less.
_AHEAD = 32


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes that each part could use, and what they would save.

    Attributes:
        process: Bytes that the process holds: interpreter, libraries, model, and the graph's data
            in memory.
        batch: Bytes of one batch with its rows.
        batches: Batches in memory at once.
        staging: Bytes of pinned buffers.
        ahead: Bytes of the look-ahead window per batch of a group, with adjacent groups.
        ahead_rows: Bytes of a batch's rows on disk.
        lookahead: Batches to look ahead; None: as many as help.
        num_batches: Batches of an epoch.
        topology: Bytes of the graph's edges on disk.
        topology_reads: Bytes of them that an epoch reads, in whole pages.
        cache: Bytes of all rows on disk that a static cache could hold, and of its tables.
        growing: Bytes of the extra tables by field of a cache that windows fill.
        cache_reads: Bytes of these rows that an epoch reads, in whole pages.
        cache_given: Size of the cache that the user set; None: as large as helps.
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
    """Bytes of host memory for each part of a loader. ``str()`` and notebooks show a table.

    Attributes:
        total: Bytes that were given, or free bytes less a reserve.
        process: Bytes that the process already holds, beyond an eighth of ``total``.
        batches: Bytes of the batches that are in the making, waiting, or in the reader's hands.
        staging: Bytes of pinned buffers on the way to a device.
        window: Bytes of the look-ahead: sampled batches, and one copy of each row that they miss.
        topology: Bytes of edges that are kept in memory.
        cache: Bytes of the static cache of rows on the CPU, with its tables.
        needs: What each part could use.
        ranked: The ranking of the cache's rows, if the policy's needs too much memory.
        reason: Why nothing is planned, or empty.
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
        """Bytes of the cache without the tables that growing needs."""
        return max(0, self.cache - self.needs.growing * (self.window > 0))

    @property
    def left(self) -> int:
        """Bytes that no part can use."""
        return max(0, self.total - self.process - self.taken)

    @property
    def lookahead(self) -> int:
        """Batches per group that the window has room for."""
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
            f"memory: {bytes_text(self.total)}; {quarter} more is left for computing and the "
            "page cache"
        )
        return [Table(lines, title, left=(0, 3))]


def _share(nbytes: int, most: int) -> str:
    return percent(nbytes / most if most else None)


def usable_memory(available: int, process: int) -> int:
    """Bytes that a loader plans with by default; a quarter of them stays free on top.

    Args:
        available: Free bytes.
        process: Bytes that the process already holds.
    """
    return (max(0, available) + max(0, process)) * QUARTER // (QUARTER + 1)


def divide_memory(total: int, needs: MemoryNeeds, *, given: bool = True) -> MemoryPlan:
    """Divide memory by what a byte saves in each part.

    Batches in flight come first, since nothing works without them. Next is the look-ahead for one
    batch: without it an epoch from disk took 4x longer. More look-ahead gets up to a third of what
    is left. Kept edges and rows share the rest. If an epoch reads ``r`` of a part's ``n`` bytes,
    its best ``b`` bytes are assumed to save ``r * sqrt(b / n)``. So its weight is ``r ** 2 / n``.

    Args:
        total: Bytes to divide.
        needs: What the parts could use.
        given: The user set ``total``: raise if it is too small. Otherwise the plan then has only
            batches.

    Raises:
        ValueError: ``total`` is too small for the batches and a cache of given size. The message
            has the least that suffices.
    """
    process = beyond_share(total, needs.process)
    rest = total - process - needs.in_flight - needs.staging
    cache = min(needs.cache, needs.cache_given or 0)
    if given and rest < cache:
        raise ValueError(_too_small(total, needs, cache))
    rest = max(0, rest)
    cache = min(cache, rest)
    rest -= cache
    # Half if the user asks for a look-ahead, and so knows that it pays on this disk.
    share = rest // (_WINDOW_SHARE if needs.lookahead is None else 2)
    # At least one batch, even beyond the share: without look-ahead, an epoch from disk took 4x
    # longer.
    window = min(_window(needs), max(share, min(rest, needs.ahead)))
    rest -= window
    if window < needs.ahead:
        window = 0  # useless: too small for a single batch
    wants_cache = 0 if needs.cache_given is not None else needs.cache
    topology, more = _shared(
        rest, (needs.topology, needs.topology_reads), (wants_cache, needs.cache_reads)
    )
    return MemoryPlan(
        total, process, needs.in_flight, needs.staging, window, topology, cache + more, needs
    )


def _window(needs: MemoryNeeds) -> int:
    """Bytes that the look-ahead could use."""
    lookahead = _AHEAD if needs.lookahead is None else needs.lookahead
    return needs.ahead * min(needs.num_batches, lookahead)


def _shared(nbytes: int, first: tuple[int, float], second: tuple[int, float]) -> tuple[int, int]:
    """Bytes for two parts of (size, bytes read), neither more than its size."""
    # Maximise r1 sqrt(b1 / n1) + r2 sqrt(b2 / n2) for fixed b1 + b2. Equal derivatives give
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
    """The error's message: why ``total`` is too small, and the least that suffices."""
    base = needs.in_flight + needs.staging + cache
    least = least_memory(base, needs.process)
    parts = [
        f"{needs.batches} batches of {bytes_text(needs.batch)} in memory at once (fewer with "
        "prefetch=0)"
    ]
    parts += [f"{bytes_text(needs.staging)} of pinned buffers"] if needs.staging else []
    parts += [f"a cache of {bytes_text(cache)}"] if cache else []
    parts += [
        f"the {bytes_text(needs.process)} that the process holds (one eighth of memory is "
        "reserved for it)"
    ]
    return (
        f"memory must be at least {least} bytes ({bytes_text(least)}) for {', '.join(parts)}; "
        f"got {total}"
    )
