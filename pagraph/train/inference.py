"""Layer-wise inference: outputs of all vertices from all their neighbours, in bounded memory."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..datasets.native import check_storable
from ..features.field import row_reader
from ..graph.csc import CSC
from ..graph.fields import FieldValue
from ..graph.graph import Graph
from ..graph.mapped import map_npy, spilled
from ..graph.minibatch import Block
from ..system.atomic import new_file
from ..system.budget import memory_bytes
from ..system.checks import StrPath
from ..system.progress import Progress, Ticks
from ..system.units import in_mebibytes, shortened
from .windows import SourceWindows, most_in_edges

_MOST_COMPUTED = 256 * 2**20  # of a block and a layer's work on it; larger blocks were no faster
# Bytes of an edge in addition to its messages: ids of both ends and of the edge, and copies.
_EDGE_BYTES = 48
# Least bytes of rows to compute at once, as smaller matrix products are slower.
_ROWS_BYTES = 16 * 2**20
Sink = Callable[[Tensor], object]
Hop = Callable[[Block, Tensor], Tensor]
"""Takes a block and a row for each of its sources, and returns a row for each destination."""


class OneHop:
    """A layer that reads a vertex and its in-neighbours only, called as ``call(block, x)``.

    For your own layers, and for those of DGL and PyG that take more than rows, such as edge weights
    (``block.positions`` are the edges' places in the graph's CSC).

    Args:
        call: Takes a :class:`pagraph.Block` and a row for each source, on the same device, and
            returns a row for each destination. The block's first sources are its destinations, with
            all their in-edges.
        module: The module that ``call`` uses, which is in evaluation mode meanwhile. Default:
            ``call``, if it is a module.

    Example:
        >>> import torch
        >>> from pagraph import Graph, inference
        >>> features = torch.tensor([[1.0], [2.0], [4.0]])
        >>> graph = Graph.from_coo([0, 1, 1], [1, 2, 2], ndata={"feat": features})
        >>> degrees = OneHop(lambda block, x: block.indptr.diff()[:, None] + x[: block.num_dst])
        >>> inference(graph, [degrees, torch.relu]).tolist()
        [[1.0], [3.0], [6.0]]
    """

    def __init__(self, call: Hop, module: nn.Module | None = None) -> None:
        if not callable(call):
            raise TypeError(f"call must be callable with a block and rows, got {call!r}")
        if module is None and isinstance(call, nn.Module):
            module = call
        self.call = call
        self.module: nn.Module | None = module


def _hop_of(layer: Any, csc: CSC) -> Hop | None:
    """The computation of a layer on a block; None for a layer that takes only rows.

    Raises:
        TypeError: The layer is neither, or may read more than a block has.
    """
    if isinstance(layer, OneHop):
        return layer.call
    homes = {home.__module__.partition(".")[0] for home in type(layer).__mro__}
    if "torch_geometric" in homes:
        from ..pyg.training import hop_of as of_pyg

        return of_pyg(layer, csc)
    if "dgl" in homes:
        from ..dgl.training import hop_of as of_dgl

        return of_dgl(layer, csc)
    if not callable(layer):
        raise TypeError(f"layers must be callable, got {layer!r}")
    return None


@torch.no_grad()
def inference(
    graph: Graph,
    layers: Iterable[Any],
    *,
    field: str = "feat",
    out: StrPath | None = None,
    memory: int | str | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Compute the outputs of all vertices from all neighbours, layer by layer.

    Equals one pass of the whole graph through the layers, up to rounding. Features may be larger
    than memory. Runs of vertices are computed whose in-neighbours' rows fit, and these rows are
    read in file order. Layers are in evaluation mode meanwhile.

    Args:
        graph: A graph of one vertex type and one edge type, whose ids are checked.
        layers: Layers in order: convolutions of DGL or PyG, :class:`pagraph.train.OneHop` for
            others, and functions or modules from rows to the same number of rows, such as
            ``torch.relu`` or ``torch.nn.BatchNorm1d``.
        field: The vertex field that the first layer reads. Rows of float64 keep their dtype, others
            become float32.
        out: A ``.npy`` file for the result, which appears whole or not at all. Intermediate results
            are then put into the same folder. Default: the result is in memory, or if it does not
            fit, in a file without a name.
        memory: Bytes that the work may take (``"4GiB"``), in addition to the layers and to what the
            graph already has in memory. Default: half of what is free.
        device: Device of the computation. Default: that of the layers' parameters.
        progress: Called with the work done and all work.

    Returns:
        A row for each vertex, on the CPU; with ``out``, mapped from it.

    Raises:
        ValueError: ``memory`` is too little (the message says how much is needed); the graph has
            several types, lacks the field, or has ids out of range; or a layer returns another
            number of rows.
        TypeError: A layer cannot be called, or may read more than one hop.
        OSError: The disk is full.

    Example:
        >>> features = torch.tensor([[1.0], [-2.0], [4.0]])
        >>> graph = Graph.from_coo([0, 1, 1], [1, 2, 2], ndata={"feat": features})
        >>> inference(graph, [torch.relu, lambda rows: rows + 1]).tolist()
        [[2.0], [1.0], [5.0]]
    """
    if not graph.is_homogeneous:
        raise ValueError(f"graph must have one vertex type and one edge type, got {graph}")
    if field not in graph.ndata:
        raise ValueError(
            f"field must be one of {shortened(', '.join(graph.ndata) or 'none')}, got {field!r}"
        )
    graph.csc.validate()
    given = list(layers)
    rows = graph.ndata[field]
    with _evaluating(given) as modules:
        place = _device_of(modules) if device is None else torch.device(device)
        stages = _stages(given, graph.csc)
        plan = _Plan(graph.csc, rows, stages, place, memory_bytes(memory), out)
        return plan.run(progress)


