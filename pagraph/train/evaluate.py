"""Predictions with all neighbours, one layer at a time, by one process or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..features.disk import on_disk
from ..features.field import row_reader
from ..graph.graph import Graph
from ..system.budget import memory_bytes
from .distributed import ALONE, World
from .layer_pass import LayerPass, Rows, needed_vertices
from .windows import piece_rows

LABELS = "label"
"""The vertex field of the classes."""

_FLOAT = 4


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Graph and vertices to evaluate: the same whole graph in every process, or its part.

    Attributes:
        graph: Graph with features and labels, all of which may be mapped from files.
        val: Ids of the validation vertices, int64.
        test: Ids of the test vertices, int64.
        norm: For GCN, the normalisation of all vertices: see :func:`pagraph.train.task.gcn_norm`.
        is_part: Whether the graph is this process's part, and ``val`` and ``test`` its vertices.
            Otherwise it is the whole graph, and the processes divide the work.
    """

    graph: Graph
    val: Tensor
    test: Tensor
    norm: Tensor | None = None
    is_part: bool = False

    def metrics(
        self, model: Any, *, world: World = ALONE, memory: int | str | None = None
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics of a model by name, on validation and on test vertices of all processes."""
        val, test = accuracies(model, self, world=world, memory=memory)
        return {"accuracy": val}, {"accuracy": test}

    def least_memory(self, model: Any) -> int:
        """Bytes that :meth:`metrics` takes in addition to blocks of rows.

        They hold a mark for each vertex, and rows while they are read.
        """
        graph = self.graph
        row_bytes = sum(row_reader(graph.ndata[name]).row_bytes for name in model.features)
        rows = min(graph.num_nodes, piece_rows(row_bytes))
        return int(
            graph.num_nodes
            + rows * (row_bytes + _FLOAT * (model.sizes[0] + 2 * max(model.sizes[1:])))
        )


def accuracies(
    model: Any, evaluation: Evaluation, *, world: World = ALONE, memory: int | str | None = None
) -> tuple[float, float]:
    """Accuracy on the validation and on the test vertices of all processes."""
    graph = evaluation.graph
    ids = torch.cat([evaluation.val, evaluation.test])
    share = world.share(graph.num_nodes)
    mine = torch.ones(len(ids), dtype=torch.bool, device="cpu")
    exchange = world.size > 1 and not evaluation.is_part
    if exchange:
        exchange = needed_vertices(graph.csc, ids, len(model.layers)) is None
        if exchange:
            mine = (ids >= share.start) & (ids < share.stop)
        else:
            mine = torch.arange(len(ids), device="cpu") % world.size == world.rank
    ids = ids[mine]
    num_val = int(mine[: len(evaluation.val)].sum())
    if exchange:
        scores = predict(model, evaluation, world=world, memory=memory)[ids - share.start]
    else:
        scores = predict(model, evaluation, ids=ids, memory=memory)
    right = scores.argmax(1) == graph.ndata[LABELS][ids]
    return shares_right(right, torch.arange(len(ids), device="cpu") < num_val, world)


def shares_right(right: Tensor, of_val: Tensor, world: World) -> tuple[float, float]:
    """Accuracy on the validation and on the test vertices of all processes.

    Args:
        right: Whether each of this process's vertices is classified right.
        of_val: Whether it is a validation vertex; the others are test vertices.
        world: The processes.
    """
    counts = [(int(right[mask].sum()), int(mask.sum())) for mask in (of_val, ~of_val)]
    of_val_by_rank, of_test_by_rank = zip(*world.gather(counts), strict=True)
    return _share(of_val_by_rank), _share(of_test_by_rank)


def _share(counts: Sequence[tuple[int, int]]) -> float:
    """The share that is right, from each process's numbers of right vertices and of all."""
    right = sum(number for number, _ in counts)
    return right / sum(total for _, total in counts)


@torch.no_grad()
def predict(
    model: Any,
    evaluation: Evaluation,
    *,
    ids: Tensor | None = None,
    world: World = ALONE,
    memory: int | str | None = None,
) -> Tensor:
    """Outputs from all neighbours, each layer for all vertices that the next one needs.

    Several processes compute a share of the vertices each and exchange their messages. A matrix for
    the whole graph, ``(num_nodes, layer's width)``, is then in memory. A single process takes the
    rows that fit at a time, and keeps outputs in files without names if ``memory`` is too small.
    See :class:`pagraph.train.layer_pass.LayerPass`.

    Args:
        model: One of :mod:`pagraph.train.models`.
        evaluation: The graph.
        ids: Vertices, int64, for this process alone. Only what they need is computed, if that is
            less than half of all. Default: all vertices, each process its ``world.share``.
        world: The processes that share the work; all must hold the same graph.
        memory: Bytes that the work may take. Default: half of what is free.

    Returns:
        A row for each of ``ids``, or of the share, shape ``(n, classes)``.
    """
    graph = evaluation.graph
    first = int(model.preaggregated)
    count = len(model.layers)
    device = next(model.parameters()).device
    room = max(0, memory_bytes(memory) - evaluation.least_memory(model))
    world = world if ids is None else ALONE
    share = world.share(graph.num_nodes)
    needed = None if ids is None else needed_vertices(graph.csc, ids, count)
    layers = LayerPass(graph.csc, model, evaluation.norm, world=world, room=room)

    def begin(*rows: Tensor) -> Tensor:
        begun: Tensor = model.begin(*(some.to(device).float() for some in rows))
        return begun

    inputs = Rows([graph.ndata[name] for name in model.features], begin)
    training = model.training
    model.eval()
    try:
        held = 0
        rows = torch.empty(0, device="cpu")
        for i in range(count):
            vertices = None if needed is None else needed[i]
            targets = share if vertices is None else vertices
            if i < first:
                rows = layers.begun(inputs, targets)
            else:
                rows = layers.rows(i, inputs, targets, held=held)
                rows = rows.relu_() if i + 1 < count else rows
            held = 0 if on_disk(rows) else rows.nbytes
            inputs = Rows([rows], lambda some: some.to(device), vertices, share.start)
        if ids is None:
            return rows
        # With only the needed vertices, the row of an id is its place among them.
        return rows[ids if needed is None else torch.searchsorted(needed[-1], ids)]
    finally:
        model.train(training)
