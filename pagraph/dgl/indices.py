"""Indices of DGL's loader: as tensors, and checked against what the sampler takes them for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..graph.csc import check_range
from .graphbolt import import_dgl

dgl = import_dgl()

__all__ = ["check_seeds", "tensor_indices"]


def tensor_indices(indices: Any) -> Any:
    """Indices as tensors where they can be, else the user's dataset. All but tensors are copied, as DGL does it.

    Raises:
        TypeError: An array whose dtype torch does not have.
        AttributeError: A dataset without ``device``.
    """
    if isinstance(indices, Tensor):
        return indices
    if isinstance(indices, np.ndarray):  # never a dataset, though NumPy 2's arrays have a device
        return _copied("indices", indices)
    ids = indices
    if isinstance(indices, Mapping):
        ids = {k: _copied(f"indices[{k!r}]", v) if isinstance(v, np.ndarray) else v for k, v in indices.items()}
    try:
        if isinstance(ids, Mapping):
            return {k: v if isinstance(v, Tensor) else _listed(v) for k, v in ids.items()}
        if not hasattr(ids, "device"):
            return _listed(ids)
    except (TypeError, ValueError, RuntimeError):
        pass
    if not hasattr(indices, "device"):
        raise AttributeError(
            'indices must be tensors, sequences of ids, or a dataset with a "device" attribute saying where its '
            f"batches are; got {type(indices).__name__}"
        )
    return indices


def _copied(name: str, ids: NDArray[Any]) -> Tensor:
    """A copy as a tensor: of arrays with any strides and byte order."""
    try:
        return torch.from_numpy(ids.astype(ids.dtype.newbyteorder("="), order="C", subok=False))
    except TypeError:
        raise TypeError(f"{name} must be ids of an integer dtype, got an array of {ids.dtype}") from None


def _listed(ids: Any) -> Tensor:
    """A sequence as a tensor: ranges become lists, an empty sequence holds int64."""
    if isinstance(ids, range):
        ids = list(ids)
    return torch.empty(0, dtype=torch.int64) if isinstance(ids, list | tuple) and not ids else torch.tensor(ids)


def check_seeds(graph: Any, indices: Any, sampler: Any, *, native: bool) -> None:
    """Seeds of node-wise and edge-wise samplers: on an id outside the graph DGL's own code ends the process.

    Other samplers, and subclasses with a ``sample`` of their own, decide what their indices mean.

    Args:
        graph: Whatever the sampler samples from.
        indices: Ids, ids by type, or a dataset.
        sampler: The user's sampler.
        native: Our kernels take its place.

    Raises:
        DGLError: The dtype is not the graph's, a type is unknown, or types are needed and not given.
        IndexError: An id is outside the graph.
        ValueError: Ids are not 1-D; an edge sampler's ``exclude`` is no mode, or lacks what says which edges are the
            reverse ones.
    """
    on_cpu = isinstance(graph, dgl.DGLGraph) and not graph.is_block and graph.device.type == "cpu"
    if not on_cpu or not isinstance(indices, Tensor | Mapping):
        return
    if _samples_as(sampler, _EDGE_WISE):
        _check_exclusion(sampler)
        kind, types, count = "edge", graph.canonical_etypes, graph.num_edges
    elif native or _samples_as(sampler, _NODE_WISE):
        kind, types, count = "node", graph.ntypes, graph.num_nodes
    else:
        return
    if isinstance(indices, Tensor):
        if len(types) > 1:
            raise dgl.DGLError(f"indices must be a dict for a graph of the {kind} types {types}, got a tensor")
        _check_ids("indices", indices, graph.idtype, count())
        return
    for name, ids in indices.items():
        if not _is_type(graph, kind, name):
            several = ", a name that several have" if kind == "edge" and name in graph.etypes else ""
            raise dgl.DGLError(f"indices must be of the graph's {kind} types {types}, got {name!r}{several}")
        _check_ids(f"indices[{name!r}]", ids, graph.idtype, count(name))


_NODE_WISE = dgl.dataloading.NeighborSampler, dgl.dataloading.LaborSampler, dgl.dataloading.ShaDowKHopSampler
_EDGE_WISE = (dgl.dataloading.EdgePredictionSampler,)


def _samples_as(sampler: Any, bases: tuple[Any, ...]) -> bool:
    """The sampler is one of these, with DGL's own ``sample``."""
    base = next((base for base in bases if isinstance(sampler, base)), None)
    return base is not None and type(sampler).sample is base.sample and "sample" not in vars(sampler)


def _is_type(graph: Any, kind: str, name: Any) -> bool:
    """Edge types have two names: the canonical triple, and the relation where it is the only one of that name."""
    if kind == "node":
        return name in graph.ntypes
    return name in graph.canonical_etypes or graph.etypes.count(name) == 1


def _check_exclusion(sampler: Any) -> None:
    mode, needs = sampler.exclude, {"self": None, "reverse_id": "reverse_eids", "reverse_types": "reverse_etypes"}
    if not isinstance(mode, str):
        return
    if mode not in needs:
        raise ValueError(f"exclude must be one of {list(needs)}, edges, or a function; got {mode!r}")
    if (needed := needs[mode]) is not None and getattr(sampler, needed) is None:
        raise ValueError(f"{needed} must be given with exclude={mode!r}, got None")


def _check_ids(name: str, ids: Tensor, dtype: torch.dtype, count: int) -> None:
    if ids.dtype != dtype:
        raise dgl.DGLError(f"{name} must have the graph's id dtype {dtype}, got {ids.dtype}")
    if ids.dim() != 1:
        raise ValueError(f"{name} must be 1-D, got shape {tuple(ids.shape)}")
    check_range(name, ids, count, IndexError)
