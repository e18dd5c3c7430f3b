"""What was seen of a script's loaders: a table, and one line of advice that follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..system.tables import Table
from ..system.units import percent
from .ledger import OURS, Key, Line

# A loop that waits for less than this share of its time gains little from a faster loader.
_KEEPS_UP = 0.1
# Waiting of which more than this share is in first epochs is mostly what happens once.
_ONCE = 0.6
_LOW_HIT_RATE = 0.5
# Seconds below which starting threads and taking memory for the first time outweigh all else.
_TOO_SHORT = 1.0


@dataclass(frozen=True, repr=False)
class Summary:
    """Numbers of a script's loaders, of all its processes.

    Attributes:
        lines: Numbers by line of the table.
        seconds: From the first request for a batch to the last answer.
        waited: Seconds of these in which the script's loops waited for a batch.
        compiling: Seconds for which they waited for kernels to be compiled; in none of the others.
        processes: Processes that made loaders, besides the script's own.
        readers: Processes that read some.
        seen: Names of the frameworks that were imported.
        theirs: Whether nothing was to be replaced.
        name: What ran, for the title.
    """

    lines: Mapping[Key, Line] = field(default_factory=dict)
    seconds: float = 0.0
    waited: float = 0.0
    compiling: float = 0.0
    processes: int = 0
    readers: int = 1
    seen: Sequence[str] = ()
    theirs: bool = False
    name: str = "the script"

    @classmethod
    def of(cls, parts: Iterable[Mapping[str, Any]], *, theirs: bool, name: str) -> Summary:
        """Add up what processes have written, the script's own first."""
        lines: dict[Key, Line] = {}
        seen: dict[str, None] = {}
        seconds = 0.0
        waited = 0.0
        compiling = 0.0
        others = 0
        readers = 0
        for part in parts:
            for key, numbers in _lines_of(part):
                lines.setdefault(key, Line()).add(numbers)
            seen.update(dict.fromkeys(part["seen"].values()))
            # Processes run beside each other: the longest has the script's time.
            seconds = max(seconds, part["seconds"])
            waited += part["waited"]
            # Where one process compiles, the others wait for it or compile the same.
            compiling = max(compiling, part["compiling"])
            others += bool(part["role"])
            readers += part["waited"] > 0
        names = tuple(seen)
        return cls(lines, seconds, waited, compiling, others, max(1, readers), names, theirs, name)

    @property
    def share(self) -> float:
        """Share of the time that the loops waited, a mean over processes."""
        each = self.waited / self.readers
        return min(1.0, each / self.seconds) if self.seconds else 0.0

    @property
    def ours(self) -> int:
        """Lines that we ran."""
        return sum(key.ran == OURS for key in self.lines)

    @property
    def table(self) -> Table:
        """Each line of loaders, and all of them."""
        head = ["loader", "made at", "run by", "epochs", "batches", "waited s", "of the time"]
        rows = [[*head, "hit rate"]]
        for key, line in self.lines.items():
            kind = key.kind if line.loaders < 2 else f"{key.kind} x {line.loaders}"
            rows.append([kind, key.place, key.ran, *self._numbers(line)])
        total = Line()
        for line in self.lines.values():
            total.add(line)
        # Not the sum: a loader that reads a loader waits for both.
        total.waited = self.waited
        if len(self.lines) > 1:
            rows.append(["all", "", "", *self._numbers(total)])
        return Table(
            rows,
            self.title,
            left=(0, 1, 2),
            caption="\n".join(self.notes),
            has_total=len(self.lines) > 1,
        )

    def _numbers(self, line: Line) -> list[str]:
        # Statistics of a loader that is gone are gone with it.
        rate = percent(line.hits / line.rows if line.rows else None)
        share = line.waited / self.readers / self.seconds if self.seconds else None
        shown = percent(share if line.epochs else None)
        return [f"{line.epochs:,}", f"{line.batches:,}", f"{line.waited:.3f}", shown, rate]

    @property
    def title(self) -> str:
        """What ran, and how."""
        how = "its own loaders" if self.theirs else "pagraph's loaders in place of theirs"
        title = f"pagraph run: {self.name}, {how}"
        if self.processes:
            title += f", with {self.processes} more process{'es' if self.processes > 1 else ''}"
        return title

    @property
    def notes(self) -> list[str]:
        """Why lines are what they are."""
        notes = []
        for key in self.lines:
            if key.why and not (self.theirs and key.why == "--theirs"):
                stays = "" if key.ran == OURS else " stays their own"
                notes.append(f"{key.kind} at {key.place}{stays}: {key.why}")
        if self.compiling >= 0.005:
            notes.append(
                f"besides, {self.compiling:.2f} s for kernels to be compiled, once on this "
                "machine; `pagraph warmup` does it ahead"
            )
        return notes

    @property
    def advice(self) -> str:
        """One line: what to do next, from these numbers alone."""
        if not self.lines:
            if not self.seen:
                return "The script imported neither DGL nor PyG, and read no loader of torch's."
            return f"The script imported {' and '.join(self.seen)}, and made no loader."
        if not any(line.epochs for line in self.lines.values()):
            return "No loader was read: there is nothing to measure."
        waits = f"The loop waited {self.waited:.2f} of {self.seconds:.2f} s ({percent(self.share)})"
        if self.readers > 1:
            waits = (
                f"The loops of {self.readers} processes waited {percent(self.share)} of the time"
            )
        if self.seconds < _TOO_SHORT:
            return f"{waits}: too short to tell, so measure more batches or epochs."
        if self.share < _KEEPS_UP:
            return f"{waits}: loading keeps up, so look at the model, not at the loader."
        if self.theirs:
            return f"{waits}: without --theirs pagraph's loaders take their place."
        return f"{waits}: {self._cause()}"

    def _cause(self) -> str:
        """What most of the waiting comes from, and what can be done."""
        key, line = max(self.lines.items(), key=lambda item: item[1].waited)
        where = f"{key.kind} at {key.place}"
        if key.ran != OURS:
            return f"most of it for {where}, which stays their own ({key.why})."
        if line.epochs > line.loaders and line.first > _ONCE * line.waited:
            return f"{line.first:.2f} s of it in first epochs; measure more of them."
        if "own code" in key.why:
            return f"most of it for {where}: {key.why}; --num-workers 1 runs it ahead of the loop."
        if line.rows and line.hits < _LOW_HIT_RATE * line.rows:
            rate = percent(line.hits / line.rows)
            return f"its cache serves {rate} of the rows; try a larger --cache."
        return (
            f"most of it for {where}; try --num-workers, and see docs/why-slow.md for what a loop "
            "waits for."
        )

    def __str__(self) -> str:
        table = f"{self.table}\n" if self.lines else f"{self.title}\n"
        return f"{table}{self.advice}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        table = self.table.html if self.lines else ""
        return f"{table}<p>{escape(self.advice)}</p>"

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Summary:
        """What :meth:`to_json` made."""
        names = ("seconds", "waited", "compiling", "processes", "readers", "seen", "theirs", "name")
        return cls(dict(_lines_of(saved)), **{name: saved[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        """All numbers."""
        return {
            "name": self.name,
            "theirs": self.theirs,
            "seconds": self.seconds,
            "waited": self.waited,
            "compiling": self.compiling,
            "share": self.share,
            "processes": self.processes,
            "readers": self.readers,
            "seen": list(self.seen),
            "advice": self.advice,
            "lines": [vars(key) | vars(line) for key, line in self.lines.items()],
        }


def _lines_of(saved: Mapping[str, Any]) -> Iterator[tuple[Key, Line]]:
    """The lines in what a process or a summary has written."""
    for entry in saved["lines"]:
        key = Key(*(entry[field] for field in ("kind", "place", "ran", "why")))
        yield key, Line(**{number: entry[number] for number in vars(Line())})


def compared(theirs: Sequence[Summary], ours: Sequence[Summary]) -> Table:
    """Medians of runs both ways, side by side, by the place where loaders were made."""
    rows = [["loader", "made at", "their own: waited s", "ours: waited s", "ours ran it"]]
    for kind, place in dict.fromkeys((k.kind, k.place) for s in [*theirs, *ours] for k in s.lines):
        cells = [_median(_waited(each, kind, place) for each in side) for side in (theirs, ours)]
        ran = any(
            k.ran == OURS for s in ours for k in s.lines if (k.kind, k.place) == (kind, place)
        )
        rows.append([kind, place, f"{cells[0]:.3f}", f"{cells[1]:.3f}", "yes" if ran else "no"])
    waited = [_median(each.waited for each in side) for side in (theirs, ours)]
    seconds = [_median(each.seconds for each in side) for side in (theirs, ours)]
    shares = [_median(each.share for each in side) for side in (theirs, ours)]
    rows.append(["all", "", f"{waited[0]:.3f}", f"{waited[1]:.3f}", ""])
    rows.append(["from first to last batch", "", f"{seconds[0]:.3f}", f"{seconds[1]:.3f}", ""])
    rows.append(["of the time", "", percent(shares[0]), percent(shares[1]), ""])
    title = f"pagraph run --compare: medians of {len(theirs)} runs each way, in turn"
    return Table(rows, title, left=(0, 1), caption=_verdict(waited, seconds))


def _waited(summary: Summary, kind: str, place: str) -> float:
    lines = summary.lines.items()
    return sum(line.waited for key, line in lines if (key.kind, key.place) == (kind, place))


def _median(values: Iterable[float]) -> float:
    import statistics

    return statistics.median(list(values))


def _verdict(waited: Sequence[float], seconds: Sequence[float]) -> str:
    if not waited[0] or not seconds[1]:
        return "No loader was read: there is nothing to compare."
    less = f"{waited[0] / waited[1]:.1f}x less" if waited[1] < waited[0] else "no less"
    return (
        f"With pagraph's loaders the script waits {less}, and its loops take "
        f"{seconds[1] / seconds[0]:.2f} times as long."
    )
