"""LayerPass: a layer's outputs from all in-neighbours, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..features.disk import on_disk
from ..features.field import host_feature, row_reader
from ..graph.csc import CSC
from ..graph.fields import FieldValue
from ..graph.mapped import spilled
from .distributed import ALONE, World
from .windows import pieces

_CHUNK = 4096  # vertices that a thread takes at once
_FLOAT = 4
# More bytes than any machine has. Sums with it stay within 64 bits.
_NO_LIMIT = 2**62
_NO_PLACE = torch.empty(0, dtype=torch.int32, device="cpu")
_AT_ONCE = 2**20  # ids in a tensor
_RUN_BYTES = 32 * 2**20  # of edges that are prefetched together
_LEAST_ROWS = 2**12  # of a block, however little memory there is
# A block covers at most this many vertices for each row. The table of their places would otherwise
# take more memory than the rows.
_SPARSE = 8


@dataclass(frozen=True, eq=False)
class Rows:
    """Input rows of a layer.

    Attributes:
        fields: One or more fields, whose rows ``begin`` turns into the layer's input.
        begin: Makes the layer's input, on the model's device, from rows of the fields.
        ids: The vertex of each row, ascending, int64. None if row ``i`` is that of vertex
            ``first + i``.
        first: Vertex of the first row if ``ids`` is None.
    """

    fields: Sequence[FieldValue]
    begin: Callable[..., Tensor]
    ids: Tensor | None = None
    first: int = 0

    def read(self, vertices: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the inputs of ascending vertices piece by piece, each with its place among them."""
        places = vertices - self.first
        if self.ids is not None:
            places = torch.searchsorted(self.ids, vertices)
        readers = [row_reader(field) for field in self.fields]
        stored = [host_feature(field, torch.device("cpu")) for field in self.fields]
        row_bytes = sum(reader.row_bytes for reader in readers)
        for part in pieces(places, stored, row_bytes):
            rows = [reader.read(places[part]) for reader in readers]
            yield part, self.begin(*rows)


def needed_vertices(csc: CSC, ids: Tensor, hops: int) -> list[Tensor] | None:
    """The vertices that each layer must compute for the outputs of ``ids``; ascending, int64.

    None if they have more than half of the in-edges that the layers of the whole graph have.
    """
    mask = torch.zeros(csc.num_dst, dtype=torch.bool, device="cpu")
    mask[ids] = True
    found = [mask.nonzero().squeeze(1)]
    total = 0
    for hop in range(hops):
        for _, lengths in _rows_of(csc, found[0]):
            total += int(lengths.sum())
        if 2 * total > hops * csc.num_edges:
            return None
        if hop + 1 < hops:
            _mark_sources(csc, found[0], mask)
            found.insert(0, mask.nonzero().squeeze(1))
    return found


def _mark_sources(csc: CSC, vertices: Tensor, mask: Tensor) -> None:
    """Set ``mask`` for ascending vertices and all their sources."""
    from . import _neighbor_rows

    for indptr, indices, run in _edge_runs(csc, vertices):
        _neighbor_rows.mark_sources(
            indptr.numpy(), indices.numpy(), vertices[run].numpy(), mask.numpy()
        )


