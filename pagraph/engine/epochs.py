"""Epochs: runs a seed order through the stages, epoch by epoch; resumable within an epoch."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._postponed import finalize
from ..options.pipeline import PipelineOptions
from ..seeds.order import BatchOrder, EpochPlan
from ..stats.stats import EpochRecorder, LoaderStats
from ..stats.trace import Tracing
from ..system.checks import as_integer
from ..system.stage import AheadStage, OwnReaderError, Relay, SerialStage, Stage, end_dropped
from ..system.thread_use import ThreadUse
from .lookahead import LookedAhead
from .steps import FailedBatch, Fetched, Finish, Steps

if TYPE_CHECKING:
    from .program import Begun, DeviceProgram

T = TypeVar("T")


_STATE_VERSION = 1
"""Version of ``state_dict``; others are refused."""


class Epochs(Generic[T]):
    """Each ``iter()`` is one epoch, recorded in ``stats``; two may be alive at once.

    Attributes:
        steps: Make the batches; set before the first epoch.
    """

    steps: Steps[T]

    def __init__(
        self,
        order: BatchOrder,
        *,
        options: PipelineOptions,
        stats: LoaderStats,
    ) -> None:
        self.order = order
        self.options = options
        self.stats = stats
        self.tracing: Tracing = Tracing()
        self.tracing.before_stop = _method(stats)
        self.thread_use: ThreadUse = ThreadUse()
        self._next_epoch = 0
        self._resume: tuple[EpochPlan, int] | None = None
        self._position: tuple[EpochPlan, int] | None = None
        self._current: weakref.ref[EpochIterator[T]] | None = None
        self.first_step_done = False

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> EpochIterator[T]:
        if self._resume is not None:
            plan, begin = self._resume
            self._resume = None
        else:
            begin = 0
            with self.tracing.span("shuffling"):
                plan = self.order.plan(self._next_epoch)
        self._next_epoch = plan.epoch + 1
        iterator = EpochIterator(self, plan, begin)
        self._current = weakref.ref(iterator)
        self._position = (plan, begin)
        return iterator

    def state_dict(self, *, from_beginning: bool = False) -> dict[str, Any]:
        """The loader's position: after the last batch that the newest iterator handed out, or
        ``from_beginning`` of its epoch, if that is not finished.

        The result holds numbers and at most one tensor (the epoch's order, if it came from a global
        generator); ``torch.save`` and ``torch.load(weights_only=True)`` take it.
        """
        plan, batch = self._resume or self._position or (None, 0)
        epoch = self._next_epoch if plan is None else plan.epoch
        finished = plan is not None and batch >= self.end_of(plan)
        return {
            "version": _STATE_VERSION,
            **self.order.identity,
            "batches": len(self),
            "epoch": epoch + 1 if finished else epoch,
            "batch": 0 if finished or from_beginning else batch,
            # None: the next epoch is not planned yet.
            "key": None if plan is None or finished else plan.key,
            "permutation": self.order.permutation,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state: the next ``iter()`` yields exactly the batches that would
        have followed.

        If it raises, the loader's position is unchanged.

        Raises:
            TypeError: The state is not a dict, or a number in it is not an integer.
            ValueError: The state is of another loader (with another seed, shuffle, number of seeds
                or batches, or batch size), or is incomplete or damaged.
        """
        if not isinstance(state, dict):
            raise TypeError(f"state must be a dict from state_dict(), got {type(state).__name__}")
        expected = {"version": _STATE_VERSION, **self.order.identity, "batches": len(self)}
        for name in (*expected, "epoch", "batch", "key", "permutation"):
            if name not in state:
                raise ValueError(f"state must have the key {name!r}, it has {list(state)}")
            if name in expected and not _equal(state[name], expected[name]):
                raise ValueError(
                    f"state[{name!r}] must be {expected[name]} for this loader, got {state[name]}"
                )
        epoch = as_integer("state['epoch']", state["epoch"])
        batch = as_integer("state['batch']", state["batch"])
        key = None if state["key"] is None else as_integer("state['key']", state["key"])
        if epoch < 0 or not 0 <= batch <= len(self):
            raise ValueError(
                f"state must be at a batch in [0, {len(self)}], got batch {batch} of epoch {epoch}"
            )
        if self.order.seed is None and batch and key is None:
            raise ValueError(
                f"state['key'] must be the epoch's key in the middle of an epoch (batch {batch}), "
                "got None"
            )
        self.order.restore(state["permutation"], begun=key is not None)
        self._go_to(epoch)
        if batch or key is not None:
            self._resume = (self.order.replan(epoch, key), batch)

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` epoch ``epoch``, from its beginning; later ones count on.

        A position within this epoch that ``load_state_dict`` has set is kept, since a resuming loop
        may set its epoch afterwards.

        Raises:
            TypeError: ``epoch`` is not an integer.
            ValueError: ``epoch`` is negative.
        """
        epoch = as_integer("epoch", epoch, least=0)
        if self._resume is None or self._resume[0].epoch != epoch:
            self._go_to(epoch)

    def _go_to(self, epoch: int) -> None:
        """Make the next epoch ``epoch``, from its beginning; discards the newest iterator's
        position."""
        self._next_epoch = epoch
        self._position = None
        self._resume = None
        self._current = None

    def end_of(self, plan: EpochPlan) -> int:
        """Number of batches per epoch."""
        return len(self) if plan.num_batches is None else plan.num_batches

    def close(self) -> None:
        """End the newest epoch, and the threads of all that were left."""
        current = None if self._current is None else self._current()
        if current is not None:
            current.close()
        end_dropped()


class EpochIterator(Generic[T]):
    """One epoch of batches. Dropping it ends its threads."""

    def __init__(self, owner: Epochs[T], plan: EpochPlan, begin: int) -> None:
        self._owner = owner
        self._plan = plan
        self._batch = begin
        self._asked = False
        self._filling: Stage[Any, None] | SerialStage[Any, None] | None = None
        self._recorder = owner.stats.begin(plan.epoch, owner.tracing)
        finalize(self, self._recorder.close)
        before = owner.steps.before_first_batch
        # Fills caches of a fixed size; the reader waits for it.
        if before is not None and begin < owner.end_of(plan):
            self._recorder.trace.at(-1)
            with self._recorder.time("waiting"), self._recorder.time("filling"):
                before()
        self._stage = _start(owner, plan, begin, self._recorder)

    def __iter__(self) -> EpochIterator[T]:
        return self

    def __len__(self) -> int:
        """Batches of the whole epoch, read or not, as in torch's iterators."""
        return len(self._owner)

    @property
    def at_end(self) -> bool:
        """Whether the last batch was handed out."""
        return self._batch >= self._owner.end_of(self._plan)

    def __next__(self) -> T:
        begin = time.perf_counter_ns()
        recorder = self._recorder
        steps = self._owner.steps
        if recorder.trace.tracing.tracer is not None:
            recorder.trace.asked(self._batch, begin)
        delivered = False
        asked = None if steps.mark is None else steps.mark()
        try:
            if self._asked and not self._owner.first_step_done:
                self._fill(steps)
            try:
                prepared = next(self._stage)
            except StopIteration:
                if self._filling is not None:  # after an epoch the cache must be filled
                    self._fill(steps, waits=True)
                raise
            self._asked = True
            if recorder.trace.tracing.tracer is not None:
                recorder.trace.at(self._batch)  # the reader may have worked on another batch
            try:
                result = steps.deliver(prepared, recorder)
            except StopIteration as error:  # User code must not look like the epoch's end.
                raise RuntimeError("delivering a batch raised StopIteration") from error
            if steps.mark is not None:
                recorder.device_time("waiting", asked, steps.mark())
            delivered = not isinstance(result, FailedBatch)
        except OwnReaderError:  # fails this batch alone; the epoch continues for the reader
            raise
        except BaseException:
            self.close()
            raise
        finally:
            recorder.waited(begin, delivered=delivered)
        self._batch += 1
        current = self._owner._current
        # The newest iterator's position is the loader's.
        if current is not None and current() is self:
            self._owner._position = (self._plan, self._batch)
        if not isinstance(result, FailedBatch):
            return result
        # It fails this batch alone. The error's traceback will refer to this frame, so a name for
        # it here would be a cycle that keeps both, and the threads, until garbage collection.
        failure = result.error
        del result, prepared
        try:
            raise failure
        finally:
            del failure

    def _fill(self, steps: Steps[T], *, waits: bool = False) -> None:
        """Do what follows a first training step, and fill the cache, in a thread if possible; its
        error is raised by a later call.

        Choosing the rows may take a second, during which a waiting reader would leave the disk
        idle.
        """
        if self._filling is None:
            timed = partial(_timed, self._recorder)
            # A thread fills only with look-ahead, where the reader waits for the disk; else the
            # thread would compete with it for the processor.
            in_thread = (
                steps.fills_beside
                and self._owner.options.threads
                and isinstance(self._stage, LookedAhead)
            )
            if in_thread:
                timed([steps.after_first_step])
                self._filling = Stage(iter([[steps.fill]]), timed, workers=1, ahead=1)
            else:
                work = [steps.after_first_step, steps.fill]
                self._filling = SerialStage(iter([work]), timed)
        if waits or self._filling.is_ready:
            next(self._filling)
            self._filling.close()
            self._filling = None
            self._owner.first_step_done = True

    def close(self) -> None:
        """End this epoch and its threads."""
        self._stage.close()
        if self._filling is not None:
            self._filling.close()
        settle = self._owner.steps.settle
        if settle is not None:
            settle()
        self._recorder.settle()
        self._recorder.close()


def _method(stats: LoaderStats) -> Callable[[], object]:
    """A callback that settles the statistics; weak, since these refer to the trace."""
    held = weakref.WeakMethod(stats.settle)

    def settle() -> None:
        method = held()
        if method is not None:
            method()

    return settle


def _equal(saved: Any, expected: Any) -> bool:
    """Whether a saved value equals the loader's; False for another type, such as a tensor."""
    return isinstance(saved, type(expected)) and bool(saved == expected)


def _timed(recorder: EpochRecorder, work: Iterable[Callable[[], object] | None]) -> None:
    with recorder.time("filling"):
        for step in work:
            if step is not None:
                step()


def _start(
    owner: Epochs[T], plan: EpochPlan, begin: int, recorder: EpochRecorder
) -> Stage[Any, Any] | SerialStage[Any, Any] | AheadStage | Relay | LookedAhead:
    """The stages of one epoch. Nothing here refers to the iterator: dropping it ends them."""
    steps = owner.steps
    source = steps.source
    options = owner.options
    threads = options.threads
    tracing = recorder.trace.tracing

    def work(item: tuple[int, Any]) -> Any:
        index, drawn = item
        begun = 0 if tracing.tracer is None else recorder.trace.begin(index)
        try:
            return steps.fetch(source.sample(drawn, recorder), recorder, None)
        finally:
            if begun:
                recorder.trace.end("preparing", begun)

    tickets = _tickets(owner.order, plan, range(begin, owner.end_of(plan)), steps, recorder)
    finish = None
    if source.finish is not None:
        finish = partial(_finish, source.finish, recorder, begin)
    reader = steps.windows()
    if reader is not None:
        ahead = threads + options.prefetch
        return LookedAhead(
            tickets, steps, recorder, reader, threads=threads, ahead=ahead, finish=finish
        )
    program = steps.program

    def threaded(tickets: Iterator[Any]) -> Stage[Any, Any] | SerialStage[Any, Any]:
        if not threads:
            return SerialStage(tickets, work)
        # Not with a device, which would wait for the reader's next launches; and not with a user's
        # functions, which must run in the threads.
        reader_may_work = (
            source.is_pure and steps.mark is None and steps.on_start is None and finish is None
        )
        return Stage(
            tickets,
            work,
            workers=threads,
            ahead=threads + options.prefetch,
            on_start=steps.on_start,
            on_change=recorder.trace.depth,
            use=owner.thread_use if reader_may_work else None,
            finish=finish,
        )

    if program is None or not program.is_possible or (program.samples and steps.on_start):
        return threaded(tickets)

    def enqueued() -> Stage[Any, Any] | SerialStage[Any, Any] | AheadStage:
        # If the CPU samples, its threads send batches themselves once a launch is recorded.
        if not program.is_ready() or not program.samples:
            return threaded(tickets)
        begin_batch = partial(_begin, program, recorder)
        return AheadStage(tickets, begin_batch, work, program.abandon, ahead=options.prefetch)

    if program.is_ready():
        return enqueued()
    return Relay(threaded(islice(tickets, program.batches_by_kernels)), enqueued)


def _begin(program: DeviceProgram, recorder: EpochRecorder, item: tuple[int, Any]) -> Begun | None:
    """Begin a batch on a device; None if it cannot make it by one launch."""
    index, ticket = item
    begun = 0 if recorder.trace.tracing.tracer is None else recorder.trace.begin(index)
    try:
        return program.begin(ticket, recorder)
    finally:
        if begun:
            recorder.trace.end("preparing", begun)


def _finish(
    finish: Finish, recorder: EpochRecorder, begin: int, number: int, fetched: Fetched
) -> Fetched:
    """Run the last step of a batch; ``number`` counts from batch ``begin`` of the epoch."""
    recorder.trace.at(begin + number)  # the thread may have worked on another batch
    return finish(fetched, recorder)


def _tickets(
    order: BatchOrder, plan: EpochPlan, indices: range, steps: Steps[Any], recorder: EpochRecorder
) -> Iterator[tuple[int, Any]]:
    """The first stage: numbered tickets in order, or the results of ``draw`` if there is one."""
    tracing = recorder.trace.tracing
    draw = steps.source.draw
    for index in indices:
        begun = 0 if tracing.tracer is None else recorder.trace.begin(index)
        ticket = order.ticket(plan, index)
        if ticket is None:
            return
        drawn = ticket if draw is None else draw(ticket, recorder)
        if begun:
            recorder.trace.end("ticket", begun)
        yield index, drawn
