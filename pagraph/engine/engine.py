"""Engine: runs the epochs of every loader; LoaderControls: the API shared by all loaders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import is_not
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from ..accelerator import Accelerator, OutOfMemory, accelerator_for
from ..cache.fields import FieldSet
from ..cache.memory_plan import MemoryPlan
from ..cache.plan import CachePlans
from ..options.pipeline import PipelineOptions
from ..ranking.policies import ranks_all
from ..seeds.keys import derive_key
from ..seeds.order import Ticket, warn_of_no_batches
from ..stats.stats import EpochRecorder, LoaderStats
from ..stats.trace import Tracer
from ..system.buffers import BufferPools
from ..system.checks import StrPath
from ..system.memory import host_available
from ..system.threads import fork_lock, run_worker_init
from ..system.torch_file import content_digest
from ..system.units import shortened
from .envelope import Envelope
from .epochs import EpochIterator, Epochs
from .planning import Planner, Ranker
from .program import Begun, DeviceProgram
from .steps import (
    BatchSource,
    Build,
    FailedBatch,
    Fetched,
    Sampled,
    Send,
    Steps,
    WindowReader,
)

if TYPE_CHECKING:
    from ..accelerator import Event
    from ..cache.windows import Windows
    from ..features.field import FieldRows
    from ..ranking.policy import Policy
    from ..ranking.workload import Workload
    from ..sampling.fixed_shapes import Sizes
    from ..system.budget import Budget


MAPPED_SHARE = 0.5
"""Files up to this share of a loader's memory stay in the page cache; of larger ones rows are
copied."""

# A repr names the first of hundreds of fields.
_LONGEST_FIELDS = 200

# How often requests look whether files were changed. It takes 3 us a field, a request 100 us.
_LOOK_SECONDS = 0.05

_CHECKSUM = "checksum"
"""Key of a saved state's checksum."""

# "requ": separates the random numbers of requests from those of epochs.
_REQUESTED = 0x72657175

T = TypeVar("T")


