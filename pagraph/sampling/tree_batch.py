"""Disjoint trees along one edge type, with or without times: a batch's hops in one kernel call.

The results are bit-identical to sampling hop by hop. Everything else (several types, weights, trees
that seeds share, induced edges, all neighbours, trees that may be huge, edges on disk) gets None
here, and is sampled hop by hop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..graph.subgraph import SampledEdges, Subgraph
from ..seeds.keys import derive_key
from ..system.arrays import Array
from .hop import raise_bad_row, raise_bad_source
from .times import MISSING

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from ..graph.graph import EdgeType
    from .hop import Scratch
    from .sampler import BatchRun
    from .times import EdgeTimes
    from .trees import TreeTimes


_MOST_IN_GROUP = 2**15
"""Nodes that there may be in the trees that are sampled together; there are a tenth as many in
most."""
# Scratch has room for every node that a batch might find; beyond these bounds it would be large.
_MOST_IN_TREE = 2**18
_MOST_NODES = 2**24
# Of the dtype that most times have, so that the kernel is not compiled a second time.
_NO_TIMES: Array = np.empty(0, np.int32)
_NO_LIMITS: Array = np.empty(0, np.int64)


@dataclass(frozen=True)
class TimedEdges:
    """Times of the edges that are drawn from, and of the trees.

    Attributes:
        edges: The edges' times.
        trees: The trees' limits.
        since: The least time that each tree may draw, see ``TreeTimes.starts``; None: any.
    """

    edges: EdgeTimes
    trees: TreeTimes
    since: Array | None


def sample_trees(
    run: BatchRun,
    etype: EdgeType,
    fanouts: Sequence[int],
    timed: TimedEdges | None,
    *,
    replace: bool,
    latest: bool,
) -> Subgraph | None:
    """The trees of a batch of one vertex and one edge type, or None where they may be too large for
    one call.

    Args:
        run: The batch.
        etype: The edge type.
        fanouts: Neighbours by hop, none of them negative.
        timed: Times; None where edges are drawn whenever they are.
        replace: Whether an edge may be drawn several times.
        latest: Whether the latest edges are taken, and not any.
    """
    from .kernels import tree_batch as _kernels

    ntype = etype[2]
    csc = run.graph.adjacency(run.sampler.edge_dir, etype).scattered
    seeds = run.seeds.get(ntype)
    if csc.pages is not None or seeds is None or not len(seeds):
        return None
    # Most nodes of a tree that each hop finds.
    widths = list(accumulate(fanouts, mul, initial=1))
    if sum(widths) > _MOST_IN_TREE or len(seeds) * sum(widths) > _MOST_NODES:
        return None
    edges, times = _edges(csc, timed)
    group = min(len(seeds), max(1, _MOST_IN_GROUP // sum(widths)))
    scratch = run.scratch
    shape = (-(-len(seeds) // group), len(widths))
    ends = np.empty(shape, np.int64)
    edge_ends = np.empty(shape, np.int64)
    most = len(seeds) * (sum(widths) - 1)
    drawn = (
        scratch.array("tree nodes", len(seeds) + most, np.int64),
        *(scratch.array(name, most, np.int32) for name in ("tree sources", "tree destinations")),
        scratch.array("tree edge ids", most, (edges[0] if len(edges[2]) else edges[1]).dtype),
    )
    keys = np.array(
        [derive_key(run.key, hop) % 2**64 for hop in range(len(fanouts))], dtype=np.uint64
    )
    status, vertex = _kernels.sample_trees(
        (csc.indptr.numpy(), csc.num_src),
        edges,
        times,
        seeds.long().contiguous().numpy(),
        np.array(fanouts, dtype=np.int64),
        replace,
        latest,
        keys,
        group,
        *_room(scratch, group, widths, max(fanouts, default=0), edges[0].dtype),
        drawn,
        ends,
        edge_ends,
    )
    if status == _kernels.BAD_ROW:
        raise_bad_row(int(vertex))
    if status == _kernels.BAD_SOURCE:
        raise_bad_source(int(vertex), csc.num_src)
    counts = ends.sum(0).tolist()
    totals = edge_ends.sum(0).tolist()
    nodes = run.pools(("nodes", ntype)).take((counts[-1],), run.dtype)
    trees = run.pools(("trees", ntype)).take((counts[-1],), torch.int64)
    specs = ((2, totals[-1]), run.dtype), ((totals[-1],), torch.int64)
    edge_index, ids = run.pools(("edges", etype)).take_many(*specs)
    result = nodes.numpy(), trees.numpy(), *edge_index.numpy(), ids.numpy()
    _kernels.put_trees(csc.num_src, group, drawn, ends, edge_ends, *result)
    sampled = {etype: SampledEdges(edge_index, ids, totals)}
    return Subgraph(dict(run.seeds), {ntype: nodes}, sampled, {ntype: counts}, {ntype: trees})


def _edges(
    csc: CSC, timed: TimedEdges | None
) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
    """The arguments ``edges`` and ``timed`` of the kernel."""
    indices = csc.indices.numpy()
    nothing = indices[:0]
    ids = nothing if csc.edge_ids is None else csc.edge_ids.numpy()
    if timed is None:
        return (indices, ids, nothing), (_NO_TIMES, _NO_TIMES, _NO_LIMITS, _NO_LIMITS)
    times = timed.edges
    until = timed.trees.until.numpy()
    since = timed.since
    if since is None:
        since = np.full(len(until) if times.has_missing else 0, MISSING, np.int64)
    pairs = nothing if times.edges is None else times.edges.view(-1).numpy()
    return (indices, ids, pairs), (times.values.numpy(), times.marks.numpy(), until, since)


def _room(
    scratch: Scratch, group: int, widths: Sequence[int], most: int, dtype: Any
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The arguments ``rows`` and ``room`` of the kernel; ``most`` is the largest fan-out, ``dtype``
    the graph's."""
    num_rows = group * max(widths[:-1], default=1)
    picks = group * max(widths)
    names = ("vertices", "trees", "starts", "degrees", "limits", "upto", "before", "offsets")
    return tuple(scratch.array(("tree", name), num_rows + 1, np.int64) for name in names), (
        scratch.array(("tree", "positions"), picks, dtype),
        scratch.array(("tree", "sources"), picks, dtype),
        scratch.array(("tree", "lifted"), picks, np.int64),
        scratch.hash_set(most),
        scratch.array(
            ("tree", "table"), 1 << (4 * group * sum(widths) + 2048).bit_length(), np.int64
        ),
    )
