"""Methods of the PaGraph paper: the greedy stream ``pagraph`` and the random baseline ``hash``."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...graph.graph import CSC, Graph
from ...system.arrays import Array
from ...system.progress import Progress

_STEPS = 64  # calls of the kernel, about: progress is reported between them


def hash_parts(
    graph: Graph,
    train: Tensor,
    num_parts: int,
    hops: int,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """Random partition: shuffled training vertices are dealt out in turn, sizes differ by one at
    most."""
    order = torch.randperm(
        len(train), generator=torch.Generator().manual_seed(seed % 2**64), device="cpu"
    )
    parts = torch.empty(len(train), dtype=torch.int32, device="cpu")
    parts[order] = (torch.arange(len(train), device="cpu") % num_parts).int()
    return parts


def paper_parts(
    graph: Graph,
    train: Tensor,
    num_parts: int,
    hops: int,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """Greedy stream by the score of PaGraph (Lin et al., SoCC 2020, section 3.4), in ascending
    order of ids.

    Vertex ``t`` goes to the part ``i`` of the highest
    ``(1 + |TV_i & IN(t)|) * (avg - |TV_i|) / (|V_i| + 1)``, where ``TV_i`` are the part's training
    vertices so far, ``IN(t)`` what ``t`` reaches in ``hops`` hops, ``avg`` the number of training
    vertices over that of parts, and ``V_i`` all that the part holds so far. Of equal scores the one
    with fewer training vertices wins, then the later part. Sizes differ by one at most. Nothing is
    left to chance: ``seed`` is not read.

    One hop takes ``3 + num_parts / 8`` bytes a vertex beside the graph, and reads the graph's rows
    in order. More hops take about ``14 + hops * num_parts / 8`` bytes a vertex, 4 bytes for each
    in-edge from a training vertex (8 with int64 ids), and time that grows with the sum over
    training vertices of the edges within their reach.
    """
    if num_parts == 1:
        return torch.zeros(len(train), dtype=torch.int32, device="cpu")
    from . import _paper

    csc = graph.csc
    # By rank: rows of training sources alone, named by their place in ``train``. One hop reads each
    # row once, so making those rows would cost more than it saves.
    by_rank = hops > 1
    indptr = csc.indptr.numpy()
    indices = csc.indices.numpy()
    row_ptr, rows = _train_sources(csc, train) if by_rank else (indptr, indices)
    counted = len(train) if by_rank else csc.num_dst
    # One hop gets two bytes: clearing the table after every 255 vertices would take more time.
    stamps = np.zeros(counted, dtype=np.uint8 if by_rank else np.uint16)
    owners = np.zeros(counted, dtype=np.min_scalar_type(num_parts))
    # One hop is counted from a vertex's own row, and nothing is followed.
    followed = csc.num_dst if by_rank else 1
    reached = np.zeros(followed, dtype=indices.dtype)
    queue = np.empty(followed, dtype=indices.dtype)
    # Bit p of members[v, h]: part p holds v and all that it reaches in h hops.
    members = np.zeros((csc.num_dst, hops, -(-num_parts // 8)), dtype=np.uint8)
    counts = np.zeros(num_parts + 1, dtype=np.int64)
    sizes = np.zeros(num_parts, dtype=np.int64)
    held = np.zeros(num_parts, dtype=np.int64)
    parts = np.empty(len(train), dtype=np.int32)
    state = (stamps, owners, reached, queue, members, counts, sizes, held, parts)
    step = -(-len(train) // _STEPS)
    for begin in range(0, len(train), step):
        end = min(begin + step, len(train))
        edges = (indptr, indices, row_ptr, rows)
        last_stamp = np.iinfo(stamps.dtype).max
        _paper.assign(*edges, by_rank, train.numpy(), begin, end, last_stamp, *state)
        if progress is not None:
            progress(end, len(train))
    return torch.from_numpy(parts)


def _train_sources(csc: CSC, train: Tensor) -> tuple[Array, Array]:
    """The graph's rows of training sources alone, as ascending ranks: the stream ends a row where
    ranks are yet to come, a third of the work of full rows."""
    from . import _paper

    indptr, indices = csc.arrays
    rank = np.full(csc.num_src, -1, dtype=indices.dtype)
    rank[train.numpy()] = np.arange(len(train))
    # Of the rows' own type: one compiled kernel then serves any number of hops.
    row_ptr = np.empty_like(indptr)
    _paper.count_train_sources(indptr, indices, rank, row_ptr)
    rows = np.empty(int(row_ptr[-1]), dtype=indices.dtype)
    _paper.fill_train_sources(indptr, indices, rank, row_ptr, rows)
    return row_ptr, rows
