"""Ledger: counts the batches and waits of a process's loaders, without keeping a loader alive."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._compiling import kernels_ns
from ..system.processors import OtherPrograms
from .random_states import RandomStates
from .running import SUFFIX, Passes, RunningNumbers, records_of
from .whose import is_for_theirs

# Other programs are looked at this often. Batches are noted in a mapped file meanwhile, since a
# script may be killed at any moment.
_FLUSH_NS = 10**9
_WRITE_NS = 10**7
# If less of the time was looked at, the last look is made at the script's end, which may be later.
_LOOKED_AT = 0.9
# Packages that make loaders for a script. The table names the script's line.
_NOT_A_SCRIPT = frozenset(
    {"pagraph", "torch", "torch_geometric", "dgl", "functools", "contextlib"}
    | {"lightning", "pytorch_lightning", "runpy", "importlib"}
)
OURS = "pagraph"
"""The loader was replaced by ours."""
THEIRS = "their own"
"""The loader is the framework's."""
CANNOT = "its own cannot run here without "
"""Begin of ``Key.why`` of a loader of ours that runs because theirs cannot."""


@dataclass(frozen=True)
class Key:
    """What loaders of one line of the table have in common.

    Attributes:
        kind: Name of the class.
        place: File and line where they were made.
        ran: ``OURS`` or ``THEIRS``.
        why: Why they were not replaced, or what of a replaced one is still theirs.
    """

    kind: str
    place: str
    ran: str
    why: str = ""

    @property
    def is_instead(self) -> bool:
        """Whether theirs was asked for, and cannot run here."""
        return self.why.startswith(CANNOT)