def _rows_of(csc: CSC, vertices: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield where vertices' edges begin, and their numbers, for some of the vertices at a time."""
    own = csc.scattered
    for some in torch.split(vertices, _AT_ONCE):
        if own.pages is not None:
            own.pages.need_offsets(some.numpy())
        starts = own.indptr[some].long()
        yield starts, own.indptr[some + 1].long() - starts


def _edge_runs(csc: CSC, vertices: Tensor) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """Yield arrays of edges with the run of ascending vertices whose edges to read next.

    If edges are on disk and the vertices far apart, only their pages are read, a run ahead. In
    passes over 234 thousand of 67 million vertices the system's read-ahead read up to 77 GB, of
    which 27 were needed.
    """
    own = csc.scattered
    count = len(vertices)
    if own.pages is None or not count or 8 * count > int(vertices[-1] - vertices[0]):
        yield csc.indptr, csc.indices, slice(0, count)
        return
    rows = zip(*_rows_of(csc, vertices), strict=True)
    starts, lengths = (torch.cat(each).numpy() for each in rows)
    runs = lengths.cumsum() * own.indices.element_size() // _RUN_BYTES
    changes = np.flatnonzero(np.diff(runs)) + 1
    cuts = [0, *changes.tolist(), count]
    parts = [slice(*ends) for ends in pairwise(cuts)]
    own.pages.need_edges(starts[parts[0]], lengths[parts[0]])
    for part, following in zip(parts, [*parts[1:], slice(0, 0)], strict=True):
        own.pages.need_edges(starts[following], lengths[following])
        yield own.indptr, own.indices, part


@dataclass(frozen=True, eq=False)
class _Block:
    """Messages of the sources in ``[begin, end)``.

    Source ``u`` has row ``place[u - begin]``, or row ``u - begin`` if ``place`` is empty.
    ``scores`` are GAT's attention scores of the rows, ``(len(rows), heads)``.
    """

    begin: int
    end: int
    place: Tensor
    rows: Tensor
    scores: Tensor


class LayerPass:
    """Computes a model's layers on a graph whose rows may not fit into memory.

    A layer's weights are applied before neighbours are added up, so that messages are small.
    Sources are taken in ascending order, in blocks that fit, and only if they are needed. The sums
    of vertices stay in memory until the last block. Vertices whose sums do not fit are computed in
    another pass.

    Args:
        csc: In-edges between vertices of one type; ids are checked.
        model: One of :mod:`pagraph.train.models`.
        norm: For GCN, the normalisation of all vertices: see :func:`pagraph.train.task.gcn_norm`.
            Every vertex then has one self-loop instead of the graph's own, and the existing edges
            are scaled up for those that a part dropped.
        world: Processes that share the vertices and exchange messages, which are then in memory.
        room: Bytes for rows.
    """

    def __init__(
        self,
        csc: CSC,
        model: Any,
        norm: Tensor | None = None,
        *,
        world: World = ALONE,
        room: int = _NO_LIMIT,
    ) -> None:
        csc.validate()
        self._csc = csc
        self._model = model
        self._norm = norm
        self._world = world
        self._room = room

    def rows(self, i: int, inputs: Rows, targets: Tensor | slice, *, held: int = 0) -> Tensor:
        """Outputs of layer ``i`` without its activation, for ascending vertices.

        ``held`` bytes of the room are in use.
        """
        width = self._model.sizes[i + 1]
        count = _count(targets)
        room = max(0, self._room - held)
        out = self._zeros(count, width, room)
        fits = not on_disk(out)
        step = max(1, count)
        if not fits:
            step = max(_LEAST_ROWS, room // (3 * _FLOAT * width))
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(threads, thread_name_prefix="pagraph-evaluate") as pool:
            for begin in range(0, count, step):
                end = min(begin + step, count)
                some = _some(targets, begin, end)
                sums = out[begin:end] if fits else torch.zeros((end - begin, width), device="cpu")
                self._receive(i, inputs, some, sums, room - sums.nbytes, pool)
                if not fits:
                    out[begin:end] = sums
        return out

    def begun(self, inputs: Rows, targets: Tensor | slice) -> Tensor:
        """The first layer's outputs of vertices whose features are pre-aggregated."""
        out = self._zeros(_count(targets), self._model.sizes[1], self._room)
        for begin in range(0, len(out), _AT_ONCE):
            some = out[begin : begin + _AT_ONCE]
            for part, x in inputs.read(_some(targets, begin, begin + len(some))):
                some[part] = x
        return out

    def _zeros(self, count: int, width: int, room: int) -> Tensor:
        """A tensor for outputs, in memory if it takes at most half of the room, else in a file."""
        if self._world.size > 1 or 2 * _FLOAT * count * width <= room:
            return torch.zeros((count, width), device="cpu")
        return spilled((count, width), torch.float32)

    def _receive(
        self,
        i: int,
        inputs: Rows,
        targets: Tensor,
        out: Tensor,
        room: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        """Add the layer's outputs for ``targets`` to ``out``, which is 0."""
        if not len(targets):
            return
        sums = _Sums(targets, self._own_scores(i, inputs, targets), self._norm, out)
        alone = self._world.size == 1
        everything = len(targets) == self._csc.num_dst
        own = None
        blocks = self._exchanged(i, inputs)
        if alone and everything and 2 * out.nbytes <= room:
            # Rows are then read once, for the messages and for what vertices keep.
            own = torch.empty_like(out)
            room -= own.nbytes
        if alone:
            blocks = self._blocks(i, inputs, targets, room, own)
        for block in blocks:
            for indptr, indices, run in _edge_runs(self._csc, targets):
                work = partial(sums.add, block, indptr, indices)
                begins = range(run.start, run.stop, _CHUNK)
                parts = [slice(begin, min(begin + _CHUNK, run.stop)) for begin in begins]
                done = map(work, parts) if len(parts) <= 1 else pool.map(work, parts)
                for _ in done:
                    pass  # raises errors of the threads
        sums.scale()
        if own is not None:
            out += own
            return
        for part, x in inputs.read(targets):
            out[part] += self._model.kept(i, x).cpu()

    def _own_scores(self, i: int, inputs: Rows, targets: Tensor) -> Tensor:
        """Attention scores of the targets, shape ``(len(targets), heads)``, without attention 0
        heads."""
        attention = self._model.attention(i)
        if not attention:
            return torch.empty(len(targets), 0, device="cpu")
        of_target = attention[1]
        scores = [torch.empty(0, len(of_target), device="cpu")]
        for _, x in inputs.read(targets):
            sent = self._model.sent(i, x)
            scores.append(_by_head(sent, of_target).cpu())
        return torch.cat(scores)

    def _exchanged(self, i: int, inputs: Rows) -> Iterator[_Block]:
        """Yield one block: the messages of all vertices, of which each process computes a share."""
        count = self._csc.num_dst
        share = self._world.share(count)
        sent = torch.empty((count, self._model.sizes[i + 1]), device="cpu")
        ids = torch.arange(share.start, share.stop, device="cpu")
        self._send(i, inputs, ids, sent[share])
        self._world.complete(sent)
        yield self._block(i, 0, count, _NO_PLACE, sent)

    def _blocks(
        self, i: int, inputs: Rows, targets: Tensor, room: int, own: Tensor | None
    ) -> Iterator[_Block]:
        """Yield blocks that fit of the messages that ``targets`` receive, and of their own.

        ``own``, if given, is filled with what the targets keep, which must be all vertices.
        """
        from . import _neighbor_rows

        csc = self._csc
        width = self._model.sizes[i + 1]
        # A message, its vertex's id, and the places of as many vertices as a row may cover.
        row_bytes = _FLOAT * width + 8 + _FLOAT * _SPARSE
        most = max(_LEAST_ROWS, room // row_bytes)
        if len(targets) == csc.num_dst:
            sent = torch.empty((min(most, csc.num_dst), width), device="cpu")
            yield from self._blocks_of_all(i, inputs, targets, sent, own)
            return
        mask = torch.zeros(csc.num_dst, dtype=torch.bool, device="cpu")
        _mark_sources(csc, targets, mask)
        most = min(most, int(mask.sum()))
        place = torch.empty(min(csc.num_dst, _SPARSE * most), dtype=torch.int32, device="cpu")
        found = torch.empty(most, dtype=torch.int64, device="cpu")
        sent = torch.empty((most, width), device="cpu")
        end = 0
        while end < csc.num_dst and most:
            begin = end
            end, count = _neighbor_rows.take_marked(
                mask.numpy(), begin, place.numpy(), found.numpy()
            )
            self._send(i, inputs, found[:count], sent[:count])
            yield self._block(i, begin, end, place, sent[:count])

    def _blocks_of_all(
        self, i: int, inputs: Rows, vertices: Tensor, sent: Tensor, own: Tensor | None
    ) -> Iterator[_Block]:
        """Yield blocks of all vertices, as many as ``sent`` has rows, and fill ``own``, if
        given."""
        for begin in range(0, len(vertices), len(sent)):
            some = vertices[begin : begin + len(sent)]
            end = begin + len(some)
            kept = None if own is None else own[begin:end]
            messages = sent[: len(some)]
            self._send(i, inputs, some, messages, kept)
            yield self._block(i, begin, end, _NO_PLACE, messages)

    def _send(
        self, i: int, inputs: Rows, ids: Tensor, sent: Tensor, own: Tensor | None = None
    ) -> None:
        """Fill ``sent`` with the vertices' messages, and ``own``, if given, with what they keep."""
        for part, x in inputs.read(ids):
            sent[part] = self._model.sent(i, x)
            if own is not None:
                own[part] = self._model.kept(i, x)
            if self._norm is not None:
                sent[part].mul_(self._norm[ids[part], :1])

    def _block(self, i: int, begin: int, end: int, place: Tensor, sent: Tensor) -> _Block:
        attention = self._model.attention(i)
        scores = torch.empty(0, 0, device="cpu")
        if attention:
            scores = _by_head(sent, attention[0].cpu())
        return _Block(begin, end, place, sent, scores)


class _Sums:
    """Sums of the messages that vertices receive.

    Args:
        targets: The vertices.
        own: GAT's scores of the vertices.
        norm: GCN's normalisation of all vertices; None for other models.
        out: Gets the sums.
    """

    def __init__(self, targets: Tensor, own: Tensor, norm: Tensor | None, out: Tensor) -> None:
        self._targets = targets
        self._own = own
        self._norm = norm
        self._out = out
        self._counts = torch.zeros(len(out), dtype=torch.int64, device="cpu")
        self._most = torch.full_like(own, -torch.inf)
        self._totals = torch.zeros_like(own)

    def add(self, block: _Block, indptr: Tensor, indices: Tensor, part: slice) -> None:
        """Add a block's rows to the sums of a part of the vertices."""
        from . import _neighbor_rows

        rows = (
            indptr.numpy(),
            indices.numpy(),
            self._targets[part].numpy(),
            block.begin,
            block.end,
            block.place.numpy(),
        )
        sent = block.rows.numpy()
        out = self._out[part].numpy()
        if not self._own.shape[1]:
            counts = self._counts[part].numpy()
            looped = self._norm is not None  # as GCN
            _neighbor_rows.add_block(*rows, sent, looped, counts, out)
            return
        own = self._own[part].numpy()
        most = self._most[part].numpy()
        totals = self._totals[part].numpy()
        _neighbor_rows.add_attended(*rows, block.scores.numpy(), own, sent, most, totals, out)

    def scale(self) -> None:
        """Turn sums into means, for GCN scaled by its norm, for GAT weighted by attention."""
        heads = self._own.shape[1]
        if heads:
            by_head = self._out.view(len(self._out), heads, self._out.shape[1] // heads)
            by_head.div_(self._totals[:, :, None])
            return
        counts = self._counts.clamp(min=1).float()
        norm = self._norm
        factors = counts.reciprocal() if norm is None else norm[self._targets, 1] / counts
        self._out.mul_(factors[:, None])


def _count(vertices: Tensor | slice) -> int:
    return vertices.stop - vertices.start if isinstance(vertices, slice) else len(vertices)


def _some(vertices: Tensor | slice, begin: int, end: int) -> Tensor:
    """Ids of the vertices at places ``begin`` to ``end``."""
    if isinstance(vertices, Tensor):
        return vertices[begin:end]
    return torch.arange(vertices.start + begin, vertices.start + end, device="cpu")


def _by_head(rows: Tensor, vectors: Tensor) -> Tensor:
    """Dot products of each head's columns with its vector, ``(len(rows), heads)``."""
    parts = torch.split(rows, vectors.shape[1], dim=1)
    return torch.stack([part @ vector for part, vector in zip(parts, vectors, strict=True)], 1)