class Engine(Generic[T]):
    """Reads fields, runs epochs, keeps statistics and frees device memory; one per loader.

    It never refers to the loader: a cycle would keep the cache in memory until the garbage
    collector runs.

    Args:
        workload: The loader's sampling and reads.
        policy, budget: Rank and bound the cache; without a budget there is no cache.
        options: Threads and depth.
        device: Where batches are delivered. None: on the CPU, where their data are.
        accelerator: Delivers them. Default: that of ``device``, if any.
        cache_dtype, transfer: See ``FieldSet``.
        memory: Limit of host memory, in bytes. None: what is free, less a reserve.
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
        memory: Budget | None = None,
    ) -> None:
        warn_of_no_batches(workload.order)
        self.accelerator: Accelerator | None = accelerator or (
            None if device is None else accelerator_for(device)
        )
        self.pools: BufferPools = BufferPools(options.max_batches)
        ranker = Ranker(workload, policy)
        self.fields: FieldSet = FieldSet(
            {},
            device=device or torch.device("cpu"),
            budget=budget,
            rank=ranker,
            pool_of=self.pools,
            num_nodes=workload.num_rows,
            outputs=ranker.seed_reads,
            ranks_all=ranks_all(policy),
            first_epoch=workload.first_epoch(policy),
            share=workload.share(policy),
            cache_dtype=cache_dtype,
            accelerator=self.accelerator,
            transfer=transfer,
        )
        fields = self.fields
        self.stats: LoaderStats = LoaderStats(lambda: fields.counters, self.accelerator)
        self.epochs: Epochs[T] = Epochs(workload.order, options=options, stats=self.stats)
        self.fields.observe(self.epochs.tracing)
        self._planner = Planner(ranker, fields, cache=budget, memory=memory)
        self._budget = budget
        self.envelope: Envelope | None = None
        # Guards the set-up by the first two requests. Taken before the locks of planner and cache,
        # never under them. A fork lock, as forked workers may make requests.
        self._request_lock = fork_lock()
        self._requests = 0
        self._looked = -_LOOK_SECONDS

    @property
    def memory_plan(self) -> MemoryPlan:
        """The division of host memory, made when it or the first batch is requested."""
        return self._planner.plan(self.epochs.options)

    def describe(self) -> str:
        """Summary of batches, fields, cache and device; reads none."""
        order = self.epochs.order
        batches = f"{len(order):,} batches" if order.has_length else "batches"
        size = "" if order.batch_size is None else f" of {order.batch_size:,}"
        shuffled = ", shuffled" if order.shuffle else ""
        labels = [str(field.label) for field, _, _ in self.fields.declared]
        cache = "none" if self._budget is None else str(self._budget.text)
        fields = shortened(", ".join(dict.fromkeys(labels)) or "none", _LONGEST_FIELDS)
        device = self.fields.device
        return f"{batches}{size}{shuffled}, fields: {fields}, cache: {cache}, device: {device}"

    def use(
        self,
        source: BatchSource[T],
        *,
        options: PipelineOptions | None = None,
        worker_init_fn: Any = None,
        program: DeviceProgram | None = None,
    ) -> None:
        """Set the source of later epochs' batches.

        Args:
            source: Makes the batches.
            options: Threads and depth. Default: unchanged.
            worker_init_fn: Called with the worker's number in each thread.
            program: Makes each batch by one launch if possible.
        """
        fields = self.fields
        accelerator = self.accelerator
        make = self._maker(source)
        fetch: Any = make.fetch
        deliver: Any = make.deliver
        if program is not None:
            program.source = source  # only those of `ProgramSource` come with a program
            deliver = partial(_deliver_program, program, fetch, deliver)
            if not program.samples:
                fetch = partial(_fetch_by_program, program, fetch)
        self.epochs.options = options or self.epochs.options
        self.epochs.steps = Steps(
            source,
            fetch,
            deliver,
            windows=partial(
                _window_reader, fields, self._planner, self.epochs.options, source.looks_ahead
            ),
            on_start=None if worker_init_fn is None else partial(run_worker_init, worker_init_fn),
            before_first_batch=partial(
                _prepare, fields, self._planner, self.epochs.options, self.envelope
            ),
            after_first_step=self._planner.after_first_step,
            fill=partial(_fill, fields, program),
            fills_beside=self._planner.fills_beside,
            mark=None if accelerator is None else lambda: accelerator.current_stream.record(),
            settle=None if accelerator is None else fields.settle,
            shrink=None if accelerator is None else fields.shrink,
            program=program,
        )

    def start(self, source: BatchSource[T], **settings: Any) -> EpochIterator[T]:
        """Begin an epoch; arguments as for :meth:`use`."""
        self.use(source, **settings)
        return iter(self.epochs)

    def on_request(self, source: BatchSource[T], seeds: Any, key: int) -> T:
        """A batch outside any epoch, made in the calling thread; thread-safe.

        Args:
            source: Makes the batch.
            seeds: Checked seeds, in a ticket's form.
            key: Random key; equal seeds and keys give equal batches.

        Raises:
            ValueError: There are more seeds than a batch of fixed shapes has room for.
        """
        most = self.epochs.order.batch_size
        if self.envelope is not None and most is not None and len(seeds) > most:
            raise ValueError(
                f"seeds must be at most batch_size={most} with shapes='fixed', got {len(seeds)}"
            )
        recorder = self._ready_for_requests()
        ticket = Ticket(recorder.epoch, 0, key, seeds)
        drawn = ticket if source.draw is None else source.draw(ticket, recorder)
        make = self._maker(source)
        fetched = make.fetch(source.sample(drawn, recorder), recorder, None)
        batch = make.deliver(fetched, recorder)
        if isinstance(batch, FailedBatch):
            raise batch.error
        return batch

    def _maker(self, source: BatchSource[T]) -> _Maker[T]:
        return _Maker(source, self.fields, source.send, source.build)

    def request_key(self, key: int) -> int:
        """The key of a request with a user's ``key``, a function of it and of the order's seed."""
        return derive_key(self.epochs.order.seed or 0, _REQUESTED, key)

    def _ready_for_requests(self) -> EpochRecorder:
        """The recorder of requests.

        The first request prepares as for an epoch. The second one does what follows a first
        training step, since the first batch has been used by then. Other requests wait for both.
        """
        with self._request_lock:
            now = time.monotonic()
            if now - self._looked > _LOOK_SECONDS:
                self.fields.begin_epoch()
                self._looked = now
            recorder = self.stats.requested(self.epochs.tracing)
            if self._requests < 2:
                with recorder.time("filling"):
                    if not self._requests:
                        self._planner.prepare(self.epochs.options)
                    elif not self.epochs.first_step_done:
                        self._planner.after_first_step()
                        self.fields.after_first_step()
                        self.epochs.first_step_done = True
                self._requests += 1
            return recorder

    def state_dict(self, *, from_beginning: bool = False) -> dict[str, Any]:
        """The loader's position; see ``Epochs.state_dict``."""
        state = self.epochs.state_dict(from_beginning=from_beginning)
        if self.envelope is not None:
            state["shapes"] = self.envelope.state_dict()
        return state | {_CHECKSUM: content_digest(state)}

    def state_of_copy(self) -> dict[str, Any] | None:
        """The state of a loader's copy, which reads the present epoch from its beginning.

        A pass that was begun and left, as to look at one batch, is not the copy's. None: the
        order, of a sampler without length, has no state.
        """
        try:
            return self.state_dict(from_beginning=True)
        except TypeError:
            return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; raises as ``Epochs.load_state_dict``.

        Raises:
            ValueError: It was damaged or changed; or the sizes of its batches are missing, damaged,
                or of another graph.
        """
        if isinstance(state, dict):
            _check_whole(state)
        envelope = self.envelope
        if envelope is None or not isinstance(state, dict):
            self.epochs.load_state_dict(state)
            return
        shapes = envelope.checked(state.get("shapes"))
        self.epochs.load_state_dict(state)
        envelope.go_on(shapes, begun=state["key"] is not None)

    def fix_shapes(
        self, trials: Callable[[int], Iterable[Sizes]], largest: Callable[[], Sizes]
    ) -> Envelope:
        """Pad batches to a few sizes; arguments as for ``Envelope``."""
        accelerator = self.accelerator

        def free_bytes() -> int:
            return host_available() if accelerator is None else accelerator.free_bytes()[0]

        self.envelope = Envelope(
            trials, largest, row_bytes=self.fields.input_row_bytes, free_bytes=free_bytes
        )
        return self.envelope

    def close(self) -> None:
        """End the newest epoch and unpin host memory."""
        self.epochs.close()
        self.fields.close()


def _check_whole(state: dict[str, Any]) -> None:
    """Raise ValueError unless a saved state has its checksum, or none, as those of older
    versions."""
    if state.get(_CHECKSUM) is None:
        return
    found = ""
    with suppress(Exception):  # a changed one may hold anything
        found = content_digest({name: of for name, of in state.items() if name != _CHECKSUM})
    if state[_CHECKSUM] != found:
        raise ValueError(
            "state must be as state_dict() returned it, its checksum says that it is damaged; "
            f"delete state[{_CHECKSUM!r}] if you changed it"
        )


# Functions, not methods: an epoch's threads hold them, and must not keep the loader alive.


def _fill(fields: FieldSet, program: DeviceProgram | None) -> None:
    """Fill the cache after a first training step, with room left for batches of one launch."""
    if program is not None:
        fields.batches_bytes = program.batches_bytes
    fields.after_first_step()


def _prepare(
    fields: FieldSet, planner: Planner, options: PipelineOptions, envelope: Envelope | None
) -> None:
    """Prepare files, cache and sizes before the first batch of an epoch."""
    fields.begin_epoch()
    planner.prepare(options)
    if envelope is not None:
        envelope.begin()


@dataclass(frozen=True, eq=False)
class _Maker(Generic[T]):
    """Reads the rows of sampled batches, and delivers them as the data are then.

    Attributes:
        source: Samples and builds them.
        fields: Reads rows.
        send, build: The source's.
    """

    source: BatchSource[T]
    fields: FieldSet
    send: Send | None
    build: Build | None

    def fetch(self, sampled: Sampled, recorder: EpochRecorder, windows: Windows | None) -> Fetched:
        """Read the rows of a batch, and build what can be built ahead; in any thread."""
        begin = time.perf_counter_ns()
        try:
            if self.fields.accelerator is None:
                return self._fetched(sampled, windows)
            return self.fields.with_room(partial(self._fetched, sampled, windows))
        except (MemoryError, OutOfMemory):
            raise
        except Exception:
            # The data may be just being changed. If not, the reader gets the same error.
            if not self.source.repeats and self.source.is_current(sampled.batch):
                raise
            return Fetched(sampled.batch, sampled, None)
        finally:
            recorder.spent("fetching", begin)

    def _fetched(
        self,
        sampled: Sampled,
        windows: Windows | None = None,
        kept: Sequence[FieldRows | None] | None = None,
    ) -> Fetched:
        if self.send is not None:
            sampled = self.send(sampled)
        batch, reads, after = sampled
        rows: Sequence[FieldRows | None]
        if kept is None:
            rows = self.fields.read_each(reads, after, windows)
        else:
            rows = self.fields.current_each(reads, after, kept)
        if self.build is not None:
            batch = self.build(batch, rows)
        return Fetched(batch, sampled, rows)

    def again(self, fetched: Fetched, recorder: EpochRecorder) -> Fetched:
        """A batch that is outdated or failed, made from the present data, but for rows of the same
        ids that are current; in the reader's thread."""
        sampled = self.source.again(fetched.batch, recorder)
        known = {}
        if fetched.rows is not None:
            for read, rows in zip(fetched.sampled.reads, fetched.rows, strict=True):
                known[read.key, id(read.ids)] = rows
        kept = [known.get((read.key, id(read.ids))) for read in sampled.reads]
        made = self.fields.with_room(partial(self._fetched, sampled, kept=kept))
        recorder.count(late_reads=sum(map(is_not, made.rows or (), kept)))
        return made

    def deliver(self, fetched: Fetched, recorder: EpochRecorder) -> T | FailedBatch:
        """The finished batch, of the data's present version."""
        # First: by the ids of other edges, rows may be out of range.
        if fetched.rows is None or not self.source.is_current(fetched.batch):
            fetched = self.again(fetched, recorder)
        ahead: Any = fetched.rows
        try:
            rows = self.fields.current_each(fetched.sampled.reads, fetched.sampled.after, ahead)
        except (KeyError, RuntimeError) as error:
            # An attribute that is no field any more, such as one that requires gradients now.
            if not self.source.repeats or isinstance(error, OutOfMemory):
                raise
            fetched = self.again(fetched, recorder)
            ahead = fetched.rows
            rows = ahead
        if rows is not ahead:
            recorder.count(late_reads=sum(map(is_not, rows, ahead)))
        tensors = [known.tensor for known in rows]
        accelerator = self.fields.accelerator
        if accelerator is None:
            return self.source.deliver(fetched.batch, tensors, recorder)
        # Rows that were read together are waited for once.
        arriving: dict[Event, list[FieldRows]] = {}
        for known in rows:
            if known.ready is not None:
                arriving.setdefault(known.ready, []).append(known)
        for ready, together in arriving.items():
            if together[0].begun is not None:
                recorder.device_time("reading", together[0].begun, ready)
            accelerator.hand_over([known.tensor for known in together], ready)
        return self.source.deliver(fetched.batch, tensors, recorder)


