"""SaintSampler: subgraphs of vertices that are drawn by degree, by edges or by walks
(GraphSAINT)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import check_range
from ..seeds.keys import derive_key
from ..system.arrays import Array
from ..system.checks import as_flag, as_integer
from .edge_values import MadeOfFields
from .induced import induced_subgraph
from .sampler import MiniBatchSampler, check_edge_dir
from .walks import RandomWalks

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from ..graph.graph import Graph
    from ..graph.minibatch import Subgraph
    from ..system.buffers import BufferPools


SAINT_MODES = ("node", "edge", "walk")

_made: MadeOfFields[Any] = MadeOfFields()  # derived from edges alone, without fields


@dataclass(frozen=True)
class SaintSampler(MiniBatchSampler):
    """Draws vertices, and returns the subgraph of all edges among them (GraphSAINT: Zeng et al.,
    ICLR 2020, section 3.3).

    Draws are independent and with replacement; the subgraph has each vertex once, in the order of
    ids. With ``d`` for degrees:

    - "node": ``budget`` vertices in proportion to ``max(d_out, 1)``, like DGL's ``SAINTSampler``.
      With ``by_degree`` in proportion to ``d_out``, like PyG's ``GraphSAINTNodeSampler``, which
      takes the sources of uniform edges.
    - "edge": both ends of ``budget`` edges, edge ``(u, v)`` in proportion to
      ``1 / d_out(u) + 1 / d_in(v)``, like the paper and DGL. With ``by_degree`` in proportion to
      ``d_in(u) + d_out(v)``, like PyG's ``GraphSAINTEdgeSampler`` (uniformly if that is 0 for all
      edges). Neither needs a weight per edge: a vertex is drawn first, then one of its in-edges or
      out-edges.
    - "walk": all vertices of walks of ``walk_length`` steps along the edges, from ``budget``
      uniform roots. A walk ends at a vertex without out-edges.

    Batches depend on the key alone, not on seeds.

    Args:
        mode: "node", "edge" or "walk".
        budget: Number of vertices, edges or roots to draw, at least 1.
        walk_length: Steps of a walk, at least 1; 0 in the other modes.
        by_degree: Draw like PyG.
        edge_dir: Order of the edges: "in" by destination, "out" by source; see
            ``induced_subgraph``.

    Raises:
        TypeError: A number is not an integer.
        ValueError: The mode or ``edge_dir`` is unknown, a number is below 1, or ``walk_length`` is
            given in a mode without walks.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2, 3], [1, 2, 3, 0])
        >>> SaintSampler("walk", 1, walk_length=2).sample(graph, key=1)
        Subgraph(output={'_N': 3}, nodes={'_N': 3}, edges={'_N-_E-_N': 2})
    """

    mode: str
    budget: int
    walk_length: int = 0
    by_degree: bool = False
    edge_dir: str = "in"
    seeds_are_vertices = False

    def __post_init__(self) -> None:
        if self.mode not in SAINT_MODES:
            raise ValueError(f"mode must be one of {SAINT_MODES}, got {self.mode!r}")
        object.__setattr__(self, "budget", as_integer("budget", self.budget, least=1))
        least = 1 if self.mode == "walk" else 0
        object.__setattr__(
            self, "walk_length", as_integer("walk_length", self.walk_length, least=least)
        )
        if self.walk_length and self.mode != "walk":
            raise ValueError(
                f"walk_length must be 0 for mode {self.mode!r}, got {self.walk_length}"
            )
        object.__setattr__(self, "by_degree", as_flag("by_degree", self.by_degree))
        check_edge_dir(self.edge_dir)

    @property
    def num_hops(self) -> int:
        """0: nothing is expanded."""
        return 0

    def check(self, graph: Graph) -> None:
        """Check that the sampler can draw from a graph.

        Raises:
            ValueError: It has several types, or nothing to draw.
        """
        csc = graph.csc
        if graph.num_nodes == 0:
            raise ValueError("the graph must have at least 1 vertex to draw from, got 0")
        if csc.num_edges == 0 and (self.mode == "edge" or (self.mode == "node" and self.by_degree)):
            raise ValueError(f"the graph must have at least 1 edge for mode {self.mode!r}, got 0")

    def sample(
        self,
        graph: Graph,
        seeds: Any = None,
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
        turned: bool = False,
    ) -> Subgraph:
        """Sample one mini-batch; thread-safe.

        Args:
            graph: A graph with one vertex type and one edge type.
            seeds: Ignored; any object, such as the batch's number.
            key: Any 64-bit number; equal keys give equal batches.
            dtype: Id dtype of the result. Default: int64.
            pools: Recycled memory for the result. Default: fresh memory.
            turned: Swap the rows of ``edge_index``.

        Raises:
            ValueError: See :meth:`check`.
            FormatError: The graph's arrays point outside the graph (a damaged file).
        """
        nodes = self.draw(graph, key).to(dtype or torch.int64)
        return induced_subgraph(graph, nodes, edge_dir=self.edge_dir, turned=turned, pools=pools)

    def draw(self, graph: Graph, key: int) -> Tensor:
        """The distinct vertices of the batch with this key, ascending, shape ``(n,)``, int64;
        raises as :meth:`sample`."""
        self.check(graph)
        if self.mode == "node":
            drawn = self._sources(graph.csc, key)
        elif self.mode == "edge":
            drawn = self._ends(graph, key)
        else:
            roots = torch.from_numpy(self._draws(graph.num_nodes, key))
            walks = RandomWalks(self.walk_length, stay=True).sample(
                graph, roots, derive_key(key, 1)
            )
            drawn = walks.vertices.numpy()
        # Not np.unique, whose hash table took 0.6 ms for 6000 ids; this took 0.05.
        ids = np.sort(drawn, axis=None)
        return torch.from_numpy(ids[np.diff(ids, prepend=-1) > 0])

    def _draws(self, count: int, key: int) -> Array:
        """``budget`` uniform draws from ``[0, count)``."""
        from .kernels import weighted

        places = np.empty(self.budget, dtype=np.int64)
        weighted.draw_places(count, np.uint64(derive_key(key, 0)), places)
        return places

    def _sources(self, csc: CSC, key: int) -> Array:
        """Vertices in proportion to their out-degree, as sources of uniform edges; unless
        ``by_degree``, vertices without out-edges count like an edge each."""
        bare = np.empty(0, dtype=np.int64) if self.by_degree else _of_edges(csc, _without_out_edges)
        edges = csc.num_edges
        places = self._draws(edges + len(bare), key)
        csc = csc.scattered
        positions = places[places < edges]
        others = places[places >= edges] - edges
        if csc.pages is not None:
            csc.pages.need_edges(positions)
        sources = torch.from_numpy(csc.indices.numpy()[positions])
        check_range("indices", sources, csc.num_src, FormatError)
        return np.concatenate([sources.numpy(), bare[others]])

    def _ends(self, graph: Graph, key: int) -> Array:
        """Both ends of edges: a drawn vertex, and one of its in-neighbours or out-neighbours."""
        starts, inward = (
            self._starts_by_degree(graph.csc, key)
            if self.by_degree
            else self._starts(graph.csc, key)
        )
        backward = RandomWalks(1, edge_dir="in").sample(
            graph, torch.from_numpy(starts[inward]), derive_key(key, 1)
        )
        forward = RandomWalks(1).sample(
            graph, torch.from_numpy(starts[~inward]), derive_key(key, 2)
        )
        return np.concatenate([backward.vertices.numpy(), forward.vertices.numpy()])

    def _starts(self, csc: CSC, key: int) -> tuple[Array, Array]:
        """Draw edges by inverse degrees: one end of each, and whether the edge is one of its
        in-edges.

        The sum of ``1 / d_in(v)`` over the in-edges of ``v`` is 1, and so is that of ``1 / d_out``
        over its out-edges. So each vertex with in-edges is drawn with weight 1 for these, and each
        vertex with out-edges with weight 1 for those.
        """
        vertices, num_heads = _of_edges(csc, _with_edges)
        places = self._draws(len(vertices), key)
        return vertices[places], places < num_heads

    def _starts_by_degree(self, csc: CSC, key: int) -> tuple[Array, Array]:
        """Draw edges by degrees; returns as :meth:`_starts`.

        The out-edges of ``u`` have a total weight of ``d_in(u) * d_out(u)`` from the term
        ``d_in(u)``, and the in-edges of ``u`` have the same from the term ``d_out``. So a vertex is
        drawn in proportion to this product, then one of the two with equal chance.
        """
        from .kernels import layerwise

        sums, is_path = _of_edges(csc, _degree_products)
        starts = np.empty(self.budget, dtype=np.int64)
        layerwise.draw_repeated(sums, self.budget, np.uint64(derive_key(key, 3)), starts)
        inward = self._draws(2, key) == 0
        return starts, inward if is_path else np.ones_like(inward)


def _of_edges(csc: CSC, make: Callable[[CSC], Any]) -> Any:
    """``make(csc)``, cached while the CSC is alive."""
    return _made.get(csc, [], partial(make, csc), kind=make.__name__)


def _without_out_edges(csc: CSC) -> Array:
    return np.flatnonzero(csc.source_counts.numpy() == 0)


def _with_edges(csc: CSC) -> tuple[Array, int]:
    """Vertices with in-edges, then vertices with out-edges, and the number of the former."""
    heads = np.flatnonzero(np.diff(csc.indptr.numpy()))
    return np.concatenate([heads, np.flatnonzero(csc.source_counts.numpy())]), len(heads)


def _degree_products(csc: CSC) -> tuple[Array, bool]:
    """Running sums of in-degree times out-degree, and True; if all are 0, running sums of
    in-degrees, and False."""
    degrees = np.diff(csc.indptr.numpy()).astype(np.float64)
    sums = np.cumsum(degrees * csc.source_counts.numpy())
    return (sums, True) if sums[-1] > 0 else (np.cumsum(degrees), False)
