"""Node-wise neighbour sampling: a pure function from graph, seeds, fan-outs and a key to blocks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..buffers import BufferPool, BufferPools
from ..csc import check_range
from ..errors import FormatError
from ..minibatch import Block, MiniBatch
from .keys import derive_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..graph import CSC, Graph

__all__ = ["NeighborSampler"]

_MIN_TABLE_BITS = 10
_scratch = threading.local()


@dataclass(frozen=True)
class NeighborSampler:
    """Draws neighbours uniformly, hop by hop (GraphSAGE's sampling, as DGL's ``NeighborSampler`` does it).

    Every known vertex is expanded again in each hop, as in DGL. The result depends on the graph, the seeds and the
    key alone, never on threads or on what was sampled before.

    Args:
        fanouts: Neighbours per vertex for each hop in DGL's order: the last entry serves the seeds. -1 takes all.
        replace: Draw with replacement.
        edge_dir: "in" draws from in-edges; "out" from out-edges (the out-neighbours become the block's sources).

    Raises:
        TypeError: A fan-out is not an integer.
        ValueError: No fan-out, one that is 0 or below -1, or an unknown direction.

    Example:
        >>> from pagraph.graph import Graph
        >>> batch = NeighborSampler([-1]).sample(Graph.from_coo([0, 1, 2], [1, 2, 2]), torch.tensor([2]))
        >>> batch.input_nodes.tolist(), batch.blocks
        ([2, 1], [Block(num_src=2, num_dst=1, num_edges=2)])
    """

    fanouts: Sequence[int]
    replace: bool = False
    edge_dir: str = "in"

    def __post_init__(self) -> None:
        fanouts = tuple(self.fanouts)
        if not fanouts:
            raise ValueError("fanouts must have at least 1 entry, got none")
        for fanout in fanouts:
            if isinstance(fanout, bool) or not isinstance(fanout, int | np.integer):
                raise TypeError(f"fanouts must be integers, got {fanout!r}")
            if fanout < -1 or fanout == 0:
                raise ValueError(f"fanouts must be positive or -1 (all neighbours), got {fanout}")
            if self.replace and fanout > 2**31 - 1:
                raise ValueError(f"fanouts must be below 2**31 with replacement, got {fanout}")
        if self.edge_dir not in ("in", "out"):
            raise ValueError(f"edge_dir must be 'in' or 'out', got {self.edge_dir!r}")
        # Without replacement a huge fan-out is a way to say "all".
        limit = 2**31 - 1
        object.__setattr__(self, "fanouts", tuple(min(int(f), limit) for f in fanouts))

    def sample(
        self,
        graph: Graph,
        seeds: Tensor,
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
    ) -> MiniBatch:
        """Sample the blocks of one mini-batch; safe from any number of threads at once.

        Args:
            graph: A homogeneous graph.
            seeds: Shape ``(batch,)``, int32 or int64; repeated seeds keep their own rows.
            key: Any 64-bit number; equal keys give equal batches. See ``derive_key``.
            dtype: Id dtype of the result. Default: that of ``seeds``.
            pools: Where output memory is recycled. Default: fresh memory.

        Raises:
            IndexError: A seed is outside ``[0, num_nodes)``.
            FormatError: The graph's arrays lead out of the graph (a damaged file).
        """
        csc = graph.adjacency(self.edge_dir)
        check_range("seeds", seeds, csc.num_dst, IndexError)  # narrowing would wrap a wrong id round into a right one
        scratch: _Scratch = _scratch.__dict__.setdefault("value", _Scratch())
        pools = pools if pools is not None else BufferPools(max_free=0)
        return scratch.run(csc, seeds, self, key, dtype or seeds.dtype, pools)


class _Scratch:
    """One thread's working memory: frontier degrees, neighbour ids, nodes, hash table. Grows, never shrinks."""

    def __init__(self) -> None:
        self._arrays: dict[str, Any] = {}
        self._table_bits = _MIN_TABLE_BITS
        self._table = np.empty(0, dtype=np.int64)
        self._seen = np.empty(0, dtype=np.int64)

    def run(
        self,
        csc: CSC,
        seeds: Tensor,
        sampler: NeighborSampler,
        key: int,
        dtype: torch.dtype,
        pools: BufferPools,
    ) -> MiniBatch:
        """Sample all hops of one batch."""
        from . import _cpu

        id_dtype = csc.indices.numpy().dtype
        count = len(seeds)
        nodes = self._array("nodes", max(count, 1), id_dtype)
        nodes[:count] = seeds.numpy()
        self._reset_table(nodes, count, csc.num_src)
        hops: list[tuple[Tensor, Tensor, Tensor, int]] = []
        for hop, fanout in enumerate(reversed(sampler.fanouts)):
            hop_key = np.uint64(derive_key(key, hop))
            num_dst = count
            indptr, indices, positions = self._pick(
                csc, nodes[:count], fanout, sampler.replace, hop_key, dtype, pools(("hop", hop))
            )
            neighbors = self._array("neighbors", len(positions), id_dtype)
            _cpu.read_neighbors(csc.indices.numpy(), positions.numpy(), neighbors)
            nodes = self._grown("nodes", count, count + len(positions))
            count = self._relabel(neighbors, csc.num_src, nodes, count, indices)
            hops.append((indptr, indices, positions, num_dst))
        out = pools("nodes").take((count,), dtype)
        out.numpy()[:] = nodes[:count]
        return _assemble(seeds, out, hops)

    def _pick(
        self,
        csc: CSC,
        frontier: Any,
        fanout: int,
        replace: bool,
        key: Any,
        dtype: torch.dtype,
        pool: BufferPool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Measure the frontier and choose edge positions; returns indptr, (unfilled) indices and positions."""
        from . import _cpu

        n = len(frontier)
        starts, degrees = self._array("starts", n, np.int64), self._array("degrees", n, np.int64)
        draws = self._array("draws", n + 1, np.int64)
        total = _cpu.measure(csc.indptr.numpy(), csc.num_edges, frontier, fanout, replace, starts, degrees, draws)
        if total < 0:
            _raise_bad_vertex(int(frontier[-1 - total]))
        indptr, indices, positions = pool.take_many(((n + 1,), dtype), ((total,), dtype), ((total,), csc.indices.dtype))
        indptr.numpy()[:] = draws
        if fanout == -1:
            _cpu.pick_all(starts, draws, positions.numpy())
        elif replace:
            _cpu.pick_repeated(frontier, starts, degrees, draws, key, positions.numpy())
        else:
            _cpu.pick_distinct(
                frontier, starts, degrees, draws, key, self._hash_set(fanout, degrees), positions.numpy()
            )
        return indptr, indices, positions

    def _hash_set(self, fanout: int, degrees: Any) -> Any:
        """An empty set for ``fanout`` picks of one vertex; a token where no vertex has to choose among so many."""
        from . import _cpu

        most = fanout if fanout > _cpu.SCAN_LIMIT and len(degrees) and int(degrees.max()) > fanout else 1
        size = 1 << (2 * most - 1).bit_length()
        if len(self._seen) < size:
            self._seen = np.full(size, -1, dtype=np.int64)  # the kernel leaves it empty
        return self._seen[:size]

    def _relabel(self, neighbors: Any, num_src: int, nodes: Any, count: int, indices: Tensor) -> int:
        """Fill ``indices`` with local ids, growing the hash table whenever it is half full."""
        from . import _cpu

        at = 0
        while True:
            shift = np.uint64(64 - self._table_bits)
            at, count = _cpu.relabel(neighbors, at, num_src, nodes, count, self._table, shift, indices.numpy())
            if at < 0:
                raise FormatError(
                    f"the graph's indices must be in [0, {num_src}), got {int(neighbors[-1 - at])}: damaged file?"
                )
            if at == len(neighbors):
                return int(count)
            self._table_bits += 1
            self._fill_table(nodes, count)

    def _reset_table(self, nodes: Any, count: int, num_src: int) -> None:
        """Empty the table; its size is kept from the batch before, which was as large."""
        bits = max(_MIN_TABLE_BITS, self._table_bits, (4 * count - 1).bit_length() if count else 0)
        # Never much larger than the graph: a small graph after a large one would clear a large table for nothing.
        self._table_bits = min(bits, max(_MIN_TABLE_BITS, (4 * num_src).bit_length()))
        while 1 << self._table_bits < 4 * count:
            self._table_bits += 1
        self._fill_table(nodes, count)

    def _fill_table(self, nodes: Any, count: int) -> None:
        from . import _cpu

        size = 1 << self._table_bits
        if len(self._table) != size:
            self._table = np.empty(size, dtype=np.int64)
        self._table.fill(-1)
        _cpu.insert_nodes(nodes, count, self._table, np.uint64(64 - self._table_bits))

    def _array(self, name: str, length: int, dtype: Any) -> Any:
        """Scratch of at least ``length`` (contents undefined), cut to ``length``."""
        array = self._arrays.get(name)
        if array is None or len(array) < length or array.dtype != dtype:
            array = np.empty(length + (length >> 3), dtype=dtype)
            self._arrays[name] = array
        return array[:length]

    def _grown(self, name: str, keep: int, length: int) -> Any:
        """The same scratch with room for ``length`` entries, its first ``keep`` entries kept."""
        old = self._arrays[name]
        new = self._array(name, length, old.dtype)
        if new.base is not old:
            new[:keep] = old[:keep]
        return new


def _assemble(seeds: Tensor, nodes: Tensor, hops: list[tuple[Tensor, Tensor, Tensor, int]]) -> MiniBatch:
    """Blocks from the hops: sources of a block are a prefix of ``nodes``, for each vertex keeps its local id."""
    sizes = [num_dst for *_, num_dst in hops[1:]] + [len(nodes)]
    blocks = [
        Block(indptr, indices, nodes[:num_src], positions, num_dst)
        for (indptr, indices, positions, num_dst), num_src in zip(hops, sizes, strict=True)
    ]
    return MiniBatch(seeds, blocks[::-1])


def _raise_bad_vertex(vertex: int) -> None:
    raise FormatError(f"the graph's indptr must be non-decreasing, it is not at vertex {vertex}: damaged file?")
