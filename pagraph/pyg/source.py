"""SubgraphSource: makes the batches of PyG's loaders."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..accelerator import Accelerator, Handover, OutOfMemory, StagingRing
from ..engine.steps import Sampled
from ..system.threads import lock_of
from .joining import Joiner, Reading

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..features.field import FieldRows
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder


class _Prepared(NamedTuple):
    """A sampled batch.

    Attributes:
        output: The sampler's output.
        hop_ends: Vertex type to where the vertices of each hop end; empty for a user's own sampler.
        seeds: Number of seeds.
        reading: What is read of the data for it; None if that could not be found out.
        batch: Joined ahead; None if it is to be joined when it is needed.
        rows: What it was joined of.
        sent: Tensors of the batch made on the accelerator, if any.
    """

    output: Any
    hop_ends: Mapping[str, list[int]]
    seeds: int
    reading: Reading | None = None
    batch: Any = None
    rows: Sequence[Tensor] = ()
    sent: Handover | None = None


class Sender:
    """Copies batches to an accelerator through page-locked memory, ahead of the reader. Safe from
    any thread."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._ring = StagingRing(accelerator)

    def send(self, batch: Any, there: Collection[Tensor]) -> Handover:
        """Replace a batch's plain tensors in host memory, but for those in ``there``, by copies on
        the accelerator.

        Other tensors (sparse ones, PyG's ``EdgeIndex``) are left to ``batch.to(device)``.

        Returns:
            All that this thread has made on the accelerator, PyG's own selections too; to arrive
            before it is used.
        """
        # Rows that fields have put on the device arrive by events of their own.
        skipped = {id(tensor) for tensor in there}
        waiting: dict[int, Tensor] = {}
        others: list[Tensor] = []

        def note(tensor: Any) -> Any:
            if id(tensor) not in skipped and _is_plain(tensor):
                waiting[id(tensor)] = tensor
            elif type(tensor) is Tensor and tensor.layout == torch.strided:
                others.append(tensor)
            return tensor

        batch.apply(note)
        # PyG may have selected attributes that lie on the device, on this thread's stream.
        made = self._accelerator.current_stream.record()
        stream = self._accelerator.stream("copying")
        with stream.use():
            stream.wait_for(made)  # So that one event is enough for both.
            begun = stream.record()
            copies = self._ring.upload(tensor.contiguous() for tensor in waiting.values())
            ready = stream.record()
        sent = dict(zip(waiting, copies, strict=True))
        batch.apply(lambda tensor: sent.get(id(tensor), tensor))
        return Handover([*copies, *others], self._accelerator, ready, begun)


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
    )