@dataclass
class Line:
    """Numbers of the loaders of one key.

    Attributes:
        loaders: Loaders made.
        epochs: Iterations, to the end or not.
        batches: Batches handed out.
        waited: Seconds from each request for a batch to the batch, or to the end.
        first: ``waited`` in the first epoch of each loader.
        rows, hits: Rows read of cacheable fields, and those that a cache served.
        kernels: Seconds of the waits in which kernels were loaded or compiled, in neither of the
            two above.
    """

    loaders: int = 0
    epochs: int = 0
    batches: int = 0
    waited: float = 0.0
    first: float = 0.0
    rows: int = 0
    hits: int = 0
    kernels: float = 0.0

    def add(self, other: Line) -> None:
        """Add another line's numbers."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class _Known:
    """What is known of a living loader."""

    key: Key
    epochs: int = 0
    rows: int = 0
    hits: int = 0
    # Makes the loader again as theirs, if ours fails before its first batch.
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
    kernels_ns: int = 0
    is_over: bool = False
    # Its record in the mapped file, and what notes its numbers there.
    record: int | None = None
    note: Callable[..., None] | None = None

    def answered(self, begin: int, *, delivered: bool) -> None:
        """Count a request from time ``begin`` that is answered now."""
        now = time.perf_counter_ns()
        if self.is_over:  # asked again after its end
            return
        # A process loads kernels once, so that this is counted apart.
        kernels = kernels_ns(begin, now)
        self.waited_ns += now - begin - kernels
        self.kernels_ns += kernels
        self.batches += delivered
        self.ledger.answered(begin, now, kernels)
        if self.note is not None:
            self.note(*self.ledger.numbers_with(self))

    def end(self) -> None:
        """Stop counting; may be called again."""
        if not self.is_over:
            self.is_over = True
            self.ledger.ended(self)


class Ledger:
    """Counts what the loaders of this process do, by line of the table.

    Args:
        folder: Where the numbers are written now and then, as ``PID.json``; None for nowhere.
        role: How this process came about; "" for the one that prints.
    """

    def __init__(self, folder: Path | None = None, role: str = "") -> None:
        self._folder = folder
        self._role = role
        # Package to the name of the framework, for those that were imported.
        self.seen: dict[str, str] = {}
        self._known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()
        self._begin_process()
        # A forked process has its own numbers. Those from before the fork are its parent's.
        # A weak reference, as a function can never be unregistered.
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forked(this))

    def _begin_process(self) -> None:
        # Guards the numbers. Reentrant: the collector may end a pass in a thread that holds it.
        self._lock = threading.RLock()
        self._local = threading.local()
        self._clear()

    def _clear(self) -> None:
        self._lines: dict[Key, Line] = {}
        # What finished passes counted that had no record.
        self._unrecorded: dict[Key, Line] = {}
        self._open: set[Pass] = set()
        self._begin = 0
        self._end = 0
        self._waited = 0
        self._kernels = 0
        self._flushed = 0
        self._written = 0
        self._running: RunningNumbers[Key] | None = None
        # What a launcher or the script has started beside this process is no other program.
        is_alone = not self._role and os.environ.get("WORLD_SIZE", "1") == "1"
        self._others = OtherPrograms(os.getpid() if is_alone else os.getppid())

    def forked(self) -> None:
        """Start again from zero in a forked process."""
        for running in self._open:
            running.record = running.note = None  # the parent's
        self._role = "forked"
        self._begin_process()

    def reset(self) -> None:
        """Set all numbers to zero. Living loaders stay known."""
        with self._lock:
            self._clear()

    def made(
        self, loader: Any, key: Key, give_up: Callable[[BaseException], bool] | None = None
    ) -> None:
        """Add a loader.

        Args:
            loader: The loader, which is not kept alive.
            key: Its line.
            give_up: Called if it fails before its first batch; returns whether it was replaced.
        """
        with self._lock:
            before = self._known.get(loader)
            self._known[loader] = _Known(key, give_up=give_up)
            is_new = key not in self._lines
            self._line(key).loaders += 1
            if before is not None and before.key in self._lines:
                self._lines[before.key].loaders -= 1
            # It may end the process in its first batch. A thousand in a row are counted in a few
            # writes, each of 0.2 ms.
            if is_new or time.perf_counter_ns() - self._written > _WRITE_NS:
                self._write()

    def _line(self, key: Key) -> Line:
        return self._lines.setdefault(key, Line())

    @contextmanager
    def inside(self, loader: Any) -> Iterator[bool]:
        """Enter a method of a loader; False if the calling thread is in one already, by
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
            if not self._begin:
                self._look_at_others()
            known = self._known[loader]
            started = Pass(self, known.key, known.epochs == 0, weakref.ref(loader))
            known.epochs += 1
            self._open.add(started)
            self._lend(started)
            return started

    def _lend(self, started: Pass) -> None:
        """Have a pass's numbers noted where they outlive the process."""
        if self._folder is None:
            return
        if self._running is None:
            # Without a mapped file, which not every system has, they are written now and then.
            with suppress(OSError, AttributeError):
                self._running = RunningNumbers(self._folder / f"{os.getpid()}{SUFFIX}")
        if self._running is None:
            return
        known = len(self._running.keys)
        lent = self._running.lend(started.key, is_first=started.is_first)
        if lent is not None:
            started.record, started.note = lent
            started.note(*self.numbers_with(started))
        if len(self._running.keys) > known:
            self._write()

    def numbers_with(self, running: Pass) -> tuple[int, ...]:
        """What a record has of a pass and of the process."""
        of_process = self._begin, self._end, self._waited, self._kernels
        return running.batches, running.waited_ns, running.kernels_ns, *of_process

    def _take_back(self, running: Pass, *, forget: bool = False) -> None:
        if self._running is not None and running.record is not None:
            self._running.take_back(running.record, forget=forget)
        running.record = None
        running.note = None

    def moved(self, running: Pass, key: Key) -> None:
        """Count a pass on another line, from its beginning."""
        with self._lock:
            self._take_back(running, forget=True)
            running.key = key
            self._lend(running)

    def waits(self) -> int:
        """Enter the wait for a batch; returns the number of this thread's waits around it."""
        depth: int = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        return depth

    def answered(self, begin: int, end: int, kernels: int) -> None:
        """Leave a wait, in ``kernels`` nanoseconds of which kernels were loaded or compiled.

        Of nested waits, when a loader reads a loader, the total counts only the outer one.
        """
        self._local.depth = depth = max(0, getattr(self._local, "depth", 1) - 1)
        self._begin = self._begin or begin
        self._end = max(self._end, end)
        if depth == 0:
            # Threads that add at the same time may lose a wait. A lock per batch would cost more.
            self._waited += end - begin - kernels
            self._kernels += kernels
        if end - self._flushed > _FLUSH_NS:
            self.flush()

    def ended(self, over: Pass) -> None:
        """Add the numbers of a finished iteration."""
        with self._lock:
            if over not in self._open:  # begun before a fork
                return
            self._open.discard(over)
            _book(self._line(over.key), over)
            if over.record is None:
                _book(self._unrecorded.setdefault(over.key, Line()), over)
            self._take_back(over)
            loader = over.loader()
            known = None if loader is None else self._known.get(loader)
            # At epochs 1, 2, 4, 8, ..., as the loader's statistics add up all epochs each time.
            if known is not None and known.epochs & (known.epochs - 1) == 0:
                self._look(loader, known)
        # A worker process may end without running exit handlers.
        if self._role and self._folder is not None:
            self.flush()

    def given_up(self, loader: Any, error: BaseException) -> Key | None:
        """Put theirs in place of a loader that failed before its first batch.

        Returns:
            The key of its new line, or None if it cannot be replaced.
        """
        known = self._known.get(loader)
        if known is None or known.give_up is None:
            return None
        give_up = known.give_up
        known.give_up = None
        return self._known[loader].key if give_up(error) else None

    def delivered(self, loader: Any) -> None:
        """Drop the function that replaces the loader, as it works."""
        known = self._known.get(loader)
        if known is not None:
            known.give_up = None

    def _look(self, loader: Any, known: _Known) -> None:
        """Add the rows and hits of a loader that counts them."""
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
        """All numbers now, for JSON. Without ``looks``, rows and hits may be older.

        ``records`` has the lines of the records in which they are noted, if any, and ``unrecorded``
        what passes without a record have counted.
        """
        with self._lock:
            for loader, known in list(self._known.items()) if looks else ():
                if known.epochs:
                    self._look(loader, known)
            # Without lines whose only loader was given up.
            lines = {
                key: Line(**vars(line))
                for key, line in self._lines.items()
                if any(vars(line).values())
            }
            unrecorded = {key: Line(**vars(line)) for key, line in self._unrecorded.items()}
            for running in list(self._open):
                _book(lines.setdefault(running.key, Line()), running)
                if running.record is None:
                    _book(unrecorded.setdefault(running.key, Line()), running)
            seconds = max(0, self._end - self._begin - self._kernels) / 1e9
            if looks and self._others.seconds < _LOOKED_AT * seconds:
                self._look_at_others(at_once=True)
            return {
                "role": self._role,
                "seconds": seconds,
                "waited": self._waited / 1e9,
                "kernels": self._kernels / 1e9,
                "others": self._others.share,
                "seen": dict(self.seen),
                "lines": _as_json(lines),
                "unrecorded": _as_json(unrecorded),
                "records": [asdict(key) for key in self._running.keys] if self._running else [],
            }

    def flush(self) -> None:
        """Look at other programs, and write the numbers."""
        self._flushed = time.perf_counter_ns()
        self._look_at_others()
        self._write()

    def _write(self) -> None:
        """Write the numbers, whole or not at all. An error would be the script's, so none is
        raised."""
        if self._folder is None:
            return
        self._written = time.perf_counter_ns()
        path = self._folder / f"{os.getpid()}.json"
        try:
            temporary = path.with_suffix(f".{threading.get_ident()}")
            temporary.write_text(json.dumps(self.snapshot(looks=False)), encoding="utf-8")
            os.replace(temporary, path)
        except Exception:  # the folder is gone, or the disk is full
            return

    def _look_at_others(self, *, at_once: bool = False) -> None:
        with suppress(Exception):  # it would be the script's
            self._others.see(at_once=at_once)


