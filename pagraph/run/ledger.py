"""What a process saw of its loaders: numbers, and never a loader."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._compiling import compiled_ns

# A script may end at any moment, without a word: what is known is written this often.
_FLUSH_NS = 10**9
# Packages whose frames made no loader of their own accord: the line that asked them is meant.
_NOT_A_SCRIPT = frozenset(
    {"pagraph", "torch", "torch_geometric", "dgl", "functools", "contextlib"}
    | {"lightning", "pytorch_lightning", "runpy", "importlib"}
)
OURS = "pagraph"
"""Who ran a loader, where we did."""
THEIRS = "their own"
"""Who ran it, where the framework did."""


@dataclass(frozen=True)
class Key:
    """What makes loaders one line of the table.

    Attributes:
        kind: Name of the class.
        place: File and line where they were made.
        ran: ``OURS`` or ``THEIRS``.
        why: Why they were not ours; or what of them was not.
    """

    kind: str
    place: str
    ran: str
    why: str = ""


@dataclass
class Line:
    """Numbers of the loaders of one key.

    Attributes:
        loaders: How many were made.
        epochs: How often one was iterated, to its end or not.
        batches: Batches handed out.
        waited: Seconds between asking for a batch and having it, and for the end.
        first: Those of each loader's first epoch.
        rows, hits: Rows asked for that a cache may serve, and those that it served.
    """

    loaders: int = 0
    epochs: int = 0
    batches: int = 0
    waited: float = 0.0
    first: float = 0.0
    rows: int = 0
    hits: int = 0

    def add(self, other: Line) -> None:
        """Add another line's numbers."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class _Known:
    """What is known of a loader that lives."""

    key: Key
    epochs: int = 0
    rows: int = 0
    hits: int = 0
    # Makes it again, and theirs, if ours fails before its first batch.
    give_up: Callable[[BaseException], bool] | None = None


@dataclass(eq=False)
class Pass:
    """One iteration over a loader, as its reader sees it."""

    ledger: Ledger
    key: Key
    is_first: bool
    loader: weakref.ref[Any]
    batches: int = 0
    waited_ns: int = 0
    is_over: bool = False

    def answered(self, begin: int, *, delivered: bool) -> None:
        """Count a request of time ``begin`` that is answered now."""
        now = time.perf_counter_ns()
        if self.is_over:  # asked again after its end
            return
        # Kernels are compiled once on a machine: that is not how long this script waits.
        compiled = compiled_ns(begin, now)
        self.waited_ns += now - begin - compiled
        self.batches += delivered
        self.ledger.answered(begin, now, compiled)

    def end(self) -> None:
        """Count no more; may be called again."""
        if not self.is_over:
            self.is_over = True
            self.ledger.ended(self)


