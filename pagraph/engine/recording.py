"""Recording: a batch's way through a device, from its arrays to its rows, as one recorded launch."""

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

_ALIGN = 256  # bytes, of every array in a slab
_ADDRESSES = 6  # words of a field


class Place(NamedTuple):
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
class Lane:
    """What a batch on its way has of its own besides its slab: pinned memory in and out.

    Used again once the sizes of its last batch were read, so after its replay has read the one and
    written the other.

    Attributes:
        given: What the replay reads, int64, NumPy.
        out: What it writes.
        replay: Enqueues it.
    """

    given: Any
    out: Tensor
    replay: Callable[[], object]


class Wanted(NamedTuple):
    """What a batch begins with where the device samples; all on the CPU.

    Attributes:
        seeds: Its seeds, by vertex type where there are several.
        beside: Arrays with a number for each seed that it is to have there.
        times: The seeds' times; None: their own, or there are none.
    """

    seeds: Tensor | Mapping[str, Tensor]
    beside: Sequence[Tensor] = ()
    times: Mapping[str, Tensor] | None = None


class Front(Protocol):
    """How the arrays of a batch come to be on the device.

    Attributes:
        parts: The arrays.
        plan: Says which words of the state are sizes.
    """

    parts: Sequence[Part]
    plan: Plan

    def words(self, places: Sequence[Place], nbytes: int) -> int:
        """Words that it needs in the state, for arrays in a slab with so many bytes of them."""

    def arrays(self, state: Tensor, begin: int, places: Sequence[Place]) -> list[Tensor]:
        """Enqueue the work; where the arrays are after it. Its words are in the state from
        ``begin`` on."""


class Drawn(Front):
    """The device samples. The state has the seeds of each type, the limits of their trees, and
    arrays beside the seeds, each number in a word of its own.

    Args:
        sampler: Says what a batch's seeds are, and the limits of its trees.
        run: Samples.
        counts: Seeds of each type that have room.
        beside: Dtypes, of 4 or 8 bytes, of arrays with a number for each seed.
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
        # Those of one type, as no array beside them says which seeds it is of.
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
        """The first words of a batch's state, its number of seeds and the keys of its hops; and
        what follows the addresses: in bytes, where, and the array. None: there is no room for such
        a batch. Raises what ``DeviceSampler.sample`` does."""
        seeds, beside, times = wanted
        if isinstance(seeds, Tensor) and not self.plan.trees:
            each, limits = [seeds], None
        else:
            each, limits = self._sampler.entered(seeds, times)
        counts = list(map(len, each))
        if not any(counts) or any(map(gt, counts, self._counts)):
            return None
        given = []
        # In words, each array behind the room of that before it.
        at = 0
        for ids, room in zip(each, self._counts, strict=True):
            given.append((at * 8, ids.numpy().astype(np.int64, copy=False)))
            at += room
        if limits is not None:
            for row in limits.numpy():
                given.append((at * 8, row))
                at += self._count
        for array, dtype in zip(beside, self._beside, strict=True):
            if array.dtype != dtype:
                return None
            bits = array.numpy().view(f"i{dtype.itemsize}")
            given.append((at * 8, bits.astype(np.int64, copy=False)))
            at += self._count
        return first_words(self.plan, counts, key), given


class Given(Front):
    """The CPU has sampled. The arrays are in the state, as they are to lie in the slab.

    Args:
        dtypes: Of the arrays.
        hops: Their number.
        once: Whether batches are subgraphs, else blocks.
        beside: So many arrays, the last ones, have a number for each seed.
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
        return [
            memory[place.offset : place.offset + place.capacity * place.dtype.itemsize].view(
                place.dtype
            )
            for place in places
        ]

    def given(self, arrays: Sequence[Tensor], places: Sequence[Place]) -> list[tuple[int, Any]]:
        """What follows the addresses: in bytes, where, and the array."""
        return [(place.offset, array.numpy()) for array, place in zip(arrays, places, strict=False)]


def sent_plan(hops: int) -> Plan:
    """Where the sizes of batches of one type are, which the CPU has sampled."""
    return Plan([[0]] * hops, replace=False)


