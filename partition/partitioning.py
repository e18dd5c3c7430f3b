"""Divides a graph's training vertices into parts, and limits the replication of their halos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..graph.fields import mask_of
from ..graph.graph import Graph
from ..options.partitioning import FANOUT, PartitionOptions
from ..system.arrays import Float64Array, Int64Array
from ..system.checks import as_integer
from ..system.progress import Progress
from .methods import resolve_method
from .methods.halo import HaloSearch
from .partition import Numbering, Partition, merged, vertices_within

_MASK = "train_mask"


def check_graph(options: PartitionOptions, graph: Graph, num_train: int) -> None:
    """Check the options against the graph, or raise ValueError."""
    if options.num_parts > num_train:
        got = f"got {options.num_parts}"
        raise ValueError(
            f"num_parts must be at most the number of training vertices {num_train:,}, {got}"
        )
    least = num_train / graph.num_nodes
    # "not >=" rather than "<": NaN is refused, too.
    if options.max_replication is not None and not options.max_replication >= least:
        got = f"got {options.max_replication}"
        raise ValueError(
            f"max_replication must be at least {least:.4g}, the share of training vertices, {got}"
        )
    if options.evaluation == "parts":
        evaluated = _evaluated(graph, train_type(graph, options.node_type))
        if not bool(evaluated.any()):
            raise ValueError(
                "evaluation must be source for a graph without val_mask and test_mask, got parts"
            )


def partition_graph(
    graph: Graph,
    num_parts: int,
    *,
    hops: int = PartitionOptions.hops,
    method: str = PartitionOptions.method,
    train: Tensor | None = None,
    seed: int = PartitionOptions.seed,
    evaluation: str = PartitionOptions.evaluation,
    max_replication: float | None = None,
    fanout: Sequence[int] | None = None,
    node_type: str | None = None,
    progress: Progress | None = None,
) -> Partition:
    """Divide the training vertices over ``num_parts`` parts.

    In a graph with several types, all training vertices have one type. Parts hold what they reach
    over all edge types. Methods then run on a copy of the edges without types
    (:func:`pagraph.partition.partition.merged`), and every vertex counts as one.

    Args:
        graph: The graph; ids are checked.
        num_parts: From 1 to the number of training vertices.
        hops: Number of hops the model samples: its layers, or one less on pre-aggregated features.
        method: One of :data:`pagraph.partition.METHODS`.
        train: Ids or a boolean mask of the training vertices. Default: the field ``train_mask``.
        seed: Seed of the method's random choices.
        evaluation: "parts" also divides validation and test vertices, with their neighbourhoods.
            "source" evaluates them on the whole graph.
        max_replication: Limit on the replication factor; see
            :func:`pagraph.partition.limit_replication`.
        fanout: Neighbours that training samples per hop, along each edge type, for
            ``max_replication``. Default: 10.
        node_type: Type of the training vertices. Default: the only one, or the only one with a
            ``train_mask``.
        progress: Called with the work done so far and all of it.

    Raises:
        TypeError: ``graph`` is not a graph; ``num_parts``, ``hops`` or ``seed`` is not an integer,
            or ``train`` does not hold integers.
        ValueError: An argument breaks its rule, or there are no training vertices.
    """
    if not isinstance(graph, Graph):
        raise TypeError(
            f"graph must be a pagraph.Graph (Graph.from_dgl makes one), got {type(graph).__name__}"
        )
    if not graph.edge_types:
        raise ValueError(f"graph must have at least 1 edge type, got {graph}")
    node_type = train_type(graph, node_type, masked=train is None)
    ids = train_ids(graph, train, node_type=node_type)
    num_parts = as_integer("num_parts", num_parts)
    hops = as_integer("hops", hops)
    seed = as_integer("seed", seed)
    options = PartitionOptions(
        num_parts=num_parts,
        hops=hops,
        method=method,
        evaluation=evaluation,
        max_replication=max_replication,
        seed=seed,
        node_type=node_type,
    )
    check_graph(options, graph, len(ids))
    # Methods see one type. Ids are checked here, as kernels of some methods do not check them.
    whole = merged(graph)
    whole.csc.validate()
    numbers = ids + Numbering(graph.num_nodes_by_type).begin(node_type)
    parts = resolve_method(method)(whole, numbers, num_parts, hops, seed=seed, progress=progress)
    partition = Partition(graph, ids, parts, num_parts, hops, method, node_type=node_type)
    if evaluation == "parts":
        partition = _with_evaluation(partition)
    # Last: the limit counts the evaluated vertices' neighbourhoods as well.
    if max_replication is not None:
        partition = limit_replication(partition, max_replication, fanout=fanout)
    return partition


def _evaluated(graph: Graph, node_type: str) -> Tensor:
    """Mask of the validation and test vertices."""
    fields = graph.node_fields(node_type)
    count = graph.num_nodes_of(node_type)
    evaluated = torch.zeros(count, dtype=torch.bool, device="cpu")
    for name in ("val_mask", "test_mask"):
        mask = mask_of(fields, name)
        if mask is not None:
            evaluated |= mask
    return evaluated


def _with_evaluation(partition: Partition) -> Partition:
    """Give each evaluated vertex a part: the one that trains on it, else where it adds least."""
    name = partition.train_type
    evaluated = _evaluated(partition.graph, name).nonzero().squeeze(1)
    begin = partition.numbering.begin(name)
    part_of = torch.full((partition.graph.num_nodes_of(name),), -1, dtype=torch.int32, device="cpu")
    part_of[partition.train] = partition.parts
    others = evaluated[part_of[evaluated] < 0]
    # A halo search that begins with the parts as they are, whatever method made them.
    search = HaloSearch(
        partition.merged.csc, partition.train + begin, partition.num_parts, partition.hops
    )
    search.adopt(partition.parts.numpy())
    part_of[others] = torch.from_numpy(search.place_others(others + begin))
    return replace(partition, evaluated=evaluated, evaluation=part_of[evaluated])


def train_type(graph: Graph, node_type: str | None = None, *, masked: bool = True) -> str:
    """Type of the training vertices.

    ``node_type``, or else the only type, or with ``masked`` the only one with a train_mask.

    Raises:
        ValueError: There is no such type; there are several, and ``node_type`` is not given.
    """
    types = graph.node_types
    if node_type is not None:
        if node_type not in types:
            raise ValueError(f"node_type must be one of {', '.join(types)}, got {node_type!r}")
        return node_type
    found = types
    if masked and len(types) > 1:
        found = [name for name in types if _MASK in graph.node_fields(name)]
    if len(found) == 1:
        return found[0]
    which = f"the types {', '.join(found or types)}"
    if masked and found:
        which += f" with {_MASK}"
    raise ValueError(f"node_type must be given to choose one of {which}, got None")


def train_ids(graph: Graph, train: Tensor | None = None, *, node_type: str | None = None) -> Tensor:
    """Ids of the training vertices, ascending, int64.

    From ``train``, ids or a mask, or else from the field ``train_mask``.

    Raises:
        TypeError: ``train`` is not a tensor, or holds neither integers nor booleans.
        ValueError: A mask is missing or has another shape, an id is repeated or out of range, or
            nothing is selected; or as :func:`train_type`.
    """
    node_type = train_type(graph, node_type, masked=train is None)
    fields = graph.node_fields(node_type)
    num_nodes = graph.num_nodes_of(node_type)
    if train is None:
        train = mask_of(fields, _MASK)
        if train is None:
            raise ValueError(
                "graph must have the field train_mask, or train must be given, got neither"
            )
    if not isinstance(train, Tensor):
        raise TypeError(f"train must be a tensor, got {type(train).__name__}")
    if train.is_floating_point() or train.is_complex():
        raise TypeError(f"train must hold ids or be a boolean mask, got {train.dtype}")
    if train.dtype == torch.bool:
        if train.shape != (num_nodes,):
            raise ValueError(
                f"train must have shape [{num_nodes}] as a mask, got {list(train.shape)}"
            )
        ids = train.nonzero().squeeze(1)
    else:
        ids = torch.unique(train.long())  # sorted
        if train.dim() != 1 or len(ids) != len(train):
            raise ValueError(
                f"train must be a list of distinct ids, got {len(ids)} in shape {list(train.shape)}"
            )
        if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= num_nodes):
            raise ValueError(
                f"train must hold ids in [0, {num_nodes}), got {int(ids[0])} to {int(ids[-1])}"
            )
    if len(ids) == 0:
        raise ValueError("train must select at least 1 vertex, got 0")
    return ids


def draw_train(
    graph: Graph, fraction: float, *, seed: int = 0, node_type: str | None = None
) -> Tensor:
    """Draw training vertices for a graph without a mask.

    Returns:
        Ids of a random ``fraction``, in (0, 1], of the vertices of a type, ascending, int64.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}")
    num_nodes = graph.num_nodes_of(train_type(graph, node_type))
    count = max(1, round(num_nodes * fraction))
    # torch takes seeds of 64 bits; any integer is one here.
    generator = torch.Generator().manual_seed(as_integer("seed", seed) % 2**64)
    order = torch.randperm(num_nodes, generator=generator, device="cpu")
    return order[:count].sort().values


