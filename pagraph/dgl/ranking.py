"""What a loader's cache policy is given: graph, seeds and sampler as the core knows them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..cache.auto import Learned
from ..cache.edge_ranking import edge_draws, rank_edges
from ..cache.policy import Policy, Ranking, apply_policy
from ..cache.vip import expected_accesses
from ..features.candidate import RowType
from ..features.first_epoch import FirstEpoch
from ..graph import Graph
from ..sampling import BlockSampler
from ..sampling.accesses import most_repeats
from ..sampling.edge_batches import EdgeBatches
from ..sampling.seeds import SeedOrder
from .convert import core_graph
from .recognise import is_edge_sampler, native_negatives, native_sampler

if TYPE_CHECKING:
    from ..graph import EdgeType
    from ..sampling.seeds import DatasetOrder

__all__ = ["Sampled", "edge_dir", "first_epoch", "rank", "rank_edge_types", "rank_types"]


@dataclass(frozen=True, eq=False)
class Sampled:
    """What a loader samples, without DGL.

    Attributes:
        graph: The graph, turned so that in-edges are drawn, with the edge columns that the sampler weighs by.
        seeds: Ids of vertices (or edges, for edge-wise loaders), or a mapping from type.
        sampler: Turns seeds into mini-batches as the loader does; None where a user's own code does that.
        batch_size: Seeds a batch.
        seed: The loader's; 0 if it has none.
    """

    graph: Graph
    seeds: Any
    sampler: BlockSampler | EdgeBatches | None
    batch_size: int
    seed: int

    @classmethod
    def of(cls, graph: Any, sampler: Any, order: SeedOrder | DatasetOrder) -> Sampled:
        """What a loader of this DGL graph, sampler and order samples.

        A user's own negative sampler is not called: it may count its calls, and its pairs are left out.
        """
        blocks = native_sampler(graph, sampler) if isinstance(order, SeedOrder) else None
        if blocks is not None and blocks.edge_dir != "in":
            blocks = blocks.with_in_edges()
        core = _with_weights(graph, core_graph(graph, edge_dir(sampler)), blocks)
        batch_size = order.batch_size if isinstance(order, SeedOrder) else 1
        if blocks is None or not is_edge_sampler(sampler):
            return cls(core, _by_type(core, order.ids), blocks, batch_size, order.seed or 0)
        seeds = order.ids
        if isinstance(seeds, Mapping):
            seeds = {graph.to_canonical_etype(etype): ids for etype, ids in seeds.items()}
        negatives = native_negatives(sampler.negative_sampler)
        return cls(core, seeds, EdgeBatches(blocks, core_graph(graph), negatives), batch_size, order.seed or 0)


def rank(policy: Policy, graph: Any, sampler: Any, order: SeedOrder | DatasetOrder) -> dict[str, Ranking]:
    """The vertices of all types by a policy, in the direction that is sampled.

    Raises:
        TypeError, ValueError: See ``pagraph.cache.apply_policy``.
    """
    given = Sampled.of(graph, sampler, order)
    settings: dict[str, Any] = {"batch_size": given.batch_size, "shuffle": order.shuffle}
    return apply_policy(policy, given.graph, given.seeds, given.sampler, given.seed, **settings)


def rank_edge_types(
    graph: Any, sampler: Any, order: SeedOrder | DatasetOrder, edge_types: Iterable[EdgeType]
) -> dict[EdgeType, Ranking]:
    """The edges of canonical types by how often the blocks are expected to hold them; none for samplers without
    fan-outs.
    """
    given = Sampled.of(graph, sampler, order)
    expected = expected_accesses(given.graph, given.seeds, given.sampler, batch_size=given.batch_size)
    if expected is None:
        return {}
    rankings = {}
    for etype in edge_types:
        # The core's types are in the order of the graph's, some of them turned round.
        core_type = given.graph.edge_types[graph.canonical_etypes.index(etype)]
        draws = edge_draws(expected, given.graph, given.sampler, core_type)
        rankings[etype] = rank_edges(given.graph, core_type, draws)
    return rankings


def rank_types(
    policy: Policy, graph: Any, sampler: Any, order: SeedOrder | DatasetOrder, types: Collection[RowType]
) -> dict[RowType, Ranking]:
    """The vertices of some types by a policy, and the edges of others; edges that cannot be ranked are left out."""
    vertices = [t for t in types if isinstance(t, str)]
    edges = [t for t in types if isinstance(t, tuple)]
    ranked = rank(policy, graph, sampler, order) if vertices else {}
    return {t: ranked[t] for t in vertices} | (rank_edge_types(graph, sampler, order, edges) if edges else {})


def first_epoch(graph: Any, sampler: Any, order: SeedOrder | DatasetOrder, num_nodes: Mapping[str, int]) -> FirstEpoch:
    """Counts a loader's first epoch, and ranks by it."""
    native = native_sampler(graph, sampler) if isinstance(order, SeedOrder) else None
    repeats = None
    if native is not None and isinstance(order, SeedOrder):
        repeats = 1 if is_edge_sampler(sampler) else most_repeats(order)  # ends of edges are read once a batch
    return FirstEpoch(
        num_nodes,
        num_hops=0 if native is None else native.num_hops,
        batches=len(order),
        repeats=repeats,
        rank=lambda counts: partial(rank_types, Learned(counts, len(order)), graph, sampler, order),
    )


def edge_dir(sampler: Any) -> str:
    """Which neighbours a sampler draws; "in" where it does not say. An edge sampler has a sampler of nodes inside."""
    direction = getattr(getattr(sampler, "sampler", sampler), "edge_dir", "in")
    return "out" if direction == "out" else "in"


def _by_type(graph: Graph, seeds: Any) -> Any:
    """Seeds of a graph with several edge types by vertex type: only so can the core sample."""
    return seeds if graph.is_homogeneous or isinstance(seeds, Mapping) else {graph.node_types[0]: seeds}


def _with_weights(graph: Any, core: Graph, sampler: BlockSampler | None) -> Graph:
    """The core graph with the column that the sampler weighs edges by; the arrays are shared.

    Without it a policy that samples would draw uniformly.
    """
    name = None if sampler is None else sampler.prob
    if name is None:
        return core
    weighted = Graph({etype: core.csc_of(etype) for etype in core.edge_types}, core.num_nodes_by_type)
    for core_type, frame in zip(core.edge_types, graph._edge_frames, strict=True):
        if name in frame._columns:
            weighted.set_field(name, frame[name], edge_type=core_type)
    return weighted