class SubgraphSource:
    """Samples subgraphs, by our sampler or a user's own, and joins them with the attributes of the
    data.

    Args:
        view: The loader's present ``data``, transforms, inputs and sampler: ours, or any
            ``BaseSampler``.
        joiner: Joins the attributes.
        engine: Recycles memory, makes room.
        device: Device of the batches; None: that of their sources.
        pins: Deliver batches in page-locked memory.
        calls_stores_ahead: Read from a user's own stores in the threads that prepare batches.
        sender: Sends batches ahead; None: nothing is sent.
    """

    def __init__(
        self,
        view: Any,
        joiner: Joiner,
        engine: Engine[Any],
        device: torch.device | None,
        *,
        pins: bool,
        calls_stores_ahead: bool,
        sender: Sender | None,
    ) -> None:
        self._view = view
        self._joiner = joiner
        self._device = device
        self._pins = pins
        self._fields = engine.fields
        self._pools = engine.pools
        self._calls_stores_ahead = calls_stores_ahead
        self._sender = sender
        # Ours is a function of a key, for any number of threads; a user's own sampler is called by
        # one thread at a time over all loaders that share it.
        self._is_ours = view.is_ours
        self._lock: AbstractContextManager[object] = (
            nullcontext() if self._is_ours else lock_of(view.sampler)
        )

    looks_ahead = True
    rereads = True

    @property
    def is_pure(self) -> bool:
        """See ``BatchSource``: stores are a user's own."""
        return self._is_ours and not self._joiner.is_remote

    @property
    def draw(self) -> Callable[[Ticket, EpochRecorder], Any] | None:
        """A user's own sampler draws one batch at a time, in order."""
        return None if self._is_ours else self._draw

    def _draw(self, ticket: Ticket, recorder: EpochRecorder) -> tuple[Any, int]:
        inputs = self._view.inputs(ticket.seeds)
        with self._lock, recorder.time("sampling"):
            return self._view.sample(inputs), len(ticket.seeds)

    def sample(self, drawn: Any, recorder: EpochRecorder) -> Sampled:
        """Sample, unless a user's own sampler has, and find out what to read."""
        if self._is_ours:
            inputs = self._view.inputs(drawn.seeds)
            begin = time.perf_counter_ns()
            try:
                output, hop_ends = self._view.sample_ahead(inputs, drawn.key, self._pools)
            finally:
                recorder.spent("sampling", begin)
            num_seeds = len(drawn.seeds)
        else:
            output, num_seeds = drawn
            hop_ends = {}
        try:
            reading = self._joiner.plan(output, hop_ends)
        except MemoryError:
            raise
        except Exception:
            # An attribute may be about to be set. If it is not, `deliver` raises the same.
            return Sampled(_Prepared(output, hop_ends, num_seeds))
        return Sampled(_Prepared(output, hop_ends, num_seeds, reading), reading.reads)

    def build(self, prepared: _Prepared, rows: Sequence[FieldRows | None]) -> _Prepared:
        """Join the batch ahead, unless a transform of the sampler's output comes first."""
        reading = prepared.reading
        if reading is None or self._view.transform_sampler_output is not None:
            return prepared
        if reading.levels is None and not self._calls_stores_ahead:
            return prepared
        # Where a change of the values could not be told (some require gradients), the reader joins.
        if None in rows or None in reading.versions.values():
            return prepared
        tensors = [known.tensor for known in rows if known is not None]
        try:
            batch = self._join(prepared.output, reading, tensors)
            sent = None if self._sender is None else self._sender.send(batch, tensors)
        except (MemoryError, OutOfMemory):
            raise
        except Exception:
            if reading.levels is None:  # A user's stores are asked once, whatever they raise.
                raise
            return prepared  # As in `sample`.
        output, hop_ends, num_seeds, *_ = prepared
        return _Prepared(output, hop_ends, num_seeds, reading, batch, tensors, sent)

    def _join(self, output: Any, reading: Reading, rows: Sequence[Tensor]) -> Any:
        batch = self._joiner.join(output, reading, rows)
        return batch.apply(_pinned) if self._pins else batch

    def deliver(
        self, prepared: _Prepared, rows: Sequence[Tensor] | None, recorder: EpochRecorder
    ) -> Any:
        """The batch with the data's attributes as they are now, where it is wanted, transformed."""
        begin = time.perf_counter_ns()
        output = prepared.output
        try:
            transform = self._view.transform_sampler_output
            if transform is not None:
                output = transform(output)
            if transform is None and self._is_current(prepared, rows):
                batch = prepared.batch
                if prepared.sent is not None:
                    prepared.sent.arrive()
                    recorder.device_time("copying", prepared.sent.begun, prepared.sent.ready)
            else:
                batch = self._fields.with_room(partial(self._joined_now, output, prepared, rows))
            if self._device is not None:
                move = partial(batch.to, self._device, non_blocking=self._device.type != "cpu")
                batch = self._fields.with_room(move)
        finally:
            recorder.spent("building", begin)
        recorder.delivered(
            seeds=prepared.seeds, edges=_total(output.row), input_nodes=_total(output.node)
        )
        return batch if self._view.transform is None else self._view.transform(batch)

    def _is_current(self, prepared: _Prepared, rows: Sequence[Tensor] | None) -> bool:
        """Whether the batch was joined, and of what the data holds now."""
        if prepared.batch is None or prepared.reading is None or rows is None:
            return False
        for now, then in zip(rows, prepared.rows, strict=True):
            if now is not then:
                return False
        return self._joiner.is_current(prepared.reading)

    def _joined_now(self, output: Any, prepared: _Prepared, rows: Sequence[Tensor] | None) -> Any:
        """The batch of what the data holds now; rows that are still right are not read again."""
        reading = self._joiner.plan(output, prepared.hop_ends)
        known = {}
        if rows is not None and prepared.reading is not None:
            known = self._joiner.still_right(prepared.reading, rows, reading)
        places = [place for place in range(len(reading.reads)) if place not in known]
        missing = [reading.reads[place] for place in places]
        found = self._fields.current_each(missing, [None] * len(missing))
        for place, rows_now in zip(places, found, strict=True):
            known[place] = rows_now.arrive()
        return self._join(output, reading, [known[place] for place in range(len(reading.reads))])


def _pinned(tensor: Any) -> Any:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:  # Torch pins no others.
        return tensor
    return tensor.pin_memory()


def _total(tensors: Any) -> int:
    """Length of a tensor, or of all in a mapping."""
    if isinstance(tensors, Mapping):
        return sum(len(tensor) for tensor in tensors.values())
    return len(tensors)