def _fetch_by_program(
    program: DeviceProgram,
    by_kernels: Callable[[Sampled, EpochRecorder, Windows | None], Fetched],
    sampled: Sampled,
    recorder: EpochRecorder,
    windows: Windows | None,
) -> Begun | Fetched:
    """A batch that the CPU has sampled: enqueued as one launch, or else read kernel by kernel."""
    begin = time.perf_counter_ns()
    begun = None if windows is not None else program.send(sampled, recorder)
    if begun is None:
        return by_kernels(sampled, recorder, windows)
    recorder.spent("fetching", begin)
    return begun


def _deliver_program(
    program: DeviceProgram,
    by_kernels: Callable[[Sampled, EpochRecorder, Windows | None], Fetched],
    deliver: Callable[[Fetched, EpochRecorder], Any],
    prepared: Begun | Fetched,
    recorder: EpochRecorder,
) -> Any:
    """The finished batch, made by one launch or else kernel by kernel; the program learns sizes
    from the latter."""
    if isinstance(prepared, Begun):
        made = program.finish(prepared, recorder)
        if made is not None:
            batch, counts = made
            if not isinstance(batch, FailedBatch):
                recorder.delivered(**counts)
            return batch
        sampled = prepared.origin
        if program.samples:
            sampled = program.source.sample(sampled, recorder)
        prepared = by_kernels(sampled, recorder, None)
    if program.samples and program.learns:
        program.learn(prepared.batch.words)
    return deliver(prepared, recorder)


