"""Recording: one recorded launch that makes a batch on a device, from its arrays to its rows."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import gt, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..features.gpu.reachable import gather_placed, mark_padding
from ..features.padding import Padding
from ..sampling.fixed_shapes import Sizes
from ..sampling.gpu.run import copy_out, pad_out
from ..sampling.gpu.state import ROW, Part, Plan, first_words, lengths, parts_of, words_of

if TYPE_CHECKING:
    from ..accelerator import Accelerator
    from ..cache.fields import FieldReach
    from ..features.gpu.reachable import Layout
    from ..sampling.gpu.run import DeviceRun
    from ..sampling.gpu.sampler import DeviceSampler

_ALIGN = 256  # alignment of each array in a slab, in bytes
_ADDRESSES = 6  # state words per field, see Reach.addresses


class Place(NamedTuple):
    """Where an array of a batch lies in the slab.

    Attributes:
        offset: Offset in bytes.
        capacity: Maximum number of rows.
        dtype: Dtype of the array.
        start: Offset in elements.
        width: Elements per row.
    """

    offset: int
    capacity: int
    dtype: torch.dtype
    start: int
    width: int


@dataclass(eq=False)
class Lane:
    """Pinned input and output memory of one batch in flight, and its recorded launch.

    Reused once the sizes of its last batch were read: by then the launch has read its input and
    written its output.

    Attributes:
        given: Input, a NumPy array of int64 in pinned memory.
        out: Output, int64.
        replay: Enqueues the launch.
    """

    given: Any
    out: Tensor
    replay: Callable[[], object]


class Wanted(NamedTuple):
    """What a batch that the device samples begins with; all on the CPU.

    Attributes:
        seeds: Its seeds; a mapping from vertex type if there are several types.
        beside: Arrays with one number per seed to copy to the device.
        times: The seeds' times. None: those of the vertices, if sampling uses times.
    """

    seeds: Tensor | Mapping[str, Tensor]
    beside: Sequence[Tensor] = ()
    times: Mapping[str, Tensor] | None = None


class Front(Protocol):
    """Makes the arrays of a batch on the device.

    Attributes:
        parts: The arrays.
        plan: Defines which state words are sizes.
    """

    parts: Sequence[Part]
    plan: Plan

    def words(self, places: Sequence[Place], nbytes: int) -> int:
        """Number of state words it needs, where the arrays take ``nbytes`` of a slab."""

    def arrays(self, state: Tensor, begin: int, places: Sequence[Place]) -> list[Tensor]:
        """Enqueue the work, and return the arrays that it writes.

        Args:
            state: The batch's state, int64, on the device.
            begin: Its first state word.
            places: Places of the arrays in the slab.
        """


class DeviceFront(Front):
    """Samples on the device.

    Its state words are the seeds of each type, the limits of their trees, and the arrays with one
    number per seed. Each number takes one word.

    Args:
        sampler: Makes a batch's seeds and the limits of its trees into words.
        run: Samples.
        counts: Maximum number of seeds of each type.
        beside: Dtypes, of 4 or 8 bytes, of the arrays with one number per seed.
    """

    def __init__(
        self,
        sampler: DeviceSampler,
        run: DeviceRun,
        counts: Sequence[int],
        beside: Sequence[torch.dtype],
    ) -> None:
        self._sampler = sampler
        self._run = run
        self._counts = counts
        self._count = sum(counts)
        self._beside = list(beside)
        self.plan = run.plan
        self.parts = run.parts()
        # Seeds are of one type if they have such arrays, since these name no type.
        seeded = max(range(len(counts)), key=counts.__getitem__)
        self.parts += [Part(dtype, seeded * ROW) for dtype in beside]

    def words(self, places: Sequence[Place], nbytes: int) -> int:
        """See ``Front``."""
        return self._count * (1 + self.plan.limits + len(self._beside))

    def arrays(self, state: Tensor, begin: int, places: Sequence[Place]) -> list[Tensor]:
        """See ``Front``."""
        self._run.begin(state, self._counts, begin)
        for hop in range(len(self.plan.hops)):
            self._run.hop(hop)
        arrays = self._run.buffers()
        first = begin + self._count * (1 + self.plan.limits)
        return arrays + [state[first + self._count * i :] for i in range(len(self._beside))]

    def given(self, key: int, wanted: Wanted) -> tuple[list[int], list[tuple[int, Any]]] | None:
        """The input of a batch, for :meth:`Recording.tell`; raises as ``DeviceSampler.sample``.

        Returns:
            The first state words (numbers of seeds and keys of hops), and the arrays that follow
            the addresses, each with its offset in bytes. None if the batch does not fit.
        """
        limits = None
        if isinstance(wanted.seeds, Tensor) and not self.plan.trees:
            each = [wanted.seeds]
        else:
            each, limits = self._sampler.entered(wanted.seeds, wanted.times)
        counts = list(map(len, each))
        if not any(counts) or any(map(gt, counts, self._counts)):
            return None
        given = []
        at = 0  # in words; each array has room for the maximum number of seeds
        for ids, room in zip(each, self._counts, strict=True):
            given.append((at * 8, ids.numpy().astype(np.int64, copy=False)))
            at += room
        if limits is not None:
            for row in limits.numpy():
                given.append((at * 8, row))
                at += self._count
        for array, dtype in zip(wanted.beside, self._beside, strict=True):
            if array.dtype != dtype:
                return None
            bits = array.numpy().view(f"i{dtype.itemsize}")
            given.append((at * 8, bits.astype(np.int64, copy=False)))
            at += self._count
        return first_words(self.plan, counts, key), given


class SentFront(Front):
    """Takes arrays that the CPU has sampled.

    Its state words are the arrays themselves, at the offsets that they have in the slab.

    Args:
        dtypes: Dtypes of the arrays.
        hops: Number of hops.
        once: Whether batches are subgraphs, else blocks.
        beside: Number of arrays, the last ones, with one number per seed.
    """

    def __init__(self, dtypes: list[torch.dtype], hops: int, *, once: bool, beside: int) -> None:
        self.dtypes = dtypes
        sampled = len(dtypes) - beside
        self.plan = sent_plan(hops)
        self.parts = parts_of(dtypes[:sampled], hops, once=once)
        self.parts += [Part(dtype, count_at=0) for dtype in dtypes[sampled:]]

    def words(self, places: Sequence[Place], nbytes: int) -> int:
        """See ``Front``."""
        return nbytes // 8

    def arrays(self, state: Tensor, begin: int, places: Sequence[Place]) -> list[Tensor]:
        """See ``Front``."""
        memory = state[begin:].view(torch.uint8)
        arrays = []
        for place in places:
            end = place.offset + place.capacity * place.dtype.itemsize
            arrays.append(memory[place.offset : end].view(place.dtype))
        return arrays

    def given(self, arrays: Sequence[Tensor], places: Sequence[Place]) -> list[tuple[int, Any]]:
        """The arrays that follow the addresses, each with its offset in bytes."""
        return [(place.offset, array.numpy()) for array, place in zip(arrays, places, strict=False)]


def sent_plan(hops: int) -> Plan:
    """The plan of batches of one type that the CPU samples; only its sizes are used."""
    return Plan([[0]] * hops, replace=False)


def _aligned(nbytes: int) -> int:
    """The bytes up to the next place where an array may begin."""
    return -(-nbytes // _ALIGN) * _ALIGN


def _getter(places: Sequence[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """Returns a function that gets the words at one or more places, in one C call."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1))


