"""The training loop: mini-batches from pagraph's loader or DGL's, timed by loading and computing."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ..dgl.graphbolt import import_dgl
from ..pipeline import Tracer
from ..sampling.seeds import num_seeds
from .distributed import ALONE, World
from .evaluate import Evaluation, accuracies
from .gradients import data_parallel
from .loading import batches_of_epoch, count_passes, count_reads, make_loader, repeated_with_room, seed_of
from .models import GCN, GraphSAGE
from .options import TrainOptions
from .reporter import Reporter
from .result import EpochRecord, RankRecord, TrainResult
from .task import LABELS, Task

__all__ = ["train"]


def train(
    task: Task,
    options: TrainOptions,
    *,
    evaluation: Evaluation | None = None,
    world: World = ALONE,
    reporter: Reporter | None = None,
    tracer: Tracer | None = None,
) -> TrainResult:
    """Train and evaluate one model, in this process or together with others that call this too.

    Every process makes as many steps an epoch as the one with the most training vertices needs. A step's gradient is
    the mean of the processes' batch means, each weighted by how many training vertices are its own: an unbiased
    estimate of the gradient over all training vertices, however unequal the parts are.

    A run seeds the global generators of torch, NumPy and DGL: dropout and DGL's loader draw from them.

    Args:
        task: From :func:`pagraph.train.task.make_task`, made with the same ``options.model``.
        options: How to train.
        evaluation: What is evaluated. Default: the task's own graph, shared out between the processes.
        world: The processes.
        reporter: Told of every batch of this process, and of every epoch.
        tracer: Gets the timeline of pagraph's loader. DGL's cannot be traced.
    """
    reporter, evaluation = reporter or Reporter(), evaluation or Evaluation.of(task)
    torch.manual_seed(options.seed)
    model = _make_model(task, options)
    _seed_process(options.seed, world.rank)
    learner = data_parallel(model, world, compression=options.grad_compression)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    sampler = import_dgl().dataloading.NeighborSampler(
        list(options.fanout), prefetch_node_feats=[*model.fields], prefetch_labels=[LABELS]
    )
    loader = make_loader(options, world, task.graph, task.train, sampler, tracer=tracer)
    sizes = world.gather(len(task.train))
    pace = _Pace(-(-max(sizes) // options.batch_size), world.size * sizes[world.rank] / sum(sizes))
    records: list[EpochRecord] = []
    with _quiet_dgl():
        for epoch in range(options.epochs):
            mine = _run_epoch(epoch, learner, loader, optimizer, reporter, pace=pace, features=model.features)
            record = EpochRecord.of(epoch, world.gather(mine))
            if (epoch + 1) % options.eval_every == 0 or epoch + 1 == options.epochs:
                val, test = accuracies(model, evaluation, world=world)
                record = replace(record, val_accuracy=val, test_accuracy=test)
            records.append(record)
            reporter.epoch(record)
    return TrainResult(options, tuple(records))


def _make_model(task: Task, options: TrainOptions) -> GraphSAGE | GCN:
    hidden = len(options.fanout) - 1 + int(task.preaggregated)
    sizes = [task.num_features, *[options.hidden] * hidden, task.num_classes]
    make = GraphSAGE if options.model == "sage" else GCN
    model = make(sizes, dropout=options.dropout, preaggregated=task.preaggregated, row_normalize=options.row_normalize)
    return model.to(options.torch_device())


def _seed_process(seed: int, rank: int) -> None:
    """Let the global generators of each process draw something else; the first one's are those of one process."""
    np.random.seed(seed_of(seed, rank) % 2**32)
    import_dgl().seed(seed_of(seed, rank) % 2**31)
    if rank:
        torch.manual_seed(seed_of(seed, rank))


@dataclass(frozen=True)
class _Pace:
    """How a process keeps step with the others.

    Attributes:
        steps: Batches an epoch, the same in every process.
        weight: Of this process's batch mean in a step's gradient, which averages over the processes.
    """

    steps: int
    weight: float


def _run_epoch(
    epoch: int,
    learner: Any,
    loader: Any,
    optimizer: Any,
    reporter: Reporter,
    *,
    pace: _Pace,
    features: tuple[str, ...],
) -> RankRecord:
    learner.train()
    loading = computing = total_loss = 0.0
    seeds, counted = 0, count_passes(loader)
    begin = mark = _now(loader.device)
    for done, (_, output_nodes, blocks) in enumerate(batches_of_epoch(loader, pace.steps), 1):
        ready = _now(loader.device)
        loading += ready - mark
        work = partial(_gradients, learner, optimizer, blocks, features, pace.weight)
        # One process alone cannot repeat what all of them average over.
        loss = work() if isinstance(learner, DistributedDataParallel) else repeated_with_room(loader, work)
        optimizer.step()
        total_loss += float(loss.detach()) * len(output_nodes)
        seeds += len(output_nodes)
        computing += _now(loader.device) - ready
        reporter.batch(epoch, done, pace.steps)
        mark = time.perf_counter()
    seconds = _now(loader.device) - begin
    hits, asked = count_reads(loader, counted)
    return RankRecord(num_seeds(loader.indices), total_loss / seeds, seconds, loading, computing, hits, asked)


def _gradients(learner: Any, optimizer: Any, blocks: Any, features: tuple[str, ...], weight: float) -> torch.Tensor:
    """The gradients of one batch, and its loss."""
    logits = learner(blocks, *(blocks[0].srcdata[name].float() for name in features))
    loss = cross_entropy(logits, blocks[-1].dstdata[LABELS])
    optimizer.zero_grad()
    (loss * weight).backward()  # type: ignore[no-untyped-call]
    return loss


def _now(device: torch.device) -> float:
    """Seconds on a clock that has waited for the device's pending work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def _quiet_dgl() -> Iterator[None]:
    """Drop the advice on CPU affinity that DGL's loader gives at every epoch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Dataloader CPU affinity")
        yield
