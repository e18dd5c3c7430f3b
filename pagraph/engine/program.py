"""DeviceProgram: makes each batch by one recorded launch on a device, from seeds or from the CPU's
sample."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .._postponed import interrupt_later
from ..accelerator.accelerator import is_out_of_memory
from ..errors import PipelineError
from ..features.gpu.reachable import MOST_PARTS
from ..features.padding import Padding
from ..sampling.gpu.state import DAMAGED, lengths, words_of
from ..system.units import bytes_text
from .envelope import batch_bytes
from .recording import DeviceFront, Front, Lane, Recording, SentFront, Wanted, sent_plan

if TYPE_CHECKING:
    from ..accelerator import Event, Stream
    from ..cache.fields import FieldReach, FieldSet
    from ..features.field import FieldRows
    from ..features.gpu.reachable import Layout
    from ..sampling.gpu.run import DeviceRun
    from ..sampling.gpu.sampler import DeviceSampler
    from ..sampling.gpu.state import Plan
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder
    from .envelope import Envelope

_LEARNED = 16  # batches whose sizes make the envelope
# Least number of batches to make kernel by kernel while an epoch cannot be recorded. By then a
# cache that is filled after the first step is read from.
_SETTLING = 4
_LEAST_MARGIN = 0.02
_SIGMAS = 4
_NEARLY = 1.25
"""If the upper bound of a size is at most this factor above the learned one, the bound is used:
then that size cannot overflow."""
_OFTEN = 200  # if more than one batch in this many overflows, sizes are learned again
_MOST_PINNED = 64 << 20
"""Most pinned memory of all batches in flight, in bytes. A batch of 1024 seeds with fan-outs
15,10,5 of RMAT 22 has 8 MB of arrays, and with 2 threads and prefetch=2 there are 5."""


@dataclass(eq=False)
class Begun:
    """A batch that was enqueued on the device.

    May be dropped at any time: an epoch that ends early does not notify its threads, and Ctrl-C may
    come between any two steps.

    Attributes:
        origin: The ticket if the device samples, else the CPU's ``Sampled``.
        recording: What makes it.
        lanes: Its lane; empty once that is given back.
        slab: The batch's own memory, uint8, 1-D.
        made_for: The stream for which ``slab`` was allocated.
        begun, ready: Events before and after its work.
        fields: How each field is read. They keep the memory that is read alive.
    """

    origin: Any
    recording: Recording
    lanes: list[Lane]
    slab: Tensor
    made_for: Stream
    begun: Event
    ready: Event
    fields: list[FieldReach]

    def close(self) -> None:
        """Wait for the device, then give the lane back; safe to call twice."""
        if self.lanes:
            self.ready.wait()
            self.recording.give_back(self.lanes)

    def __del__(self) -> None:
        if self.lanes and self.recording.pid == os.getpid():  # a forked child cannot use the device
            try:
                self.close()
            except KeyboardInterrupt:
                interrupt_later()


class Arrays(NamedTuple):
    """A batch of one vertex type that the CPU has sampled.

    Attributes:
        arrays: Those of ``parts_of``, then the source's arrays with one number per seed;
            contiguous, 1-D, int32 or int64.
        known: Number of known vertices before each hop and at the end.
        edges: Number of edges of each hop.
    """

    arrays: list[Tensor]
    known: Sequence[int]
    edges: Sequence[int]


class ProgramSource(Protocol):
    """A ``BatchSource`` whose batches a device may make in one recorded launch.

    Batches that it cannot make are made kernel by kernel, by ``sample``, ``build`` and ``deliver``.
    What it samples on the device has its sizes, as in :meth:`made`, as the attribute ``words``.
    """

    @property
    def inputs(self) -> Sequence[Hashable]:
        """Keys of the fields that are read for input nodes now."""

    @property
    def outputs(self) -> Sequence[Hashable]:
        """Keys of the fields that are read for seeds now."""

    @property
    def begin(self) -> Callable[[Ticket], Wanted | None] | None:
        """Returns what the device samples from for a ticket, with seeds in range; None if that
        batch must be made kernel by kernel.

        The property itself is None if batches begin with the ticket's seeds.
        """

    def arrays(self, sampled: Any) -> Arrays | None:
        """The arrays of a batch that the CPU has sampled; None if it must be made kernel by
        kernel."""

    def sample(self, drawn: Any, recorder: EpochRecorder) -> Any:
        """See ``BatchSource.sample``."""

    def made(
        self,
        origin: Any,
        plan: Plan,
        arrays: Sequence[Tensor],
        words: Sequence[int],
        keys: Sequence[Hashable],
        rows: Sequence[Tensor],
        recorder: EpochRecorder,
    ) -> Any:
        """Build the finished batch from the device's arrays; None if other fields are read now.

        Args:
            origin: See ``Begun``.
            plan: The meaning of ``words``.
            arrays: Those of ``parts_of`` or ``typed_parts_of``, then those with one number per
                seed.
            words: The batch's sizes, with padding.
            keys: Keys of the fields that were read.
            rows: The rows of these fields.
            recorder: The epoch's recorder.
        """


class DeviceProgram:
    """Makes each batch of an epoch by one recorded launch, if kernels alone can read its rows.

    A batch is sampled in buffers that all batches share. The launch then copies it to a *slab*, a
    fresh allocation that belongs to the batch, and writes its rows there. So a tensor that the user
    keeps is never overwritten.

    A slab has room for an *envelope*, learned from the sizes of the first batches. A batch that
    does not fit is made kernel by kernel, with the same bits. Batches of fixed shapes have room for
    the first of their loader's sizes, and are padded in the same launch.

    If the device samples, one thread at a time begins a batch; a reader that finds another at work
    makes its batch kernel by kernel. Any thread may send what the CPU has sampled.

    Args:
        sampler: Samples on the device, and lends its buffers. None: the CPU samples.
        hops: Number of hops of every batch.
        fields: Reads rows kernel by kernel, and returns their layouts.
        count: Number of seeds of most batches.
        ahead: Batches begun ahead of the reader.
        sizes: The sizes that batches are padded to; None: no padding.
        once: Whether batches are subgraphs, else blocks.
        beside: Dtypes of the source's arrays with one number per seed.

    Attributes:
        samples: Whether the device samples.
        source: Returns what batches begin with, and builds them from the device's arrays; set
            before an epoch begins.
        is_possible: Whether batches can be recorded, now or once their sizes are known.
        reason: Why batches are made kernel by kernel now; empty if they are not.
    """

    source: Any  # a ProgramSource

    def __init__(
        self,
        sampler: DeviceSampler | None,
        hops: int,
        fields: FieldSet,
        count: int,
        ahead: int,
        sizes: Envelope | None = None,
        *,
        once: bool = False,
        beside: Sequence[torch.dtype] = (),
    ) -> None:
        assert fields.accelerator is not None
        self._accelerator = fields.accelerator
        self._stream = fields.accelerator.stream("reading")  # shared with the sampler
        self._sampler = sampler
        self.samples = sampler is not None
        self._hops = hops
        self._fields = fields
        self._once = once
        self._beside = beside
        self._counts: Sequence[int] = [count]
        self._types: Sequence[str] = ()  # empty for a graph of one type
        self._lanes = ahead + 1
        self._sizes = sizes
        # Guards what follows. Lock order: this one, then `_enqueuing` or the topology's. Its holder
        # may wait for a stream.
        self._lock = threading.Lock()
        # Held while a batch that the CPU sampled is enqueued, as all batches share the recording's
        # state on the device. Innermost: no other lock is taken under it.
        self._enqueuing = threading.Lock()
        # The sampler's buffers, lent once there is something to record.
        self._lent: DeviceRun | None = None
        self._recording: Recording | None = None
        # Dtypes of the arrays that the CPU samples; None until its first batch.
        self._dtypes: list[torch.dtype] | None = None
        self._learned: list[list[int]] = []
        self._has_warned = False
        self._made = 0
        self._overflowed = 0
        self.is_possible = False
        self.reason = "the sizes of the first batches are being learned"
        if hops + 1 > MOST_PARTS:
            self.reason = f"a recorded kernel counts the hits of at most {MOST_PARTS - 1} hops"
        elif sampler is not None and not sampler.is_recorded:
            self.reason = "sampling is not recorded"
        elif not self._accelerator.runs_kernels:
            self.reason = "Triton is missing"
        else:
            self.is_possible = True
        self._plan = sent_plan(hops)
        if sampler is not None and sampler.is_recorded:
            self._counts, self._plan = sampler.usual
            if self._plan.is_typed:
                self._types = sampler.node_types
        if not hops and (self._plan.is_typed or self._plan.trees):
            self.is_possible = False
            self.reason = "nothing is sampled"

    def __str__(self) -> str:
        recording = self._recording
        if recording is None or self.reason:
            return f"batches are made kernel by kernel: {self.reason}"
        return f"batches are one launch, each in {bytes_text(recording.nbytes)} of its own"

    @property
    def batches_by_kernels(self) -> int:
        """Batches to make kernel by kernel before the next call of :meth:`is_ready`."""
        if self._sizes:
            return _SETTLING
        return max(_SETTLING, _LEARNED - len(self._learned))

    def is_ready(self) -> bool:
        """Whether batches can be made now; records the launch first if there is none.

        Only for the reader's thread: while a device records, no other thread may draw random
        numbers on it.
        """
        with self._lock:
            return self._now() is not None

    def close(self) -> None:
        """Free the device's memory; from now on every batch is made kernel by kernel."""
        with self._lock:
            self.is_possible = False
            self._lent = None
            self._recording = None
            self.reason = "the loader is closed"

    def begin(self, ticket: Ticket, recorder: EpochRecorder) -> Begun | None:
        """Enqueue a batch that the device samples, without waiting; None if it must be made kernel
        by kernel."""
        if not self.is_possible:
            return None
        begin = time.perf_counter_ns()
        accelerator = self._accelerator
        has_lock: list[bool] = []
        try:
            # `try_lock` without its call, one for each batch.
            has_lock.extend(filter(None, map(self._lock.acquire, (False,))))
            if not has_lock:
                return None
            now = self._now()
            if now is None:
                return None
            recording, fields, _ = now
            begins = self.source.begin
            wanted = Wanted(ticket.seeds) if begins is None else begins(ticket)
            if wanted is None or not recording.free:
                return None
            front = recording.front
            assert isinstance(front, DeviceFront) and self._sampler is not None
            try:
                if self._sampler.is_by_fields and self._sampler.has_changed:
                    return None  # sampling kernel by kernel places the graph again
                given = front.given(ticket.key, wanted)
            except (KeyError, TypeError, ValueError, PipelineError):
                return None  # raised again kernel by kernel, when it is this batch's turn
            if given is None:
                return None
            user = accelerator.current_stream
            # Allocated for the user's stream, which will read it. The allocator may hand out
            # memory that work before `passed` still uses.
            slab = accelerator.empty((recording.nbytes,), torch.uint8)
            passed = user.record()
            lane = recording.free[0]  # left in `free` until `take`, in case something fails
            recording.tell(lane, slab, fields, *given)
            assert self._lent is not None
            with self._sampler.enqueuing() as topology:
                if topology is not self._lent.topology:
                    self._forget()
                    return None
                reading = self._stream
                # For what the user has written to fields, and for earlier uses of the slab.
                reading.wait_for(passed)
                lanes: list[Lane] = []
                try:
                    recording.take(lanes)
                    begun = reading.record()
                    lane.replay()
                    ready = reading.record()
                    # Cached rows need not be held any longer: once freed, their memory is reused in
                    # the order of this stream.
                    return Begun(ticket, recording, lanes, slab, user, begun, ready, fields)
                except BaseException:
                    # The launch may have stopped anywhere. Its lane is not used again, and the
                    # table of known vertices must be emptied.
                    self._recording = None
                    accelerator.synchronize()
                    topology.first.zero_()
                    raise
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None  # kernel by kernel, memory is freed first
        finally:
            # Nothing is called before this: Ctrl-C may come whenever a call returns.
            if has_lock:
                self._lock.release()
            recorder.spent("sampling", begin)

    def _forget(self) -> None:
        """Drop the recording of a graph that was placed again or closed."""
        self._lent = None
        self._recording = None

    def send(self, sampled: Any, recorder: EpochRecorder) -> Begun | None:
        """Enqueue a batch that the CPU has sampled; None if it must be made kernel by kernel.

        Thread-safe. ``recorder`` counts batches that do not fit.
        """
        if not self.is_possible:
            return None
        found = self.source.arrays(sampled)
        if found is None or len(found.edges) != self._hops:
            if not self._learned:
                # Later batches will not be either, so epochs need not begin with batches to learn
                # from.
                self.is_possible = False
                self.reason = "they have several types, or more than vertices and edges"
            return None
        dtypes = [array.dtype for array in found.arrays]
        with self._lock:
            recording = self._recording
            if recording is None:
                self._dtypes = dtypes
                self.learn(words_of(found.known, found.edges))
                return None
        words = words_of(found.known, found.edges)
        front = recording.front
        if not isinstance(front, SentFront) or front.dtypes != dtypes:
            return None
        if [read.key for read in sampled.reads] != list(recording.keys):
            return None
        if not recording.fits(words):
            with self._lock:
                self._made += 1
                self._overflow(recorder)
            return None
        reached = [self._fields.reach(key) for key in recording.keys]
        known = [field for field, _ in filter(None, reached)]
        if tuple([field.reach.layout for field in known]) != recording.layouts:
            return None
        stream = self._stream
        lanes: list[Lane] = []
        try:
            if not recording.take(lanes):
                return None
            with stream.use():
                # Allocated for this stream, so that it need not wait for the user's.
                slab = self._accelerator.empty((recording.nbytes,), torch.uint8)
                given = front.given(found.arrays, recording.places)
                recording.tell(lanes[0], slab, known, words, given)
                with self._enqueuing:
                    begun = stream.record()
                    lanes[0].replay()
                    ready = stream.record()
                # Cached rows need not be held any longer: see `begin`.
                return Begun(sampled, recording, lanes, slab, stream, begun, ready, known)
        except BaseException as error:
            # The device may still read the lane.
            self._accelerator.synchronize()
            recording.give_back(lanes)
            if not isinstance(error, Exception) or not is_out_of_memory(error):
                raise
            return None  # kernel by kernel, memory is freed first

    def _now(self) -> tuple[Recording, list[FieldReach], object] | None:
        """The recording for the fields' current layouts, made now if needed.

        Returns:
            The recording, how each field is read, and what keeps their cached rows alive (see
            ``FieldSet.reach``). None if batches cannot be recorded now.
        """
        inputs = self.source.inputs
        keys = (*inputs, *self.source.outputs)
        reads = [self._fields.reach(key) for key in keys]
        known = [read for read, _ in filter(None, reads)]
        if len(known) < len(reads):
            self.reason = "a field is not read by kernels alone, or not yet"
            return None
        if self._recording is not None:
            self.reason = ""
        layouts = tuple([read.reach.layout for read in known])
        recording = self._recording
        padded = None if self._sizes is None else self._sizes.known()[0]
        if (
            recording is None
            or recording.keys != keys
            or recording.layouts != layouts
            or recording.padded != padded
        ):
            recording = self._record(keys, len(inputs), layouts, known)
        return None if recording is None else (recording, known, reads)

    def _record(
        self,
        keys: tuple[Hashable, ...],
        inputs: int,
        layouts: tuple[Layout, ...],
        reads: Sequence[FieldReach],
    ) -> Recording | None:
        """Record lanes for these layouts; None if the envelope is not known yet, or recording is
        not possible."""
        if not self.is_possible or self.learns:
            return None
        padded = None
        if self._sizes is not None:
            padded = self._sizes.known()[0]
        front = self._front()
        if front is None:
            return None
        capacities = self._capacities()
        types = [self._type_of(key) for key in keys]
        self.reason = self._obstacle(front, types, reads, inputs, capacities)
        if self.reason:
            return None
        self.reason = self._shortage(capacities)
        if self.reason:
            self._warn()
            return None
        # Freed before the new one is allocated. Batches in flight keep the old one alive.
        self._recording = None
        try:
            with self._recorded_in() as is_open:
                if not is_open:
                    return None
                with torch.inference_mode(False):
                    self._recording = Recording(
                        self._accelerator,
                        front,
                        keys,
                        types,
                        inputs,
                        layouts,
                        capacities,
                        padded,
                        self._lanes,
                    )
        except Exception as error:  # Triton's compiler may raise anything
            # Usually memory is short, or another capture is going on.
            self.is_possible = False
            self.reason = f"they could not be recorded ({error})"
            self._warn()
            return None
        self._fields.batches_bytes = self.batches_bytes
        return self._recording

    def _warn(self) -> None:
        """Warn, once, that batches are made kernel by kernel."""
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"batches on {self._accelerator.device} are made kernel by kernel, which takes more "
            f"Python time: {self.reason}",
            RuntimeWarning,
            stacklevel=3,
        )

    @property
    def batches_bytes(self) -> int:
        """Device memory in bytes of the batches in flight and the one that the reader has.

        An estimate from the sizes seen so far; 0 if there are none, or if batches cannot be
        recorded.
        """
        if not self.is_possible:
            return 0
        if self._recording is not None:
            return (self._lanes + 1) * self._recording.nbytes
        if self._sizes is None and not self._learned:
            return 0
        return (self._lanes + 1) * self._expected_bytes(self._capacities())

    def _expected_bytes(self, capacities: Sequence[int]) -> int:
        """Estimated bytes of a batch with this room, before it is laid out."""
        nodes = [capacities[at] for at in self._plan.known_at[-1]]
        row_bytes = [self._fields.input_row_bytes(name) for name in self._types or (None,)]
        return batch_bytes(nodes, capacities[self._plan.edges_in], row_bytes)

    def _type_of(self, key: Hashable) -> int:
        """The number of a field's vertex type."""
        return self._types.index(self._fields.row_type(key)) if self._types else 0

    def _shortage(self, capacities: Sequence[int]) -> str:
        """Why batches do not fit into the device's free memory; empty if they do."""
        # The reader's batch is allocated already: it was made kernel by kernel.
        needed = self._lanes * self._expected_bytes(capacities)
        free = self._accelerator.free_bytes()[0]
        if needed <= free:
            return ""
        return (
            f"{self._lanes} batches in flight take {bytes_text(needed)}, "
            f"{bytes_text(needed - free)} more than is free: lower prefetch, batch_size or cache"
        )

    @contextmanager
    def _recorded_in(self) -> Iterator[bool]:
        """Use the stream, and keep other threads from enqueuing, in the ``with`` body.

        Yields whether the sampler is open.
        """
        if self._sampler is None:
            with self._enqueuing, self._stream.use():
                yield True
            return
        with self._sampler.enqueuing() as topology:
            try:
                yield topology is not None
            except BaseException:
                # Recording runs the kernels once, and may stop before known vertices are cleared.
                if topology is not None:
                    topology.first.zero_()
                raise

    def _obstacle(
        self,
        front: Front,
        types: Sequence[int],
        reads: Sequence[FieldReach],
        inputs: int,
        capacities: Sequence[int],
    ) -> str:
        """Why batches with these fields and sizes cannot be recorded; empty if they can."""
        found = [capacities[at] for at in self._plan.known_at[-1]]
        for number, read in enumerate(reads):
            layout = read.reach.layout
            if layout.row_bytes == 0 or layout.num_rows == 0:
                return "a field has no rows, or no values"
            if self._sizes is not None and layout.dtype.is_complex:
                return "no kernel pads complex numbers"
            if number < inputs and layout.worth_ordering(found[types[number]] * read.missed):
                return "many rows miss the cache, and are read in the order of memory"
            if not self.samples and read.counted[0] == "device":
                return "a field is on the device, where it may be written meanwhile"
        if self.samples:
            return ""
        counts = lengths(front.parts, capacities)
        sizes = [part.dtype.itemsize for part in front.parts]
        nbytes = sum(count * size for count, size in zip(counts, sizes, strict=True))
        if self._lanes * nbytes > _MOST_PINNED:
            return f"{self._lanes} batches in flight are more than {bytes_text(_MOST_PINNED)}"
        return ""

    def _front(self) -> Front | None:
        """What makes the arrays; None if there is nothing to make them with now."""
        if self._sampler is None:
            if self._dtypes is None:
                return None
            beside = len(self._beside)
            return SentFront(self._dtypes, self._hops, once=self._once, beside=beside)
        if self._lent is not None and self._lent.topology is not self._sampler.topology:
            self._forget()
        self._lent = self._lent or self._sampler.lend()
        if self._lent is None:
            return None
        return DeviceFront(self._sampler, self._lent, self._counts, self._beside)

    def _capacities(self) -> list[int]:
        """The state words of the largest batch that fits."""
        if self._sizes is None:
            return self._envelope()
        padded = self._sizes.known()[0]
        return words_of(padded.node_ends, padded.edges)

    def _envelope(self) -> list[int]:
        """:meth:`_capacities` from learned sizes: the largest of each, and a margin of 4 standard
        deviations, at least 2 %."""
        sizes_at = self._plan.sizes_at
        learned = np.array(self._learned, dtype=np.float64)[:, sizes_at]
        margin = np.maximum(
            _LEAST_MARGIN, _SIGMAS * learned.std(axis=0) / np.maximum(1, learned.mean(axis=0))
        )
        wanted = np.ceil(learned.max(axis=0) * (1 + margin)).astype(np.int64).tolist()
        capacities = [0] * self._plan.words
        bounds = None if self._lent is None else self._lent.bounds(self._counts)
        for at, size in zip(sizes_at, wanted, strict=True):
            capacities[at] = size
            if bounds is not None and bounds[at] <= _NEARLY * size:
                capacities[at] = bounds[at]
        return capacities

    def learn(self, words: Sequence[int]) -> None:
        """Learn the sizes of a batch that was made kernel by kernel, as state words (see ``Plan``).

        Ignored if its number of seeds is not the usual one.
        """
        if self.learns and list(words[self._plan.seeds_in]) == list(self._counts):
            self._learned.append(list(words))

    @property
    def learns(self) -> bool:
        """Whether :meth:`learn` still needs batches."""
        return self.is_possible and self._sizes is None and len(self._learned) < _LEARNED

    def abandon(self, begun: Begun) -> None:
        """Drop a batch that the reader does not want, after the device has written its memory."""
        begun.close()

    def finish(self, begun: Begun, recorder: EpochRecorder) -> tuple[Any, dict[str, int]] | None:
        """The batch, for the calling thread's current stream, and its counts for the statistics.

        None if the batch did not fit, the graph is damaged, or other fields are read now: it must
        be made kernel by kernel.
        """
        try:
            begun.ready.wait()
            begin = time.perf_counter_ns()
            words = begun.lanes[0].out.tolist()
        except BaseException:  # Ctrl-C while it waits; a kept traceback would keep the lane, too
            begun.close()
            raise
        recording = begun.recording
        recording.give_back(begun.lanes)
        recorder.device_time("reading", begun.begun, begun.ready)
        self._made += 1
        if words[DAMAGED]:
            return None
        # `send` has checked what the CPU sampled.
        if self.samples and not recording.fits(words):
            self._overflow(recorder)
            return None
        reader = self._accelerator.current_stream
        if begun.made_for != reader:
            reader.owns(begun.slab)
        arrays, sized, rows = self._arrays(begun, words)
        recorder.spent("building", begin)
        made = arrays, sized, recording.keys, rows
        batch = self.source.made(begun.origin, self._plan, *made, recorder)
        if batch is None:
            return None
        if self._sizes is not None:
            self._sizes.delivered(recording.sampled(words), 0, recorder)
        plan = self._plan
        counts = {"seeds": sum(words[plan.seeds_in]), "edges": sum(words[plan.edges_in])}
        return batch, counts | {"input_nodes": sum(map(words.__getitem__, plan.known_at[-1]))}

    def _overflow(self, recorder: EpochRecorder) -> None:
        recorder.count(overflows=1)
        self._overflowed += 1
        # For fixed shapes, `Envelope.begin` learns larger sizes for the next epoch.
        if self._sizes is None and self._overflowed * _OFTEN > self._made + _OFTEN:
            self._learned.clear()
            self._recording = None
            self._made = self._overflowed = 0
            self.reason = "the sizes of the batches have grown, and are being learned"

    def _arrays(
        self, begun: Begun, words: Sequence[int]
    ) -> tuple[list[Tensor], Sequence[int], list[Tensor]]:
        """The arrays of a batch, its sizes with padding, and the rows of its fields."""
        recording = begun.recording
        sized = recording.padded_words or words
        counts = lengths(recording.front.parts, sized)
        counts += map(sized.__getitem__, recording.count_at)
        views = {dtype: begun.slab.view(dtype) for dtype in recording.dtypes}
        parts = [
            views[place.dtype][place.start : place.start + count * place.width]
            for place, count in zip(recording.places, counts, strict=True)
        ]
        arrays = parts[: len(recording.front.parts)]
        # One launch reads all fields, so each gets an equal share of its time.
        seconds = begun.ready.seconds_since(begun.begun) / max(1, len(begun.fields))
        rows = []
        counted = []
        for number, read in enumerate(begun.fields):
            sampled = recording.ends_of[number](words)
            place = len(arrays) + number
            count = counts[place]
            if read.field.is_current(read.version, read.generation):
                # Not -1 for the number of rows: torch cannot infer it for an empty tensor.
                of_field = parts[place].view(count, *recording.layouts[number].row_shape)
            else:
                nodes = arrays[recording.types[number]][:count]
                of_field = self._read_again(begun, words, number, nodes)
            rows.append(of_field)
            at = recording.hits_at + number * (recording.hops + 1)
            counted.append((read, words[at : at + len(sampled)], sampled))
        self._fields.count_each(counted, seconds)
        return arrays, sized, rows

    def _read_again(self, begun: Begun, words: Sequence[int], number: int, nodes: Tensor) -> Tensor:
        """Rows of a field whose values were replaced after the batch was begun, for the calling
        thread's current stream."""
        recording = begun.recording
        is_input = number < recording.inputs
        ends = recording.ends_of[number](words)
        padding = None
        if recording.padded is not None:
            sizes = recording.sampled(words)
            of_hops = slice(None if is_input else 1)
            room = recording.padded.nodes[of_hops]
            padding = Padding(sizes.nodes[of_hops], room, marks=not is_input)

        def again() -> FieldRows:
            ids = nodes
            if padding is not None:
                # In the stream that will read the ids, so that no event is needed.
                with self._stream.use():
                    ids = torch.cat([nodes[part.placed] for part in padding.parts()])
            return self._fields.read(recording.keys[number], ids, ends, padding)

        return self._fields.with_room(again).arrive()
