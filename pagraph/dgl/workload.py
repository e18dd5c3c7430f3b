"""Recognition of DGL's samplers as core samplers, and the ``Workload`` of a loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..graph.csc import no_ids
from ..graph.graph import Graph, without_fields
from ..ranking.policy import RowType
from ..ranking.workload import Sampled, Workload
from ..sampling import BlockSampler, ClusterSampler, LaborSampler, NeighborSampler, SaintSampler
from ..sampling.edge_batches import EdgeBatches
from ..sampling.induced import InducedBatches
from ..sampling.negative import GlobalUniformNegatives, UniformNegatives
from ..sampling.saint import SAINT_MODES
from ..seeds.order import SeedOrder
from ..system.checks import as_integer, check_fanout
from .columns import row_counts
from .convert import by_edge_type, core_graph
from .graphbolt import import_dgl
from .samplers import HardNegatives, LayerSampler

dgl = import_dgl()
from dgl.dataloading import BlockSampler as DGLBlockSampler  # noqa: E402
from dgl.dataloading import negative_sampler as dgl_negatives  # noqa: E402
from dgl.dataloading.base import EdgePredictionSampler  # noqa: E402

if TYPE_CHECKING:
    from ..graph.graph import EdgeType
    from ..sampling.negative import NegativePairs
    from ..sampling.sampler import MiniBatchSampler
    from ..seeds.torch_order import UsersOrder


def native_sampler(graph: Any, sampler: Any) -> MiniBatchSampler | None:
    """The core sampler that is equivalent to a DGL sampler, or None if its own code must run.

    It recognises ``NeighborSampler``, ``MultiLayerFullNeighborSampler``, ``LaborSampler``,
    ``ShaDowKHopSampler``, ``ClusterGCNSampler`` and ``SAINTSampler`` of ``dgl.dataloading``,
    ``pagraph.dgl.LayerSampler``, and subclasses that do not change sampling, on graphs in CPU
    memory. For an edge sampler around one of these, the inner sampler is returned.

    Raises:
        ValueError: A fan-out is 0 or below -1, or a budget is below 1.
        DGLError: A hop's fan-outs do not name all edge types.
        KeyError: A layer sampler's ``edge_weight`` is not a column of the graph.
    """
    if not isinstance(graph, dgl.DGLGraph) or graph.is_block or graph.device.type != "cpu":
        return None
    if is_edge_sampler(sampler):
        sampler = sampler.sampler
    # A sampler that moves its blocks to a device must run its own code.
    device = getattr(sampler, "output_device", None)
    if device is not None and torch.device(device).type != "cpu":
        return None
    make = next((make for kind, make in _KINDS.items() if isinstance(sampler, kind)), None)
    return None if make is None else make(graph, sampler)


def is_edge_sampler(sampler: Any) -> bool:
    """Whether it is DGL's edge sampler, with DGL's own ``sample``."""
    base = EdgePredictionSampler
    methods = dict.fromkeys(("sample", "_build_neg_graph", "assign_lazy_features"), base)
    return isinstance(sampler, base) and is_unchanged(sampler, methods)


def runs_users_code(sampler: Any) -> bool:
    """Whether an edge sampler calls user functions for negatives or for excluded edges."""
    if not is_edge_sampler(sampler):
        return False
    negatives = sampler.negative_sampler
    if negatives is not None and native_negatives(negatives) is None:
        return True
    # DGL's callables are not user code.
    exclude = sampler.exclude
    return callable(exclude) and type(exclude).__module__.split(".")[0] != "dgl"


def native_negatives(sampler: Any) -> NegativePairs | None:
    """The core equivalent of a negative sampler of DGL's or ours; None for any other callable."""
    if type(sampler) is HardNegatives:
        return sampler.core
    if type(sampler) is dgl_negatives.PerSourceUniform:
        return UniformNegatives(sampler.k)
    if type(sampler) is dgl_negatives.GlobalUniform:
        return GlobalUniformNegatives(
            sampler.k, bool(sampler.exclude_self_loops), bool(sampler.replace)
        )
    return None


