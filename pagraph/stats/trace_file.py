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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from ..errors import FormatError
from ..system.atomic import check_writable, new_file
from ..system.budget import reading_room
from ..system.checks import StrPath
from ..system.files import bounded, open_plain
from ..system.threads import THREAD_NAME
from .reads import CACHE_TIER

Span = tuple[str, int, int, int, int, Any]
"""Name, begin and end (``perf_counter_ns``), pass, batch (both -1: none), what was read.

What was read is None, or (field, tier, rows asked for, hits, bytes of a row, cacheable).
"""
# A tuple and no object: the garbage collector stops following tuples of atomic values, or a million
# spans would be walked at each of its full runs.

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
    """One epoch of one loader.

    ``end`` is 0 while it goes on; ``delivered`` maps a batch's number to its counts.
    """

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
    # For adding to logs, streams and passes. A leaf: nothing else is locked while it is held.
    lock: threading.Lock = field(default_factory=threading.Lock)
    events: Iterator[int] = field(default_factory=itertools.count)

    def add_disk(self, samples: Any) -> None:
        """Add samples of a queue of reads; safe from any thread."""
        if all(next(self.events) < self.max_events for _ in range(len(samples))):
            self.disk.append(samples)

    def add_kernels(self, begin: int, end: int) -> None:
        """Add a load of kernels by the calling thread, if that has a track."""
        thread = threading.current_thread()
        for log in list(self.logs):
            if log.thread is thread and next(self.events) < self.max_events:
                log.spans.append(("kernels", begin, end, log.number, log.batch, None))

    def log_of_thread(self) -> Log:
        """A log for the calling thread.

        Every epoch starts new threads; worker i continues the track of the previous worker i.
        """
        thread = threading.current_thread()
        with self.lock:
            log = self._finished_log(thread.name)
            if log is None:
                log = Log(thread.name, threading.get_native_id())
                self.logs.append(log)
            log.thread = thread
            log.number = -1
            log.batch = -1
            return log

    def _finished_log(self, name: str) -> Log | None:
        """The log of a worker that had this name and has ended."""
        # Only workers are alike: two user threads of one name need not do the same job.
        if not name.startswith(THREAD_NAME):
            return None
        for log in self.logs:
            # The one before may live: two loaders, or two epochs, can run at the same time.
            is_free = log.thread is None or not log.thread.is_alive()
            if is_free and log.name == name:
                return log
        return None


def clock_offset() -> int:
    """Nanoseconds since 1970 at ``perf_counter_ns() == 0``.

    Both clocks run at the same rate (the system slews them together), so one measurement serves
    the whole trace.
    """
    looks = []
    # The wall clock is read in the middle of `before` and `after`, off by half their distance at
    # most. Of 20 looks the quickest was not interrupted by the scheduler.
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
"""Number of the first track that is not a thread: above all thread ids (Linux allows 2^22), and
within 32 bits."""

_EVENT_BYTES = 16  # of Python objects that a byte of JSON becomes, at most

ROUNDING = 2
"""Nanoseconds between neighbours: readers that keep times as doubles must not see them overlap."""

Event = tuple[int, int, int, str]
"""Begin, minus duration, rank, JSON.

They sort so that an enclosing span comes first; the rank decides between equal spans (-1: an epoch,
1: a counter).
"""


