"""Summary of a script's loaders: a table, one line of advice, and both as an HTML page."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from .. import __version__
from .._kernel_folder import kernel_folder
from ..errors import documentation
from ..system.atomic import new_file
from ..system.tables import Table, output_width, page_template, wrapped
from ..system.units import percent
from .ledger import OURS, Key, Line

# A loop that waits for less than this share of its time gains little from a faster loader.
_KEEPS_UP = 0.1
# If more than this share of the waiting is in first epochs, it is mostly one-time work.
_ONCE = 0.6
_LOW_HIT_RATE = 0.5
_LONG_PLACE = 24
# In fewer seconds, starting threads and first use of memory outweigh everything else.
_TOO_SHORT = 1.0
# If other programs have more than these shares of the processors, the table says so, and the times
# tell nothing of the script.
_OTHERS_MATTER = 0.1
_OTHERS_DECIDE = 0.25


@dataclass(frozen=True, repr=False)
class Summary:
    """Numbers of a script's loaders, of all its processes.

    Attributes:
        lines: Numbers by line of the table.
        seconds: Time from the first request for a batch to the last answer.
        waited: Part of ``seconds`` in which the script's loops waited for a batch.
        kernels: Seconds of waiting for kernels to be loaded or compiled, which no other time
            includes.
        processes: Processes that made loaders, without the script's own.
        readers: Processes that read loaders.
        seen: Names of the frameworks that were imported.
        theirs: Whether nothing was replaced, on request, that can run here.
        name: The script, for the title.
        others: Share of the processors that other programs had meanwhile.
        exit_code: That of the script, or minus the number of the signal that ended it; None if it
            is unknown.
        error: Last line of the script's error.
    """

    lines: Mapping[Key, Line] = field(default_factory=dict)
    seconds: float = 0.0
    waited: float = 0.0
    kernels: float = 0.0
    processes: int = 0
    readers: int = 1
    seen: Sequence[str] = ()
    theirs: bool = False
    name: str = "the script"
    others: float = 0.0
    exit_code: int | None = 0
    error: str = ""

    @classmethod
    def of(cls, parts: Iterable[Mapping[str, Any]], **about: Any) -> Summary:
        """Add up what processes have written, the script's own first.

        Args:
            parts: What they have written.
            about: ``theirs``, ``name``, ``exit_code`` and ``error``.
        """
        parts = list(parts)
        lines: dict[Key, Line] = {}
        seen: list[str] = []
        for part in parts:
            for key, numbers in _lines_of(part):
                lines.setdefault(key, Line()).add(numbers)
            seen += part["seen"].values()
        return cls(
            lines,
            # Processes run in parallel: the longest has the script's time.
            seconds=max((part["seconds"] for part in parts), default=0.0),
            waited=sum(part["waited"] for part in parts),
            # Processes load the same kernels at the same time.
            kernels=max((part["kernels"] for part in parts), default=0.0),
            processes=sum(bool(part["role"]) for part in parts),
            readers=max(1, sum(part["waited"] > 0 for part in parts)),
            seen=tuple(dict.fromkeys(seen)),
            others=max((part["others"] for part in parts), default=0.0),
            **about,
        )

    @property
    def share(self) -> float:
        """Share of the time that the loops waited; the mean over processes."""
        each = self.waited / self.readers
        return min(1.0, each / self.seconds) if self.seconds else 0.0

    @property
    def ours(self) -> int:
        """Number of lines whose loaders are ours."""
        return sum(key.ran == OURS for key in self.lines)

    @property
    def table(self) -> Table:
        """All lines, and their total."""
        head = ["loader", "made at", "run by", "epochs", "batches", "waited s", "of the time"]
        rows = [[*head, "kernels s", "hit rate"]]
        for key, line in self.lines.items():
            kind = key.kind if line.loaders < 2 else f"{key.kind} x {line.loaders}"
            rows.append([kind, _short(key.place), key.ran, *self._numbers(line)])
        total = Line()
        for line in self.lines.values():
            total.add(line)
        # Not the sum, which counts waits of a loader that reads a loader twice.
        total.waited = self.waited
        total.kernels = self.kernels
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
        # There are no rows if a loader was deleted before its statistics were read.
        rate = line.hits / line.rows if line.rows else None
        share = None
        if self.seconds and line.epochs:
            share = line.waited / self.readers / self.seconds
        counts = [f"{line.epochs:,}", f"{line.batches:,}", f"{line.waited:.3f}"]
        return [*counts, percent(share), f"{line.kernels:.3f}", percent(rate)]

    @property
    def title(self) -> str:
        """The script, how it ended if not well, and whose loaders it used."""
        title = f"pagraph run: {self.name}, {self.whose}"
        if self.ended:
            title = f"pagraph run: {self.name} {self.ended}\nuntil then, {self.whose}"
        if self.processes:
            title += f", with {self.processes} more process{'es' if self.processes > 1 else ''}"
        return title

    @property
    def whose(self) -> str:
        """Whose loaders the script used."""
        if not self.theirs:
            return "pagraph's loaders in place of theirs"
        if self.instead:
            return "pagraph's loaders where its own cannot run here"
        return "its own loaders"

    @property
    def instead(self) -> list[str]:
        """Which loaders of ours run because theirs, which were asked for, cannot."""
        return [f"{key.kind} at {key.place}: {key.why}" for key in self.lines if key.is_instead]

    @property
    def ended(self) -> str:
        """How the script ended, or "" if by its last line or exit code 0."""
        if self.exit_code == 0:
            return ""
        how = "was killed or crashed"
        if self.exit_code is not None:
            how = f"ended with exit code {self.exit_code}"
            if self.exit_code < 0:
                how = f"was ended by {_signal_name(-self.exit_code)}"
        return f"{how}: {self.error}" if self.error else how

    @property
    def notes(self) -> list[str]:
        """Why loaders were not replaced, and what is not counted."""
        notes = []
        for key in self.lines:
            if key.why and not (self.theirs and key.why == "--theirs"):
                stays = "" if key.ran == OURS else " keeps its own loader"
                notes.append(f"{key.kind} at {key.place}{stays}: {key.why}")
        if self.kernels >= 0.0005:
            why = kernel_folder().why_not_kept()
            ahead = f"they are not kept: {why}" if why else "`pagraph warmup` compiles ahead"
            notes.append(
                "kernels: loaded, or compiled, once in a process; no other time includes it, and "
                f"{ahead}"
            )
        return notes + _others_note(self.others)

    @property
    def advice(self) -> str:
        """One line: what to do next, from these numbers alone; "" if the script failed."""
        # A script may be interrupted because its numbers are enough.
        if self.exit_code != 0 and (self.exit_code != -signal.SIGINT or self.seconds < _TOO_SHORT):
            return ""
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
        if self.others > _OTHERS_DECIDE:
            return f"{waits}, on a busy machine: measure again on an idle one."
        if self.share < _KEEPS_UP:
            return f"{waits}: loading keeps up, so look at the model, not at the loader."
        if self.theirs and not self.instead:
            return f"{waits}: without --theirs pagraph's loaders replace these."
        return f"{waits}: {self._cause()}"

    def _cause(self) -> str:
        """Where most of the waiting comes from, and what to do about it."""
        key, line = max(self.lines.items(), key=lambda item: item[1].waited)
        where = f"{key.kind} at {key.place}"
        if key.ran != OURS:
            return f"most of it for {where}, which keeps its own loader ({key.why})."
        if line.epochs > line.loaders and line.first > _ONCE * line.waited:
            return f"{line.first:.2f} s of it in first epochs; measure more of them."
        if "own code" in key.why:
            return f"most of it for {where}: {key.why}; --num-workers 1 runs it ahead of the loop."
        if line.rows and line.hits < _LOW_HIT_RATE * line.rows:
            rate = percent(line.hits / line.rows)
            return f"its cache serves {rate} of the rows; try a larger --cache."
        return (
            f"most of it for {where}; try --num-workers, and see "
            f"{documentation('why-slow', 'Why is my loader slow?')} for what a loop waits for."
        )

    def text(self, width: int | None = None) -> str:
        """The table and the advice, in lines of at most ``width`` columns; None for any number."""
        above = [self.table.text(width)]
        if not self.lines:
            above = wrapped(self.title.partition("\n")[0], width)
        return "\n".join([*above, *wrapped(self.advice, width)])

    def __str__(self) -> str:
        return self.text(output_width())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        table = self.table.html if self.lines else ""
        return f"{table}<p>{escape(self.advice)}</p>"

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Summary:
        """The summary that :meth:`to_json` wrote."""
        names = vars(cls()).keys() - {"lines"}
        return cls(dict(_lines_of(saved)), **{name: saved[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        """All numbers."""
        return {
            "name": self.name,
            "theirs": self.theirs,
            "seconds": self.seconds,
            "waited": self.waited,
            "kernels": self.kernels,
            "share": self.share,
            "processes": self.processes,
            "readers": self.readers,
            "others": self.others,
            "exit_code": self.exit_code,
            "error": self.error,
            "seen": list(self.seen),
            "advice": self.advice,
            "lines": [vars(key) | vars(line) for key, line in self.lines.items()],
        }


def _others_note(share: float) -> list[str]:
    if share <= _OTHERS_MATTER:
        return []
    note = f"other programs had {percent(share)} of the processors: times may be too long"
    if "OMP_WAIT_POLICY" not in os.environ:
        # torch's waiting threads spin on what is left: see docs/why-slow.md for what that costs.
        note += "; try OMP_WAIT_POLICY=passive"
    return [note]


def _short(place: str) -> str:
    """A place for a table: of a long path, its last two names."""
    if len(place) <= _LONG_PLACE:
        return place
    return os.path.join("...", *place.split(os.sep)[-2:])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def _lines_of(saved: Mapping[str, Any]) -> Iterator[tuple[Key, Line]]:
    """The lines that a process or a summary has written."""
    for entry in saved["lines"]:
        key = Key(*(entry[field] for field in ("kind", "place", "ran", "why")))
        yield key, Line(**{number: entry[number] for number in vars(Line())})


def compared(theirs: Sequence[Summary], ours: Sequence[Summary]) -> Table:
    """Medians of runs with both sides' loaders, by the place where loaders were made."""
    head = ["loader", "made at", "their own: waited s", "ours: waited s", "ours: kernels s"]
    rows = [[*head, "ours ran it"]]
    keys = dict.fromkeys(key for summary in [*theirs, *ours] for key in summary.lines)
    replaced = {(key.kind, key.place) for each in ours for key in each.lines if key.ran == OURS}
    for made in dict.fromkeys((key.kind, key.place) for key in keys):
        cells = [
            median(_seconds(each, made, "waited") for each in theirs),
            median(_seconds(each, made, "waited") for each in ours),
            median(_seconds(each, made, "kernels") for each in ours),
        ]
        ran = "yes" if made in replaced else "no"
        rows.append([made[0], _short(made[1]), *(f"{cell:.3f}" for cell in cells), ran])
    waited = [median(each.waited for each in side) for side in (theirs, ours)]
    seconds = [median(each.seconds for each in side) for side in (theirs, ours)]
    shares = [median(each.share for each in side) for side in (theirs, ours)]
    kernels = median(each.kernels for each in ours)
    rows.append(["all", "", *(f"{cell:.3f}" for cell in [*waited, kernels]), ""])
    rows.append(["from first to last batch", "", *(f"{cell:.3f}" for cell in seconds), "", ""])
    rows.append(["of the time", "", *map(percent, shares), "", ""])
    title = f"pagraph run --compare: medians of {len(theirs)} runs each way, in turn"
    others = max(median(each.others for each in side) for side in (theirs, ours))
    caption = "\n".join([_verdict(waited, seconds, kernels), *_others_note(others)])
    return Table(rows, title, left=(0, 1), caption=caption)