def _getter(places: Sequence[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """Gets the words at these places, at least one, in one call of C."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1))


class Recording:
    """Lanes for one layout of the fields and one envelope, or one size that batches are padded to.

    Args:
        accelerator: The device.
        front: Makes the arrays.
        keys, types, inputs, layouts: Of all fields; so many of them are read for the input nodes of
            their vertex types, the others for the seeds.
        capacities: The words of a state with the largest sizes that have room.
        padded: The size of all batches, of one type; None: they keep their own.
        lanes: How many to make.

    Attributes:
        ends_of: For each field, gets of a state's words where the vertices of each hop end that it
            is read for.
        count_at: For each field, the word with their number.
        places: Of the arrays, and then of the rows of each field.
        nbytes: Of the slab.
        free: Lanes that no batch uses.
        pid: Of the process that has the device.

    The state, int64 words on the device: sizes and keys as ``state_words`` has them, the hits of
    each field by hop, the address of the slab, the addresses of each field, what the front needs.
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
        for number, kind in enumerate(types):
            ends = [known[kind] for known in plan.known_at[: None if number < inputs else 1]]
            self.count_at.append(ends[-1])
            self.ends_of.append(_getter(ends))
        head = plan.words
        self.hits_at = head
        self.slab_at = head + len(layouts) * (hops + 1)
        self.addresses_at = self.slab_at + 1
        # A whole line, so that arrays there may be read 16 bytes at a time.
        end = self.addresses_at + _ADDRESSES * len(layouts)
        self.begin = -(-end * 8 // _ALIGN) * _ALIGN // 8
        self.places = list[Place]()
        self.nbytes = 0
        nbytes = self._lay_out(capacities, layouts)
        words = self.begin + front.words(self.places, nbytes)
        self._accelerator = accelerator
        self._state = accelerator.empty((words,), torch.int64)
        # Where the vertices of each hop end in a batch, and how far apart these words are.
        self._ends = self._state
        self._ends_step = ROW
        self._ends_at: Tensor | None = None
        self._marks = dict[torch.dtype, Tensor]()
        if plan.is_typed:
            # Those of each type are no row of words: they are copied, one type after the other.
            by_type = [at for of_type in zip(*plan.known_at, strict=True) for at in of_type]
            self._ends_at = self._sent(by_type, torch.int64)
            self._ends = accelerator.empty((len(by_type),), torch.int64)
            self._ends_step = 1
        if padded is not None:
            self._ends = self._sent(padded.node_ends, torch.int64)
            self._ends_step = 1
            of_labels = Padding(padded.nodes[:1], padded.nodes[:1], marks=True)
            for layout in layouts[inputs:]:
                value = of_labels.value(layout.dtype)
                self._marks[layout.dtype] = self._sent([value], layout.dtype)
        # A batch of no seeds: the buffers are there after it.
        self._state.zero_()
        front.arrays(self._state, self.begin, self.places[: len(front.parts)])
        self.dtypes = {place.dtype for place in self.places}
        slab = accelerator.empty((self.nbytes,), torch.uint8)
        self.free = deque[Lane]()
        for _ in range(lanes):
            memory = accelerator.host_memory(words * 8).view(torch.int64)
            out = accelerator.host_memory(self.slab_at * 8).view(torch.int64)
            given = memory.numpy()
            given[:] = 0  # no seeds: nothing is read when the work is done now
            given[self.slab_at] = slab.data_ptr()
            replay = accelerator.recorded(partial(self._work, memory, out))
            self.free.append(Lane(given, out, replay))
        # What is done now to record it may write to it.
        accelerator.current_stream.record().wait()

    def _lay_out(self, capacities: Sequence[int], layouts: Sequence[Layout]) -> int:
        """Find a place for everything; the bytes of the arrays, which come first."""
        parts = self.front.parts
        for part, size in zip(parts, lengths(parts, capacities), strict=True):
            self._add(size, part.dtype, 1)
        nbytes = self.nbytes
        for layout, count_at in zip(layouts, self.count_at, strict=True):
            self._add(capacities[count_at], layout.dtype, math.prod(layout.row_shape))
        return nbytes

    def _sent(self, numbers: Sequence[float], dtype: torch.dtype) -> Tensor:
        return self._accelerator.empty((len(numbers),), dtype).copy_(
            torch.tensor(numbers, dtype=dtype, device="cpu")
        )

    def _add(self, count: int, dtype: torch.dtype, width: int) -> None:
        size = dtype.itemsize
        self.places.append(Place(self.nbytes, count, dtype, self.nbytes // size, width))
        self.nbytes += -(-count * width * size // _ALIGN) * _ALIGN

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
                parts=self.hops + 1 if is_input else 1,
                ends=self._ends[kind * (self.hops + 1) :],
                ends_step=self._ends_step,
                padded_ids=padded_ids,
            )
            if self.padded is not None and not is_input:
                mark = self._marks[layout.dtype]
                mark_padding(mark, state, capacity, layout, slab_at=self.slab_at, offset=offset)
        out.copy_(state[: self.slab_at], non_blocking=True)

    # A lane moves in one call of C, before or after which Ctrl-C comes: it is never lost, nor in
    # two places.

    def take(self, lanes: list[Lane]) -> bool:
        """Put a free lane into the list; whether there was one. Safe from any thread."""
        try:
            lanes.extend(map(deque.popleft, (self.free,)))
        except IndexError:
            return False
        return True

    def give_back(self, lanes: list[Lane]) -> None:
        """Free the lane in the list, if there is one."""
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
        """Write down what a replay is to read: the first words of the state, and what follows the
        addresses."""
        words = lane.given
        words[: len(head)] = head
        words[self.slab_at] = slab.data_ptr()
        addresses = [number for read in fields for number in read.reach.addresses]
        words[self.addresses_at : self.addresses_at + len(addresses)] = addresses
        memory = words[self.begin :].view(np.uint8)
        for offset, array in given:
            memory[offset : offset + array.nbytes].view(array.dtype)[:] = array

    def fits(self, words: Sequence[int]) -> bool:
        """Whether a batch has room, by its sizes."""
        if self.padded is not None:
            return self.padded.has_room_for(self.sampled(words))
        return not any(map(gt, self._sizes_of(words), self._room))

    def sampled(self, words: Sequence[int]) -> Sizes:
        """The sizes of a batch of one type, hop by hop."""
        end = self.hops * ROW
        return Sizes.of(words[: end + 1 : ROW], words[1:end:ROW])
