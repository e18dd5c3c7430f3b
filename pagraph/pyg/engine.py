"""The engine behind PyG's loaders: fields, epochs, and the source of their batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..accelerator import Accelerator, Handover, accelerator_for, with_room
from ..buffers import BufferPools
from ..cache.budget import Budget
from ..cache.policies import ranks_all
from ..cache.policy import Policy
from ..cache.stats import CacheStats
from ..features.fields import FieldSet
from ..pipeline import Epochs, LoaderStats, PipelineOptions, Steps
from ..pipeline.locks import lock_of
from ..pipeline.worker_init import run_worker_init
from .joining import Joiner, Reading
from .sampler import NeighborSampler
from .sending import Sender

if TYPE_CHECKING:
    from ..pipeline.stats import EpochRecorder
    from ..sampling.seeds import BatchOrder, Ticket
    from .workload import Workload

__all__ = ["Engine"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A sampled batch.

    Attributes:
        output: What the sampler returned.
        hop_ends: Vertex type to where the vertices of each hop end; empty for a user's own sampler.
        seeds: How many there were.
        reading: What was read for it ahead; None if that could not be done.
        batch: Joined of that; None if it is to be joined when it is needed.
        sent: What of the batch was made on the accelerator; None: nothing.
    """

    output: Any
    hop_ends: Mapping[str, list[int]]
    seeds: int
    reading: Reading | None = None
    batch: Any = None
    sent: Handover | None = None


class Engine:
    """Made once for a loader. It refers to what the loader was made of, never to the loader.

    Args:
        view: What PyG's ``filter_fn`` wants to know of a loader, with its present ``data``, transforms and
            ``input_data``, and its sampler: ours, or any ``BaseSampler``.
        filter_fn: PyG's.
        order: The batches.
        workload: What a cache policy is told.
        budget: What the cache may take.
        policy: Ranks the vertices.
        device: Where batches are delivered; None: where their sources are.
        options: Threads and depth.
        cache_dtype: See ``FieldSet``.
        pin_memory: Deliver batches in page-locked memory, where there is a CUDA device.
        accelerator: What batches are delivered on. Default: that of ``device``, where it has one.
    """

    def __init__(
        self,
        view: Any,
        filter_fn: Any,
        order: BatchOrder,
        *,
        workload: Workload,
        budget: Budget | None,
        policy: Policy,
        device: torch.device | None,
        options: PipelineOptions,
        cache_dtype: torch.dtype | None = None,
        pin_memory: bool = False,
        accelerator: Accelerator | None = None,
    ) -> None:
        if accelerator is None and device is not None:
            accelerator = accelerator_for(device)
        self._sender = None if accelerator is None else Sender(accelerator)
        self._view, self._device, self._options = view, device, options
        self._pins = pin_memory and device is None and torch.cuda.is_available()
        self._pools = BufferPools(options.max_batches)
        self.fields = FieldSet(
            {},
            device=torch.device("cpu") if device is None else device,
            budget=budget,
            rank=partial(workload.rank, policy),
            pool_of=self._pools,
            num_nodes=workload.num_nodes,
            ranks_all=ranks_all(policy),
            first_epoch=workload.first_epoch(policy),
            share=workload.share(policy),
            cache_dtype=cache_dtype,
            accelerator=accelerator,
        )
        self._joiner = Joiner(view, self.fields, filter_fn)
        self._joiner.declare()
        self.stats = LoaderStats(partial(_counters, self.fields), accelerator)
        self.epochs: Epochs[Any] = Epochs(order, self._steps(None), options=options, stats=self.stats)
        self.fields.observe(self.epochs.tracing.read)

    def start(self, worker_init_fn: Any, options: PipelineOptions) -> Iterator[Any]:
        """Begin an epoch."""
        self._options = options
        self.epochs.steps, self.epochs.options = self._steps(worker_init_fn), options
        return iter(self.epochs)

    def close(self) -> None:
        """End the newest pass, and unpin host memory."""
        self.epochs.close()
        self.fields.close()

    def _steps(self, worker_init_fn: Any) -> Steps[Any]:
        sampler, accelerator = self._view.sampler, self.fields.accelerator
        lock = nullcontext() if isinstance(sampler, NeighborSampler) else lock_of(sampler)
        # What the user wrote stays in the reader's thread unless workers are asked for.
        calls_stores_ahead = self._options.workers > 0
        source = _Source(
            self._view,
            sampler,
            lock,
            self._joiner,
            self._pools,
            self._device,
            self._pins,
            calls_stores_ahead,
            self._sender,
            accelerator,
            self.fields.shrink,
        )
        return Steps(
            source.prepare,
            source.deliver,
            draw=None if source.is_ours else source.draw,
            on_start=None if worker_init_fn is None else partial(run_worker_init, worker_init_fn),
            before_first_batch=self.fields.prepare,
            after_first_step=self.fields.after_first_step,
            mark=None if accelerator is None else lambda: accelerator.current_stream.record(),
            settle=None if accelerator is None else self.fields.settle,
            shrink=None if accelerator is None else self.fields.shrink,
        )