@dataclass
class _Stage:
    """A layer with neighbours, or None, and the functions of rows that follow it."""

    hop: Hop | None
    after: list[Callable[[Tensor], Tensor]]
    shape: tuple[int, ...] = ()  # of an output row
    dtype: torch.dtype = torch.float32
    edge_bytes: int = 0  # bytes of an edge while the stage computes, with its source's row

    def __call__(self, block: Block | None, x: Tensor) -> Tensor:
        count = len(x) if block is None else block.num_dst
        if self.hop is not None and block is not None:
            x = self.hop(block, x)
        for function in self.after:
            x = function(x)
        if not isinstance(x, Tensor) or x.dim() == 0 or len(x) != count:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"layers must give a row for each of {count} vertices, got {got}")
        return x


def _stages(layers: Sequence[Any], csc: CSC) -> list[_Stage]:
    stages: list[_Stage] = []
    for layer in layers:
        hop = _hop_of(layer, csc)
        if hop is not None or not stages:
            stages.append(_Stage(hop, []))
        if hop is None:
            stages[-1].after.append(layer)
    if not stages:
        raise ValueError("layers must hold at least 1 layer, got 0")
    return stages


@contextlib.contextmanager
def _evaluating(layers: Sequence[Any]) -> Iterator[list[nn.Module]]:
    """Put the modules among the layers in evaluation mode.

    Raises:
        ValueError: A norm has no running statistics, and would normalise each block by itself.
    """
    found = [layer.module if isinstance(layer, OneHop) else layer for layer in layers]
    modules = [module for module in found if isinstance(module, nn.Module)]
    every = [part for module in modules for part in module.modules()]
    for part in every:
        if getattr(part, "track_running_stats", True) is False:
            raise ValueError(
                f"layers must track running statistics to be run block by block, got {part}"
            )
    training = [part for part in every if part.training]
    for part in training:
        part.training = False
    try:
        yield modules
    finally:
        for part in training:
            part.training = True


