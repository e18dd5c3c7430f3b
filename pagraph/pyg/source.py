"""SubgraphSource: makes the batches of PyG's loaders."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..accelerator import Accelerator, Handover, StagingRing
from ..system.threads import lock_of
from .joining import Joiner, Reading

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder

__all__ = ["Sender", "SubgraphSource"]


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A sampled batch.

    Attributes:
        output: The sampler's output.
        hop_ends: Vertex type to where the vertices of each hop end; empty for a user's own sampler.
        seeds: Number of seeds.
        reading: Attributes read ahead; None if that could not be done.
        batch: Joined of that; None if it is to be joined when it is needed.
        sent: Tensors of the batch made on the accelerator, if any.
    """

    output: Any
    hop_ends: Mapping[str, list[int]]
    seeds: int
    reading: Reading | None = None
    batch: Any = None
    sent: Handover | None = None


class Sender:
    """Copies batches to an accelerator through page-locked memory, ahead of the reader. Safe from any thread."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._ring = StagingRing(accelerator)

    def send(self, batch: Any, there: Collection[Tensor]) -> Handover:
        """Replace a batch's plain tensors in host memory, but for those in ``there``, by copies on the accelerator.

        Other tensors (sparse ones, PyG's ``EdgeIndex``) are left to ``batch.to(device)``.

        Returns:
            All that this thread has made on the accelerator, PyG's own selections too; to arrive before it is used.
        """
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
        made = self._accelerator.current_stream.record()
        stream = self._accelerator.stream("copying")
        with stream.use():
            stream.wait_for(made)  # so that one event is enough for both
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
    """Samples subgraphs, by our sampler or a user's own, and joins them with the attributes of the data.

    Args:
        view: The loader's present ``data``, transforms, inputs and sampler: ours, or any ``BaseSampler``.
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
        self._view, self._joiner, self._device, self._pins = view, joiner, device, pins
        self._fields, self._pools = engine.fields, engine.pools
        self._calls_stores_ahead, self._sender = calls_stores_ahead, sender
        # Ours is a function of a key, for any number of threads.
        self._is_ours = view.is_ours
        self._lock: AbstractContextManager[object] = nullcontext() if self._is_ours else lock_of(view.sampler)

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

    def sample(self, drawn: Any, recorder: EpochRecorder) -> _Prepared:
        """Sample, unless a user's own sampler has."""
        if not self._is_ours:
            return _Prepared(drawn[0], {}, drawn[1])
        inputs, begin = self._view.inputs(drawn.seeds), time.perf_counter_ns()
        try:
            output, hop_ends = self._view.sample_ahead(inputs, drawn.key, self._pools)
        finally:
            recorder.spent("sampling", begin)
        return _Prepared(output, hop_ends, len(drawn.seeds))

    def reads(self, sampled: _Prepared) -> Iterator[tuple[Hashable, Tensor]]:
        """The attributes of the vertices."""
        return self._joiner.reads(sampled.output)

    def fetch(self, sampled: _Prepared, recorder: EpochRecorder) -> _Prepared:
        """Read and, unless a transform of the sampler's output comes first, join."""
        if self._joiner.is_remote:
            return self._read_ahead(sampled, recorder) if self._calls_stores_ahead else sampled
        try:
            return self._read_ahead(sampled, recorder)
        except (MemoryError, torch.cuda.OutOfMemoryError):
            raise
        except Exception:  # an attribute may be on its way; if it is not, the same is raised when the batch is needed
            return sampled

    def _read_ahead(self, sampled: _Prepared, recorder: EpochRecorder) -> _Prepared:
        begin = time.perf_counter_ns()
        try:
            return self._fields.with_room(partial(self._read_and_join, sampled))
        finally:
            recorder.spent("fetching", begin)

    def _read_and_join(self, sampled: _Prepared) -> _Prepared:
        reading, batch, sent = self._joiner.read(sampled.output, sampled.hop_ends), None, None
        if self._view.transform_sampler_output is None and reading.is_settled:
            batch = self._join(sampled.output, reading)
            if self._sender is not None:
                sent = self._sender.send(batch, [known.rows.tensor for known in reading.rows.values()])
        return _Prepared(sampled.output, sampled.hop_ends, sampled.seeds, reading, batch, sent)

    def _join(self, output: Any, reading: Reading) -> Any:
        batch = self._joiner.join(output, reading)
        return batch.apply(_pinned) if self._pins else batch

    def deliver(self, prepared: _Prepared, recorder: EpochRecorder) -> Any:
        """The batch with the data's attributes as they are now, where it is wanted, transformed."""
        output, batch, reading, sent = prepared.output, prepared.batch, prepared.reading, prepared.sent
        with recorder.time("building"):
            transform = self._view.transform_sampler_output
            if batch is None or transform is not None or reading is None or not self._joiner.is_current(reading):
                if transform is not None:
                    output = transform(output)
                read = partial(self._joiner.read, output, prepared.hop_ends, reading)
                reading, sent = self._fields.with_room(read), None
                batch = self._join(output, reading)
            for rows in reading.arrive():
                recorder.device_time("reading", rows.begun, rows.ready)
            if sent is not None:
                sent.arrive()
                recorder.device_time("copying", sent.begun, sent.ready)
            if self._device is not None:
                move = partial(batch.to, self._device, non_blocking=self._device.type != "cpu")
                batch = self._fields.with_room(move)
        recorder.delivered(seeds=prepared.seeds, edges=_total(output.row), input_nodes=_total(output.node))
        return batch if self._view.transform is None else self._view.transform(batch)


def _pinned(tensor: Any) -> Any:
    return tensor.pin_memory() if tensor.device.type == "cpu" and tensor.layout == torch.strided else tensor


def _total(tensors: Any) -> int:
    """Length of a tensor, or of all in a mapping."""
    return sum(map(len, tensors.values())) if isinstance(tensors, Mapping) else len(tensors)
