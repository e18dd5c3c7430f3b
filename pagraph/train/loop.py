"""The training loop: mini-batches from pagraph's loader or DGL's, timed by loading and computing."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from ..dgl import DataLoader
from ..dgl.graphbolt import import_dgl
from ..pipeline import Tracer
from .evaluate import predict
from .models import GCN, GraphSAGE
from .options import TrainOptions
from .reporter import Reporter
from .result import EpochRecord, TrainResult
from .task import FEATURES, LABELS, Task

__all__ = ["train"]


def train(
    task: Task, options: TrainOptions, *, reporter: Reporter | None = None, tracer: Tracer | None = None
) -> TrainResult:
    """Train and evaluate one model.

    A run seeds the global generators of torch, NumPy and DGL: dropout and DGL's loader draw from them.

    Args:
        task: From :func:`pagraph.train.task.make_task`, made with the same ``options.model``.
        options: How to train.
        reporter: Told of every batch and epoch.
        tracer: Gets the timeline of pagraph's loaders: "train" and "evaluate". DGL's cannot be traced.
    """
    dgl = import_dgl()
    reporter = reporter or Reporter()
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)
    dgl.seed(options.seed)
    model = _make_model(task, options)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    sampler = dgl.dataloading.NeighborSampler(
        list(options.fanout), prefetch_node_feats=[*model.fields], prefetch_labels=[LABELS]
    )
    make_loader = partial(_make_loader, task, options, tracer=tracer)
    loader = make_loader(task.train, sampler, label="train", batch_size=options.batch_size, shuffle=True)
    records: list[EpochRecord] = []
    with _quiet_dgl():
        for epoch in range(options.epochs):
            record = _run_epoch(epoch, model, loader, optimizer, reporter)
            if (epoch + 1) % options.eval_every == 0 or epoch + 1 == options.epochs:
                record = _evaluated(record, task, model, make_loader)
            records.append(record)
            reporter.epoch(record)
    stats = getattr(loader, "stats", None)
    return TrainResult(options, tuple(records), None if stats is None else stats.total.hit_rate)


def _make_model(task: Task, options: TrainOptions) -> GraphSAGE | GCN:
    sizes = [task.num_features, *[options.hidden] * (len(options.fanout) - 1), task.num_classes]
    make = GraphSAGE if options.model == "sage" else GCN
    return make(sizes, dropout=options.dropout).to(options.torch_device())


def _make_loader(
    task: Task,
    options: TrainOptions,
    ids: Any,
    sampler: Any,
    *,
    label: str,
    tracer: Tracer | None = None,
    cache: Any = None,
    **settings: Any,
) -> Any:
    """The chosen loader over ``ids``; both get the same arguments but for what only pagraph's has."""
    settings |= {"device": options.torch_device(), "num_workers": options.num_workers}
    if options.loader == "dgl":
        return import_dgl().dataloading.DataLoader(task.graph, ids, sampler, **settings)
    if options.prefetch is not None:
        settings["prefetch"] = options.prefetch
    settings["cache"] = options.cache if cache is None else cache
    settings |= {"cache_policy": options.cache_policy, "cache_dtype": options.cache_dtype, "seed": options.seed}
    loader = DataLoader(task.graph, ids, sampler, **settings)
    if tracer is not None:
        loader.trace(tracer, label=label)
    return loader


def _run_epoch(epoch: int, model: Any, loader: Any, optimizer: Any, reporter: Reporter) -> EpochRecord:
    model.train()
    loading = computing = total_loss = 0.0
    seeds, batches = 0, len(loader)
    begin = mark = _now(loader.device)
    for done, (_, output_nodes, blocks) in enumerate(loader, 1):
        ready = _now(loader.device)
        loading += ready - mark
        logits = model(blocks, blocks[0].srcdata[FEATURES].float())
        loss = cross_entropy(logits, blocks[-1].dstdata[LABELS])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total_loss += float(loss.detach()) * len(output_nodes)
        seeds += len(output_nodes)
        computing += _now(loader.device) - ready
        reporter.batch(epoch, done, batches)
        mark = time.perf_counter()
    stats = getattr(loader, "stats", None)
    return EpochRecord(
        epoch,
        loss=total_loss / seeds,
        seconds=_now(loader.device) - begin,
        loading_seconds=loading,
        computing_seconds=computing,
        hit_rate=None if stats is None else stats.epochs[-1].hit_rate,
    )


def _evaluated(record: EpochRecord, task: Task, model: Any, make_loader: Callable[..., Any]) -> EpochRecord:
    """The record with both accuracies, each vertex computed from all of its neighbours."""
    nodes = torch.cat([task.val, task.test])
    scores = predict(model, task.graph, nodes, make_loader=partial(make_loader, label="evaluate", cache=0))
    right = (scores.argmax(1) == task.graph.ndata[LABELS][nodes]).float()
    val, test = right[: len(task.val)].mean(), right[len(task.val) :].mean()
    return replace(record, val_accuracy=float(val), test_accuracy=float(test))


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