def _neighbor_sampler(graph: Any, sampler: Any) -> NeighborSampler | None:
    base = dgl.dataloading.NeighborSampler
    if not _samples_as(sampler, base) or not _can_run(graph, sampler):
        return None
    fanouts = [_fanout(graph, fanout) for fanout in sampler.fanouts]
    _check_fanouts(fanouts, bool(sampler.replace))
    return NeighborSampler(
        fanouts, replace=bool(sampler.replace), edge_dir=sampler.edge_dir, prob=sampler.prob
    )


def _layer_sampler(graph: Any, sampler: LayerSampler) -> MiniBatchSampler | None:
    return sampler.core_sampler(graph) if _samples_as(sampler, LayerSampler) else None


def _edge_order(graph: Any) -> str | None:
    """The order of edges in ``DGLGraph.subgraph``: "out" by source, "in" by destination, or None.

    DGL cuts subgraphs from the rows by source, unless the graph was restricted to other formats.
    """
    formats = {name for names in graph.formats().values() for name in names}
    if "csr" in formats:
        return "out"
    return "in" if formats == {"csc"} else None


def _shadow_sampler(graph: Any, sampler: Any) -> InducedBatches | None:
    base = dgl.dataloading.ShaDowKHopSampler
    if not is_unchanged(sampler, {"sample": base}):
        return None
    order = _edge_order(graph)
    if order is None or not sampler.fanouts or not isinstance(sampler.prob, str | None):
        return None
    fanouts = [_fanout(graph, fanout) for fanout in sampler.fanouts]
    _check_fanouts(fanouts, bool(sampler.replace))
    hops = NeighborSampler(fanouts, replace=bool(sampler.replace), prob=sampler.prob)
    return InducedBatches(hops, order)


def _cluster_sampler(graph: Any, sampler: Any) -> ClusterSampler | None:
    base = dgl.dataloading.ClusterGCNSampler
    order = _edge_order(graph)
    own = not is_unchanged(sampler, {"sample": base})
    if own or order is None or not graph.is_homogeneous:
        return None
    return ClusterSampler(sampler.partition_offset, sampler.partition_node_ids, order)


def _saint_sampler(graph: Any, sampler: Any) -> SaintSampler | None:
    base = dgl.dataloading.SAINTSampler
    order = _edge_order(graph)
    methods = [base.node_sampler, base.edge_sampler, base.walk_sampler]
    drawn_by = getattr(sampler.sampler, "__func__", None)
    # DGL's constructor stores one of its methods, which a user may have replaced.
    own = not is_unchanged(sampler, {"sample": base}) or drawn_by not in methods
    if own or order is None or not graph.is_homogeneous:
        return None
    mode = SAINT_MODES[methods.index(drawn_by)]
    budget = sampler.budget
    budget, length = budget if mode == "walk" else (budget, 0)
    _check_saint(mode, budget, length)
    return SaintSampler(mode, budget, length, edge_dir=order)


def _labor_sampler(graph: Any, sampler: Any) -> LaborSampler | None:
    base = dgl.dataloading.LaborSampler
    if not _samples_as(sampler, base) or not _can_run(graph, sampler):
        return None
    # With batch_dependency=0 DGL's draws never change.
    if not is_unchanged(sampler, {"set_seed": base}) or int(sampler.cnt[1]) < 1:
        return None
    return LaborSampler(
        [_fanout(graph, fanout) for fanout in sampler.fanouts],
        prob=sampler.prob,
        importance_sampling=int(sampler.importance_sampling),
        layer_dependency=bool(sampler.layer_dependency),
        edge_dir=sampler.edge_dir,
        batch_dependency=int(sampler.cnt[1]),
    )


_KINDS: dict[type, Callable[[Any, Any], MiniBatchSampler | None]] = {
    dgl.dataloading.NeighborSampler: _neighbor_sampler,
    dgl.dataloading.LaborSampler: _labor_sampler,
    dgl.dataloading.ShaDowKHopSampler: _shadow_sampler,
    dgl.dataloading.ClusterGCNSampler: _cluster_sampler,
    dgl.dataloading.SAINTSampler: _saint_sampler,
    LayerSampler: _layer_sampler,
}


