"""The training loop, on pagraph's loader or a framework's own, timed by loading and computing."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .._compiling import LoopTimes
from ..accelerator import accelerator_for, with_room
from ..cache.memory_plan import MemoryPlan
from ..framework import Framework, Seeds
from ..options.training import EVALUATION_PART, TrainOptions
from ..seeds.keys import derive_key
from ..stats import Tracer
from ..stats.reads import CACHE_TIER, FieldStats
from ..system.checks import StrPath
from ..system.units import in_mebibytes
from .checkpoint import Checkpoint, open_checkpoint, random_state, set_random_state
from .distributed import ALONE, World, data_parallel
from .evaluate import Evaluation
from .models import framework_of
from .result import EpochRecord, RankRecord, Reporter, TrainResult
from .task import Task

T = TypeVar("T")


def train(
    task: Task,
    options: TrainOptions,
    *,
    evaluation: Evaluation | None = None,
    world: World = ALONE,
    reporter: Reporter | None = None,
    tracer: Tracer | None = None,
    checkpoint: StrPath | None = None,
) -> TrainResult:
    """Train and evaluate one model, in this process or together with others that call this, too.

    Every process makes the steps that the one with the most training vertices needs for an epoch. A
    step's gradient is the mean of the processes' batch means, weighted by their numbers of training
    vertices. It is an unbiased estimate of the gradient over all training vertices. A run seeds the
    global generators of torch, NumPy and DGL, which dropout and the frameworks' own loaders use.

    Args:
        task: From :func:`pagraph.train.task.make_task`, :func:`pagraph.train.links.make_link_task`,
            or for graphs of several types :func:`pagraph.train.hetero.make_hetero_task`, made with
            the same ``options``.
        options: Options of the run.
        evaluation: Graph and vertices to evaluate. Default: the task's, divided among the
            processes.
        world: The processes.
        reporter: Called for every batch of this process, and for every epoch.
        tracer: Gets the timeline of pagraph's loader. A framework's own cannot be traced.
        checkpoint: Folder for the state after each epoch. A run resumes from a state that it finds
            there, with the same bits as an uninterrupted run.

    Raises:
        MissingDependencyError: The framework of ``options.layers``, or a package that its own
            loader needs, is not installed.
        ValueError: The checkpoint is of another run, or ``memory`` is too little.
        FormatError: The checkpoint is damaged.
    """
    epochs = begin_training(task, options, evaluation, world, reporter, tracer, checkpoint)
    return TrainResult(options, tuple(epochs))


def in_turn(
    runs: Mapping[str, Callable[[], Iterator[EpochRecord]]], device: torch.device
) -> Iterator[tuple[str, EpochRecord]]:
    """Begin several runs by name, and go through their epochs in turn: what else a machine does
    disturbs all of them.

    Each has the random numbers of torch and NumPy that it would have by itself.
    """
    left: dict[str, Iterator[EpochRecord]] = {}
    states = {}
    for name, begin in runs.items():
        left[name] = begin()
        states[name] = random_state(device), np.random.get_state()
    while left:
        for name, epochs in list(left.items()):
            of_torch, of_numpy = states[name]
            set_random_state(of_torch, device)
            np.random.set_state(of_numpy)
            record = next(epochs, None)
            states[name] = random_state(device), np.random.get_state()
            if record is None:
                del left[name]
            else:
                yield name, record


def begin_training(
    task: Task,
    options: TrainOptions,
    evaluation: Evaluation | None = None,
    world: World = ALONE,
    reporter: Reporter | None = None,
    tracer: Tracer | None = None,
    checkpoint: StrPath | None = None,
) -> Iterator[EpochRecord]:
    """What :func:`train` does, up to the first epoch; the iterator goes through the epochs."""
    reporter = reporter or Reporter()
    evaluation = evaluation or task.evaluation()
    framework = framework_of(options.layers)
    torch.manual_seed(options.seed)
    model = task.model(options, framework).to(options.torch_device())
    # After the model, whose weights are equal in all processes. All other random numbers differ.
    seed = _seed_of(options.seed, world.rank)
    np.random.seed(seed % 2**32)
    framework.seed(seed)
    if world.rank:
        torch.manual_seed(seed)
    learner = data_parallel(model, world, compression=options.grad_compression)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=options.lr, weight_decay=options.weight_decay
    )
    seeds = task.seeds(model.fields)
    loader = framework.loader(seeds, options.fanout, **_loader_arguments(options, world))
    if options.loader == "pagraph":
        if tracer is not None:
            loader.trace(tracer, label="train")
        if options.loader_memory is not None:
            reporter.planned(world.together(lambda: _memory_plan(loader, options)))
    _check_evaluation(model, evaluation, options)
    sizes = world.gather(len(task.train))
    run = _Run(
        task=task,
        options=options,
        framework=framework,
        seeds=seeds,
        loader=loader,
        learner=learner,
        optimizer=optimizer,
        # Equal in all processes, which would otherwise wait for one that makes fewer.
        steps=-(-max(sizes) // options.batch_size),
        # The mean over all N vertices is the sum over ranks r of n_r / N times r's mean. Processes
        # average, which divides by their number.
        weight=world.size * sizes[world.rank] / sum(sizes),
        reporter=reporter,
    )
    saved = open_checkpoint(checkpoint, task, options, world)
    return _epochs(run, model, evaluation, world, saved)


def _epochs(
    run: _Run, model: nn.Module, evaluation: Evaluation, world: World, saved: Checkpoint | None
) -> Iterator[EpochRecord]:
    """Go through all epochs. Those before a checkpoint are given as they were."""
    options = run.options
    optimizer = run.optimizer
    records: list[EpochRecord] = [] if saved is None else saved.restore(model, optimizer)
    if records:
        run.rehearse()
        # The loader counts passes over its seeds, of which an epoch may take several.
        passes = -(-run.steps // len(run.loader))
        run.loader.set_epoch(len(records) * passes)
        run.reporter.resumed(len(records))
    yield from records
    for epoch in range(len(records), options.epochs):
        record = EpochRecord.of(epoch, world.gather(run.epoch(epoch)))
        is_last = epoch + 1 == options.epochs
        if is_last or (epoch + 1) % options.eval_every == 0:
            val, test = evaluation.metrics(model, world=world, memory=options.evaluation_memory)
            record = replace(record, val=val, test=test)
        records.append(record)
        if saved is not None:
            saved.save(model, optimizer, records)
        run.reporter.epoch(record)
        yield record


def _loader_arguments(options: TrainOptions, world: World) -> dict[str, Any]:
    """Arguments of the chosen loader; pagraph's takes more."""
    arguments: dict[str, Any] = {
        "own": options.loader != "pagraph",
        "batch_size": options.batch_size,
        "device": options.torch_device(),
        "num_workers": options.num_workers,
    }
    if arguments["own"]:
        return arguments
    # Processes of one machine share its cores.
    arguments["num_workers"] = options.num_workers or world.loader_threads
    arguments["seed"] = _seed_of(options.seed, world.rank)
    arguments["cache"] = options.cache
    arguments["cache_policy"] = options.cache_policy
    arguments["cache_dtype"] = options.cache_dtype
    arguments["memory"] = options.loader_memory
    arguments["lookahead"] = options.batches_ahead()
    if options.prefetch is not None:
        arguments["prefetch"] = options.prefetch
    return arguments


