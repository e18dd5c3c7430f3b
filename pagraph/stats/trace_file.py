"""Chrome trace files: recorded, written, read, merged.

Format: "Trace Event Format", Chromium project. Spans are complete events (``X``), tracks are named
by metadata (``M``), figures over time are counters (``C``). Times are microseconds since
``baseTimeNanoseconds``, which counts from 1970.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..system.atomic import check_writable, new_file
from ..system.budget import reading_room
from ..system.files import bounded, open_plain
from ..system.threads import THREAD_NAME
from .reads import CACHE_TIER

Span = tuple[str, int, int, int, int, Any]
"""Name, begin and end (``perf_counter_ns``), pass, batch (both -1: none), what was read. Flat, and
only of what the garbage collector need not follow: it stops looking at such tuples, however many
there are."""

Depth = tuple[int, int, int, int]
"""When, pass, finished batches that wait, batches in work."""


@dataclass(eq=False)
class Log:
    """Track of the timeline: the spans of one thread, or of one stream."""

    name: str
    track: int
    thread: threading.Thread | None = None
    spans: list[Span] = field(default_factory=list)
    depths: list[Depth] = field(default_factory=list)
    number: int = -1  # of the pass that the thread is at work for
    batch: int = -1
    computing: tuple[int, int, int] | None = None  # since when, pass and batch: the reader has it


@dataclass(eq=False)
class Pass:
    """One epoch of one loader; ``end`` is 0 while it goes on, ``delivered`` has each batch's
    counts."""

    label: str
    epoch: int
    begin: int
    end: int = 0
    delivered: dict[int, dict[str, int]] = field(default_factory=dict)


@dataclass(eq=False)
class Record:
    """All that a tracer has collected.

    Attributes:
        path: The file to write.
        max_events: Events to keep; later ones are counted.
        epoch_ns: Add to ``perf_counter_ns`` for nanoseconds since 1970.
        logs, streams: Tracks of threads, made under ``lock``, and others by name.
        disk: Samples of the depth of a queue of reads, (n, 2) for each call that reads files.
        passes: Epochs, by number.
        events: Spans and depths so far, those left out included.
    """

    path: Path
    max_events: int
    epoch_ns: int
    begin: int = field(default_factory=time.perf_counter_ns)
    pid: int = field(default_factory=os.getpid)
    logs: list[Log] = field(default_factory=list)
    streams: dict[str, Log] = field(default_factory=dict)
    disk: list[Any] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    events: Iterator[int] = field(default_factory=itertools.count)

    def add_disk(self, samples: Any) -> None:
        """Add samples of a queue of reads; safe from any thread."""
        if all(next(self.events) < self.max_events for _ in range(len(samples))):
            self.disk.append(samples)

    def log_of_thread(self) -> Log:
        """A log for the calling thread.

        Every epoch has its own threads: worker i goes on in the track, and with the number, of the
        one before.
        """
        thread = threading.current_thread()
        with self.lock:
            if thread.name.startswith(THREAD_NAME):
                for log in self.logs:
                    if log.name == thread.name and (
                        log.thread is None or not log.thread.is_alive()
                    ):
                        log.thread, log.number, log.batch = thread, -1, -1
                        return log
            log = Log(thread.name, threading.get_native_id(), thread)
            self.logs.append(log)
            return log


def clock_offset() -> int:
    """Nanoseconds since 1970 at ``perf_counter_ns() == 0``, from the quickest of some looks at both
    clocks.

    Both run at the same rate (the system slews them together), so one look serves for the whole
    trace.
    """
    looks = []
    for _ in range(20):
        before = time.perf_counter_ns()
        wall = time.time_ns()
        after = time.perf_counter_ns()
        looks.append((after - before, wall - (before + after) // 2))
    return min(looks)[1]


BASE_PERIOD = 7_889_238 * 10**9
"""torch.profiler counts from a multiple of this many nanoseconds (three months), so that a double
holds nanoseconds; the same base puts both on one axis even for readers that do not know of
bases."""

FIRST_OWN_TRACK = 1 << 30
"""Numbers of tracks that are no threads begin here: above all thread ids, and they fit into 32
bits."""

_EVENT_BYTES = 16  # of Python's objects for a byte of JSON

ROUNDING = 2
"""Nanoseconds between neighbours: readers that keep times as doubles must not see them overlap."""

Event = tuple[int, int, int, str]
"""Begin, minus duration, rank, JSON: sorts so that a span comes before those inside it."""


def read_trace(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A trace file, ours or ``torch.profiler``'s, compressed or not; at least
    ``{"traceEvents": [...]}``.

    Raises:
        FormatError: The file is no trace.
        OSError: It cannot be read.
    """
    try:
        with open_plain(path) as file:
            is_packed = file.peek(2)[:2] == b"\x1f\x8b"  # type: ignore[attr-defined]
            stream = gzip.GzipFile(fileobj=file) if is_packed else file
            trace = json.loads(bounded(stream, path, reading_room() // _EVENT_BYTES).read())
    except FormatError:
        raise
    except OSError as error:
        if error.errno is not None:  # of the disk
            raise
        raise FormatError(f"{path} must be a trace in JSON, {error}") from None
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        raise FormatError(f"{path} must be a trace in JSON, {error}") from None
    if isinstance(trace, list):  # the format's short form
        trace = {"traceEvents": trace}
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise FormatError(f"{path} must be a trace, it has no list traceEvents")
    return trace


def merge_traces(*paths: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Write several traces as one, on one time axis: a loader's and ``torch.profiler``'s, or
    several processes'.

    Args:
        *paths: Trace files. Whatever is not an event is taken from the first.
        out: The new file; a name that ends in ``.gz`` is compressed.

    Raises:
        ValueError, FormatError: No paths are given; a file is no trace.
        OSError: ``out`` cannot be written, or a file not read.
    """
    if not paths:
        raise ValueError("paths must be at least one trace, got none")
    target = check_writable("out", out)
    traces = [read_trace(path) for path in paths]
    base = traces[0].get("baseTimeNanoseconds", 0)
    events = []
    for trace in traces:
        shift = (trace.get("baseTimeNanoseconds", 0) - base) / 1000
        for event in trace["traceEvents"]:
            events.append(
                {**event, "ts": event["ts"] + shift} if shift and "ts" in event else event
            )
    head = {name: value for name, value in traces[0].items() if name != "traceEvents"}
    _write(target, head, (json.dumps(event) for event in events))


def write_record(record: Record) -> None:
    """Write what a tracer has collected to its path, whole or not at all."""
    now = time.perf_counter_ns()
    # Workers may be at it still: what is taken first refers to what is taken then, never to more.
    logs = [
        replace(log, spans=list(log.spans), depths=list(log.depths)) for log in list(record.logs)
    ]
    streams = {
        name: replace(log, spans=list(log.spans)) for name, log in list(record.streams.items())
    }
    record = replace(record, logs=logs, streams=streams, passes=list(record.passes))
    base = (record.epoch_ns + record.begin) // BASE_PERIOD * BASE_PERIOD
    count = next(record.events)
    head = {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        "droppedEvents": max(0, count - record.max_events),
    }
    _write(record.path, head, _Chrome(record, now, base).lines())


def _write(path: Path, head: dict[str, Any], lines: Iterable[str]) -> None:
    with new_file(path) as raw:
        file = (
            gzip.GzipFile("", "wb", compresslevel=4, fileobj=raw)
            if path.name.endswith(".gz")
            else raw
        )
        file.write((json.dumps(head)[:-1] + (", " if head else "") + '"traceEvents": [\n').encode())
        comma = ""
        for line in lines:
            file.write((comma + line).encode())
            comma = ",\n"
        file.write(b"\n]}\n")
        if file is not raw:
            file.close()


class _Chrome:
    """Events of one record; a pass is named after its loader, with a number where two of it ran at
    the same time."""

    def __init__(self, record: Record, now: int, base: int) -> None:
        self._record = record
        self._now = now
        self._shift = record.epoch_ns - base
        self._names = [
            p.label + (f" ({lane + 1})" if lane else "")
            for p, lane in zip(record.passes, _lanes(record.passes, now), strict=True)
        ]

    def lines(self) -> Iterator[str]:
        """JSON of all events: the tracks' names, then everything by time."""
        record = self._record
        names = [(log.track, log.name) for log in record.logs]
        streams = list(record.streams.values())
        tracks = [
            *dict.fromkeys(f"epochs of {name}" for name in self._names),
            *(log.name for log in streams),
        ]
        own = {name: FIRST_OWN_TRACK + i for i, name in enumerate(tracks)}
        events: list[Event] = []
        for log in record.logs:
            events.extend(self._spans(log, log.track))
            events.extend(self._depths(log))
        for log in streams:
            events.extend(self._spans(log, own[log.name]))
        for number, p in enumerate(record.passes):
            events.append(self._epoch(p, own[f"epochs of {self._names[number]}"]))
        events.extend(self._ends())
        events.extend(self._reads())
        events.extend(self._disk())
        events.sort()
        yield json.dumps(
            {"ph": "M", "name": "process_name", "pid": record.pid, "args": {"name": "pagraph"}}
        )
        for track, name in [*((t, n) for n, t in own.items()), *names]:
            yield self._meta("thread_name", track, name=name)
        for place, track in enumerate([*own.values(), *(track for track, _ in names)]):
            yield self._meta("thread_sort_index", track, sort_index=place)
        for *_, line in events:
            yield line

    def _meta(self, what: str, track: int, /, **args: Any) -> str:
        return json.dumps(
            {"ph": "M", "name": what, "pid": self._record.pid, "tid": track, "args": args}
        )

    def _epoch(self, p: Pass, track: int) -> Event:
        args = {"loader": p.label, "epoch": p.epoch, "batches": len(p.delivered)}
        if not p.end:
            args["unfinished"] = True
        return self._span(f"epoch {p.epoch}", p.begin, p.end or self._now, track, args, rank=-1)

    def _spans(self, log: Log, track: int) -> Iterator[Event]:
        for span in [*log.spans, *self._open(log)]:
            name, begin, end, *_, read = span
            if read is not None:
                name = f"reading {read[0]}"
            # From the very end of one wait to the very beginning of the next.
            if name == "computing":
                begin, end = begin + ROUNDING, end - ROUNDING
            yield self._span(name, begin, end, track, self._args(span))

    def _open(self, log: Log) -> Iterator[Span]:
        """The reader's computing with its last batch when the trace or its pass ended."""
        if log.computing is not None:
            begin, number, batch = log.computing
            yield (
                "computing",
                begin,
                self._record.passes[number].end or self._now,
                number,
                batch,
                None,
            )

    def _args(self, span: Span) -> dict[str, Any]:
        name, _, _, number, batch, read = span
        args: dict[str, Any] = {}
        if number >= 0:
            p = self._record.passes[number]
            args = {"loader": p.label, "epoch": p.epoch}
            if batch >= 0:
                args["batch"] = batch
            if name == "preparing":
                args |= p.delivered.get(batch, {})
        if read is not None:
            _, tier, asked, hits, row_bytes, _ = read
            args |= {"tier": tier, "rows": asked, "hits": hits, "bytes": asked * row_bytes}
        return args

    def _depths(self, log: Log) -> Iterator[Event]:
        for when, number, waiting, working in log.depths:
            # A worker may end after its pass.
            if when <= (self._record.passes[number].end or self._now):
                name = f"{self._names[number]} batches"
                yield self._counter(name, when, {"waiting": waiting, "in work": working})

    def _ends(self) -> Iterator[Event]:
        """A last sample for each pass with threads: nothing waits any more."""
        for number in sorted({depth[1] for log in self._record.logs for depth in log.depths}):
            if end := self._record.passes[number].end:
                yield self._counter(
                    f"{self._names[number]} batches", end, {"waiting": 0, "in work": 0}
                )

    def _reads(self) -> Iterator[Event]:
        """Hit rate of each batch, and bytes read so far by tier, at the end of the batch's last
        read."""
        batches: dict[tuple[int, int], list[Span]] = defaultdict(list)
        for log in self._record.logs:
            for span in log.spans:
                if span[5] is not None and span[3] >= 0:
                    batches[span[3], span[4]].append(span)
        so_far: dict[str, dict[str, int]] = defaultdict(dict)
        for (number, _), spans in sorted(
            batches.items(), key=lambda item: max(span[2] for span in item[1])
        ):
            when, label = max(span[2] for span in spans), self._record.passes[number].label
            asked = sum(span[5][2] for span in spans if span[5][5])
            if asked:
                rate = sum(span[5][3] for span in spans if span[5][5]) / asked
                yield self._counter(
                    f"{self._names[number]} cache", when, {"hit rate": round(rate, 6)}
                )
            nbytes = so_far[label]
            for *_, (_, tier, rows, hits, row_bytes, _) in spans:
                for name, served in ((CACHE_TIER, hits), (tier, rows - hits)):
                    if served:
                        nbytes[name] = nbytes.get(name, 0) + served * row_bytes
            yield self._counter(f"{label} bytes read", when, dict(sorted(nbytes.items())))

    def _disk(self) -> Iterator[Event]:
        """Requests that the disk has from all calls together."""
        changes = [
            (int(when), int(depth) - before)
            for samples in self._record.disk
            for (when, depth), before in zip(samples, [0, *samples[:-1, 1].tolist()], strict=True)
        ]
        in_flight = 0
        for when, change in sorted(changes):
            in_flight += change
            yield self._counter("disk requests", when, {"in flight": in_flight})

    def _span(
        self, name: str, begin: int, end: int, track: int, args: dict[str, Any], *, rank: int = 0
    ) -> Event:
        end = max(begin, end)
        line = (
            f'{{"ph":"X","cat":"pagraph","name":{json.dumps(name)},"pid":{self._record.pid},"tid":{track},'
            f'"ts":{_microseconds(begin + self._shift)},"dur":{_microseconds(end - begin)},"args":{json.dumps(args)}}}'
        )
        return begin, begin - end, rank, line

    def _counter(self, name: str, when: int, args: dict[str, float]) -> Event:
        """Perfetto calls it name and key, and takes a counter of thread 0 for the idle
        process's."""
        line = (
            f'{{"ph":"C","name":{json.dumps(name)},"pid":{self._record.pid},'
            f'"ts":{_microseconds(when + self._shift)},"args":{json.dumps(args)}}}'
        )
        return when, 0, 1, line


def _microseconds(ns: int) -> str:
    """Exactly: a float could put the end of a span behind that of the one around it."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _lanes(passes: list[Pass], now: int) -> list[int]:
    """The first lane of its loader that is free for each pass: passes of one loader may run at the
    same time."""
    lanes = [0] * len(passes)
    free_at: dict[str, list[int]] = defaultdict(list)
    for number in sorted(range(len(passes)), key=lambda i: passes[i].begin):
        p = passes[number]
        ends = free_at[p.label]
        lane = next((i for i, end in enumerate(ends) if end <= p.begin), len(ends))
        ends[lane : lane + 1] = [p.end or now]
        lanes[number] = lane
    return lanes
