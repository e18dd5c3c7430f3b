"""Small mini-batches of uniform picks along one edge type: all hops in one call of a kernel, into one buffer.

The results are those of sampling hop by hop, bit by bit. What takes no part in it (several types, weights, times,
trees, excluded or induced edges, all neighbours, large batches, edges on disk) gets None, and is sampled hop by hop.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import check_range
from ..graph.minibatch import Block, HeteroBlock, HeteroMiniBatch, MiniBatch, Relation
from ..graph.subgraph import SampledEdges, Subgraph
from ..seeds.keys import Renewal
from .hop import SHARES_NONE, Scratch, raise_bad_row, raise_bad_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..graph.csc import CSC
    from ..graph.graph import EdgeType, Graph
    from ..system.buffers import BufferPools
    from .sampler import HopSampler, UniformHops

__all__ = ["small_blocks", "small_subgraph"]

MOST_EDGES = 2**18
"""Batches that may draw more are sampled hop by hop.

A result keeps room for as many edges as there might be, here up to 8 MB, and kernels take nearly all the time of larger
batches: 1000 seeds of fan-out 15,10,5 took 12 % less in one call, 64 seeds 57 % less.
"""

_MOST_INT32 = 2**31 - 1
_ID_DTYPES = (torch.int32, torch.int64)
_LINE = 64  # bytes of a cache line
_REPORT, _PER_HOP = 5, 5  # as in the kernels
_UNKNOWN: Any = object()


def small_blocks(
    sampler: HopSampler,
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
    key: int,
    dtype: torch.dtype | None,
    pools: BufferPools | None,
) -> MiniBatch | HeteroMiniBatch | None:
    """The blocks of a batch whose hops expand all known vertices, or None; see ``BlockSampler.sample``."""
    drawn = _draw(sampler, graph, seeds, key, dtype, pools)
    if drawn is None:
        return None
    (ntype, etype), seed_ids, csc, whole, report = drawn
    ids, places = whole.view(seed_ids.dtype), whole.view(csc.indices.dtype)
    known, parts = seed_ids.shape[0], []
    for at in range(_REPORT, len(report), _PER_HOP):
        count, total, row, index, position = report[at : at + _PER_HOP]
        indptr, indices = ids[row : row + known + 1], ids[index : index + total]
        parts.append((indptr, indices, ids[:count], places[position : position + total], known))
        known = count
    parts.reverse()
    if isinstance(seeds, Tensor):
        return MiniBatch(seeds, [Block(*part) for part in parts])
    blocks = [
        HeteroBlock({etype: Relation(indptr, indices, positions)}, {ntype: nodes}, {ntype: num_dst})
        for indptr, indices, nodes, positions, num_dst in parts
    ]
    return HeteroMiniBatch(dict(seeds), blocks, {ntype: parts[0][2]})


def small_subgraph(
    sampler: HopSampler,
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
    key: int,
    dtype: torch.dtype | None,
    pools: BufferPools | None,
) -> Subgraph | None:
    """The subgraph of a batch whose hops expand what the hop before found, or None; see ``SubgraphSampler.sample``."""
    drawn = _draw(sampler, graph, seeds, key, dtype, pools)
    if drawn is None:
        return None
    (ntype, etype), seed_ids, _, whole, report = drawn
    ids = whole.view(seed_ids.dtype)
    counts, ends = [seed_ids.shape[0], *report[_REPORT::_PER_HOP]], [0, *report[_REPORT + 1 :: _PER_HOP]]
    total, source, edge_id = ends[-1], report[3], report[4]
    edges = SampledEdges(
        ids[source : source + 2 * total].view(2, total),
        whole.view(torch.int64)[edge_id : edge_id + total],
        ends,
    )
    output = {ntype: seeds} if isinstance(seeds, Tensor) else dict(seeds)
    return Subgraph(output, {ntype: ids[: counts[-1]]}, {etype: edges}, {ntype: counts})


def _draw(
    sampler: HopSampler,
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
    key: int,
    dtype: torch.dtype | None,
    pools: BufferPools | None,
) -> tuple[tuple[str, EdgeType], Tensor, CSC, Tensor, list[int]] | None:
    """Run the kernel; returns the types, the seeds in the result's dtype, the edges, the result's buffer, the report.

    Few calls of other functions, for each of them costs a small batch about as much as one of the kernel's passes.
    """
    types = graph.only_types
    if types is None:
        return None
    ntype, etype = types
    hops = sampler.known_hops.get(etype, _UNKNOWN)
    if hops is _UNKNOWN:
        hops = sampler.known_hops[etype] = sampler.uniform_hops(etype)
    if isinstance(seeds, Tensor):
        ids = seeds
    elif len(seeds) == 1 and ntype in seeds:
        ids = seeds[ntype]
    else:
        return None
    if hops is None or not isinstance(ids, Tensor) or ids.ndim != 1 or not ids.is_cpu or ids.dtype not in _ID_DTYPES:
        return None
    csc, dtype = graph.adjacency(sampler.edge_dir, etype).scattered, dtype or ids.dtype
    if csc.pages is not None or dtype not in _ID_DTYPES or (csc.num_src > _MOST_INT32 and dtype == torch.int32):
        return None
    widths = dtype.itemsize, csc.indices.dtype.itemsize
    once = sampler.expands_once
    most_edges, room, words, nbytes = _sizes(hops, ids.shape[0], csc.num_src, widths, once)
    if most_edges > MOST_EDGES:
        return None
    if ids.dtype != dtype:
        _check_seeds(seeds, ids, csc.num_src)  # narrowing would wrap a wrong id round into a right one
        ids = ids.to(dtype)

    scratch, batch = Scratch.of_this_thread(), _kernels()
    work = scratch.array("batch", words, np.int64)
    whole = (
        torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        if pools is None
        else pools("batch").take((nbytes,), torch.uint8)
    )
    # Not kept from batch to batch: arrays move when a graph is shared with another process.
    indptr, indices, begin = csc.indptr.numpy(), csc.indices.numpy(), ids.contiguous().numpy()
    renewal, bits, out = SHARES_NONE, scratch.table_bits, whole.numpy()
    if sampler.batch_dependency != 1:
        shared = Renewal.of(key, sampler.batch_dependency)
        key, renewal = shared.key, shared.numbers
    random = np.uint64(key % 2**64)
    drawn = indptr, indices, begin, hops.array, hops.replace, random, renewal
    if once:
        edge_ids = indices[:0] if csc.edge_ids is None else csc.edge_ids.numpy()
        batch.sample_subgraph(*drawn, bits, room, work, out, edge_ids)
    else:
        batch.sample_blocks(*drawn, bits, room, work, out)
    report: list[int] = work[: _REPORT + _PER_HOP * len(hops.fanouts)].tolist()
    if report[0]:
        _check_seeds(seeds, ids, csc.num_src)
        if report[0] == batch.BAD_ROW:
            raise_bad_row(report[1])
        raise_bad_source(report[1], csc.num_src)
    scratch.table_bits = report[2]
    return types, ids, csc, whole, report


@lru_cache(maxsize=256)
def _sizes(
    hops: UniformHops, num_seeds: int, num_nodes: int, widths: tuple[int, int], once: bool
) -> tuple[int, tuple[int, ...], int, int]:
    """Room for the largest batch there can be; ``widths`` are the bytes of an id in the result and in the graph.

    Returns:
        The most edges there can be, the lengths that the kernel cuts its arrays by (nodes; in scratch rows,
        neighbours, the set of picks, and of all hops positions and indptr), the length of the scratch, and the bytes of
        the result.
    """
    known = frontier = num_seeds
    edges = rows = most_rows = most_drawn = 0
    for fanout in hops.fanouts:
        drawn = frontier * fanout
        edges += drawn
        rows += frontier + 1
        most_rows, most_drawn = max(most_rows, frontier), max(most_drawn, drawn)
        known = min(known + drawn, num_seeds + num_nodes)
        frontier = min(drawn, num_nodes) if once else known
    width, place_width = widths
    num_hops, drawn_words = len(hops.fanouts), -(-most_drawn * place_width // 8)
    if once:
        position_words, indptr_words = -(-edges * place_width // 8), rows
        nbytes, parts = width * (known + 2 * edges) + 8 * edges, 3
    else:
        position_words = indptr_words = 0
        nbytes, parts = width * (known + rows + edges) + place_width * edges, 1 + 3 * num_hops
    room = (known, most_rows, drawn_words, hops.set_size, position_words, indptr_words)
    table = 1 << (2 * known + 15).bit_length()  # at most half full, so that it need not grow beyond this
    words = _REPORT + _PER_HOP * num_hops + 2 * most_rows + sum(room[1:]) + table
    # Each part of the result begins on a cache line of its own.
    return edges, room, words, (nbytes // _LINE + 1 + parts) * _LINE


def _check_seeds(seeds: Tensor | Mapping[str, Tensor], ids: Tensor, num_nodes: int) -> None:
    name = "seeds" if isinstance(seeds, Tensor) else f"seeds[{next(iter(seeds))!r}]"
    check_range(name, ids, num_nodes, IndexError)


@cache
def _kernels() -> Any:
    """The kernels, which import numba."""
    from .kernels import batch as _batch

    return _batch