def sharing_sampler(
    native: MiniBatchSampler | None, batch_dependency: int
) -> MiniBatchSampler | None:
    """The sampler with a loader's ``batch_dependency``.

    Raises:
        TypeError: ``batch_dependency`` is not an integer.
        ValueError: It is below 1. Or it is above 1, but batches of the sampler cannot share random
            numbers, or the sampler has another ``batch_dependency``.
    """
    if as_integer("batch_dependency", batch_dependency, least=1) == 1:
        return native
    if not isinstance(native, NeighborSampler | LaborSampler):
        kind = "one with its own code" if native is None else type(native).__name__
        raise ValueError(
            "batch_dependency must be 1 except for neighbour and LABOR samplers, got "
            f"{batch_dependency} for {kind}"
        )
    if native.batch_dependency not in (1, batch_dependency):
        raise ValueError(
            f"batch_dependency must be the sampler's own, {native.batch_dependency}, or 1; got "
            f"{batch_dependency}"
        )
    return replace(native, batch_dependency=batch_dependency)


def _samples_as(sampler: Any, base: type) -> bool:
    """Whether a subclass changes nothing about how ``base`` samples."""
    return is_unchanged(
        sampler, {"sample": DGLBlockSampler, "sample_blocks": base, "assign_lazy_features": base}
    )


def _can_run(graph: Any, sampler: Any) -> bool:
    return isinstance(sampler.prob, str | None) and (
        sampler.edge_dir == "in" or graph.is_homogeneous
    )


def is_unchanged(sampler: Any, methods: Mapping[str, type]) -> bool:
    """Whether the sampler's methods are those of the given classes, not overridden."""
    return all(
        getattr(type(sampler), name) is getattr(owner, name) and name not in vars(sampler)
        for name, owner in methods.items()
    )


def _fanout(graph: Any, fanout: Any) -> Any:
    """One hop's fan-out: a number, or with several edge types a mapping by canonical type."""
    if not isinstance(fanout, Mapping):
        return _whole(fanout)
    by_type = by_edge_type(graph, "fan-outs", {etype: _whole(n) for etype, n in fanout.items()})
    return by_type[graph.canonical_etypes[0]] if len(by_type) == 1 else by_type


def _whole(fanout: Any) -> Any:
    """A float or tensor that is a whole number as an int, as DGL accepts these."""
    is_whole = isinstance(fanout, Tensor | float) and float(fanout).is_integer()
    return int(fanout) if is_whole else fanout


def _check_fanouts(fanouts: Sequence[Any], replace: bool) -> None:
    """Raise ValueError for fan-outs with which DGL's own sampler ends the process."""
    for fanout in fanouts:
        for number in fanout.values() if isinstance(fanout, Mapping) else [fanout]:
            check_fanout(number, replace, least=0)


def _check_saint(mode: str, budget: Any, length: Any) -> None:
    """Raise ValueError for numbers with which DGL's own sampler ends the process."""
    if mode == "walk":
        as_integer("walk_length", length, least=1)
    if mode != "node":
        as_integer("budget", budget, least=1 if mode == "walk" else 0)


def workload_of(
    graph: Any, sampler: Any, order: SeedOrder | UsersOrder, native: MiniBatchSampler | None
) -> Workload:
    """The workload of a loader with this DGL graph, sampler and order.

    ``native`` is our sampler that replaces the sampler now. Policies that sample read graph and
    sampler again, since both may have been changed by then. They do not call a user's negative
    sampler, which may count its calls; its pairs are left out.
    """
    rows = row_counts(graph)
    direction = _edge_dir(sampler)
    turn = 1 if direction == "in" else -1
    edge_types: dict[EdgeType, EdgeType] = {
        t: t[::turn]  # type: ignore[misc]  # mypy knows no length of a slice
        for t in rows
        if isinstance(t, tuple)
    }
    seeds = order if isinstance(order, SeedOrder) else None
    return Workload(
        order,
        rows,
        _as_loader(graph, sampler, native),
        partial(_sampled, graph, sampler, order),
        source=graph,
        edge_dir=direction,
        seeds=seeds,
        seed_reads=partial(_seed_reads, graph, sampler, order),
        # Types of a reversed core graph are reversed, too.
        edge_types=edge_types,
    )