def _device_of(modules: Sequence[nn.Module]) -> torch.device:
    parameters = (parameter for module in modules for parameter in module.parameters())
    return next((parameter.device for parameter in parameters), torch.device("cpu"))


def _widened(rows: Tensor) -> Tensor:
    return rows if rows.dtype == torch.float64 else rows.float()


class _Plan:
    """How stages run in a given memory: its division, and the rows computed at once."""

    def __init__(
        self,
        csc: CSC,
        rows: FieldValue,
        stages: list[_Stage],
        device: torch.device,
        memory: int,
        out: StrPath | None,
    ) -> None:
        self._csc = csc
        self._rows = rows
        self._stages = stages
        self._device = device
        self._out = out
        self._folder = None if out is None else Path(os.path.realpath(out)).parent
        self._count = csc.num_dst
        self._try(rows)
        tables = 2 * csc.indptr.element_size() * self._count  # places in a window and in a block
        edge_bytes = 0
        row_bytes = 0  # with the row's vertex
        for i, stage in enumerate(stages):
            if stage.hop is not None:
                edge_bytes = max(edge_bytes, stage.edge_bytes)
                row_bytes = max(row_bytes, self._row_bytes(i) + 8)
        # Of the vertex with the most in-edges, which cannot be divided.
        most = most_in_edges(csc) + 1
        computed = max(most * edge_bytes, 2 * _ROWS_BYTES)
        window = most * row_bytes
        least = tables + computed + window
        if memory < least:
            raise ValueError(
                f"memory must be at least {in_mebibytes(least)} for this graph and these layers, "
                f"got {memory:,} bytes"
            )
        self._computed = max(computed, min(memory // 4, _MOST_COMPUTED))
        self._room = max(window, memory - tables - self._computed)
        self._window = window

    def _row_bytes(self, i: int) -> int:
        """Bytes of a row that stage ``i`` reads."""
        if i == 0:
            return math.prod(self._rows.shape[1:]) * self._rows.dtype.itemsize
        before = self._stages[i - 1]
        return math.prod(before.shape) * before.dtype.itemsize

    def _try(self, rows: FieldValue) -> None:
        """Run the stages on one vertex, to learn shapes and dtypes of their outputs."""
        dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
        x = torch.zeros(1, *rows.shape[1:], dtype=dtype, device=self._device)
        # One vertex with a self-loop, or without edges if the graph has none.
        count = min(1, self._csc.num_edges)
        ids = torch.zeros(1, dtype=self._csc.indptr.dtype, device="cpu")
        edges = torch.zeros(count, dtype=ids.dtype, device="cpu")
        offsets = torch.tensor([0, count], dtype=ids.dtype, device="cpu")
        block = Block(offsets, ids[:count], ids, edges, 1).to(self._device)
        for stage in self._stages:
            y = stage(block, x)
            # For each edge a row of the source and one of the output, and two copies of both, as
            # PyG's layers make.
            stage.edge_bytes = _EDGE_BYTES + 3 * (x.nbytes + y.nbytes)
            stage.shape = tuple(y.shape[1:])
            stage.dtype = y.dtype
            x = y

    def run(self, progress: Progress | None) -> Tensor:
        tick = Ticks(progress, self._count * len(self._stages)).add
        rows: FieldValue = self._rows
        held = 0  # bytes of the rows if they are an output in memory
        for i, stage in enumerate(self._stages):
            shape = (self._count, *stage.shape)
            last = i + 1 == len(self._stages)
            size = math.prod(shape) * stage.dtype.itemsize
            room = self._room - held
            if last and self._out is not None:
                return self._to_file(stage, rows, room, tick)
            if size <= room // 2 and size + self._window <= room:
                made = torch.empty(shape, dtype=stage.dtype, device="cpu")
            else:
                made = spilled(shape, stage.dtype, self._folder)
                size = 0  # in memory
            at = 0

            def keep(some: Tensor, made: Tensor = made) -> None:
                nonlocal at
                made[at : at + len(some)] = some
                at += len(some)

            self._pass(stage, rows, room - size, keep, tick)
            rows = made
            held = size
        assert isinstance(rows, Tensor)
        return rows

    def _to_file(
        self, stage: _Stage, rows: FieldValue, room: int, tick: Callable[[int], None]
    ) -> Tensor:
        assert self._out is not None
        shape = (self._count, *stage.shape)
        empty = torch.empty(0, *stage.shape, dtype=stage.dtype, device="cpu")
        stored = check_storable("out", empty)
        with new_file(self._out) as file:
            header = {"descr": stored.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            self._pass(stage, rows, room, lambda some: file.write(_bytes_of(some)), tick)
        result = map_npy(self._out)
        return result if result.dtype == stage.dtype else result.view(stage.dtype)

    def _pass(
        self, stage: _Stage, rows: FieldValue, room: int, sink: Sink, tick: Callable[[int], None]
    ) -> None:
        """Pass the rows of a stage's output to the sink, in order."""
        if stage.hop is None:
            self._row_by_row(stage, rows, sink, tick)
            return
        at_once = self._computed // stage.edge_bytes
        place = torch.full((self._count,), -1, dtype=self._csc.indptr.dtype, device="cpu")
        for window in SourceWindows(self._csc, rows, room):
            for begin, end in _runs(self._csc.indptr, window.begin, window.end, at_once):
                block = _block(self._csc, begin, end, place)
                x = window.rows.index_select(0, window.places_of(block.src_nodes))
                y = stage(block.to(self._device), _widened(x).to(self._device))
                sink(y.cpu())
                tick(end - begin)

    def _row_by_row(
        self, stage: _Stage, rows: FieldValue, sink: Sink, tick: Callable[[int], None]
    ) -> None:
        feature = row_reader(rows)
        widest = max(feature.row_bytes, math.prod(stage.shape) * stage.dtype.itemsize, 1)
        at_once = max(1, _ROWS_BYTES // widest)
        for ids in torch.split(torch.arange(self._count, device="cpu"), at_once):
            x = _widened(feature.read(ids)).to(self._device)
            sink(stage(None, x).cpu())
            tick(len(ids))


def _runs(indptr: Tensor, begin: int, end: int, at_once: int) -> Iterator[tuple[int, int]]:
    """Divide vertices into runs with at most ``at_once`` vertices and edges, or of one vertex."""
    while begin < end:
        last = min(end, begin + at_once)
        ends = indptr[begin + 1 : last + 1].long() - int(indptr[begin])
        ends += torch.arange(1, len(ends) + 1, device="cpu")
        stop = begin + max(1, int(torch.searchsorted(ends, at_once, right=True)))
        yield begin, stop
        begin = stop


def _block(csc: CSC, begin: int, end: int, place: Tensor) -> Block:
    """The block of a run of vertices with all their in-edges. ``place`` is -1 everywhere."""
    from . import _neighbor_rows

    first = int(csc.indptr[begin])
    last = int(csc.indptr[end])
    num_dst = end - begin
    dtype = csc.indptr.dtype
    most = min(csc.num_src, num_dst + last - first)
    sources = torch.empty(most, dtype=dtype, device="cpu")
    local = torch.empty(last - first, dtype=dtype, device="cpu")
    arrays = (place.numpy(), sources.numpy(), local.numpy())
    count = _neighbor_rows.number_sources(*csc.arrays, begin, end, *arrays)
    positions = torch.arange(first, last, dtype=dtype, device="cpu")
    offsets = csc.indptr[begin : end + 1] - first
    return Block(offsets, local, sources[:count], positions, num_dst)


def _bytes_of(rows: Tensor) -> memoryview:
    return rows.contiguous().reshape(-1).view(torch.uint8).numpy().data
