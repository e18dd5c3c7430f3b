"""Induced edges: all the edges that a graph has among the vertices of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..subgraph import SampledEdges
from .scratch import raise_bad_source
from .uniform import measure_frontier

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..csc import CSC
    from .hop import EdgeMemory
    from .scratch import Scratch, VertexTable

__all__ = ["induced_edges"]


def induced_edges(
    csc: CSC,
    vertices: npt.NDArray[Any],
    sources: VertexTable,
    scratch: Scratch,
    pool: EdgeMemory,
    dtype: torch.dtype,
) -> SampledEdges:
    """Every in-edge of some vertices that comes from a known source, in the order of the vertices and of the CSC.

    A vertex that is there twice has its edges twice; they lead to the first copy of their source. The edges are looked
    up twice, which costs less memory than remembering the answers: most in-edges of a hub come from elsewhere.

    Args:
        csc: The edges.
        vertices: The destinations, shape ``(n,)``.
        sources: The vertices that the batch has of the sources' type.
        scratch: This thread's working memory.
        pool: Where the result's memory comes from.
        dtype: Of local ids.

    Raises:
        FormatError: The CSC's arrays lead out of the graph (a damaged file).
    """
    from . import _induced

    indices = csc.indices.numpy()
    starts, degrees, indptr = measure_frontier(csc, vertices, scratch, -1, False)
    bad = _induced.count_known(indices, starts, degrees, csc.num_src, *sources.lookup, indptr)
    if bad >= 0:
        raise_bad_source(int(indices[bad]), csc.num_src)
    total = int(indptr[-1])
    edge_index, ids = pool.take_many(((2, total), dtype), ((total,), torch.int64))
    src, dst = edge_index.numpy()
    edge_ids = np.empty(0, np.int64) if csc.edge_ids is None else csc.edge_ids.numpy()
    _induced.put_known(indices, starts, degrees, edge_ids, *sources.lookup, indptr, src, dst, ids.numpy())
    return SampledEdges(edge_index, ids, [0])
