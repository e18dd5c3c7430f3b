"""A start for :class:`~pagraph.partition.methods.halo.HaloSearch`: parts grown one after the other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...csc import CSC

__all__ = ["grown_parts"]


def grown_parts(csc: CSC, train: Tensor, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Neighbourhood expansion (Zhang et al., KDD 2017) for parts of vertices instead of edges: each part takes the
    training vertex of which it holds most already, counting one hop.

    Turns the edges round: takes 4 bytes an edge, up to 16 more for the queue, and time like one pass over the edges
    for each part.

    Args:
        csc: In-edges, checked.
        train: The training vertices, ascending, int64.
        sizes: How many each part gets; they sum to all.
    """
    from . import _growth

    ids, out = train.numpy(), csc.transpose()
    part_of = np.full(csc.num_dst, -2, np.int32)
    part_of[ids] = -1
    edges = (csc.indptr.numpy(), csc.indices.numpy(), out.indptr.numpy(), out.indices.numpy())
    _growth.grow(*edges, ids, sizes, part_of)
    grown: npt.NDArray[np.int32] = part_of[ids]
    return grown
