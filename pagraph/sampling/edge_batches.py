"""EdgeBatches: batches whose seeds are edges or pairs of vertices, with negative pairs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..graph.csc import check_range
from ..graph.minibatch import HeteroMiniBatch, Links
from ..seeds.keys import derive_key
from .batches import NEGATIVES, FromHops, chance_of_some, count_ends
from .drawing import ExcludedEdges
from .negative import compact_pairs

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from ..graph.graph import EdgeType, Graph
    from ..graph.minibatch import Subgraph
    from ..system.buffers import BufferPools
    from .block_sampler import BlockSampler
    from .induced import InducedBatches
    from .negative import NegativePairs

    Pairs = dict[EdgeType, tuple[Tensor, Tensor]]
    # Samples the blocks of vertices by type, from a key.
    Draw = Callable[[Mapping[str, Tensor], int], HeteroMiniBatch]


def edge_ends(
    csc: Mapping[EdgeType, CSC], edges: Mapping[EdgeType, Tensor], dtype: torch.dtype
) -> Pairs:
    """Sources and destinations of edges, which are given as ids or as pairs.

    Raises:
        IndexError: An edge or one of its ends is outside the graph.
    """
    ends = {}
    for etype, ids in edges.items():
        own = csc[etype]
        src, dst = ids.unbind(1) if ids.dim() == 2 else own.ends_at(own.positions_of(ids))
        check_range(f"sources of {etype}", src, own.num_src, IndexError)
        check_range(f"destinations of {etype}", dst, own.num_dst, IndexError)
        ends[etype] = (src.to(dtype), dst.to(dtype))
    return ends


def negative_pairs(
    csc: Mapping[EdgeType, CSC], positive: Pairs, negatives: NegativePairs, key: int
) -> Pairs:
    """Draw the negative pairs of a batch.

    Args:
        csc: The edges of all edge types, in the graph's order.
        positive: The batch's positive pairs.
        negatives: Draws the negative ones.
        key: The batch's key.
    """
    numbers = {etype: number for number, etype in enumerate(csc)}
    return {
        etype: negatives.draw(csc[etype], etype, pairs, derive_key(key, NEGATIVES, numbers[etype]))
        for etype, pairs in positive.items()
    }


@dataclass(frozen=True, eq=False)
class EdgeBatches(FromHops):
    """Samples batches whose seeds are edges, given by id, or any pairs of vertices.

    Mirrors ``dgl.dataloading.as_edge_prediction_sampler``.

    Args:
        blocks: Samples the blocks, or the subgraph, of the seeds' ends.
        ends: The graph to which the edges belong, if the sampled graph is its reverse. Default: the
            sampled graph.
        negatives: Draws negative pairs; None: there are none.
        exclude: Leave a batch's own edges out of its blocks. Seeds must then be edge ids.
        reverse: With ``exclude``, reverse edges to leave out, too: their ids, shape
            ``(num_edges,)``, -1 for an edge without one; or a mapping from edge type to the type
            whose edge of the same id is the reverse.

    Raises:
        ValueError: ``reverse`` is given without ``exclude``.

    Example:
        >>> from pagraph.graph import Graph
        >>> from pagraph.sampling import NeighborSampler, UniformNegatives
        >>> links = EdgeBatches(NeighborSampler([-1]), negatives=UniformNegatives(1), exclude=True)
        >>> batch = links.sample(Graph.from_coo([0, 1], [1, 2]), torch.tensor([1]), key=1).only()
        >>> batch.output_nodes.tolist()
        [1, 2, 0]
        >>> batch.links.positive.tolist(), batch.links.negative.tolist()
        ([[0], [1]], [[0], [2]])
    """

    blocks: BlockSampler | InducedBatches
    ends: Graph | None = None
    negatives: NegativePairs | None = None
    exclude: bool = False
    reverse: Tensor | Mapping[EdgeType, EdgeType] | None = None
    seeds_are_vertices = False

    def __post_init__(self) -> None:
        if self.reverse is not None and not self.exclude:
            raise ValueError("reverse must be None unless exclude is True")

    @property
    def cache_key(self) -> Hashable:
        """See ``MiniBatchSampler``. Without exclusion, which changes few reads; the edges are part
        of the graph."""
        return type(self), self.blocks.cache_key, self.negatives

    def check_reverse(self, graph: Graph) -> None:
        """Check ``reverse`` against a graph's edges.

        Raises:
            ValueError: It does not fit them.
        """
        back = self.reverse
        if isinstance(back, Tensor):
            if len(graph.edge_types) > 1:
                raise ValueError(
                    "reverse must be a mapping from edge type for several edge types, "
                    f"{graph.edge_types}"
                )
            if back.shape != (graph.num_edges,):
                rule = f"an edge id for each of {graph.num_edges} edges"
                raise ValueError(f"reverse must hold {rule}, got shape {tuple(back.shape)}")
            return
        for etype, of_etype in ({} if back is None else back).items():
            if not {etype, of_etype} <= {*graph.edge_types} or etype[::2] != of_etype[::-1][::2]:
                raise ValueError(
                    f"reverse must name an edge type from {etype[-1]!r} to {etype[0]!r} among "
                    f"{graph.edge_types} for "
                    f"{etype!r}, got {of_etype!r}"
                )
            if graph.csc_of(etype).num_edges != graph.csc_of(of_etype).num_edges:
                raise ValueError(
                    f"reverse must name types with equal numbers of edges, got {etype!r} and "
                    f"{of_etype!r}"
                )

    def with_in_edges(self) -> EdgeBatches:
        """This sampler for a graph that is already reversed, without exclusion, which changes few
        reads."""
        return EdgeBatches(self.blocks.with_in_edges(), self.ends, self.negatives)

    def sample(
        self,
        graph: Graph,
        seeds: Tensor | Mapping[EdgeType, Tensor],
        key: int = 0,
        pools: BufferPools | None = None,
        draw: Draw | None = None,
    ) -> HeteroMiniBatch | Subgraph:
        """Sample one batch: blocks with ``links``, or a subgraph.

        Args:
            graph: The graph.
            seeds: Edge ids, shape ``(n,)``, or pairs of a source and a destination, shape
                ``(n, 2)``; or a mapping from edge type to such tensors.
            key: Any 64-bit number; equal keys give equal batches.
            pools: Recycled memory for the result. Default: fresh memory.
            draw: Samples the blocks of the ends in place of ``blocks``, without exclusion.

        Raises:
            IndexError: An edge id or an end is outside the graph.
            TypeError: Seeds are not tensors.
            ValueError: ``seeds`` is a tensor for a graph of several edge types, has a wrong shape,
                or has pairs although edges are to be excluded.
        """
        ends_graph = self.ends or graph
        edges = _by_type(ends_graph, seeds)
        csc = {etype: ends_graph.csc_of(etype) for etype in ends_graph.edge_types}
        dtype = next((ids.dtype for ids in edges.values()), torch.int64)
        groups = [edge_ends(csc, edges, dtype), {}]
        if self.negatives is not None:
            groups[1] = negative_pairs(csc, groups[0], self.negatives, key)
        nodes, (positive, negative) = compact_pairs(graph, groups, dtype)
        batch: HeteroMiniBatch | Subgraph
        if draw is not None:
            batch = draw(nodes, key)
        else:
            excluded = self._excluded(graph, edges) if self.exclude else {}
            batch = self.blocks.sample(graph, nodes, key, pools=pools, exclude=excluded)
        if isinstance(batch, HeteroMiniBatch):
            batch.links = {
                t: Links(
                    torch.stack(positive[t]),
                    torch.stack(negative[t]),
                    ids if ids.dim() == 1 else None,
                )
                for t, ids in edges.items()
            }
        return batch

    def _excluded(
        self, graph: Graph, edges: Mapping[EdgeType, Tensor]
    ) -> dict[EdgeType, ExcludedEdges]:
        """The edges to leave out of the blocks, as positions in the CSC that is sampled."""
        ids: dict[EdgeType, list[Tensor]] = {}
        for etype, of_type in edges.items():
            if of_type.dim() != 1:
                raise ValueError("seeds must be edge ids if exclude is True, got pairs")
            ids.setdefault(etype, []).append(of_type)
            if isinstance(self.reverse, Tensor):
                back = self.reverse[of_type.long()]
                ids[etype].append(back[back >= 0].to(of_type.dtype))
            elif self.reverse is not None and etype in self.reverse:
                ids.setdefault(self.reverse[etype], []).append(of_type)
        direction = self.hops.edge_dir
        return {
            t: ExcludedEdges(graph.adjacency(direction, t).positions_of(torch.cat(of)))
            for t, of in ids.items()
        }

    def seed_rates(
        self, seeds: Tensor | Mapping[EdgeType, Tensor], batch_size: int
    ) -> dict[str, Tensor]:
        """Probability of each vertex to be an end of an edge or of a negative pair in a batch of
        ``batch_size`` edges."""
        assert self.ends is not None  # set for cache policies, which alone call this
        edges = _by_type(self.ends, seeds)
        csc = {etype: self.ends.csc_of(etype) for etype in self.ends.edge_types}
        total = sum(map(len, edges.values()))
        sizes = self.ends.num_nodes_by_type
        counts = {t: torch.zeros(n, dtype=torch.int64, device="cpu") for t, n in sizes.items()}
        # Probability of each vertex to be in no negative pair.
        spared: dict[str, Any] = dict.fromkeys(sizes, 1.0)
        for etype, (src, dst) in edge_ends(csc, edges, torch.int64).items():
            src_type, _, dst_type = etype
            count_ends(counts, (src_type, dst_type), src, dst)
            if self.negatives is not None and total:
                pairs = self.negatives.k * batch_size * len(src) / total
                spared[dst_type] *= (1 - self.negatives.chances(csc[etype], etype)) ** pairs
                if not self.negatives.keeps_sources:
                    spared[src_type] *= (1 - 1 / max(1, sizes[src_type])) ** pairs
        return {
            t: 1 - (1 - chance_of_some(counts[t], total, batch_size)) * spared[t] for t in sizes
        }


def _by_type(graph: Graph, seeds: Any) -> dict[EdgeType, Tensor]:
    """Seeds by edge type, checked; raises as :meth:`EdgeBatches.sample`."""
    if not isinstance(seeds, Mapping) and len(graph.edge_types) != 1:
        raise ValueError(f"seeds must be a mapping from edge type for the types {graph.edge_types}")
    by_type = dict(seeds) if isinstance(seeds, Mapping) else {graph.edge_types[0]: seeds}
    for etype, ids in by_type.items():
        if not isinstance(ids, Tensor):
            raise TypeError(
                f"seeds of {etype} must be a tensor of integers, got {type(ids).__name__}"
            )
        if ids.dim() == 2 and ids.shape[1] != 2:
            raise ValueError(
                f"seeds of {etype} must be ids, or pairs of shape (n, 2), got shape "
                f"{tuple(ids.shape)}"
            )
    return by_type
