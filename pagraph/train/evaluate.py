"""Predictions with all neighbours: whole vertex sets, one layer at a time, by one process or several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..features.field import row_reader
from ..graph.csc import CSC
from ..graph.graph import Graph
from ..system.budget import memory_bytes
from ..system.spill import spilled
from .distributed import ALONE, World
from .windows import SourceWindows, Window, least_room

if TYPE_CHECKING:
    from .task import Task

__all__ = ["LABELS", "Evaluation", "Neighbours", "accuracies", "predict"]

LABELS = "label"
"""The vertex field of the classes."""

_BATCH = 8192
_CHUNK = 4096  # vertices that a thread takes at once
_FLOAT = 4
_NO_LIMIT = 2**62
_ROOM_SHARE = 2  # one part in this many is for messages; the others are for chunks, and pages of files


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Graph and vertices to evaluate: the same whole graph in every process, or each one's own part.

    Attributes:
        graph: Its features and labels; arrays and features may be mapped, and are read where they are.
        val: Ids of the validation vertices, int64; ``test`` are those of the test vertices.
        norm: For GCN, the normalisation of all vertices: see :func:`pagraph.train.task.gcn_norm`.
        hop_ends: None for the whole graph, whose vertices the processes share out. For a part: its first
            ``hop_ends[h]`` vertices are those within ``h`` hops of the ones that are evaluated.
    """

    graph: Graph
    val: Tensor
    test: Tensor
    norm: Tensor | None = None
    hop_ends: tuple[int, ...] | None = None

    @classmethod
    def of(cls, task: Task, hop_ends: tuple[int, ...] | None = None) -> Evaluation:
        """The evaluation of a task."""
        return cls(task.source, task.val, task.test, task.norm, hop_ends)

    def metrics(
        self, model: Any, *, world: World = ALONE, memory: int | str | None = None
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Measure a model on the validation and on the test vertices of all processes, by name."""
        val, test = accuracies(model, self, world=world, memory=memory)
        return {"accuracy": val}, {"accuracy": test}

    def least_memory(self, model: Any, *, world: World = ALONE, memory: int) -> int:
        """The least ``memory`` of :meth:`metrics`, which is ``memory`` itself where that does."""
        room, least = memory // _ROOM_SHARE, 0
        for i in range(int(model.preaggregated), len(model.layers)):
            if not _in_memory(model, self, i, room, world):
                least = max(least, least_room(self.graph.csc, _FLOAT * model.sizes[i + 1]))
        return max(memory, _ROOM_SHARE * least)


def accuracies(
    model: Any, evaluation: Evaluation, *, world: World = ALONE, memory: int | str | None = None
) -> tuple[float, float]:
    """Shares of the validation and of the test vertices, of all processes together, that are classified right."""
    own = world if evaluation.hop_ends is None else ALONE
    scores, begin = predict(model, evaluation, world=own, memory=memory)
    right = scores.argmax(1) == evaluation.graph.ndata[LABELS][begin : begin + len(scores)]
    counts = []
    for ids in (evaluation.val, evaluation.test):
        mine = ids[(ids >= begin) & (ids < begin + len(scores))] - begin
        counts += [int(right[mine].sum()), len(mine)]
    right_val, num_val, right_test, num_test = (sum(column) for column in zip(*world.gather(counts), strict=True))
    return right_val / num_val, right_test / num_test


@torch.no_grad()
def predict(
    model: Any, evaluation: Evaluation, *, world: World = ALONE, memory: int | str | None = None
) -> tuple[Tensor, int]:
    """Outputs with nothing sampled, shape ``(n, classes)``, and the first of the ``n`` vertices they are for.

    Each layer is computed for all vertices before the next, so every vertex is computed once per layer. A layer's
    weights are applied before neighbours are added up, so that messages are small. Several processes compute a share of
    the vertices each and exchange the messages. Per layer there is one matrix of the whole graph,
    ``(num_nodes, layer's width)``, and up to two of the share. One process alone puts them into files without names
    where ``memory`` is too little.

    Args:
        model: One of :mod:`pagraph.train.models`.
        evaluation: Whole graph, or a part: its first ``hop_ends[0]`` vertices, and only what these need.
        world: The processes that share the work; all must hold the same graph. Each gets the scores of its share.
        memory: Bytes that the work may take. Default: half of what is free.

    Raises:
        ValueError: ``memory`` does not hold the messages of the vertex with the most in-edges.
    """
    graph, first, count = evaluation.graph, int(model.preaggregated), len(model.layers)
    ends = evaluation.hop_ends or (graph.num_nodes,) * (count + 1)
    neighbours, room = Neighbours(graph.csc, evaluation.norm), memory_bytes(memory) // _ROOM_SHARE
    training = model.training
    model.eval()
    try:
        share = world.share(ends[count - first])
        inputs = _begin(model, graph, share)
        for i in range(first, count):
            shape, fits = (ends[count - i], model.sizes[i + 1]), _in_memory(model, evaluation, i, room, world)
            sent = torch.empty(shape, device="cpu") if fits else spilled(shape, torch.float32)
            own = torch.empty_like(sent[share]) if fits else spilled(shape, torch.float32)
            rows = _project(model, i, inputs, sent[share], own)
            neighbours.scale(sent, share)
            world.complete(sent)
            share = world.share(ends[count - i - 1])
            rows = rows[: share.stop - share.start]
            neighbours.add(sent, share, rows, model.attention(i), room=room)
            del sent
            inputs = iter(torch.split(rows.relu_(), _BATCH)) if i + 1 < count else iter(())
        return rows, share.start
    finally:
        model.train(training)


def _in_memory(model: Any, evaluation: Evaluation, i: int, room: int, world: World) -> bool:
    """Whether what layer ``i`` sends is held in memory: always but where one process has the whole graph."""
    if world.size > 1 or evaluation.hop_ends is not None:
        return True
    held = model.sizes[i] * (i > int(model.preaggregated)) + 2 * model.sizes[i + 1]
    return bool(_FLOAT * evaluation.graph.num_nodes * held <= room)


def _begin(model: Any, graph: Graph, share: slice) -> Iterator[Tensor]:
    """Yield the inputs of the first layer with neighbours, batch by batch."""
    device = next(model.parameters()).device
    fields = [row_reader(graph.ndata[name]) for name in model.features]
    for ids in torch.split(torch.arange(share.start, share.stop, device="cpu"), _BATCH):
        yield model.begin(*(field.read(ids).to(device).float() for field in fields))


def _project(model: Any, i: int, inputs: Iterable[Tensor], sent: Tensor, own: Tensor) -> Tensor:
    """Fill ``sent`` with what vertices send in layer ``i``, and ``own``, which it returns, with what they add."""
    device = next(model.parameters()).device
    done = 0
    for x in inputs:
        kept, message = model.project(i, x.to(device))
        own[done : done + len(x)], sent[done : done + len(x)] = kept, message
        done += len(x)
    return own


def _by_head(rows: Tensor, vectors: Tensor) -> Tensor:
    """Dot products of each head's part of the rows and its vector, ``(len(rows), heads)``."""
    heads, width = vectors.shape
    return torch.stack([rows[:, h * width : (h + 1) * width] @ vectors[h] for h in range(heads)], 1)


class Neighbours:
    """Adds up rows over in-neighbours, as GraphSAGE (mean), GCN or GAT does; nothing of the graph is copied.

    With the ``norm`` of :func:`pagraph.train.task.gcn_norm` every vertex has one self-loop, whatever the graph's own,
    and the edges that are there make up for those that a part dropped. None: the mean.
    """

    def __init__(self, csc: CSC, norm: Tensor | None = None) -> None:
        csc.validate()
        self._csc, self._norm = csc, norm

    def scale(self, rows: Tensor, share: slice) -> None:
        """Turn the rows of some vertices, in place, into the messages they send."""
        if self._norm is not None:
            rows[share].mul_(self._norm[share, :1])

    def add(
        self, sent: Tensor, share: slice, out: Tensor, attention: Sequence[Tensor] = (), *, room: int = _NO_LIMIT
    ) -> None:
        """Add what the vertices of ``share`` receive to ``out``, a row each; ``sent`` has a row for every vertex.

        With the ``attention`` vectors of GAT, for sources and for destinations, ``(heads, width)``, that is a mean over
        the in-neighbours and the vertex itself, once, weighted as GAT does. Of rows in a mapped file as many are in
        memory at once as fit into ``room`` bytes.
        """
        windows, begin = SourceWindows(self._csc, sent, room), share.start
        with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="pagraph-evaluate") as pool:
            while begin < share.stop:
                window = windows.at(begin)
                end = min(window.end, share.stop)
                scores = [_by_head(window.rows, vectors.cpu()) for vectors in attention]
                begins = range(begin, end, _CHUNK)
                chunks = [out[at - share.start : min(at + _CHUNK, end) - share.start] for at in begins]
                work = partial(self._add, window, scores)
                for _ in map(work, begins, chunks) if len(chunks) <= 1 else pool.map(work, begins, chunks):
                    pass  # what failed in a thread is raised here
                begin = end

    def _add(self, window: Window, scores: Sequence[Tensor], begin: int, out: Tensor) -> None:
        from . import _preaggregation

        end, first = begin + len(out), window.first_place(begin)
        indptr = self._csc.indptr[begin : end + 1].long()  # perhaps the graph's own memory
        ids = self._csc.indices[int(indptr[0]) : int(indptr[-1])]
        offsets, places, sent = indptr - indptr[0], window.places_of(ids), window.rows
        if scores:
            arrays = (offsets, places, *scores, sent, out)
            _preaggregation.add_attended(first, *(array.numpy() for array in arrays))
            return
        counts, weights = indptr.diff(), torch.ones(len(ids), device="cpu")
        if self._norm is None:
            sums, to = torch.zeros_like(out), counts.clamp(min=1).float().reciprocal()
        else:
            targets = torch.repeat_interleave(torch.arange(len(out), device="cpu"), counts)
            loops = ids == targets + begin
            weights[loops] = 0.0
            counts = counts + 1 - torch.bincount(targets[loops], minlength=len(out))
            sums, to = sent[first : first + len(out)].clone(), self._norm[begin:end, 1] / counts
        _preaggregation.add_rows(offsets.numpy(), places.numpy(), weights.numpy(), sent.numpy(), sums.numpy())
        out.add_(sums.mul_(to[:, None]))
