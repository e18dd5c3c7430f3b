"""Which of DGL's sampler objects our kernels can take the place of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..sampling import LaborSampler, NeighborSampler
from ..sampling.negative import GlobalUniformNegatives, UniformNegatives
from .convert import by_edge_type
from .graphbolt import import_dgl
from .layer_sampler import LayerSampler

dgl = import_dgl()
from dgl.dataloading import BlockSampler as DGLBlockSampler  # noqa: E402
from dgl.dataloading import negative_sampler as dgl_negatives  # noqa: E402
from dgl.dataloading.base import EdgePredictionSampler  # noqa: E402

if TYPE_CHECKING:
    from ..sampling import BlockSampler
    from ..sampling.negative import NegativePairs

__all__ = ["is_edge_sampler", "native_negatives", "native_sampler", "runs_users_code"]


def native_sampler(graph: Any, sampler: Any) -> BlockSampler | None:
    """Our sampler with the same meaning as a DGL sampler object, or None where only its own code will do.

    Recognised are ``dgl.dataloading.NeighborSampler``, ``MultiLayerFullNeighborSampler`` and ``LaborSampler`` (without
    ``batch_dependency``), ``pagraph.dgl.LayerSampler``, and subclasses that change nothing about sampling, on graphs in
    CPU memory. For an edge sampler around one of these, the inner one is returned.

    Raises:
        ValueError: A fan-out is 0 or below -1.
        DGLError: A hop's fan-outs do not name all edge types.
        KeyError: A layer sampler's weights are no column of the graph.
    """
    if not isinstance(graph, dgl.DGLGraph) or graph.is_block or graph.device.type != "cpu":
        return None
    if is_edge_sampler(sampler):
        sampler = sampler.sampler
    if not isinstance(sampler, DGLBlockSampler) or not _on_cpu(sampler.output_device):
        return None
    if isinstance(sampler, dgl.dataloading.NeighborSampler):
        return _neighbor_sampler(graph, sampler)
    if isinstance(sampler, dgl.dataloading.LaborSampler):
        return _labor_sampler(graph, sampler)
    if isinstance(sampler, LayerSampler):
        return sampler.core_sampler(graph) if _samples_as(sampler, LayerSampler) else None
    return None


def is_edge_sampler(sampler: Any) -> bool:
    """Whether it is DGL's edge sampler, with DGL's own ``sample``."""
    return isinstance(sampler, EdgePredictionSampler) and _unchanged(
        sampler,
        {"sample": EdgePredictionSampler, "_build_neg_graph": EdgePredictionSampler}
        | {"assign_lazy_features": EdgePredictionSampler},
    )


def runs_users_code(sampler: Any) -> bool:
    """Whether an edge sampler calls functions that the user has written: for the negatives, or for what to exclude."""
    if not is_edge_sampler(sampler):
        return False
    own_negatives = sampler.negative_sampler is not None and native_negatives(sampler.negative_sampler) is None
    return own_negatives or (callable(sampler.exclude) and type(sampler.exclude).__module__.split(".")[0] != "dgl")


def native_negatives(sampler: Any) -> NegativePairs | None:
    """Our negative sampler with the same meaning as one of DGL's, or None for any other callable."""
    if type(sampler) is dgl_negatives.PerSourceUniform:
        return UniformNegatives(sampler.k)
    if type(sampler) is dgl_negatives.GlobalUniform:
        return GlobalUniformNegatives(sampler.k, bool(sampler.exclude_self_loops), bool(sampler.replace))
    return None


def _neighbor_sampler(graph: Any, sampler: Any) -> NeighborSampler | None:
    base = dgl.dataloading.NeighborSampler
    if not _samples_as(sampler, base) or not _can_run(graph, sampler):
        return None
    fanouts = [_fanout(graph, fanout) for fanout in sampler.fanouts]
    return NeighborSampler(fanouts, replace=bool(sampler.replace), edge_dir=sampler.edge_dir, prob=sampler.prob)


def _labor_sampler(graph: Any, sampler: Any) -> LaborSampler | None:
    base = dgl.dataloading.LaborSampler
    if not _samples_as(sampler, base) or not _can_run(graph, sampler):
        return None
    if not _unchanged(sampler, {"set_seed": base}) or int(sampler.cnt[1]) != 1:
        return None  # batch_dependency: a batch's numbers depend on those of the batch before
    return LaborSampler(
        [_fanout(graph, fanout) for fanout in sampler.fanouts],
        prob=sampler.prob,
        importance_sampling=int(sampler.importance_sampling),
        layer_dependency=bool(sampler.layer_dependency),
        edge_dir=sampler.edge_dir,
    )


def _samples_as(sampler: Any, base: type) -> bool:
    """Whether a subclass changes nothing about how ``base`` samples."""
    return _unchanged(sampler, {"sample": DGLBlockSampler, "sample_blocks": base, "assign_lazy_features": base})


def _can_run(graph: Any, sampler: Any) -> bool:
    return isinstance(sampler.prob, str | None) and (sampler.edge_dir == "in" or graph.is_homogeneous)


def _unchanged(sampler: Any, methods: Mapping[str, type]) -> bool:
    """Whether these methods are still those of the given classes."""
    return all(
        getattr(type(sampler), name) is getattr(owner, name) and name not in vars(sampler)
        for name, owner in methods.items()
    )


def _on_cpu(device: Any) -> bool:
    return device is None or torch.device(device).type == "cpu"


def _fanout(graph: Any, fanout: Any) -> Any:
    """One hop's fan-out: a number, or for several edge types a mapping from all canonical types."""
    if not isinstance(fanout, Mapping):
        return _whole(fanout)
    by_type = by_edge_type(graph, "fan-outs", {etype: _whole(n) for etype, n in fanout.items()})
    return by_type[graph.canonical_etypes[0]] if len(by_type) == 1 else by_type


def _whole(fanout: Any) -> Any:
    """DGL takes whatever int() takes; whole numbers only here."""
    return int(fanout) if isinstance(fanout, Tensor | float) and float(fanout).is_integer() else fanout
