"""Engine: what runs behind every loader, and what a face gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch

from ..accelerator import Accelerator, Event, accelerator_for
from ..cache.fields import FieldSet
from ..ranking.policies import ranks_all
from ..stats.stats import EpochRecorder, LoaderStats
from ..system.buffers import BufferPools
from ..system.threads import run_worker_init
from .epochs import Epochs, PipelineOptions, Steps

if TYPE_CHECKING:
    from ..ranking.policy import Policy
    from ..ranking.workload import Workload
    from ..seeds.order import Ticket
    from ..stats.reads import CacheStats
    from ..system.budget import Budget

__all__ = ["BatchSource", "Engine"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class BatchSource(Protocol[T_co]):
    """Makes the batches of one kind of loader; must not refer to the loader, which its threads would keep alive."""

    @property
    def draw(self) -> Callable[[Ticket, EpochRecorder], Any] | None:
        """Does what must be done for one ticket at a time, in order; None: nothing, ``prepare`` takes the ticket."""

    @property
    def is_pure(self) -> bool:
        """Whether preparing calls nothing that a user has written, so that the reader's thread may do it, too."""

    def prepare(self, drawn: Any, recorder: EpochRecorder) -> Any:
        """Sample and read ahead; a pure function, called by any thread."""

    def deliver(self, prepared: Any, recorder: EpochRecorder) -> T_co:
        """The finished batch; called by the reader, in order."""


class Engine(Generic[T]):
    """Reads fields, runs epochs, keeps statistics, makes room on a device, and closes all of it; one for each loader.

    It refers to what the loader was made of, never to the loader: a cycle would keep the cache in memory until the
    garbage collector runs.

    Args:
        workload: What the loader samples and reads.
        policy: Ranks what is cached.
        budget: What the cache may take; None: no cache.
        options: Threads and depth.
        device: Where batches are delivered. None: where what they are made of is, on the CPU.
        accelerator: What they are delivered on. Default: that of ``device``, where it has one.
        cache_dtype: See ``FieldSet``.
        transfer: See ``FieldSet``.

    Attributes:
        fields: The fields that batches have; a face adds theirs.
        pools: Recycled memory for batches.
        stats: What the loader did and how long it took.
        epochs: Runs the batches.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        policy: Policy,
        budget: Budget | None,
        options: PipelineOptions,
        device: torch.device | None,
        accelerator: Accelerator | None = None,
        cache_dtype: torch.dtype | None = None,
        transfer: str = "auto",
    ) -> None:
        self.accelerator = accelerator or (None if device is None else accelerator_for(device))
        self.pools = BufferPools(options.max_batches)
        self.fields = FieldSet(
            {},
            device=device or torch.device("cpu"),
            budget=budget,
            rank=partial(workload.rank, policy),
            pool_of=self.pools,
            num_nodes=workload.num_rows,
            outputs=workload.seed_reads,
            ranks_all=ranks_all(policy),
            first_epoch=workload.first_epoch(policy),
            share=workload.share(policy),
            cache_dtype=cache_dtype,
            accelerator=self.accelerator,
            transfer=transfer,
        )
        self.stats = LoaderStats(partial(_counters, self.fields), self.accelerator)
        self.epochs: Epochs[T] = Epochs(workload.order, options=options, stats=self.stats)
        self.fields.observe(self.epochs.tracing)

    def use(
        self, source: BatchSource[T], *, options: PipelineOptions | None = None, worker_init_fn: Any = None
    ) -> None:
        """Make the batches of the epochs that begin from now on by ``source``.

        Args:
            source: Makes them.
            options: Threads and depth. Default: as before.
            worker_init_fn: Called with the worker's number in each thread.
        """
        fields, accelerator = self.fields, self.accelerator
        self.epochs.options = options or self.epochs.options
        self.epochs.steps = Steps(
            source.prepare,
            source.deliver,
            draw=source.draw,
            is_pure=source.is_pure,
            on_start=None if worker_init_fn is None else partial(run_worker_init, worker_init_fn),
            before_first_batch=fields.prepare,
            after_first_step=fields.after_first_step,
            mark=None if accelerator is None else partial(_mark, accelerator),
            settle=None if accelerator is None else fields.settle,
            shrink=None if accelerator is None else fields.shrink,
        )

    def start(self, source: BatchSource[T], **settings: Any) -> Iterator[T]:
        """Begin an epoch; takes what :meth:`use` takes."""
        self.use(source, **settings)
        return iter(self.epochs)

    def close(self) -> None:
        """End the newest pass, and unpin host memory."""
        self.epochs.close()
        self.fields.close()


def _mark(accelerator: Accelerator) -> Event:
    return accelerator.current_stream.record()


def _counters(fields: FieldSet) -> CacheStats:
    return fields.counters