# Steps of the bisection for the fewest vertices to drop. Each step follows the edges of all parts.
# Six steps drop at most 1/64 of the excess more than needed.
_STEPS = 6


def limit_replication(
    partition: Partition, factor: float, *, fanout: Sequence[int] | None = None
) -> Partition:
    """Drop halo vertices until the replication factor is at most ``factor``.

    Vertices with the fewest expected draws in an epoch go first, whichever part they are in.
    Vertices that only they led to go with them. Training samples from the remaining neighbours, and
    ``Partition.lost`` is the share of draws that dropped vertices would have received. Needs about
    50 bytes per halo vertex of all parts, and 20 per vertex of the graph.

    Args:
        partition: Its ``dropped`` is not read.
        factor: Highest replication factor, sum of the parts' vertices / vertices of the graph.
        fanout: Neighbours that training samples per hop, along each edge type, the last entry for
            the seeds; -1 is all. Default: 10.

    Raises:
        ValueError: ``factor`` leaves no room for the training vertices themselves, or ``fanout`` is
            not one number for each hop.
    """
    graph = partition.graph
    hops = partition.hops
    fanout = [FANOUT] * hops if fanout is None else list(fanout)
    if len(fanout) != hops:
        raise ValueError(f"fanout must have one number for each of {hops} hops, got {len(fanout)}")
    seeds = [partition.seeds_of(part) for part in range(partition.num_parts)]
    needed = sum(len(s) for s in seeds)
    if not factor * graph.num_nodes >= needed:  # "not >=" and not "<": NaN is refused, too
        least = needed / graph.num_nodes
        raise ValueError(
            f"max_replication must be at least {least:.4g}, what parts train on, got {factor}"
        )
    # No part holds more than the whole graph; without the minimum, infinity is no integer.
    room = int(min(factor, partition.num_parts) * graph.num_nodes)
    held = [vertices_within(partition.merged, s, hops) for s in seeds]
    excess = sum(len(v.ids) for v in held) - room
    if excess <= 0:
        return replace(partition, dropped=None, lost=0.0)
    halo = [v.ids[v.num_seeds :] for v in held]
    draws = []
    total = 0.0
    for s, ids in zip(seeds, halo, strict=True):
        drawn, all_draws = _expected_draws(graph, s, fanout)
        draws.append(drawn[ids.numpy()])
        total += all_draws
    dropped = _fewest(partition.merged, seeds, halo, _ranks(draws), hops, excess)
    # Draws again, without the dropped: what they would have led to is lost as well.
    kept = 0.0
    for s, d in zip(seeds, dropped, strict=True):
        drawn, _ = _expected_draws(graph, s, fanout, without=d)
        kept += drawn.sum()
    # Rounding must not make a share below 0.
    return replace(partition, dropped=tuple(dropped), lost=float(max(0.0, 1 - kept / total)))


