"""Methods of the PaGraph paper: the greedy stream ``pagraph``, and the random baseline ``hash``."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...graph.graph import CSC, Graph
from ...system.arrays import Array
from ...system.progress import Progress

_STEPS = 64  # approximate number of kernel calls, between which progress is reported


def hash_parts(
    graph: Graph,
    train: Tensor,
    num_parts: int,
    hops: int,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """Random parts: shuffled training vertices are assigned in turn; sizes differ by at most
    one."""
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
    """Greedy stream by PaGraph's score (Lin et al., SoCC 2020, section 3.4), in ascending order of
    ids.

    Vertex ``t`` goes to the part ``i`` with the highest
    ``(1 + |TV_i & IN(t)|) * (avg - |TV_i|) / (|V_i| + 1)``. ``TV_i`` are the part's training
    vertices so far, ``IN(t)`` the vertices within ``hops`` hops of ``t``, ``avg`` the number of
    training vertices per part, and ``V_i`` all vertices of the part so far. Of equal scores, the
    part with fewer training vertices wins, then the later one. Sizes differ by at most one.
    Deterministic: ``seed`` is ignored.

    One hop takes ``3 + num_parts / 8`` bytes per vertex besides the graph, and reads the graph's
    rows sequentially. More hops take about ``14 + hops * num_parts / 8`` bytes per vertex, 4 bytes
    per in-edge from a training vertex (8 for int64 ids), and time in proportion to the sum over
    training vertices of the edges within reach.
    """
    if num_parts == 1:
        return torch.zeros(len(train), dtype=torch.int32, device="cpu")
    from . import _paper

    csc = graph.csc
    # By rank: rows of training sources alone, as indices of `train`. One hop reads each row only
    # once, so these rows would cost more than they save.
    by_rank = hops > 1
    indptr = csc.indptr.numpy()
    indices = csc.indices.numpy()
    row_ptr, rows = _train_sources(csc, train) if by_rank else (indptr, indices)
    counted = len(train) if by_rank else csc.num_dst
    # Two bytes for one hop: clearing the table after every 255 vertices would take more time.
    stamps = np.zeros(counted, dtype=np.uint8 if by_rank else np.uint16)
    owners = np.zeros(counted, dtype=np.min_scalar_type(num_parts))
    # For one hop, only a vertex's own row is counted.
    followed = csc.num_dst if by_rank else 1
    reached = np.zeros(followed, dtype=indices.dtype)
    queue = np.empty(followed, dtype=indices.dtype)
    # Bit p of members[v, h]: part p holds v and all that it reaches in h hops.
    members = np.zeros((csc.num_dst, hops, -(-num_parts // 8)), dtype=np.uint8)
    counts = np.zeros(num_parts + 1, dtype=np.int64)
    sizes = np.zeros(num_parts, dtype=np.int64)
    held = np.zeros(num_parts, dtype=np.int64)
    parts = np.empty(len(train), dtype=np.int32)
    # One signature, whatever the strides.
    ids = train.contiguous().numpy()
    state = (stamps, owners, reached, queue, members, counts, sizes, held, parts)
    step = -(-len(train) // _STEPS)
    for begin in range(0, len(train), step):
        end = min(begin + step, len(train))
        edges = (indptr, indices, row_ptr, rows)
        last_stamp = np.iinfo(stamps.dtype).max
        _paper.assign(*edges, by_rank, ids, begin, end, last_stamp, *state)
        if progress is not None:
            progress(end, len(train))
    return torch.from_numpy(parts)


def _train_sources(csc: CSC, train: Tensor) -> tuple[Array, Array]:
    """The graph's rows with training sources alone, as ascending ranks.

    The stream stops in a row at the first rank that it has not reached, which takes a third of the
    work of full rows.
    """
    from . import _paper

    indptr, indices = csc.arrays
    rank = np.full(csc.num_src, -1, dtype=indices.dtype)
    rank[train.numpy()] = np.arange(len(train))
    # In the dtype of `indptr`, so that one compiled kernel serves any number of hops.
    row_ptr = np.empty_like(indptr)
    _paper.count_train_sources(indptr, indices, rank, row_ptr)
    rows = np.empty(int(row_ptr[-1]), dtype=indices.dtype)
    _paper.fill_train_sources(indptr, indices, rank, row_ptr, rows)
    return row_ptr, rows