def read_trace(path: StrPath) -> dict[str, Any]:
    """Read a trace file, ours or ``torch.profiler``'s, compressed or not.

    Returns:
        At least ``{"traceEvents": [...]}``.

    Raises:
        FormatError: The file is not a trace.
        OSError: It cannot be read.
    """
    try:
        with open_plain(path) as file:
            # By its first bytes: the name may not end in ".gz", or still do once unpacked.
            is_packed = file.peek(2)[:2] == b"\x1f\x8b"  # type: ignore[attr-defined]
            stream = gzip.GzipFile(fileobj=file) if is_packed else file
            # A packed file may be a thousand times as long as it looks.
            limited = bounded(stream, path, reading_room() // _EVENT_BYTES)
            trace = json.loads(limited.read())
    except FormatError:
        raise
    except OSError as error:
        if error.errno is not None:  # the disk's; gzip's own (BadGzipFile) has no number
            raise
        raise FormatError(f"{path} must be a trace in JSON, {error}") from None
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        raise FormatError(f"{path} must be a trace in JSON, {error}") from None
    if isinstance(trace, list):  # the format's short form
        trace = {"traceEvents": trace}
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise FormatError(f"{path} must be a trace, it has no list traceEvents")
    return trace


def merge_traces(*paths: StrPath, out: StrPath) -> None:
    """Write several traces as one, on one time axis.

    They may be a loader's and ``torch.profiler``'s, or those of several processes.

    Args:
        *paths: Trace files. Whatever is not an event is taken from the first.
        out: The new file; a name that ends in ``.gz`` is compressed.

    Raises:
        ValueError, FormatError: No paths are given; a file is not a trace.
        OSError: ``out`` cannot be written, or a file cannot be read.
    """
    if not paths:
        raise ValueError("paths must be at least one trace, got none")
    target = check_writable("out", out)
    traces = [read_trace(path) for path in paths]
    base = traces[0].get("baseTimeNanoseconds", 0)
    events = []
    for trace in traces:
        # Nanoseconds to the microseconds of "ts".
        shift = (trace.get("baseTimeNanoseconds", 0) - base) / 1000
        for event in trace["traceEvents"]:
            # Names of tracks have no time.
            if shift and "ts" in event:
                event = {**event, "ts": event["ts"] + shift}
            events.append(event)
    head = {name: value for name, value in traces[0].items() if name != "traceEvents"}
    _write(target, head, (json.dumps(event) for event in events))


def write_record(record: Record) -> None:
    """Write what a tracer has collected to its path, whole or not at all."""
    now = time.perf_counter_ns()
    # Workers may still be adding. Spans refer to passes by number, so that spans are copied first:
    # the passes that are copied after them include all that they name.
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
        file: IO[bytes] | gzip.GzipFile = raw
        if path.name.endswith(".gz"):
            # Without a name, or that of the temporary file would be in the header. The default,
            # level 9, takes 1.8 times as long as level 4 and saves 6 % of the file.
            file = gzip.GzipFile("", "wb", compresslevel=4, fileobj=raw)
        # Event by event into the open object: the JSON of all of them need not fit into memory.
        opened = json.dumps(head)[:-1]
        if head:
            opened += ", "
        file.write(f'{opened}"traceEvents": [\n'.encode())
        comma = ""
        for line in lines:
            file.write((comma + line).encode())
            comma = ",\n"
        file.write(b"\n]}\n")
        if file is not raw:
            file.close()


class _Chrome:
    """The events of one record, as JSON.

    A pass is named after its loader, with a number if two passes of it ran at the same time.
    """

    def __init__(self, record: Record, now: int, base: int) -> None:
        self._record = record
        self._now = now
        self._shift = record.epoch_ns - base
        self._names: list[str] = []  # of passes
        for p, lane in zip(record.passes, _lanes(record.passes, now), strict=True):
            name = f"{p.label} ({lane + 1})" if lane else p.label
            self._names.append(name)

    def lines(self) -> Iterator[str]:
        """JSON of all events: the tracks' names, then everything by time."""
        record = self._record
        # Epochs on top, then devices, then threads: as they are to be seen.
        names = list(dict.fromkeys(f"epochs of {name}" for name in self._names))
        names.extend(log.name for log in record.streams.values())
        own = {name: FIRST_OWN_TRACK + i for i, name in enumerate(names)}
        tracks = [(track, name) for name, track in own.items()]
        tracks.extend((log.track, log.name) for log in record.logs)
        yield json.dumps(
            {"ph": "M", "name": "process_name", "pid": record.pid, "args": {"name": "pagraph"}}
        )
        for track, name in tracks:
            yield self._meta("thread_name", track, name=name)
        for place, (track, _) in enumerate(tracks):
            yield self._meta("thread_sort_index", track, sort_index=place)
        for *_, line in self._sorted_events(own):
            yield line

    def _sorted_events(self, own: Mapping[str, int]) -> list[Event]:
        """All events by time; ``own`` are the tracks that are not threads."""
        record = self._record
        events: list[Event] = []
        for log in record.logs:
            events.extend(self._spans(log, log.track))
            events.extend(self._depths(log))
        for log in record.streams.values():
            events.extend(self._spans(log, own[log.name]))
        for number, p in enumerate(record.passes):
            events.append(self._epoch(p, own[f"epochs of {self._names[number]}"]))
        events.extend(self._ends())
        events.extend(self._reads())
        events.extend(self._disk())
        events.sort()
        return events

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
            # It lasts from the very end of one wait to the very beginning of the next.
            if name == "computing":
                begin += ROUNDING
                end -= ROUNDING
            yield self._span(name, begin, end, track, self._args(span))

    def _open(self, log: Log) -> Iterator[Span]:
        """The reader's computing with its last batch when the trace or its pass ended."""
        if log.computing is not None:
            begin, number, batch = log.computing
            end = self._record.passes[number].end or self._now
            yield "computing", begin, end, number, batch, None

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
        # Perfetto draws a counter's last value on to the end of the trace.
        numbers = {depth[1] for log in self._record.logs for depth in log.depths}
        for number in sorted(numbers):
            if end := self._record.passes[number].end:
                name = f"{self._names[number]} batches"
                yield self._counter(name, end, {"waiting": 0, "in work": 0})

    def _reads(self) -> Iterator[Event]:
        """Hit rate of each batch, and bytes read so far by tier, at the end of the batch's last
        read."""
        # A batch's reads may be in several threads' logs.
        batches: dict[tuple[int, int], list[Span]] = defaultdict(list)
        for log in self._record.logs:
            for span in log.spans:
                *_, number, batch, read = span
                if read is not None and number >= 0:
                    batches[number, batch].append(span)
        # By loader and not by pass: bytes go on growing from epoch to epoch.
        so_far: dict[str, dict[str, int]] = defaultdict(dict)
        for (number, _), spans in sorted(batches.items(), key=lambda item: _last_end(item[1])):
            when = _last_end(spans)
            label = self._record.passes[number].label
            nbytes = so_far[label]
            asked = 0  # of cacheable fields, as are the hits
            served = 0
            for *_, (_, tier, rows, hits, row_bytes, cacheable) in spans:
                if cacheable:
                    asked += rows
                    served += hits
                if hits:
                    nbytes[CACHE_TIER] = nbytes.get(CACHE_TIER, 0) + hits * row_bytes
                if rows > hits:
                    nbytes[tier] = nbytes.get(tier, 0) + (rows - hits) * row_bytes
            if asked:
                rate = round(served / asked, 6)
                yield self._counter(f"{self._names[number]} cache", when, {"hit rate": rate})
            yield self._counter(f"{label} bytes read", when, dict(sorted(nbytes.items())))

    def _disk(self) -> Iterator[Event]:
        """Requests that the disk has from all calls together."""
        # Samples are depths of one call. Their steps, sorted by time, add up to the sum over all.
        changes = []
        for samples in self._record.disk:
            before = 0
            for when, depth in samples.tolist():
                changes.append((when, depth - before))
                before = depth
        in_flight = 0
        for when, change in sorted(changes):
            in_flight += change
            yield self._counter("disk requests", when, {"in flight": in_flight})

    def _span(
        self, name: str, begin: int, end: int, track: int, args: dict[str, Any], *, rank: int = 0
    ) -> Event:
        # A computing shorter than twice the rounding would end before it begins.
        end = max(begin, end)
        # Formatted by hand: json.dumps has no exact decimals, only floats.
        line = (
            f'{{"ph":"X","cat":"pagraph","name":{json.dumps(name)},'
            f'"pid":{self._record.pid},"tid":{track},'
            f'"ts":{_microseconds(begin + self._shift)},"dur":{_microseconds(end - begin)},'
            f'"args":{json.dumps(args)}}}'
        )
        return begin, begin - end, rank, line

    def _counter(self, name: str, when: int, args: dict[str, float]) -> Event:
        # Without "tid": Perfetto would show a counter of thread 0 with the idle process.
        line = (
            f'{{"ph":"C","name":{json.dumps(name)},"pid":{self._record.pid},'
            f'"ts":{_microseconds(when + self._shift)},"args":{json.dumps(args)}}}'
        )
        return when, 0, 1, line


def _microseconds(ns: int) -> str:
    # Exactly: rounded to a float, a span could end after the one around it.
    return f"{ns // 1000}.{ns % 1000:03d}"


def _lanes(passes: list[Pass], now: int) -> list[int]:
    """For each pass the first free lane of its loader, whose passes may run at the same time."""
    lanes = [0] * len(passes)
    free_at: dict[str, list[int]] = defaultdict(list)  # when each lane of a loader's ends
    for number in sorted(range(len(passes)), key=lambda i: passes[i].begin):
        p = passes[number]
        ends = free_at[p.label]
        lane = next((i for i, end in enumerate(ends) if end <= p.begin), len(ends))
        ends[lane : lane + 1] = [p.end or now]
        lanes[number] = lane
    return lanes


def _last_end(spans: Sequence[Span]) -> int:
    return max(end for _, _, end, *_ in spans)