def _expected_draws(
    graph: Graph, seeds: Tensor, fanout: Sequence[int], *, without: Tensor | None = None
) -> tuple[Float64Array, float]:
    """Expected draws of each vertex in an epoch, and the sum of all draws, dropped ones included.

    Vertices are numbered over all types. With fan-out f, a vertex v with d(v) expected draws
    draws each of its in-neighbours d(v) min(1, f / degree(v)) times.
    """
    from . import _kernels

    numbering = Numbering(graph.num_nodes_by_type)
    kept = np.ones(graph.num_nodes, np.bool_)
    if without is not None:
        kept[without.numpy()] = False
    drawn = np.zeros(graph.num_nodes)
    total = 0.0
    # How often each vertex of the current hop draws: a seed once per epoch.
    draws = np.zeros(graph.num_nodes)
    draws[seeds.numpy()] = 1
    for number in reversed(fanout):
        found = np.zeros(graph.num_nodes)
        for edge_type in graph.edge_types:
            csc = graph.csc_of(edge_type)
            sources = numbering.rows(edge_type[0])
            targets = numbering.rows(edge_type[2])
            frontier = np.flatnonzero(draws[targets])
            edges = (*csc.arrays, frontier, draws[targets][frontier])
            total += _kernels.spread(*edges, number, kept[sources], found[sources])
        drawn += found
        draws = found
    return drawn, total


def _ranks(draws: Sequence[Float64Array]) -> list[Int64Array]:
    """Rank of each entry among all entries of all arrays, the lowest first."""
    order = np.argsort(np.concatenate(draws), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return np.split(place, np.cumsum([len(d) for d in draws])[:-1])


def _fewest(
    graph: Graph,
    seeds: Sequence[Tensor],
    halo: Sequence[Tensor],
    ranks: Sequence[Int64Array],
    hops: int,
    excess: int,
) -> list[Tensor]:
    """Vertices each part drops, about as few as possible, all that follow included."""

    def without(count: int) -> list[Tensor]:
        lost = []
        for start, ids, rank in zip(seeds, halo, ranks, strict=True):
            lowest = ids[torch.from_numpy(rank < count)]
            left = vertices_within(graph, start, hops, without=lowest)
            # Also those that only dropped vertices led to.
            lost.append(ids[~torch.isin(ids, left.ids)].sort().values)
        return lost

    # Dropping the ``excess`` lowest is always enough. Often fewer are, as others go with them:
    # bisect between that and none.
    best = without(excess)
    fits = excess
    too_few = 0
    for _ in range(_STEPS):
        middle = (fits + too_few) // 2
        lost = without(middle)
        if sum(len(ids) for ids in lost) >= excess:
            fits = middle
            best = lost
        else:
            too_few = middle
    return best