def _seconds(summary: Summary, made: tuple[str, str], name: str) -> float:
    found = [line for key, line in summary.lines.items() if (key.kind, key.place) == made]
    return sum((getattr(line, name) for line in found), 0.0)


def _verdict(waited: Sequence[float], seconds: Sequence[float], kernels: float) -> str:
    if not waited[0] or not seconds[1]:
        return "No loader was read: there is nothing to compare."
    less = f"{waited[0] / waited[1]:.1f}x less" if waited[1] < waited[0] else "no less"
    return (
        f"With pagraph's loaders the script waits {less}, and its loops take "
        f"{seconds[1] / seconds[0]:.2f} times as long; loading kernels takes {kernels:.2f} s "
        "besides, once in a process."
    )


def write_page(
    path: Path, summary: Summary, others: Sequence[Summary] = (), comparison: Table | None = None
) -> None:
    """Write the page, whole or not at all.

    Args:
        path: The file.
        summary: The run to show.
        others: Runs to show before it.
        comparison: Table of all runs. Its caption then replaces the advice.
    """
    with new_file(path) as file:
        file.write(page_text(summary, others, comparison).encode())


def page_text(
    summary: Summary, others: Sequence[Summary] = (), comparison: Table | None = None
) -> str:
    """The page as HTML, with names escaped."""
    advice = " ".join(filter(None, [summary.ended and f"It {summary.ended}.", summary.advice]))
    if comparison is not None:
        advice = comparison.caption
        comparison = _bare(comparison)
    page = page_template("pagraph.run").render(
        summary=summary,
        runs=[*others, summary],
        comparison=comparison,
        advice=advice,
        percent=percent,
        bare=_bare,
        facts=_facts(),
    )
    return f"{page}\n"


def _bare(table: Table) -> Table:
    """A table without title and caption, which the page shows elsewhere."""
    return replace(table, title="", caption="")


def _facts() -> dict[str, str]:
    packages = {}
    for name in ("torch", "dgl", "torch-geometric", "numba"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "waiting": "the clock before and after each next() of a loader's iterator",
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "versions": ", ".join(
            [f"pagraph {__version__}", f"Python {platform.python_version()}"]
            + [f"{name} {number}" for name, number in packages.items()]
        ),
    }