def _sampled(graph: Any, sampler: Any, order: SeedOrder | UsersOrder) -> Sampled:
    inner = native_sampler(graph, sampler) if isinstance(order, SeedOrder) else None
    if isinstance(inner, BlockSampler) and inner.edge_dir != "in":
        inner = inner.with_in_edges()
    core = _with_weights(graph, core_graph(graph, _edge_dir(sampler)), inner)
    seeds = order.ids
    if inner is None or not is_edge_sampler(sampler):
        return Sampled(core, _by_type(core, seeds), inner)
    if isinstance(seeds, Mapping):
        seeds = {graph.to_canonical_etype(etype): ids for etype, ids in seeds.items()}
    return Sampled(core, seeds, _as_loader(graph, sampler, inner))


def _as_loader(graph: Any, sampler: Any, inner: MiniBatchSampler | None) -> MiniBatchSampler | None:
    """The sampler of whole batches, which starts from edges if these are the seeds."""
    if not isinstance(inner, BlockSampler | InducedBatches) or not is_edge_sampler(sampler):
        return inner
    return EdgeBatches(inner, core_graph(graph), native_negatives(sampler.negative_sampler))


def _seed_reads(
    graph: Any, sampler: Any, order: SeedOrder | UsersOrder, row_type: RowType
) -> Tensor | None:
    """Reads of each row as a seed, over all ranks, shape ``(num_rows,)``, int64.

    None if unknown: for a user's sampler or dataset, and for vertices of edge-wise batches.
    """
    edge_wise = is_edge_sampler(sampler)
    native = native_sampler(graph, sampler) if isinstance(order, SeedOrder) else None
    if native is None or not native.seeds_are_vertices:
        return None
    if edge_wise != isinstance(row_type, tuple):
        return None
    ids: Any = order.ids
    if not isinstance(ids, Mapping):
        ids = {(graph.canonical_etypes if edge_wise else graph.ntypes)[0]: ids}
    elif edge_wise:
        ids = {graph.to_canonical_etype(etype): of_type for etype, of_type in ids.items()}
    num_rows = graph.num_edges(row_type) if edge_wise else graph.num_nodes(row_type)
    seeds = ids.get(row_type, no_ids())
    return torch.bincount(seeds.long().cpu(), minlength=num_rows)


def _edge_dir(sampler: Any) -> str:
    """Direction of a sampler, or of the one inside an edge sampler; "in" by default."""
    direction = getattr(getattr(sampler, "sampler", sampler), "edge_dir", "in")
    return "out" if direction == "out" else "in"


def _by_type(graph: Graph, seeds: Any) -> Any:
    """Seeds by vertex type if the graph has several types, as core samplers need them."""
    if graph.is_homogeneous or isinstance(seeds, Mapping):
        return seeds
    return {graph.node_types[0]: seeds}


def _with_weights(graph: Any, core: Graph, sampler: MiniBatchSampler | None) -> Graph:
    """The core graph with the sampler's column of weights, so that policies draw by weight."""
    name = None if sampler is None or sampler.hops is None else sampler.hops.prob
    if name is None:
        return core
    # A new graph over the same arrays, because loaders share the core graph, without fields.
    weighted = without_fields(core)
    for core_type, frame in zip(core.edge_types, graph._edge_frames, strict=True):
        if name in frame._columns:
            weighted.set_field(name, frame[name], edge_type=core_type)
        if isinstance(sampler, InducedBatches):
            weighted.set_out_csc(core_type, core.out_csc_of(core_type))
    return weighted
