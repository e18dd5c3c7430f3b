"""What works with the installed DGL, for ``pagraph doctor``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .graphbolt import import_dgl, is_placeholder
from .samplers import LayerSampler
from .workload import native_sampler, runs_users_code

dgl = import_dgl()
from dgl import dataloading  # noqa: E402

_OURS = "pagraph's kernels"
_FALLS_BACK = "its own code: no kernel of pagraph samples like it"


def graphbolt_words() -> str:
    """State of ``dgl.graphbolt`` in this process."""
    module = sys.modules.get("dgl.graphbolt")
    if module is None:
        return "this DGL has none"
    return (
        "a placeholder: DGL has no binary for this torch" if is_placeholder(module) else "DGL's own"
    )


def sampling_paths() -> dict[str, str]:
    """For each kind of sampler of this DGL, whose code samples in ``pagraph.dgl.DataLoader``.

    The loader's own recogniser is run on a sampler of each kind.
    """
    graph = dgl.graph(([0, 1], [1, 0]))
    paths = {}
    for name, make in _samplers():
        try:
            sampler = make()
        except (AttributeError, TypeError) as error:
            paths[name] = f"not in this DGL ({error})"
            continue
        paths[name] = _FALLS_BACK if native_sampler(graph, sampler) is None else _OURS
        if runs_users_code(sampler):
            paths[name] += ", and your function"
    return paths | {
        "your function, its own code": "run in the training loop's thread unless num_workers is set"
    }


class _Changed(dataloading.NeighborSampler):
    """A subclass that overrides sampling, like a user's."""

    def sample_blocks(self, *arguments: Any, **options: Any) -> Any:
        return super().sample_blocks(*arguments, **options)


def _samplers() -> Iterator[tuple[str, Callable[[], Any]]]:
    d = dataloading
    inner = dataloading.NeighborSampler([1])
    yield "NeighborSampler", lambda: d.NeighborSampler([1])
    yield "a subclass with its own sample_blocks", lambda: _Changed([1])
    yield "MultiLayerFullNeighborSampler", lambda: d.MultiLayerFullNeighborSampler(1)
    yield "LaborSampler", lambda: d.LaborSampler([1])
    yield "pagraph.dgl.LayerSampler", lambda: LayerSampler([1])
    yield "edges, negative_sampler.Uniform", lambda: _of_edges(inner, d.negative_sampler.Uniform(1))
    yield "edges, your own negative sampler", lambda: _of_edges(inner, lambda graph, edges: None)
    yield "ShaDowKHopSampler", lambda: d.ShaDowKHopSampler([1])
    yield "ClusterGCNSampler", _of_clusters
    yield "SAINTSampler", lambda: d.SAINTSampler("node", 1)


def _of_clusters() -> Any:
    """DGL's cluster sampler without its set-up, which partitions a graph and writes files."""
    made = dataloading.ClusterGCNSampler.__new__(dataloading.ClusterGCNSampler)
    made.partition_offset, made.partition_node_ids = (torch.arange(n, device="cpu") for n in (2, 1))
    return made


def _of_edges(inner: Any, negatives: Any) -> Any:
    return dataloading.as_edge_prediction_sampler(inner, negative_sampler=negatives)