class Ledger:
    """Counts what the loaders of this process do, by line of the table.

    Args:
        folder: Where the numbers are written now and then, as ``PID.json``; None for nowhere.
        role: What this process is to the one that prints: "" for that one itself.
    """

    def __init__(self, folder: Path | None = None, role: str = "") -> None:
        self._folder = folder
        self._role = role
        # Frameworks that were imported, and the like: said below the table.
        self.seen: dict[str, str] = {}
        self._clear()
        # A forked process has its own numbers; those of before the fork are its parent's.
        # Weakly: what is registered is never forgotten.
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forked(this))

    def _clear(self) -> None:
        # Guards the numbers. Reentrant: the collector may end a pass in a thread that holds it.
        self._lock = threading.RLock()
        self._lines: dict[Key, Line] = {}
        self._open: set[Pass] = set()
        self._begin = 0
        self._end = 0
        self._waited = 0
        self._compiled = 0
        self._flushed = 0
        self._local = threading.local()
        if not hasattr(self, "_known"):
            self._known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()

    def forked(self) -> None:
        """Begin anew in a forked process."""
        self._role = "forked"
        self._clear()

    def reset(self) -> None:
        """Forget the numbers; loaders that live are known on."""
        with self._lock:
            self._lines = {}
            self._open = set()
            self._begin = self._end = self._waited = self._compiled = 0

    def made(
        self, loader: Any, key: Key, give_up: Callable[[BaseException], bool] | None = None
    ) -> None:
        """Take in a loader.

        Args:
            loader: Is not kept.
            key: Its line.
            give_up: Called if it fails before its first batch; whether another was made of it.
        """
        with self._lock:
            before = self._known.get(loader)
            self._known[loader] = _Known(key, give_up=give_up)
            self._line(key).loaders += 1
            if before is not None and before.key in self._lines:
                self._lines[before.key].loaders -= 1

    def knows(self, loader: Any) -> bool:
        """Whether it was taken in."""
        return loader in self._known

    def _line(self, key: Key) -> Line:
        return self._lines.setdefault(key, Line())

    @contextmanager
    def inside(self, loader: Any) -> Iterator[bool]:
        """Enter a method of a loader; False where the calling thread is in it already, by
        ``super()``."""
        entered = vars(self._local).setdefault("entered", [])
        is_new = not any(other is loader for other in entered)
        entered.append(loader)
        try:
            yield is_new
        finally:
            entered.pop()

    def begin(self, loader: Any) -> Pass:
        """Begin an iteration."""
        with self._lock:
            if loader not in self._known:
                self.made(loader, Key(type(loader).__name__, made_at(), *_origin(loader)))
            known = self._known[loader]
            started = Pass(self, known.key, known.epochs == 0, weakref.ref(loader))
            known.epochs += 1
            self._open.add(started)
            return started

    def waits(self) -> int:
        """Enter the wait for a batch; how many waits of this thread are around it."""
        depth: int = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        return depth

    def answered(self, begin: int, end: int, compiled: int) -> None:
        """Leave a wait, with nanoseconds for which kernels were compiled.

        One within another, of a loader that reads a loader, counts once in the whole.
        """
        self._local.depth = depth = max(0, getattr(self._local, "depth", 1) - 1)
        self._begin = self._begin or begin
        self._end = max(self._end, end)
        if depth == 0:
            # Threads that add at the same time may lose one; a lock for each batch costs more.
            self._waited += end - begin - compiled
            self._compiled += compiled
        if self._folder is not None and end - self._flushed > _FLUSH_NS:
            self.flush()

    def ended(self, over: Pass) -> None:
        """Book an iteration that is over."""
        with self._lock:
            if over not in self._open:  # of before a fork
                return
            self._open.discard(over)
            _book(self._line(over.key), over)
            loader = over.loader()
            known = None if loader is None else self._known.get(loader)
            # At epochs 1, 2, 4, 8, ...: statistics add up all epochs at each look.
            if known is not None and known.epochs & (known.epochs - 1) == 0:
                self._look(loader, known)
        # A worker ends without a word.
        if self._role and self._folder is not None:
            self.flush()

    def given_up(self, loader: Any, error: BaseException) -> Key | None:
        """Have theirs in place of a loader that failed before its first batch; its new line."""
        known = self._known.get(loader)
        if known is None or known.give_up is None:
            return None
        give_up = known.give_up
        known.give_up = None
        return self._known[loader].key if give_up(error) else None

    def delivered(self, loader: Any) -> None:
        """Let go of what would make the loader again: it works."""
        known = self._known.get(loader)
        if known is not None:
            known.give_up = None

    def _look(self, loader: Any, known: _Known) -> None:
        """Take the reads of a loader that counts them."""
        if known.key.ran != OURS:
            return
        try:
            fields = loader.stats.total.reads.fields.values()
            reads = [(read.asked, read.hits) for read in fields if read.cacheable]
        except Exception:  # a subclass may call anything `stats`
            return
        rows = sum(asked for asked, _ in reads)
        hits = sum(served for _, served in reads)
        line = self._line(known.key)
        line.rows += rows - known.rows
        line.hits += hits - known.hits
        known.rows = rows
        known.hits = hits

    def snapshot(self, *, looks: bool = True) -> dict[str, Any]:
        """All numbers now, for JSON; without ``looks`` with the reads as they were last seen."""
        with self._lock:
            for loader, known in list(self._known.items()) if looks else ():
                if known.epochs:
                    self._look(loader, known)
            # Without those whose only loader was given up.
            lines = {
                key: Line(**vars(line))
                for key, line in self._lines.items()
                if any(vars(line).values())
            }
            for running in list(self._open):
                _book(lines.setdefault(running.key, Line()), running)
            return {
                "role": self._role,
                "seconds": max(0, self._end - self._begin - self._compiled) / 1e9,
                "waited": self._waited / 1e9,
                "compiling": self._compiled / 1e9,
                "seen": dict(self.seen),
                "lines": [asdict(key) | asdict(line) for key, line in lines.items()],
            }

    def flush(self) -> None:
        """Write the numbers, whole or not at all; never an error, which would be the script's."""
        self._flushed = time.perf_counter_ns()
        if self._folder is None:
            return
        path = self._folder / f"{os.getpid()}.json"
        try:
            temporary = path.with_suffix(f".{threading.get_ident()}")
            temporary.write_text(json.dumps(self.snapshot(looks=False)), encoding="utf-8")
            os.replace(temporary, path)
        except Exception:  # the folder went away, or the disk is full
            return


def _forked(this: weakref.ref[Ledger]) -> None:
    ledger = this()
    if ledger is not None:
        ledger.forked()


def _book(line: Line, over: Pass) -> None:
    line.epochs += 1
    line.batches += over.batches
    line.waited += over.waited_ns / 1e9
    if over.is_first:
        line.first += over.waited_ns / 1e9


