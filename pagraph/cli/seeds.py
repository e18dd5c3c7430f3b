"""Seeds and samplers by options, for the verbs that sample a graph folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..graph.graph import Graph
from ..options.training import TrainOptions
from ..profile import training_edges, training_seeds
from ..sampling import NeighborSampler
from ..sampling.edge_batches import EdgeBatches
from ..sampling.negative import UniformNegatives

_MASK = "train_mask"

Seeds = Tensor | Mapping[str, Tensor]


def seeds_and_sampler(
    graph: Graph, options: TrainOptions, node_type: str | None, fraction: float | None
) -> tuple[Any, Any]:
    """The seeds and the sampler that ``pagraph train`` would use."""
    sampler = NeighborSampler(list(options.fanout))
    if options.task == "links":
        edges = training_edges(graph, fraction=fraction, seed=options.seed)
        return edges, EdgeBatches(sampler, graph, UniformNegatives(1))
    return choose_seeds(graph, node_type, fraction, seed=options.seed), sampler


def choose_seeds(
    graph: Graph, node_type: str | None, fraction: float | None, *, seed: int
) -> Seeds:
    """Training vertices, or a random share of the vertices, of ``node_type``.

    Default: those of all types with a ``train_mask``, or of the only type.
    """
    # The library checks this too, but does not know the options' names.
    types = graph.node_types
    if node_type is not None and node_type not in types:
        raise ValueError(f"--node-type must be one of {', '.join(types)}, got {node_type!r}")
    if len(types) == 1:
        if fraction is None and _MASK not in graph.node_fields(types[0]):
            raise ValueError(
                f"--train-fraction must be given for a graph without {_MASK}, such as 0.1; got none"
            )
        return training_seeds(graph, fraction=fraction, seed=seed)
    # By default all masked types, as some graphs train on several.
    masked = [ntype for ntype in types if _MASK in graph.node_fields(ntype)]
    chosen = masked if node_type is None else [node_type]
    if not chosen:
        raise ValueError(
            f"--node-type must be given if no vertices have a {_MASK}: {', '.join(types)}"
        )
    if fraction is None and chosen[0] not in masked:
        raise ValueError(
            f"--train-fraction must be given if {chosen[0]!r} vertices have no {_MASK}; got none"
        )
    return {
        ntype: training_seeds(graph, node_type=ntype, fraction=fraction, seed=seed)
        for ntype in chosen
    }
