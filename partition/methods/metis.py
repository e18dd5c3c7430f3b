"""METIS: few edges between parts, through whichever binding is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import MissingDependencyError, how_to_install
from ...graph.csc import no_ids
from ...graph.graph import Graph
from ...system.arrays import Float64Array, Int32Array, Int64Array
from ...system.progress import Progress
from .balancing import balance_parts, deal_out

METIS_EDGE_BYTES = 240
"""Memory that an edge takes: 3.9 GB for RMAT scale 20 with 16.8 M edges, whose most have no edge
back."""

Ids = Int64Array
Parts = Int32Array

_MAX_EXCESS = 10  # METIS's ufactor, in thousandths: how much larger than the mean a part may be


def metis_parts(
    graph: Graph,
    train: Tensor,
    num_parts: int,
    hops: int,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998) on the graph without directions.

    Calls ``pymetis`` (2025.2 or newer) or, without it, the METIS in DGL, whose seed cannot be set
    and which does not always repeat itself. Only training vertices weigh anything; the largest part
    is brought within 1 % of the mean by moving the vertices with the least to lose. Vertices
    without edges are dealt out. ``hops`` is not read: METIS knows edges only. The graph and METIS's
    copies of it must fit into memory (60 to 240 bytes an edge).

    Raises:
        MissingDependencyError: Neither package is installed.
    """
    divide = _find_metis()
    if num_parts == 1:
        return torch.zeros(len(train), dtype=torch.int32, device="cpu")
    both = without_directions(graph)
    ids = train.numpy()
    weights = np.zeros(graph.num_nodes, dtype=np.int64)
    weights[ids] = 1
    parts: Parts = _divided(both, weights, num_parts, partial(divide, seed=seed))[ids]
    deal_out(parts, num_parts)
    part_of = np.full(graph.num_nodes, num_parts, dtype=np.int32)
    part_of[ids] = parts

    def ties(places: Ids) -> Float64Array:
        # A histogram with a row for each vertex and a column for each part of its neighbours; the
        # last column is of neighbours that are no training vertices, and is cut off.
        rows = both[ids[places]]
        first = np.arange(len(places)) * (num_parts + 1)
        key = np.repeat(first, np.diff(rows.indptr)) + part_of[rows.indices]
        counts = np.bincount(key, minlength=len(places) * (num_parts + 1))
        return counts.reshape(len(places), num_parts + 1)[:, :num_parts].astype(np.float64)

    balance_parts(parts, num_parts, ties)
    if progress is not None:
        progress(len(train), len(train))
    return torch.from_numpy(parts)


def metis_clusters(
    graph: Graph,
    num_clusters: int,
    *,
    weights: Ids | None = None,
    recursive: bool = False,
    seed: int = 0,
) -> Tensor:
    """The cluster of each vertex, shape ``(num_nodes,)``, int32, by ``pymetis`` alone; as even as
    METIS makes them, by ``weights`` or by number.

    Raises:
        MissingDependencyError: ``pymetis`` is not installed.
    """
    if num_clusters == 1:
        return torch.zeros(graph.num_nodes, dtype=torch.int32, device="cpu")
    if weights is None:
        weights = np.ones(graph.num_nodes, dtype=np.int64)
    divide = partial(_by_pymetis, seed=seed, recursive=recursive)
    parts = _divided(without_directions(graph), weights, num_clusters, divide)
    deal_out(parts, num_clusters)
    return torch.from_numpy(parts)


def _divided(
    both: Any, weights: Ids, num_parts: int, divide: Callable[[Ids, Ids, Ids, int], Parts]
) -> Parts:
    """The part of each vertex of a symmetric matrix; -1 for those without edges, and where there
    are too few."""
    linked = np.flatnonzero(np.diff(both.indptr))
    parts: Parts = np.full(len(weights), -1, dtype=np.int32)
    # METIS prints warnings or fails where there are about as many parts as vertices. Such a graph
    # is dealt out, which loses nothing.
    if len(linked) >= 4 * num_parts and weights[linked].any():
        # Vertices without edges have no row to keep, and no column to drop.
        place = np.full(len(weights), -1, dtype=np.int64)
        place[linked] = np.arange(len(linked))
        starts = np.append(both.indptr[linked], both.nnz).astype(np.int64)
        parts[linked] = divide(starts, place[both.indices], weights[linked], num_parts)
    return parts


def without_directions(graph: Graph) -> Any:
    """A scipy CSR matrix with an entry for each pair of linked vertices, both ways, and none on the
    diagonal."""
    from scipy.sparse import csr_matrix

    csc = graph.csc.copy()
    indptr, indices = csc.arrays
    no_loop = indices != csc.destinations().numpy()
    inward = csr_matrix((no_loop, indices, indptr), shape=(graph.num_nodes, graph.num_nodes))
    both = inward + inward.T
    both.eliminate_zeros()
    return both


def has_pymetis() -> bool:
    """Whether ``pymetis`` is installed, 2025.2 or newer."""
    if importlib.util.find_spec("pymetis") is None:
        return False
    import pymetis

    return hasattr(pymetis, "CSRAdjacency")


def _find_metis() -> Callable[..., Parts]:
    """The function that calls METIS: rows of a symmetric matrix, vertex weights, parts and seed to
    the parts."""
    if has_pymetis():
        return _by_pymetis
    if importlib.util.find_spec("dgl") is not None:
        return _by_dgl
    raise MissingDependencyError(
        "method 'metis' needs pymetis 2025.2 or newer, or DGL, and neither is installed: "
        f"{how_to_install('metis')}"
    )


def _by_pymetis(
    starts: Ids,
    ends: Ids,
    weights: Ids,
    num_parts: int,
    seed: int,
    *,
    recursive: bool | None = None,
) -> Parts:
    """``recursive``: by bisection; None: for up to 8 parts, as pymetis does by itself."""
    import pymetis

    options = pymetis.Options()
    options.seed = seed % 2**31
    options.ufactor = _MAX_EXCESS
    adjacency = pymetis.CSRAdjacency(starts, ends)
    _, parts = pymetis.part_graph(
        num_parts, adjacency, vweights=weights, recursive=recursive, options=options
    )
    return np.array(parts, dtype=np.int32)


def _by_dgl(starts: Ids, ends: Ids, weights: Ids, num_parts: int, seed: int) -> Parts:
    from ...dgl.graphbolt import import_dgl

    dgl = import_dgl()
    csc = (torch.from_numpy(starts), torch.from_numpy(ends), no_ids())
    graph = dgl.graph(("csc", csc), num_nodes=len(weights))
    with contextlib.redirect_stdout(io.StringIO()):  # it prints how long its steps take
        found = dgl.partition.metis_partition_assignment(
            graph, num_parts, balance_ntypes=torch.from_numpy(weights)
        )
    return np.asarray(found, dtype=np.int32)
