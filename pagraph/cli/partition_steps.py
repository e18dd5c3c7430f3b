"""The steps that dividing a graph and comparing methods have in common, each with a bar and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..graph import CSC, Graph
from .terminal import progress_bar

if TYPE_CHECKING:
    from torch import Tensor

    from ..partition import Partition, PartitionReport
    from ..partition.reporting.cache_trial import CacheUse
    from ..partition.reporting.steps import Steps
    from .partition_options import Settings

__all__ = ["divided", "measured"]

_SMALL = 64


def divided(graph: Graph, train: Tensor, method: str, options: Settings, steps: Steps) -> Partition:
    """Divide the training vertices by a method; kernels are compiled before, so that dividing is timed alone.

    Raises:
        ValueError: There are fewer of them than parts.
        MissingDependencyError: The method needs what is not installed.
    """
    from ..partition import partition_graph

    with steps("compiling"):
        partition_graph(_small(graph), 2, hops=options.hops, method=method, train=torch.arange(_SMALL))
    with steps("dividing"), progress_bar(f"dividing by {method}") as progress:
        return partition_graph(
            graph,
            options.num_parts,
            hops=options.hops,
            method=method,
            train=train,
            seed=options.seed,
            evaluation=options.evaluation,
            max_replication=options.max_replication,
            fanout=options.fanout if options.max_replication is not None else None,
            progress=progress,
        )


def measured(
    partition: Partition, options: Settings, steps: Steps, *, whole: CacheUse | None = None
) -> PartitionReport:
    """Describe what came out; ``whole`` is what another description of the same graph found without parts."""
    from ..partition import describe

    with steps("measuring"), progress_bar("measuring the parts") as progress:
        return describe(partition, cache=options.trial(), whole=whole, progress=progress)


def _small(graph: Graph) -> Graph:
    """A ring with ids of the same type as the graph's."""
    places = torch.arange(_SMALL + 1, dtype=graph.csc.indptr.dtype)
    return Graph(CSC(places, (places[:-1] + 1) % _SMALL, _SMALL))
