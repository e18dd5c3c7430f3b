"""Method ``metis``: few edges between parts, by pymetis or DGL's METIS."""

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
"""Peak memory of METIS per edge, in bytes: 3.9 GB for RMAT scale 20 with 16.8 M edges, most of
which have no reverse edge."""

Ids = Int64Array
Parts = Int32Array

_MAX_EXCESS = 10  # METIS's ufactor: maximum size of a part above the mean, in thousandths


def metis_parts(
    graph: Graph,
    train: Tensor,
    num_parts: int,
    hops: int,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998) on the undirected graph.

    Uses ``pymetis`` (2025.2 or newer) or else DGL's METIS, whose seed cannot be set and which is
    not deterministic. Only training vertices have weight. Parts are brought within 1 % of the mean
    by moving the vertices that lose the fewest ties. Vertices without edges are assigned to the
    smallest parts. ``hops`` is ignored. The graph and METIS's copies of it must fit into memory (60
    to 240 bytes per edge).

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
        # A histogram with a row per vertex and a column per part of its neighbours. The last column
        # is for neighbours that are no training vertices, and is dropped.
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
    """Clusters by ``pymetis``, with about equal weights or numbers of vertices; returns the cluster
    of each vertex, shape ``(num_nodes,)``, int32.

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
    """The part of each vertex of a symmetric matrix; -1 for vertices without edges, and for all if
    there are too few."""
    linked = np.flatnonzero(np.diff(both.indptr))
    parts: Parts = np.full(len(weights), -1, dtype=np.int32)
    # METIS prints warnings or fails if there are about as many parts as vertices. For such graphs,
    # `deal_out` does as well.
    if len(linked) >= 4 * num_parts and weights[linked].any():
        # Without the rows of vertices that have no edges; these have no entries in columns either.
        place = np.full(len(weights), -1, dtype=np.int64)
        place[linked] = np.arange(len(linked))
        starts = np.append(both.indptr[linked], both.nnz).astype(np.int64)
        parts[linked] = divide(starts, place[both.indices], weights[linked], num_parts)
    return parts


def without_directions(graph: Graph) -> Any:
    """The undirected graph as a SciPy CSR matrix: symmetric, with an entry per pair of neighbours
    and none on the diagonal."""
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
    """The function that calls METIS, see ``_by_pymetis``; raises as :func:`metis_parts`."""
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
    """Call pymetis.

    Args:
        starts, ends: Rows of a symmetric matrix.
        weights: Vertex weights.
        num_parts: Number of parts.
        seed: Seed of METIS.
        recursive: Recursive bisection; None: pymetis's default, for up to 8 parts.
    """
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