def _counters(fields: FieldSet) -> CacheStats:
    return fields.counters


@dataclass(frozen=True, eq=False)
class _Source:
    """Makes the batches."""

    view: Any
    sampler: Any
    lock: AbstractContextManager[object]
    joiner: Joiner
    pools: BufferPools
    device: torch.device | None
    pins: bool
    calls_stores_ahead: bool
    sender: Sender | None
    accelerator: Accelerator | None
    shrink: Callable[[], bool]

    @property
    def is_ours(self) -> bool:
        """Whether the sampler is a function of a key, for any number of threads."""
        return isinstance(self.sampler, NeighborSampler)

    def draw(self, ticket: Ticket, recorder: EpochRecorder) -> tuple[Any, int]:
        """What a user's own sampler returns; one call at a time, in order."""
        inputs = self.view.input_data[ticket.seeds]
        with self.lock, recorder.time("sampling"):
            return self.view.sample(inputs), len(ticket.seeds)

    def prepare(self, drawn: Any, recorder: EpochRecorder) -> _Prepared:
        """Sample, then read and, unless a transform of the sampler's output comes first, join."""
        if self.is_ours:
            inputs = self.view.input_data[drawn.seeds]
            with recorder.time("sampling"):
                output, hop_ends = self.view.sample_ahead(inputs, drawn.key, self.pools)
            sampled = _Prepared(output, hop_ends, len(drawn.seeds))
        else:
            sampled = _Prepared(drawn[0], {}, drawn[1])
        if self.joiner.is_remote:
            return self._read_ahead(sampled, recorder) if self.calls_stores_ahead else sampled
        try:
            return self._read_ahead(sampled, recorder)
        except (MemoryError, torch.cuda.OutOfMemoryError):
            raise
        except Exception:  # an attribute may be on its way; if it is not, the same is raised when the batch is needed
            return sampled

    def _read_ahead(self, sampled: _Prepared, recorder: EpochRecorder) -> _Prepared:
        with recorder.time("fetching"):
            return self._with_room(partial(self._read_and_join, sampled))

    def _read_and_join(self, sampled: _Prepared) -> _Prepared:
        reading, batch, sent = self.joiner.read(sampled.output, sampled.hop_ends), None, None
        if self.view.transform_sampler_output is None and reading.is_settled:
            batch = self._join(sampled.output, reading)
            if self.sender is not None:
                sent = self.sender.send(batch, [known.rows.tensor for known in reading.rows.values()])
        return replace(sampled, reading=reading, batch=batch, sent=sent)

    def _with_room(self, work: Callable[[], T]) -> T:
        return with_room(work, self.accelerator, self.shrink)

    def _join(self, output: Any, reading: Reading) -> Any:
        batch = self.joiner.join(output, reading)
        return batch.apply(_pinned) if self.pins else batch

    def deliver(self, prepared: _Prepared, recorder: EpochRecorder) -> Any:
        """The batch with the data's attributes as they are now, where it is wanted, transformed."""
        output, batch, reading, sent = prepared.output, prepared.batch, prepared.reading, prepared.sent
        with recorder.time("building"):
            transform = self.view.transform_sampler_output
            if batch is None or transform is not None or reading is None or not self.joiner.is_current(reading):
                if transform is not None:
                    output = transform(output)
                read = partial(self.joiner.read, output, prepared.hop_ends, reading)
                reading, sent = self._with_room(read), None
                batch = self._join(output, reading)
            for rows in reading.arrive():
                recorder.device_time("reading", rows.begun, rows.ready)
            if sent is not None:
                sent.arrive()
                recorder.device_time("copying", sent.begun, sent.ready)
            if self.device is not None:
                move = partial(batch.to, self.device, non_blocking=self.device.type != "cpu")
                batch = self._with_room(move)
        recorder.delivered(seeds=prepared.seeds, edges=_total(output.row), input_nodes=_total(output.node))
        return batch if self.view.transform is None else self.view.transform(batch)


def _pinned(tensor: Any) -> Any:
    return tensor.pin_memory() if tensor.device.type == "cpu" and tensor.layout == torch.strided else tensor


def _total(tensors: Any) -> int:
    """Length of a tensor, or of all in a mapping."""
    return sum(map(len, tensors.values())) if isinstance(tensors, Mapping) else len(tensors)