def _memory_plan(loader: Any, options: TrainOptions) -> MemoryPlan:
    """Division of the loader's part of the memory; ValueError if it is too small."""
    try:
        # The warning would be wrong, as evaluation is limited, and the plan says the same.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "memory=.* has no effect", RuntimeWarning)
            plan: MemoryPlan = loader.memory_plan
        return plan
    except ValueError as error:
        raise ValueError(
            f"{error}, three quarters of {options.memory}: the rest is for evaluation"
        ) from None


def _check_evaluation(model: nn.Module, evaluation: Evaluation, options: TrainOptions) -> None:
    """Raise ValueError before the first epoch if evaluation needs more memory than it has."""
    given = options.evaluation_memory
    least = evaluation.least_memory(model)
    if given is not None and given < least:
        needed = in_mebibytes(EVALUATION_PART * least)
        raise ValueError(
            f"memory must be at least {needed} for evaluation, which gets a quarter, got "
            f"{options.memory}"
        )


def _seed_of(seed: int, rank: int) -> int:
    """The seed of a process. The first process has that of a run in one process."""
    return seed if rank == 0 else derive_key(seed, rank)


@dataclass(frozen=True, eq=False)
class _Run:
    """Model, optimizer and loader of a run.

    Every process makes ``steps`` steps an epoch. ``weight`` is the weight of this process's batch
    mean in a step's gradient, which is averaged over the processes.
    """

    task: Task
    options: TrainOptions
    framework: Framework
    seeds: Seeds
    loader: Any
    learner: nn.Module
    optimizer: torch.optim.Optimizer
    steps: int
    weight: float
    reporter: Reporter

    @property
    def _averages(self) -> bool:
        """Whether `backward` averages gradients over processes."""
        return isinstance(self.learner, DistributedDataParallel)

    def rehearse(self) -> None:
        """Compute one gradient and drop it, before a resumed run of several processes.

        ``DistributedDataParallel`` rearranges gradients after the first backward pass, and so the
        order in which three or more processes add them up (torch 2.13 with gloo). The resumed run
        needs the later order to have the same bits.
        """
        if not self._averages:
            return
        # Dropout draws numbers, and the generators must keep the checkpoint's state.
        device = self.options.torch_device()
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            self._gradients(next(iter(self.loader)))

    def epoch(self, epoch: int) -> RankRecord:
        """Make the steps of an epoch."""
        self.learner.train()
        device = self.options.torch_device()
        total_loss = 0.0
        num_seeds = 0
        counted = len(self._counted_epochs())
        begin = _now(device)
        times = LoopTimes(begin)
        for done, item in enumerate(_batches_of_epoch(self.loader, self.steps), 1):
            times.waited(_now(device))
            loss, size = self._step(item, device)
            total_loss += loss * size
            num_seeds += size
            times.computed(_now(device))
            self.reporter.batch(epoch, done, self.steps)
            times.at = time.perf_counter()
        record = RankRecord(
            train=len(self.task.train),
            loss=total_loss / num_seeds,
            seconds=_now(device) - begin - times.kernels,
            loading_seconds=times.loading,
            computing_seconds=times.computing,
            kernels_seconds=times.kernels,
        )
        if not hasattr(self.loader, "stats"):
            return record
        # Several passes of the loader if another process has more training vertices.
        reads = [passed.reads for passed in self._counted_epochs()[counted:]]
        cacheable = sum((each.cacheable for each in reads), FieldStats())
        every = sum((each.total for each in reads), FieldStats())
        return replace(
            record,
            hits=cacheable.hits,
            asked=cacheable.asked,
            bytes_hit=every.nbytes.get(CACHE_TIER, 0),
            bytes_read=sum(every.nbytes.values()),
        )

    def _counted_epochs(self) -> Sequence[Any]:
        """The loader's statistics of each pass; none with a framework's own."""
        stats = getattr(self.loader, "stats", None)
        return () if stats is None else stats.epochs

    def _step(self, item: Any, device: torch.device) -> tuple[float, int]:
        """One step of the optimiser; the loss of the batch, and its number of seeds."""
        if self._averages:
            # The others wait for this process's gradients, so it must not repeat a step alone.
            loss, size = self._gradients(item)
        else:
            loss, size = repeated_with_room(self.loader, device, partial(self._gradients, item))
        self.optimizer.step()
        return float(loss.detach()), size

    def _gradients(self, item: Any) -> tuple[torch.Tensor, int]:
        """The gradients of one batch; its loss, and its number of seeds."""
        batch = self.framework.batch(item, self.seeds, len(self.options.fanout))
        loss, size = self.task.loss(self.framework, batch, self.learner)
        # Before each step, as one that ran out of memory may have left gradients.
        self.optimizer.zero_grad()
        (loss * self.weight).backward()  # type: ignore[no-untyped-call]
        return loss, size


def _batches_of_epoch(loader: Any, steps: int) -> Iterator[Any]:
    """Yield ``steps`` batches from passes over the loader's seeds; the last pass may be partial."""
    passes, rest = divmod(steps, len(loader))
    for _ in range(passes):
        yield from loader
    if rest:
        yield from islice(loader, rest)


def repeated_with_room(loader: Any, device: torch.device, step: Callable[[], T]) -> T:
    """Run a step up to its gradients, and again with smaller caches if memory runs out.

    Raises:
        OutOfMemory: The step does not fit even without a cache.
    """
    shrink = getattr(loader, "shrink_cache", lambda: False)  # a framework's own has no cache
    smaller = "lower the batch size, fan-outs or hidden size"
    return with_room(step, accelerator_for(device), shrink, what="a training step", smaller=smaller)


def _now(device: torch.device) -> float:
    """Read the clock after the device has finished its pending work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