class Recording:
    """Recorded launches for one set of field layouts, and for batches of at most one envelope, or
    padded to one size.

    All lanes share one state, int64 words on the device::

        sizes and keys | hits by field and hop | address | addresses     | words of
        (state_words)  |                       | of slab | of each field | the front
        0               hits_at                 slab_at   addresses_at    begin

    Args:
        accelerator: The device.
        front: Makes the arrays.
        keys: Keys of the fields.
        types: The number of each field's vertex type.
        inputs: How many fields, the first ones, are read for input nodes; the others are read for
            seeds.
        layouts: Layouts of the fields.
        capacities: The state words of the largest batch that fits.
        padded: The size of all batches, for graphs of one type; None: no padding.
        lanes: Number of lanes.

    Attributes:
        ends_of: For each field, a function from state words to the ends of each hop's vertices.
        count_at: For each field, the state word with the number of its vertices.
        places: Places of the arrays, then of each field's rows.
        nbytes: Bytes of a slab.
        free: Lanes that no batch uses.
        pid: The process that owns the device.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        front: Front,
        keys: tuple[Hashable, ...],
        types: Sequence[int],
        inputs: int,
        layouts: tuple[Layout, ...],
        capacities: Sequence[int],
        padded: Sizes | None,
        lanes: int,
    ) -> None:
        plan = front.plan
        hops = len(plan.hops)
        self._accelerator = accelerator
        self.front = front
        self.keys = keys
        self.types = types
        self.inputs = inputs
        self.layouts = layouts
        self.padded = padded
        self.hops = hops
        self.pid = os.getpid()
        self.padded_words = None if padded is None else words_of(padded.node_ends, padded.edges)
        self._sizes_of = _getter(plan.sizes_at)
        self._room = self._sizes_of(capacities)
        self.ends_of = list[Callable[[Sequence[int]], Sequence[int]]]()
        self.count_at = list[int]()
        self._find_ends(plan)
        head = plan.words
        self.hits_at = head
        self.slab_at = head + len(layouts) * (hops + 1)
        self.addresses_at = self.slab_at + 1
        # Aligned, so that the front's arrays may be read 16 bytes at a time.
        end = self.addresses_at + _ADDRESSES * len(layouts)
        self.begin = _aligned(end * 8) // 8
        self.places = list[Place]()
        self.nbytes = 0
        nbytes = self._lay_out(capacities, layouts)
        words = self.begin + front.words(self.places, nbytes)
        self._state = accelerator.empty((words,), torch.int64)
        # The ends of each hop's vertices, every `_ends_step` words.
        self._ends = self._state
        self._ends_step = ROW
        self._ends_at: Tensor | None = None
        self._marks = dict[torch.dtype, Tensor]()
        if plan.is_typed:
            self._space_ends(plan)
        if padded is not None:
            self._fix_ends(padded)
        # A batch without seeds, to allocate the buffers before recording.
        self._state.zero_()
        front.arrays(self._state, self.begin, self.places[: len(front.parts)])
        self.dtypes = {place.dtype for place in self.places}
        slab = accelerator.empty((self.nbytes,), torch.uint8)
        self.free = deque(self._recorded(words, slab) for _ in range(lanes))
        # Recording may have written to `slab`, which is freed when this returns.
        accelerator.current_stream.record().wait()

    def _find_ends(self, plan: Plan) -> None:
        """Find each field's state words with the ends of its vertices."""
        for number, kind in enumerate(self.types):
            # Labels are read for the seeds, which are known first.
            known_at = plan.known_at if number < self.inputs else plan.known_at[:1]
            ends = [known[kind] for known in known_at]
            self.count_at.append(ends[-1])
            self.ends_of.append(_getter(ends))

    def _space_ends(self, plan: Plan) -> None:
        """Have each launch copy the ends, type after type: words of one type are not evenly
        spaced."""
        by_type = [at for of_type in zip(*plan.known_at, strict=True) for at in of_type]
        self._ends_at = self._sent(by_type, torch.int64)
        self._ends = self._accelerator.empty((len(by_type),), torch.int64)
        self._ends_step = 1

    def _fix_ends(self, padded: Sizes) -> None:
        """Take the ends of padded batches, which are always the same, and marks for their
        labels."""
        self._ends = self._sent(padded.node_ends, torch.int64)
        self._ends_step = 1
        of_labels = Padding(padded.nodes[:1], padded.nodes[:1], marks=True)
        for layout in self.layouts[self.inputs :]:
            mark = of_labels.value(layout.dtype)
            self._marks[layout.dtype] = self._sent([mark], layout.dtype)

    def _recorded(self, words: int, slab: Tensor) -> Lane:
        """A lane with its launch, recorded with a batch without seeds in ``slab``."""
        memory = self._accelerator.host_memory(words * 8).view(torch.int64)
        out = self._accelerator.host_memory(self.slab_at * 8).view(torch.int64)
        given = memory.numpy()
        given[:] = 0  # no seeds: recording may run the work once, which must read no rows
        given[self.slab_at] = slab.data_ptr()
        return Lane(given, out, self._accelerator.recorded(partial(self._work, memory, out)))

    def _lay_out(self, capacities: Sequence[int], layouts: Sequence[Layout]) -> int:
        """Lay out the slab; returns the bytes of the arrays, which come before the rows."""
        parts = self.front.parts
        for part, size in zip(parts, lengths(parts, capacities), strict=True):
            self._add(size, part.dtype, 1)
        nbytes = self.nbytes
        for layout, count_at in zip(layouts, self.count_at, strict=True):
            self._add(capacities[count_at], layout.dtype, math.prod(layout.row_shape))
        return nbytes

    def _sent(self, numbers: Sequence[float], dtype: torch.dtype) -> Tensor:
        values = torch.tensor(numbers, dtype=dtype, device="cpu")
        return self._accelerator.empty((len(numbers),), dtype).copy_(values)

    def _add(self, count: int, dtype: torch.dtype, width: int) -> None:
        size = dtype.itemsize
        self.places.append(Place(self.nbytes, count, dtype, self.nbytes // size, width))
        self.nbytes += _aligned(count * width * size)

    def _work(self, given: Tensor, out: Tensor) -> None:
        state = self._state
        state.copy_(given, non_blocking=True)
        parts = self.front.parts
        arrays = self.front.arrays(state, self.begin, self.places[: len(parts)])
        if self._ends_at is not None:
            torch.index_select(state, 0, self._ends_at, out=self._ends)
        places = [place[:2] for place in self.places]
        padded_ids = None
        placed = parts, arrays, state, places[: len(parts)], self.slab_at
        if self.padded is None:
            copy_out(*placed)
        else:
            pad_out(*placed, self._ends, self.padded.edges)
            padded_ids = places[0][0], self.places[0].dtype
        for number, layout in enumerate(self.layouts):
            offset, capacity = places[len(parts) + number]
            is_input = number < self.inputs
            parts_of_ids = self.hops + 1 if is_input else 1
            kind = self.types[number]
            gather_placed(
                arrays[kind],
                state,
                capacity,
                layout,
                addresses_at=self.addresses_at + _ADDRESSES * number,
                slab_at=self.slab_at,
                offset=offset,
                count_at=self.count_at[number],
                hits_at=self.hits_at + number * (self.hops + 1),
                parts=parts_of_ids,
                ends=self._ends[kind * (self.hops + 1) :],
                ends_step=self._ends_step,
                padded_ids=padded_ids,
            )
            if self.padded is not None and not is_input:
                mark = self._marks[layout.dtype]
                mark_padding(mark, state, capacity, layout, slab_at=self.slab_at, offset=offset)
        out.copy_(state[: self.slab_at], non_blocking=True)

    # Lanes move in one C call, which Ctrl-C cannot interrupt: none is lost, or is in two places.

    def take(self, lanes: list[Lane]) -> bool:
        """Move a free lane into the list; returns whether there was one. Thread-safe."""
        try:
            lanes.extend(map(deque.popleft, (self.free,)))
        except IndexError:
            return False
        return True

    def give_back(self, lanes: list[Lane]) -> None:
        """Move the lane in the list, if any, back to the free ones."""
        if lanes:
            self.free.extend(map(list.pop, (lanes,)))

    def tell(
        self,
        lane: Lane,
        slab: Tensor,
        fields: Sequence[FieldReach],
        head: Sequence[int],
        given: Sequence[tuple[int, Any]],
    ) -> None:
        """Write the input of a lane's next replay.

        Args:
            lane: The lane.
            slab: Memory for the batch, with ``nbytes`` bytes.
            fields: How each field is read.
            head: The first state words.
            given: The front's arrays with their offsets in bytes.
        """
        words = lane.given
        words[: len(head)] = head
        words[self.slab_at] = slab.data_ptr()
        addresses = [number for read in fields for number in read.reach.addresses]
        words[self.addresses_at : self.addresses_at + len(addresses)] = addresses
        memory = words[self.begin :].view(np.uint8)
        for offset, array in given:
            memory[offset : offset + array.nbytes].view(array.dtype)[:] = array

    def fits(self, words: Sequence[int]) -> bool:
        """Whether a batch with these state words fits."""
        if self.padded is not None:
            return self.padded.has_room_for(self.sampled(words))
        return not any(map(gt, self._sizes_of(words), self._room))

    def sampled(self, words: Sequence[int]) -> Sizes:
        """The sizes of a batch of one type, hop by hop, from its state words."""
        end = self.hops * ROW
        return Sizes.of(words[: end + 1 : ROW], words[1:end:ROW])