def _origin(loader: Any) -> tuple[str, str]:
    """Who runs a loader whose making was not seen, and why."""
    package = type(loader).__module__.partition(".")[0]
    if hasattr(loader, "_pagraph_made_of"):
        return OURS, "a copy"
    if any(kind.__module__.startswith("pagraph.") for kind in type(loader).__mro__):
        return OURS, "imported from pagraph"
    if package in ("torch_geometric", "dgl"):
        return THEIRS, "pagraph has none like it"
    return THEIRS, "torch's loader, no graph's"


def made_at(loader: Any = None) -> str:
    """File and line of the innermost frame that is neither ours nor a framework's."""
    frame = sys._getframe(1)
    found: Any = frame
    while found is not None:
        package = str(found.f_globals.get("__name__", "")).partition(".")[0]
        # A subclass's constructor is not where its loader was made, nor is Lightning's around it.
        constructs = loader is not None and found.f_code.co_name in ("__init__", "wrapper")
        if package not in _NOT_A_SCRIPT and not (
            constructs and any(value is loader for value in found.f_locals.values())
        ):
            return f"{_shown(found.f_code.co_filename)}:{found.f_lineno}"
        found = found.f_back
    return "-"


def _shown(path: str) -> str:
    """A file as a reader knows it: a cell, relative to here, or by its last two names."""
    if path.startswith("<") or "ipykernel_" in path:
        return "cell"
    absolute = os.path.abspath(path)
    below = os.path.relpath(absolute)
    if not below.startswith(".."):
        return below
    return os.path.join(*absolute.split(os.sep)[-2:])


@dataclass(eq=False)
class Batches:
    """Iterator of a loader that times the waits for its batches; all else is the loader's own."""

    _inner: Any
    _pass: Pass
    _ledger: Ledger
    # Of `for batch in Loader(...)` nobody else has it; let go at the end of the iteration.
    _loader: Any
    _may_fail: bool = False

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        self._ledger.waits()
        begin = time.perf_counter_ns()
        try:
            batch = next(self._inner)
        except StopIteration:
            self._pass.answered(begin, delivered=False)
            self._pass.end()
            self._loader = None
            raise
        except BaseException as error:
            self._pass.answered(begin, delivered=False)
            if self._may_fail and isinstance(error, Exception) and is_ours(error):
                return self._instead(error)
            raise
        self._pass.answered(begin, delivered=True)
        if self._may_fail:
            self._may_fail = False
            self._ledger.delivered(self._loader)
        return batch

    def _instead(self, error: Exception) -> Any:
        """The first batch of theirs, where ours failed before its own."""
        self._may_fail = False
        loader = self._loader
        key = self._ledger.given_up(loader, error)
        if key is None:
            raise error
        self._pass.key = key
        with self._ledger.inside(loader):
            self._inner = iter(loader)
        return next(self)

    def __getattr__(self, name: str) -> Any:
        # Called for what is not here, `_inner` itself included while a copy is made.
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __del__(self) -> None:
        over = self.__dict__.get("_pass")
        if over is not None:
            over.end()


class SizedBatches(Batches):
    """The same, of an iterator that has a length."""

    def __len__(self) -> int:
        return len(self._inner)


def watched(original: Callable[[Any], Any], ledger: Ledger) -> Callable[[Any], Any]:
    """An ``__iter__`` that times the waits for the batches of ``original``'s iterators."""

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        with ledger.inside(self) as is_new:
            if not is_new:
                return original(self)
            over = ledger.begin(self)
            may_fail = over.is_first and over.key.ran == OURS
            ledger.waits()
            begin = time.perf_counter_ns()
            try:
                # Workers start here: the loop waits for them, too.
                inner = original(self)
            except BaseException as error:
                over.answered(begin, delivered=False)
                known = may_fail and isinstance(error, Exception) and is_ours(error)
                key = ledger.given_up(self, error) if known else None
                if key is None:
                    over.end()
                    raise
                over.key = key
                inner = iter(self)
                may_fail = False
            else:
                over.answered(begin, delivered=False)
            kind = SizedBatches if hasattr(type(inner), "__len__") else Batches
            return kind(inner, over, ledger, self, may_fail)

    return __iter__


def is_ours(error: BaseException) -> bool:
    """Whether our code refused, and not code of the user that we called.

    Libraries' frames tell nothing: the innermost one that is ours or a script's does.
    """
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(str(trace.tb_frame.f_globals.get("__name__", "")))
        trace = trace.tb_next
    for name in reversed(frames):
        if name.startswith("pagraph.run"):
            continue
        if name.startswith("pagraph."):
            return True
        if name.partition(".")[0] not in ("torch", "numpy", "numba", "torch_geometric", "dgl"):
            return False
    return False