def _window_reader(
    fields: FieldSet, planner: Planner, options: PipelineOptions, looks_ahead: bool
) -> WindowReader | None:
    """Reader of an epoch's groups of batches; None if no file is cold, or if ids are not on the
    CPU."""
    plan = planner.plan(options)
    if not looks_ahead or not plan.window or not fields.begin_cold():
        return None
    begin = partial(fields.new_windows, lambda nbytes: nbytes > MAPPED_SHARE * plan.total)
    return WindowReader(plan.lookahead, max(1, plan.group_rows), begin)


class LoaderControls:
    """Stats, cache, trace and state API shared by all loaders. Subclasses set ``_engine``."""

    _engine: Engine[Any]

    def __repr__(self) -> str:
        # A user's subclass may call it before its constructor has finished.
        engine = vars(self).get("_engine")
        return f"{type(self).__name__}({'' if engine is None else engine.describe()})"

    @property
    def stats(self) -> LoaderStats:
        """Rows, bytes, hits and seconds by stage, tier and field, per epoch and in total; prints as
        a table."""
        return self._engine.stats

    @property
    def cache_plan(self) -> CachePlans:
        """The static cache's rows and bytes by type, and its expected savings; prints as a
        table."""
        return self._engine.fields.plans

    @property
    def memory_plan(self) -> MemoryPlan:
        """Host memory in bytes that each part of the loader may take; made at the first batch or
        the first access. Prints as a table.

        Raises:
            ValueError: ``memory`` is less than one batch needs.
        """
        return self._engine.memory_plan

    def invalidate_cache(self) -> None:
        """Drop all cached rows. Needed after writes that torch does not track, through NumPy views,
        and before the next epoch after those of other processes to a mapped file."""
        self._engine.fields.invalidate()

    def close(self) -> None:
        """End the newest epoch and unpin host memory; also done when the loader is freed.

        A later epoch pins the memory again.
        """
        self._engine.close()

    def trace(self, path: StrPath | Tracer, *, label: str = "loader") -> Tracer:
        """Record a timeline of the loader from now on, as a Chrome trace, which Perfetto opens.

        Args:
            path: A new file (compressed if it ends in ``.gz``), or another loader's tracer, whose
                file then has both.
            label: Name of this loader in the trace.

        Returns:
            A context manager; its ``stop()``, or the end of the ``with`` block, writes the file.

        Raises:
            OSError: The path cannot be written.
            PipelineError: The loader is already being traced.
        """
        return self._engine.epochs.tracing.start(path, label)

    def shrink_cache(self) -> bool:
        """Free half of the cache on a GPU, to repeat a training step that ran out of memory.

        Loaders do this automatically if a batch does not fit. The cache stays smaller;
        ``cache_plan`` shows the size to pass as ``cache`` next time.

        Returns:
            Whether anything was cached on a device; always False on the CPU.
        """
        shrink = self._engine.epochs.steps.shrink
        return shrink is not None and shrink()

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, from 0; later ones count on from it.

        Like ``DistributedSampler.set_epoch``, but epochs are also counted without it. Needed to
        continue another run, to repeat an epoch, or if processes made different numbers of passes.
        With a ``seed``, order and sampling are exactly those of that epoch. A position within this
        epoch that ``load_state_dict`` has set is kept.

        Raises:
            TypeError: ``epoch`` is not an integer.
            ValueError: ``epoch`` is negative.
        """
        self._engine.epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's position, after the last batch that was read; see ``load_state_dict``.

        A copy, by ``copy`` or ``pickle``, has none: it begins its epoch anew.
        """
        return self._engine.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict()`` of this loader, or of one made with the same
        arguments."""
        self._engine.load_state_dict(state)

    @property
    def envelope(self) -> Envelope | None:
        """The sizes of batches with ``shapes="fixed"``, and what padding costs; prints as a
        table."""
        envelope = self._engine.envelope
        if envelope is not None:
            envelope.known()
        return envelope
