"""Types of arguments of loaders and graphs, for annotations: ``from pagraph.typing import Seeds``.

Batches are :class:`pagraph.MiniBatch` and :class:`pagraph.HeteroMiniBatch`. Those of the loaders
for PyG and DGL are in ``pagraph.pyg.typing`` and ``pagraph.dgl.typing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .accelerator import Accelerator
from .graph.conversion import (
    DGLGraph,
    Ids,
    NetworkxGraph,
    PyGData,
    PyGDataset,
    SparseMatrix,
    Values,
)
from .graph.fields import FieldValue
from .graph.graph import EdgeType
from .ranking.policy import Policy, Ranked, Ranking

CacheSize = int | float | str | None
"""Size of a cache: bytes, a share of the rows as a float in (0, 1], or text such as ``"2GiB"``,
``"10%"`` or ``"auto"``. 0 and None mean no cache."""

MemorySize = int | str | None
"""Bytes of memory: an integer, or text such as ``"4GiB"``; ``"auto"`` or None for what is free."""

CacheDtype = str | torch.dtype | None
"""Dtype in which floats are cached: ``"float16"``, ``"bfloat16"``, ``"int8"``, or a torch dtype.
None caches them unchanged."""

CachePolicy = str | Policy
"""Cache policy: a name of ``pagraph.ranking.POLICIES``, or a function."""

# Accelerator is for tests, which deliver to a CPU-backed one that has no torch device.
DeviceLike = str | torch.device | Accelerator
"""A device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or a torch device."""

Pairs = Tensor | NDArray[np.generic] | Sequence[Sequence[int]]
"""Pairs of a source and a destination, shape ``(n, 2)``."""

# Any, because keys are invariant, and editors infer literals for a constant type.
TypedSeeds = Mapping[str, Ids] | Mapping[tuple[Any, Any, Any], Ids | Pairs]
"""Seeds of a graph of several types: vertex type to ids, or edge type to ids or pairs."""

Seeds = Ids | Pairs | TypedSeeds
"""Seeds of batches: ids of vertices or edges, a mask, or pairs; by type if there are several."""

FieldNames = Sequence[str] | Mapping[str, Sequence[str]]
"""Names of fields; by vertex type if there are several."""


class WorkerOptions(TypedDict, total=False):
    """Keywords of torch's ``DataLoader`` about workers and memory."""

    generator: torch.Generator | None
    num_workers: int
    worker_init_fn: Callable[[int], object] | None
    collate_fn: Callable[..., Any] | None
    pin_memory: bool
    pin_memory_device: str
    timeout: float
    multiprocessing_context: object
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool


class ItemOptions(WorkerOptions, total=False):
    """``WorkerOptions``, and the order of a user's dataset."""

    sampler: Iterable[Any] | None


class TorchOptions(WorkerOptions, total=False):
    """``WorkerOptions``, and keywords about the order of the items."""

    shuffle: bool | None
    drop_last: bool
    sampler: Iterable[int] | None
    batch_sampler: Iterable[Sequence[int]] | None
    dataset: object


class CacheOptions(TorchOptions, total=False):
    """``TorchOptions``, and keywords of our loaders; see ``pagraph.pyg.NeighborLoader``."""

    cache: CacheSize
    cache_policy: CachePolicy
    cache_dtype: CacheDtype
    prefetch: int
    lookahead: int | str
    memory: MemorySize
    seed: int | None
    device: str | torch.device | None
    use_ddp: bool


class PyGOptions(TorchOptions, total=False):
    """Keywords of torch's ``DataLoader``, and those of PyG's ``NodeLoader`` and ``LinkLoader``."""

    batch_size: int | None
    custom_cls: type | None
    input_id: Tensor | None


class LoaderOptions(PyGOptions, CacheOptions, total=False):
    """All keywords of our loaders for PyG."""


__all__ = [
    "CacheDtype",
    "CacheOptions",
    "CachePolicy",
    "CacheSize",
    "DGLGraph",
    "DeviceLike",
    "EdgeType",
    "FieldNames",
    "FieldValue",
    "Ids",
    "LoaderOptions",
    "MemorySize",
    "NetworkxGraph",
    "Pairs",
    "Policy",
    "PyGData",
    "PyGDataset",
    "PyGOptions",
    "Ranked",
    "Ranking",
    "Seeds",
    "SparseMatrix",
    "TorchOptions",
    "TypedSeeds",
    "Values",
    "WorkerOptions",
]

__dir__ = __all__.copy