def read_numbers(path: Path) -> dict[str, Any]:
    """A process's numbers from its files, until its last batch.

    Raises:
        OSError, ValueError: A file is missing or damaged.
    """
    part: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    keys = part["records"]
    if not keys:
        return part
    records = list(records_of(path.with_suffix(SUFFIX), len(keys)))
    lines = {tuple(line[name] for name in _KEY): line for line in part["lines"]}
    for line in lines.values():
        line.update(dict.fromkeys(Passes._fields, 0))
    for unrecorded in part.pop("unrecorded"):
        line = lines[tuple(unrecorded[name] for name in _KEY)]
        line.update({name: unrecorded[name] for name in Passes._fields})
    for key, record in zip(keys, records, strict=True):
        line = lines.setdefault(tuple(key.values()), key | asdict(Line()))
        for name, number in record.passes._asdict().items():
            line[name] += number if name in ("epochs", "batches") else number / 1e9
    part["lines"] = [line for line in lines.values() if any(line[name] for name in vars(Line()))]
    # Each record has the process's own from its last batch.
    begin = min((record.begin for record in records if record.begin), default=0)
    kernels = max(record.kernels for record in records)
    seconds = max(0, max(record.end for record in records) - begin - kernels) / 1e9
    waited = max(record.waited for record in records) / 1e9
    # Those that were written may be newer, by batches of passes without a record.
    for name, value in {"seconds": seconds, "waited": waited, "kernels": kernels / 1e9}.items():
        part[name] = max(part[name], value)
    return part


