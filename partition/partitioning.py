"""Divides a graph: input is checked here, the work is a method's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..graph import Graph
from ..integers import as_integer
from .limit import limit_replication
from .methods import resolve_method
from .methods.halo import HaloSearch
from .partition import MAX_HOPS, Partition, Progress

__all__ = ["EVALUATION", "draw_train", "partition_graph", "train_ids", "with_evaluation"]

EVALUATION = ("source", "parts")
"""Where validation and test vertices are evaluated: on the whole graph, or on the parts."""


def partition_graph(
    graph: Graph,
    num_parts: int,
    *,
    hops: int = 2,
    method: str = "auto",
    train: Tensor | None = None,
    seed: int = 0,
    evaluation: str = "source",
    max_replication: float | None = None,
    fanout: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Partition:
    """Give every training vertex to one of ``num_parts`` parts.

    Args:
        graph: One vertex type and one edge type; ids are checked.
        num_parts: From 1 to the number of training vertices.
        hops: As many as the model samples (its layers; one less on pre-aggregated features).
        method: One of :data:`pagraph.partition.METHODS`.
        train: Ids or a boolean mask of the training vertices. Default: the field ``train_mask``.
        seed: Of the method's random choices.
        evaluation: "parts": validation and test vertices are divided as well, and their neighbourhoods go with them, so
            that a part needs nothing else to evaluate them. "source": they are evaluated on the whole graph.
        max_replication: Drop halo vertices that are drawn least often until the parts hold at most so many times the
            graph's vertices; see :func:`pagraph.partition.limit_replication`.
        fanout: What training will draw, for ``max_replication``. Default: 10 at each hop.
        progress: Called with the work done so far and the whole of it.

    Raises:
        TypeError: ``graph`` is none; ``num_parts``, ``hops``, ``seed`` are no integers, or ``train`` holds none.
        ValueError: An argument breaks its rule, or there are no training vertices.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph must be a pagraph.Graph (Graph.from_dgl makes one), got {type(graph).__name__}")
    if not graph.is_homogeneous:
        raise ValueError(f"graph must have one vertex type and one edge type, got {graph}")
    divide = resolve_method(method)
    ids = train_ids(graph, train)
    num_parts, hops, seed = as_integer("num_parts", num_parts), as_integer("hops", hops), as_integer("seed", seed)
    if num_parts < 1:
        raise ValueError(f"num_parts must be at least 1, got {num_parts}")
    if num_parts > len(ids):
        raise ValueError(f"num_parts must be at most the number of training vertices {len(ids)}, got {num_parts}")
    if not 1 <= hops <= MAX_HOPS:
        raise ValueError(f"hops must be from 1 to {MAX_HOPS}, got {hops}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if evaluation not in EVALUATION:
        raise ValueError(f"evaluation must be one of {', '.join(EVALUATION)}, got {evaluation!r}")
    graph.csc.validate()
    parts = divide(graph, ids, num_parts, hops, seed=seed, progress=progress)
    partition = Partition(graph, ids, parts, num_parts, hops, method)
    if evaluation == "parts":
        partition = with_evaluation(partition)
    if max_replication is not None:
        partition = limit_replication(partition, max_replication, fanout=fanout)
    return partition


def train_ids(graph: Graph, train: Tensor | None = None) -> Tensor:
    """Ids of the training vertices, ascending, int64: ``train`` (ids or a mask), or the field ``train_mask``.

    Raises:
        TypeError: ``train`` is no tensor, or holds neither integers nor booleans.
        ValueError: There is no such field, a mask has not one entry for each vertex, an id is repeated or out of range,
            or no vertex is selected.
    """
    if train is None:
        if "train_mask" not in graph.ndata:
            raise ValueError("graph must have the field train_mask, or train must be given, got neither")
        train = graph.ndata["train_mask"].bool()
    if not isinstance(train, Tensor):
        raise TypeError(f"train must be a tensor, got {type(train).__name__}")
    if train.is_floating_point() or train.is_complex():
        raise TypeError(f"train must hold ids or be a boolean mask, got {train.dtype}")
    if train.dtype == torch.bool:
        if train.shape != (graph.num_nodes,):
            raise ValueError(f"train must have shape [{graph.num_nodes}] as a mask, got {list(train.shape)}")
        ids = train.nonzero().squeeze(1)
    else:
        ids = torch.unique(train.long())
        if train.dim() != 1 or len(ids) != len(train):
            raise ValueError(f"train must be a list of distinct ids, got {len(ids)} in shape {list(train.shape)}")
        if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= graph.num_nodes):
            raise ValueError(f"train must hold ids in [0, {graph.num_nodes}), got {int(ids[0])} to {int(ids[-1])}")
    if len(ids) == 0:
        raise ValueError("train must select at least 1 vertex, got 0")
    return ids


def draw_train(graph: Graph, fraction: float, *, seed: int = 0) -> Tensor:
    """Ids of a random share of the vertices, ascending, int64, at least one: for graphs without a training mask.

    Raises:
        ValueError: ``fraction`` is not in (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}")
    count = max(1, round(graph.num_nodes * fraction))
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    return order[:count].sort().values


_MASKS = ("val_mask", "test_mask")


def with_evaluation(partition: Partition) -> Partition:
    """Give every validation and test vertex to a part, which then holds its neighbourhood as well.

    Each goes where it brings the fewest vertices; all parts get equally many. (One that is trained on too stays where
    it is trained on.)

    Args:
        partition: Its training vertices stay where they are.

    Raises:
        ValueError: The graph has neither ``val_mask`` nor ``test_mask``, or they select nothing.
    """
    graph = partition.graph
    masks = [graph.ndata[name].bool() for name in _MASKS if name in graph.ndata]
    chosen = torch.stack(masks).any(0) if masks else torch.zeros(graph.num_nodes, dtype=torch.bool)
    evaluated = chosen.nonzero().squeeze(1)
    if len(evaluated) == 0:
        raise ValueError("graph must have validation or test vertices for parts to evaluate, got none")
    part_of = torch.full((graph.num_nodes,), -1, dtype=torch.int32)
    part_of[partition.train] = partition.parts
    others = evaluated[part_of[evaluated] < 0]
    search = HaloSearch(graph.csc, partition.train, partition.num_parts, partition.hops)
    search.adopt(partition.parts.numpy())
    part_of[others] = torch.from_numpy(search.place_others(others))
    return replace(partition, evaluated=evaluated, evaluation=part_of[evaluated])
