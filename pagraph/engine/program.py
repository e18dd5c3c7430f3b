"""DeviceProgram: the whole way of a batch through a device, its neighbours and its rows, in one
recorded launch."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..accelerator import OutOfMemory
from ..features.gpu.reachable import MOST_PARTS, gather_placed, mark_padding
from ..features.padding import Padding
from ..sampling.fixed_shapes import Sizes
from ..sampling.gpu.run import Part, lengths
from ..sampling.gpu.state import DAMAGED, KEY, ROW
from ..seeds.keys import derive_key
from ..system.units import bytes_text

if TYPE_CHECKING:
    from ..accelerator import Accelerator, Event, Stream
    from ..cache.fields import FieldReach, FieldSet
    from ..features.gpu.reachable import Layout
    from ..graph.minibatch import MiniBatch
    from ..graph.subgraph import Subgraph
    from ..sampling.gpu.run import DeviceRun
    from ..sampling.gpu.sampler import DeviceSampler
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder
    from .envelope import Envelope

_LEARNED = 16  # batches, of which the sizes are those of the envelope
_SETTLING = 4  # batches, after which fields that were cached anew are read through the cache
_LEAST_MARGIN = 0.02
_SIGMAS = 4
_NEARLY = 1.25
"""A bound of so many envelopes is taken in its place: then nothing can overflow there."""
_OFTEN = 200  # batches, of which one may overflow on the average
_ALIGN = 256
_ADDRESSES = 6  # of a field


class _Place(NamedTuple):
    """Where an array of a batch lies in the slab.

    Attributes:
        offset: In bytes.
        capacity: Rows that have room.
        dtype: Of its numbers.
        start: The offset in numbers.
        width: Numbers of a row.
    """

    offset: int
    capacity: int
    dtype: torch.dtype
    start: int
    width: int


@dataclass(eq=False)
class _Lane:
    """What a batch on its way has of its own besides its slab: pinned memory in and out.

    Used again once the sizes of its last batch were read, so after its replay has read the one and
    written the other.
    """

    given: Any  # int64, NumPy
    out: Tensor
    replay: Callable[[], object]


@dataclass(eq=False)
class Begun:
    """A batch that the device has been told to make.

    Attributes:
        ticket: Of the batch.
        held: Holds the memory that is read.
    """

    ticket: Ticket
    recording: _Recording
    lane: _Lane
    slab: Tensor
    made_for: Stream
    begun: Event
    ready: Event
    fields: list[FieldReach]
    held: list[object]


class _Recording:
    """Lanes for one layout of the fields and one envelope, or one size that batches are padded to.

    Args:
        accelerator, run: The device, and the buffers of a run on it.
        keys, inputs, layouts: Of all fields; so many of them are read for the input nodes, the
            others for the seeds.
        capacities: Vertices known before each hop and at the end, and edges of each hop, that have
            room.
        padded: The size of all batches; None: they keep their own.
        lanes: How many to make.
        count: Seeds of most batches.
        hops: Their number.
        has_more: Whether a number is sent beside each seed.

    The state, int64 words on the device: sizes and keys as ``state_words`` has them, the hits of
    each field by hop, the address of the slab, the addresses of each field, the seeds, the numbers
    beside them.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        run: DeviceRun,
        keys: tuple[Hashable, ...],
        inputs: int,
        layouts: tuple[Layout, ...],
        capacities: Sequence[int],
        padded: Sizes | None,
        lanes: int,
        count: int,
        hops: int,
        has_more: bool,
    ) -> None:
        self.layouts = layouts
        self.capacities = capacities
        self.padded = padded
        self.keys = keys
        self.inputs = inputs
        self.run = run
        self._count = count
        self.hops = hops
        head = (hops + 1) * ROW
        self.hits_at = head
        self.slab_at = head + len(layouts) * (hops + 1)
        self.addresses_at = self.slab_at + 1
        self.seeds_at = self.addresses_at + _ADDRESSES * len(layouts)
        self.more_at = self.seeds_at + count
        words = self.more_at + (count if has_more else 0)
        self._accelerator = accelerator
        self._state = accelerator.empty((words,), torch.int64)
        # Where the vertices of each hop end in a batch, and how far apart these words are.
        self._ends = self._state
        self._ends_step = ROW
        self._marks = dict[torch.dtype, Tensor]()
        if padded is not None:
            self._ends = self._sent(padded.node_ends, torch.int64)
            self._ends_step = 1
            of_labels = Padding(padded.nodes[:1], padded.nodes[:1], marks=True)
            for layout in layouts[inputs:]:
                value = of_labels.value(layout.dtype)
                self._marks[layout.dtype] = self._sent([value], layout.dtype)
        # A batch of no seeds: the buffers are there after it.
        self._state.zero_()
        self._sample()
        self.parts = run.parts()
        if has_more:
            self.parts.append(Part(self._state[self.more_at :], torch.int64, count_at=0))
        self.padded_words = None if padded is None else _words_of(padded.node_ends, padded.edges)
        self.places = list[_Place]()
        self.nbytes = 0
        self._lay_out(capacities, layouts)
        self.dtypes = {place.dtype for place in self.places}
        slab = accelerator.empty((self.nbytes,), torch.uint8)
        self.free = deque[_Lane]()
        for _ in range(lanes):
            memory = accelerator.host_memory(words * 8).view(torch.int64)
            out = accelerator.host_memory(self.slab_at * 8).view(torch.int64)
            given = memory.numpy()
            given[:] = 0  # no seeds: nothing is read when the work is done now
            given[self.slab_at] = slab.data_ptr()
            replay = accelerator.recorded(partial(self._work, memory, out))
            self.free.append(_Lane(given, out, replay))
        # What is done now to record it may write to it.
        accelerator.current_stream.record().wait()

    def _lay_out(self, capacities: Sequence[int], layouts: Sequence[Layout]) -> None:
        known = capacities[: self.hops + 1]
        words = _words_of(known, capacities[self.hops + 1 :])
        for part, size in zip(self.parts, lengths(self.parts, words), strict=True):
            self._add(size, part.dtype, 1)
        for number, layout in enumerate(layouts):
            rows = known[-1] if number < self.inputs else known[0]
            self._add(rows, layout.dtype, math.prod(layout.row_shape))

    def _sent(self, numbers: Sequence[float], dtype: torch.dtype) -> Tensor:
        return self._accelerator.empty((len(numbers),), dtype).copy_(
            torch.tensor(numbers, dtype=dtype, device="cpu")
        )

    def _add(self, count: int, dtype: torch.dtype, width: int) -> None:
        size = dtype.itemsize
        self.places.append(_Place(self.nbytes, count, dtype, self.nbytes // size, width))
        self.nbytes += -(-count * width * size // _ALIGN) * _ALIGN

    def _sample(self) -> None:
        self.run.begin(self._state, self._count, self.seeds_at)
        for hop in range(self.hops):
            self.run.hop(hop)

    def _work(self, given: Tensor, out: Tensor) -> None:
        state = self._state
        state.copy_(given, non_blocking=True)
        self._sample()
        arrays = len(self.parts)
        places = [place[:2] for place in self.places]
        padded_ids = None
        if self.padded is None:
            self.run.copy_out(self.parts, places[:arrays], self.slab_at)
        else:
            edges = self.padded.edges
            self.run.pad_out(places[:arrays], self.slab_at, self._ends, edges)
            padded_ids = places[0][0], self.places[0].dtype
        for number, layout in enumerate(self.layouts):
            offset, capacity = places[arrays + number]
            is_input = number < self.inputs
            gather_placed(
                self.run.nodes,
                state,
                capacity,
                layout,
                addresses_at=self.addresses_at + _ADDRESSES * number,
                slab_at=self.slab_at,
                offset=offset,
                count_at=self.hops * ROW if is_input else 0,
                hits_at=self.hits_at + number * (self.hops + 1),
                parts=self.hops + 1 if is_input else 1,
                ends=self._ends,
                ends_step=self._ends_step,
                padded_ids=padded_ids,
            )
            if self.padded is not None and not is_input:
                mark = self._marks[layout.dtype]
                placed = {"slab_at": self.slab_at, "offset": offset}
                mark_padding(mark, state, capacity, layout, **placed)
        out.copy_(state[: self.slab_at], non_blocking=True)

    def tell(
        self,
        lane: _Lane,
        key: int,
        seeds: Tensor,
        more: Tensor | None,
        slab: Tensor,
        fields: Sequence[FieldReach],
    ) -> None:
        """Write down what a replay is to read."""
        given = lane.given
        count = len(seeds)
        given[0] = count
        for hop in range(self.hops):
            of_hop = derive_key(key, hop)
            given[hop * ROW + KEY] = of_hop - (of_hop >> 63 << 64)  # the same bits, signed
        given[self.slab_at] = slab.data_ptr()
        addresses = [number for read in fields for number in read.reach.addresses]
        given[self.addresses_at : self.seeds_at] = addresses
        given[self.seeds_at : self.seeds_at + count] = seeds.numpy()
        if more is not None:
            given[self.more_at : self.more_at + count] = more.numpy()

    def fits(self, words: Sequence[int]) -> bool:
        """Whether a batch has room, by its sizes."""
        if self.padded is not None:
            return self.padded.has_room_for(self.sampled(words))
        end = self.hops * ROW
        sizes = [*words[: end + 1 : ROW], *words[1:end:ROW]]
        return all(size <= most for size, most in zip(sizes, self.capacities, strict=True))

    def sampled(self, words: Sequence[int]) -> Sizes:
        """The sizes of a batch, hop by hop."""
        end = self.hops * ROW
        return Sizes.of(words[: end + 1 : ROW], words[1:end:ROW])


def _words_of(known: Sequence[int], edges: Sequence[int]) -> list[int]:
    """Words of a batch's state that say its sizes: vertices known before each hop and at the end,
    edges of each hop."""
    words = [0] * (len(known) * ROW)
    words[::ROW] = known
    words[1 : len(edges) * ROW : ROW] = edges
    return words


class ProgramSource(Protocol):
    """A ``BatchSource`` whose batches a device may make in one recorded launch.

    Attributes:
        inputs, outputs: Keys of the fields that are read now, for the input nodes and for the
            seeds.
    """

    @property
    def inputs(self) -> Sequence[Hashable]:
        """See above."""

    @property
    def outputs(self) -> Sequence[Hashable]:
        """See above."""

    @property
    def begin(self) -> Callable[[Ticket], tuple[Tensor, Tensor | None] | None] | None:
        """The vertices that a batch begins with, and numbers that it is to have on the device, as
        many, int64; both on the CPU. None for one that is made the long way.

        Itself None: the ticket's seeds, and no numbers.
        """

    def sample(self, drawn: Any, recorder: EpochRecorder) -> Any:
        """See ``BatchSource``: how the long way begins."""

    def made(
        self,
        ticket: Ticket,
        sampled: MiniBatch | Subgraph,
        beside: Tensor | None,
        rows: Sequence[tuple[Hashable, Tensor]],
        recorder: EpochRecorder,
    ) -> Any:
        """The finished batch, of what the device has made; None: other fields are read for it
        now.

        Args:
            ticket: As ``begin`` got it.
            sampled: What was sampled.
            beside: The numbers of ``begin``, on the device.
            rows: The keys of the fields when it was begun, and their rows.
            recorder: Of the epoch.
        """

    def sizes(self, batch: Any) -> tuple[Sequence[int], Sequence[int]]:
        """Vertices known before each hop and at the end, and edges of each hop, of what ``deliver``
        gets."""


class DeviceProgram:
    """Makes the batches of epochs by one recorded launch each, where their rows are read by kernels
    alone.

    A batch is sampled in buffers that all batches share and copied to memory of its own, fresh from
    torch's allocator, in which its rows are written too: nothing is ever written under the hands of
    who keeps a tensor of it. That memory is as large as an *envelope*, learned from the first
    batches; a batch that does not fit is made the long way, with the same bits. Batches of fixed
    shapes have room for the first of their loader's sizes, and are padded in the same launch.

    One thread at a time: a reader that finds another one at work makes its batch the long way.

    Args:
        sampler: Samples on the device; lends the buffers.
        fields: Reads rows the long way, and knows how they lie.
        count: Seeds of most batches.
        ahead: Batches that are begun before they are asked for.
        sizes: The sizes that batches are padded to; None: they keep their own.
        has_more: Whether the source has numbers beside the seeds.

    Attributes:
        source: Says what batches begin with, and makes them of what the device has; set before an
            epoch begins.
        is_possible: Whether batches may be made so, now or when more is known.
        reason: Why batches are made the long way now; empty while they are not.
    """

    source: ProgramSource

    def __init__(
        self,
        sampler: DeviceSampler,
        fields: FieldSet,
        count: int,
        ahead: int,
        sizes: Envelope | None = None,
        *,
        has_more: bool = False,
    ) -> None:
        assert fields.accelerator is not None
        self._accelerator = fields.accelerator
        self._sampler = sampler
        self._fields = fields
        self._has_more = has_more
        self._count = count
        self._lanes = ahead + 1
        self._sizes = sizes
        self._lock = threading.Lock()
        self._run: DeviceRun | None = None  # lent when there is something to record
        self._recording: _Recording | None = None
        self._learned: list[list[int]] = []
        self._made = 0
        self._overflowed = 0
        self.is_possible = False
        self.reason = "the sizes of the first batches are being learned"
        if sampler.hops + 1 > MOST_PARTS:
            self.reason = f"a recorded kernel counts the hits of {MOST_PARTS - 1} hops at most"
        elif not sampler.is_recorded:
            self.reason = "sampling is not recorded"
        else:
            self.is_possible = True

    def __str__(self) -> str:
        recording = self._recording
        if recording is None or self.reason:
            return f"batches are made kernel by kernel: {self.reason}"
        return f"batches are one launch, each in {bytes_text(recording.nbytes)} of its own"

    @property
    def first_long_way(self) -> int:
        """Batches to make the long way before :meth:`is_ready` is worth asking."""
        return max(_SETTLING, 0 if self._sizes else _LEARNED - len(self._learned))

    def is_ready(self) -> bool:
        """Whether batches can be made now; records their way if they can. In the reader's thread
        alone: while a device records, others must not draw random numbers on it."""
        with self._lock:
            return self._now() is not None

    def close(self) -> None:
        """Give the device's memory back; every batch is made the long way now."""
        with self._lock:
            self.is_possible = False
            self._run = None
            self._recording = None
            self.reason = "the loader is closed"

    def begin(self, ticket: Ticket, recorder: EpochRecorder) -> Begun | None:
        """Tell the device to make a batch, without a wait; None: it must be made the long way."""
        if not self.is_possible or not self._lock.acquire(blocking=False):
            return None
        begin = time.perf_counter_ns()
        accelerator = self._accelerator
        try:
            now = self._now()
            if now is None:
                return None
            recording, fields = now
            begins = self.source.begin
            wanted = (ticket.seeds, None) if begins is None else begins(ticket)
            if wanted is None or not recording.free:
                return None
            seeds, more = wanted
            if not 0 < len(seeds) <= self._count:
                return None
            user = accelerator.current_stream
            # In the reader's stream, by whose order it is used again: after this one has passed.
            slab = accelerator.empty((recording.nbytes,), torch.uint8)
            passed = user.record()
            lane = recording.free.popleft()
            recording.tell(lane, ticket.key, seeds, more, slab, fields)
            with self._sampler.enqueuing() as topology:
                if topology is None:
                    return None
                reading = self._sampler.stream
                # After what the user has written to fields, and what the memory was used for.
                reading.wait_for(passed)
                try:
                    begun = reading.record()
                    lane.replay()
                    ready = reading.record()
                except BaseException:
                    # Nobody knows how far the device is: the lane is not used again, and no vertex
                    # stays known.
                    self._recording = None
                    accelerator.synchronize()
                    topology.first.zero_()
                    raise
            held = [read.held for read in fields]
            return Begun(ticket, recording, lane, slab, user, begun, ready, fields, held)
        except OutOfMemory:  # the long way makes room
            return None
        finally:
            self._lock.release()
            recorder.spent("sampling", begin)

    def _now(self) -> tuple[_Recording, list[FieldReach]] | None:
        """What is recorded for the fields as they are now, and how each is read."""
        inputs = self.source.inputs
        keys = (*inputs, *self.source.outputs)
        reads = [self._fields.reach(key) for key in keys]
        known = [read for read in reads if read is not None]
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
        return None if recording is None else (recording, known)

    def _record(
        self,
        keys: tuple[Hashable, ...],
        inputs: int,
        layouts: tuple[Layout, ...],
        reads: Sequence[FieldReach],
    ) -> _Recording | None:
        """Lanes for the layouts of now, once the envelope is known."""
        if not self.is_possible or (self._sizes is None and len(self._learned) < _LEARNED):
            return None
        run = self._run = self._run or self._sampler.lend()
        if run is None:
            return None
        padded = None
        if self._sizes is None:
            capacities = self._envelope(run)
        else:
            padded = self._sizes.known()[0]
            capacities = [*padded.node_ends, *padded.edges]
        most = capacities[self._sampler.hops]
        for read in reads[:inputs]:
            if read.reach.layout.worth_ordering(most * read.missed):
                self.reason = "so many rows are missed that they are read in the order of memory"
                return None
        for layout in layouts:
            if layout.row_bytes == 0 or layout.num_rows == 0:
                self.reason = "a field has no bytes"
                return None
            if padded is not None and layout.dtype.is_complex:
                self.reason = "no kernel pads complex numbers"
                return None
        # Lanes that are still on their way keep the old one.
        self._recording = None
        with self._sampler.enqueuing() as topology:
            if topology is None:
                return None
            try:
                with torch.inference_mode(False):
                    self._recording = _Recording(
                        self._accelerator,
                        run,
                        keys,
                        inputs,
                        layouts,
                        capacities,
                        padded,
                        self._lanes,
                        self._count,
                        self._sampler.hops,
                        self._has_more,
                    )
            except Exception as error:  # whatever a compiler may say
                # Memory is short, say, or another capture is in the way.
                topology.first.zero_()
                self.is_possible = False
                self.reason = f"they could not be recorded ({error})"
                warnings.warn(
                    f"batches on {self._accelerator.device} are made kernel by kernel, which takes "
                    f"more of the interpreter's time: {self.reason}",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return None
        self.reason = ""
        return self._recording

    def _envelope(self, run: DeviceRun) -> list[int]:
        """Vertices known before each hop and at the end, and edges of each hop, that have room."""
        learned = np.array(self._learned, dtype=np.float64)
        margin = np.maximum(
            _LEAST_MARGIN, _SIGMAS * learned.std(axis=0) / np.maximum(1, learned.mean(axis=0))
        )
        wanted = np.ceil(learned.max(axis=0) * (1 + margin)).astype(np.int64).tolist()
        bounds = run.bounds(self._count)
        return [
            bound if bound <= _NEARLY * size else size
            for size, bound in zip(wanted, bounds, strict=True)
        ]

    def learn(self, known: Sequence[int], edges: Sequence[int]) -> None:
        """Take account of the sizes of a batch that was made the long way: vertices known before
        each hop and at the end, edges of each hop."""
        if self.learns and known[0] == self._count:
            self._learned.append([*known, *edges])

    @property
    def learns(self) -> bool:
        """Whether :meth:`learn` would take account of anything."""
        return self.is_possible and self._sizes is None and len(self._learned) < _LEARNED

    def abandon(self, begun: Begun) -> None:
        """A batch that nobody wants: its memory is not given back before the device has written
        it."""
        begun.ready.wait()
        begun.recording.free.append(begun.lane)

    def finish(self, begun: Begun, recorder: EpochRecorder) -> tuple[Any, dict[str, int]] | None:
        """The batch, for the stream of the calling thread, and what it counts in statistics; None:
        it did not fit, and must be made the long way."""
        begun.ready.wait()
        begin = time.perf_counter_ns()
        recording = begun.recording
        words = begun.lane.out.tolist()
        recording.free.append(begun.lane)
        recorder.device_time("reading", begun.begun, begun.ready)
        self._made += 1
        if words[DAMAGED]:
            return None
        if not recording.fits(words):
            self._overflow(recorder)
            return None
        reader = self._accelerator.current_stream
        if begun.made_for != reader:
            reader.owns(begun.slab)
        arrays, rows, known, edges = self._arrays(begun, words)
        sampled = recording.run.assembled(arrays, known, edges)
        more = arrays[-1] if self._has_more else None
        recorder.spent("building", begin)
        batch = self.source.made(begun.ticket, sampled, more, rows, recorder)
        if batch is None:
            return None
        if self._sizes is not None:
            self._sizes.delivered(recording.sampled(words), 0, recorder)
        end = recording.hops * ROW
        drawn = sum(words[1:end:ROW])
        return batch, {"seeds": words[0], "edges": drawn, "input_nodes": words[end]}

    def _overflow(self, recorder: EpochRecorder) -> None:
        recorder.count(overflows=1)
        self._overflowed += 1
        # Who pads learns other sizes by himself, for another epoch.
        if self._sizes is None and self._overflowed * _OFTEN > self._made + _OFTEN:
            # The envelope does not hold any more.
            self._learned.clear()
            self._recording = None
            self._made = self._overflowed = 0
            self.reason = "the sizes of the batches have grown, and are being learned"

    def _arrays(
        self, begun: Begun, words: Sequence[int]
    ) -> tuple[list[Tensor], list[tuple[Hashable, Tensor]], list[int], list[int]]:
        """The arrays of a batch, its rows by key, and its sizes with padding: vertices known before each
        hop and at the end, edges of each hop."""
        recording = begun.recording
        end = recording.hops * ROW
        sized = recording.padded_words or words
        known = list(sized[: end + 1 : ROW])
        counts = lengths(recording.parts, sized)
        for number in range(len(begun.fields)):
            counts.append(known[-1] if number < recording.inputs else known[0])
        views = {dtype: begun.slab.view(dtype) for dtype in recording.dtypes}
        parts = [
            views[place.dtype][place.start : place.start + count * place.width]
            for place, count in zip(recording.places, counts, strict=True)
        ]
        arrays = parts[: len(recording.parts)]
        # Of a batch without fields nobody asks.
        seconds = begun.ready.seconds_since(begun.begun) / max(1, len(begun.fields))
        rows = []
        for number, (key, read) in enumerate(zip(recording.keys, begun.fields, strict=True)):
            is_input = number < recording.inputs
            sampled = words[: end + 1 : ROW] if is_input else words[:1]
            place = len(arrays) + number
            if read.field.is_current(read.version, read.generation):
                # The number of rows is said: of none, or of rows of no numbers, it does not follow.
                count = known[-1] if is_input else known[0]
                of_field = parts[place].view(count, *recording.layouts[number].row_shape)
            else:
                of_field = self._read_again(begun, words, number, arrays[0][: counts[place]])
            rows.append((key, of_field))
            at = recording.hits_at + number * (recording.hops + 1)
            self._fields.count(read, words[at : at + len(sampled)], sampled, seconds)
        return arrays, rows, known, list(sized[1:end:ROW])

    def _read_again(self, begun: Begun, words: Sequence[int], number: int, nodes: Tensor) -> Tensor:
        """Rows of a field that has other values since the batch was begun, for the stream of the
        calling thread."""
        recording = begun.recording
        is_input = number < recording.inputs
        sizes = recording.sampled(words)
        of_hops = slice(None if is_input else 1)
        ends = words[: recording.hops * ROW + 1 : ROW][of_hops]
        padding = None
        if recording.padded is not None:
            room = recording.padded.nodes[of_hops]
            padding = Padding(sizes.nodes[of_hops], room, marks=not is_input)
            nodes = torch.cat([nodes[part.first : part.middle] for part in padding.parts()])
        again = partial(self._fields.read, recording.keys[number], nodes, ends, padding)
        return self._fields.with_room(again).arrive()