_KEY = ("kind", "place", "ran", "why")


def _as_json(lines: dict[Key, Line]) -> list[dict[str, Any]]:
    return [asdict(key) | asdict(line) for key, line in lines.items()]


def _forked(this: weakref.ref[Ledger]) -> None:
    ledger = this()
    if ledger is not None:
        ledger.forked()


def _book(line: Line, over: Pass) -> None:
    line.epochs += 1
    line.batches += over.batches
    line.waited += over.waited_ns / 1e9
    line.kernels += over.kernels_ns / 1e9
    if over.is_first:
        line.first += over.waited_ns / 1e9


def _origin(loader: Any) -> tuple[str, str]:
    """``Key.ran`` and ``Key.why`` of a loader whose construction was not seen."""
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
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        # A subclass's constructor is not where its loader was made, nor is Lightning's around it.
        constructs = loader is not None and frame.f_code.co_name in ("__init__", "wrapper")
        if package not in _NOT_A_SCRIPT and not (
            constructs and any(value is loader for value in frame.f_locals.values())
        ):
            return f"{_shown(frame.f_code.co_filename)}:{line}"
    return "-"


def _shown(path: str) -> str:
    """A file for the table: "cell", the path from the working folder, or its last two names."""
    if path.startswith("<") or "ipykernel_" in path:
        return "cell"
    absolute = os.path.abspath(path)
    below = os.path.relpath(absolute)
    if not below.startswith(".."):
        return below
    return os.path.join(*absolute.split(os.sep)[-2:])


@dataclass(eq=False)
class Batches:
    """Iterator that times the waits for another's batches, and passes on everything else."""

    _inner: Any
    _pass: Pass
    _ledger: Ledger
    # The only reference in `for batch in Loader(...)`; dropped at the end of the iteration.
    _loader: Any
    # Before it was begun; None: it cannot fail any more.
    _states: RandomStates | None = None

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
            states = self._states
            if states is not None and isinstance(error, Exception) and is_for_theirs(error):
                return self._instead(error, states)
            raise
        self._pass.answered(begin, delivered=True)
        if self._states is not None:
            self._states = None
            self._ledger.delivered(self._loader)
        return batch

    def _instead(self, error: Exception, states: RandomStates) -> Any:
        """The first batch of theirs, after ours failed before its first."""
        self._states = None
        loader = self._loader
        key = self._ledger.given_up(loader, error)
        if key is None:
            raise error
        self._ledger.moved(self._pass, key)
        states.put_back()
        with self._ledger.inside(loader):
            self._inner = iter(loader)
        return next(self)

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes, among them `_inner` itself while a copy is made.
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __del__(self) -> None:
        over = self.__dict__.get("_pass")
        if over is not None:
            over.end()


class SizedBatches(Batches):
    """Batches of an iterator that has a length."""

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
            states = None
            if over.is_first and over.key.ran == OURS:
                states = RandomStates(self)
            ledger.waits()
            begin = time.perf_counter_ns()
            try:
                # The loop waits for workers that start here, too.
                inner = original(self)
            except BaseException as error:
                over.answered(begin, delivered=False)
                key = None
                if states is not None and isinstance(error, Exception) and is_for_theirs(error):
                    key = ledger.given_up(self, error)
                if states is None or key is None:
                    over.end()
                    raise
                ledger.moved(over, key)
                states.put_back()
                inner = iter(self)
                states = None
            else:
                over.answered(begin, delivered=False)
            kind = SizedBatches if hasattr(type(inner), "__len__") else Batches
            return kind(inner, over, ledger, self, states)

    return __iter__
