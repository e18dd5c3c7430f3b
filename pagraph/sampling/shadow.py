"""ShaDowSampler: a separate subgraph for each seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..graph.subgraph import Subgraph
from ..system.checks import as_flag, as_integer, check_fanout
from .edge_values import EdgeField
from .pickers import UniformPicker, measure_rows
from .sampler import MiniBatchSampler
from .subgraph_sampler import SubgraphRun, SubgraphSampler

if TYPE_CHECKING:
    from torch import Tensor

    from ..graph.graph import EdgeType, Graph
    from ..system.buffers import BufferPools
    from .hop import Hop, HopEdges, Picker


@dataclass(frozen=True)
class ShaDowSampler(MiniBatchSampler):
    """Draws a neighbourhood for each seed, with all edges of the graph within it.

    The k-hop sampler of Zeng et al. ("Decoupling the Depth and Scope of Graph Neural Networks",
    NeurIPS 2021, section 4), for graphs of one vertex type. Batches are laid out like those of
    torch-sparse's ``ego_k_hop_sample_adj``: seed by seed, with each one's vertices ordered by id. A
    vertex draws once, in the hop after the one that found it; in torch-sparse it draws again each
    time it is found.

    Args:
        depth: Number of hops; with 0, only the seeds and their self-loops.
        fanout: Neighbours that a vertex draws in each hop; -1 takes all.
        replace: Draw with replacement from vertices with more than ``fanout`` neighbours.
        by_source: Order edges by source, then by destination, like PyG's ``edge_index``; else by
            destination, as in all other subgraphs.

    Raises:
        TypeError: A number is not an integer.
        ValueError: ``depth`` is negative, or ``fanout`` is below -1.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 0])
        >>> batch = ShaDowSampler(1, 5).sample(graph, torch.tensor([2, 0]))
        >>> batch.input_nodes["_N"].tolist(), batch.trees["_N"].tolist()
        ([1, 2, 0, 2], [0, 0, 1, 1])
        >>> batch.edges["_N", "_E", "_N"].edge_index.tolist()
        [[0, 3], [1, 2]]
    """

    depth: int
    fanout: int
    replace: bool = False
    by_source: bool = False
    num_hops = 0  # since vertices are not ordered by hop
    seeds_are_vertices = False  # since seeds do not come first
    disjoint = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", as_integer("depth", self.depth, least=0))
        object.__setattr__(self, "replace", as_flag("replace", self.replace))
        object.__setattr__(self, "fanout", check_fanout(self.fanout, self.replace, least=0))

    @cached_property
    def _neighbourhoods(self) -> _Neighbourhoods:
        return _Neighbourhoods(
            [self.fanout] * self.depth, self.replace, disjoint=True, induced=True
        )

    def sample(
        self,
        graph: Graph,
        seeds: Tensor,
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
    ) -> Subgraph:
        """Sample one mini-batch; see :meth:`SubgraphSampler.sample`."""
        run = SubgraphRun(self._neighbourhoods, graph, seeds, key, dtype, pools, None)
        run.expand()
        ids = {ntype: np.sort(table.nodes) for ntype, table in run.tables.items()}
        return run.induced_in_trees(
            ids, {t: [len(known)] for t, known in ids.items()}, by_source=self.by_source
        )


@dataclass(frozen=True)
class _Neighbourhoods(SubgraphSampler):
    """Draws the vertices; with replacement only from rows longer than the fan-out."""

    def picker(
        self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField
    ) -> Picker | None:
        """See :meth:`HopSampler.picker`."""
        fanout = self.fanout(hop, edge_type)
        if self.replace and fanout > 0:
            return _RepeatedPicker(fanout)
        return UniformPicker(fanout) if fanout else None


@dataclass(frozen=True)
class _RepeatedPicker:
    """Draws ``fanout`` in-edges of each vertex with replacement; takes all if there are no more."""

    fanout: int

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`."""
        from .kernels import trees

        starts, degrees, offsets = measure_rows(hop, self.fanout, False)
        edges = hop.edges(offsets)
        trees.pick_all_or_repeated(
            hop.counters, starts, degrees, offsets, hop.key, edges.positions.numpy()
        )
        return edges
