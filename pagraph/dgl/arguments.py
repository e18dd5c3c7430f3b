"""Checks of the arguments of DGL's loader, with DGL's exception types and clearer messages."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import SequentialSampler
from torch.utils.data.dataloader import _InfiniteConstantSampler

from ..accelerator.cuda import resolve_device
from ..graph.conversion import library_of
from ..graph.csc import check_range, check_width, no_ids
from ..sampling import ClusterSampler
from ..sampling.block_sampler import foreign_sampler
from ..sampling.sampler import MiniBatchSampler
from ..seeds.order import SeedOrder
from ..system.checks import as_integer
from .graphbolt import import_dgl
from .workload import is_unchanged

dgl = import_dgl()


def check_parts(graph: Any, sampler: Any) -> None:
    """Check what every graph and sampler must have.

    Raises:
        TypeError: ``graph`` is a ``DistGraph``, or ``sampler`` is PyG's or of ``pagraph.sampling``.
        AttributeError: ``graph`` has no ``device``, or ``sampler`` no ``sample`` (DGL's type).
    """
    if isinstance(graph, dgl.distributed.DistGraph):
        raise TypeError(
            "graph must not be a DistGraph; use dgl.dataloading.DistNodeDataLoader for those"
        )
    if not hasattr(graph, "device"):
        takes = {
            "torch_geometric": ": pagraph.pyg.NeighborLoader takes it",
            "networkx": ": dgl.from_networkx(graph) converts it",
            "scipy": ": dgl.from_scipy(matrix) converts it",
        }.get(library_of(graph) or "", "")
        raise AttributeError(
            f"graph must be a dgl.DGLGraph or have a device, got {type(graph).__name__}{takes}"
        )
    if (advice := foreign_sampler(sampler, "DGL")) is not None:
        kind = sampler if isinstance(sampler, type) else type(sampler)
        raise TypeError(
            "graph_sampler must be a DGL sampler or have DGL's sample(graph, indices), got "
            f"{kind.__name__}: {advice}"
        )
    if not hasattr(sampler, "sample"):
        raise AttributeError(
            "graph_sampler must have a method sample(graph, indices), got "
            f"{type(sampler).__name__} without one"
        )


def batch_device(device: Any, graph: Any, use_uva: bool) -> torch.device:
    """Device of the batches: the argument, else the current GPU with UVA, else the graph's device.

    Raises ValueError if a CUDA device is needed but does not exist.
    """
    if use_uva and not torch.cuda.is_available():
        raise ValueError(
            "use_uva=True needs a CUDA device, this machine has none that torch "
            f"{torch.__version__} can use"
        )
    if device is None:
        device = "cuda" if use_uva else graph.device
    return resolve_device(device)


def check_devices(
    graph: Any,
    indices: Any,
    device: torch.device,
    *,
    use_uva: bool,
    num_workers: int,
    flags: Mapping[str, Any],
) -> dict[str, bool]:
    """Check DGL's rules on devices; returns its prefetch flags with defaults filled in.

    Raises:
        ValueError: DGL refuses the combination too.
        DGLError: Batches on CUDA, with a DGL that was built without it.
    """
    mixed = device.type == "cuda" and graph.device.type == "cpu" and not use_uva
    if not isinstance(graph, dgl.DGLGraph):
        return {name: bool(value) for name, value in flags.items()}
    # DGL's library knows no CUDA device if it was built without CUDA.
    if device.type == "cuda" and not dgl.ndarray.gpu(0).exist:
        raise dgl.DGLError(
            f"device={str(device)!r} needs a DGL that was built for CUDA, this DGL "
            f"{dgl.__version__} was not: install one from data.dgl.ai, or use "
            "pagraph.pyg.NeighborLoader, pagraph.Loader with block.to_pyg(), or device='cpu'"
        )
    if use_uva:
        if graph.device.type != "cpu":
            raise ValueError(f"graph must be on the CPU with use_uva=True, got {graph.device}")
        if num_workers > 0:
            raise ValueError(f"num_workers must be 0 with use_uva=True, got {num_workers}")
    else:
        where = _device_of(indices)
        if where != graph.device:
            raise ValueError(
                f"graph and indices must be on the same device without use_uva, got {graph.device} "
                f"and {where}"
            )
        if graph.device.type == "cuda" and num_workers > 0:
            raise ValueError(f"num_workers must be 0 for a graph on CUDA, got {num_workers}")
    for name in ("pin_prefetcher", "use_prefetch_thread"):
        if flags[name] is True and not mixed:
            raise ValueError(
                f"{name}=True needs a graph on the CPU, a CUDA device and no UVA; got "
                f"{graph.device} and {device}"
            )
    return {name: mixed if value is None else bool(value) for name, value in flags.items()}


def _device_of(indices: Any) -> torch.device:
    if isinstance(indices, Mapping):
        first: Tensor | None = next(iter(indices.values()), None)
        return torch.device("cpu") if first is None else first.device
    return torch.device(indices.device)


TORCH_KEYWORDS = frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters) - {
    "self"
}


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Check keywords other than DGL's: they must be of torch's loader, to which DGL passes them.

    Raises:
        ValueError: ``batch_sampler``, which excludes an order of seeds; or ``shapes``, which DGL's
            blocks do not have.
        TypeError: Any other keyword.
    """
    for name, value in keywords.items():
        if name == "batch_sampler" and value is not None:
            raise ValueError(
                "batch_sampler is not supported: the order of the seeds is set by indices and "
                "shuffle"
            )
        if name == "shapes":
            raise ValueError(
                f"shapes is for pagraph.Loader and pagraph.pyg.NeighborLoader, got {value!r}: "
                "compilers do not trace DGL's kernels, and DGL builds the formats of its blocks "
                "again in every step; block.to_pyg() gives the core loader's blocks to PyG's "
                "layers"
            )
        if name in ("collate_fn", "pin_memory", "dataset") or name not in TORCH_KEYWORDS:
            raise TypeError(f"DataLoader() got an unexpected keyword argument {name!r}")


def recreated(keywords: dict[str, Any], indices: Any) -> tuple[int, bool]:
    """Batch size and ``drop_last`` of the loader that Lightning recreates from its attributes.

    Removes from ``keywords`` what torch's loader derived from the arguments; ``batch_size`` is None
    there. Raises TypeError unless ``dataset`` is that of one of our loaders: of a loader of ids, or
    the user's own ``indices``.
    """
    dataset = keywords.get("dataset")
    order = getattr(dataset, "order", None)
    if not isinstance(order, SeedOrder) and (dataset is None or dataset is not indices):
        got = type(dataset).__name__
        raise TypeError(f"dataset must be the dataset of a pagraph.dgl.DataLoader, got {got}")
    for name in ("dataset", "collate_fn", "pin_memory"):
        keywords.pop(name, None)
    # torch's, where none was given.
    if isinstance(keywords.get("sampler"), _InfiniteConstantSampler | SequentialSampler):
        del keywords["sampler"]
    return (order.batch_size, order.drop_last) if isinstance(order, SeedOrder) else (1, False)


def gpu_cache_budget(graph: Any, gpu_cache: Any, device: torch.device) -> int:
    """DGL's ``gpu_cache``, rows by column, as bytes of the vertex columns that it names.

    Raises:
        AssertionError: It is not a mapping of mappings (DGL's type).
        TypeError: A number of rows is not an integer.
        ValueError: It asks for rows, but the device is not CUDA.
    """
    if not isinstance(gpu_cache, Mapping) or not all(
        isinstance(d, Mapping) for d in gpu_cache.values()
    ):
        raise AssertionError(f"gpu_cache must be a dict of dicts of row counts, got {gpu_cache!r}")
    rows = {
        kind: {n: as_integer(f"gpu_cache[{kind!r}][{n!r}]", k) for n, k in d.items()}
        for kind, d in gpu_cache.items()
    }
    if device.type != "cuda" and any(k > 0 for columns in rows.values() for k in columns.values()):
        raise ValueError(f"gpu_cache needs a CUDA device, batches are delivered on {device}")
    wanted = [
        (column, rows.get("node", {}).get(name, 0))
        for frame in getattr(graph, "_node_frames", ())
        for name, column in frame._columns.items()
    ]
    return sum(max(k, 0) * math.prod(column.shape) * column.dtype.itemsize for column, k in wanted)


def tensor_indices(indices: Any) -> Any:
    """Indices as tensors if possible, else the user's dataset; like DGL copies all but tensors.

    Raises TypeError for a dtype that torch lacks, AttributeError for a dataset without ``device``.
    """
    if isinstance(indices, Tensor):
        return indices
    if isinstance(indices, np.ndarray):  # not a dataset, though NumPy 2's arrays have a device
        return _copied("indices", indices)
    ids = indices
    if isinstance(indices, Mapping):
        ids = {
            k: _copied(f"indices[{k!r}]", v) if isinstance(v, np.ndarray) else v
            for k, v in indices.items()
        }
    try:
        if isinstance(ids, Mapping):
            return _alike({k: v if isinstance(v, Tensor) else _listed(v) for k, v in ids.items()})
        if not hasattr(ids, "device"):
            return _listed(ids)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        if isinstance(indices, list | tuple):
            check_width("indices", indices, IndexError)
    if not hasattr(indices, "device"):
        raise AttributeError(
            'indices must be tensors, sequences of ids, or a dataset with a "device" attribute '
            f"saying where its batches are; got {type(indices).__name__}"
        )
    return indices


_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def _alike(ids: dict[Any, Tensor]) -> dict[Any, Tensor]:
    """Integer ids of all types in the dtype of the first, as DGL puts them into one tensor.

    Ids that do not fit it stay as they are, and are refused with their dtype.
    """
    dtype = next((of_type.dtype for of_type in ids.values()), torch.int64)
    for name, of_type in ids.items():
        if of_type.dtype != dtype and {of_type.dtype, dtype} <= _INTEGERS:
            cast = of_type.to(dtype)
            ids[name] = cast if torch.equal(cast.to(of_type.dtype), of_type) else of_type
    return ids


def _copied(name: str, ids: NDArray[Any]) -> Tensor:
    """An array of any strides and byte order, copied to a tensor."""
    try:
        return torch.from_numpy(ids.astype(ids.dtype.newbyteorder("="), order="C", subok=False))
    except TypeError:
        raise TypeError(
            f"{name} must be ids of an integer dtype, got an array of {ids.dtype}"
        ) from None


def _listed(ids: Any) -> Tensor:
    """A sequence as a tensor, also a range; an empty sequence becomes int64."""
    if isinstance(ids, range):
        ids = list(ids)
    if isinstance(ids, list | tuple) and not ids:
        return no_ids()
    return torch.tensor(ids, device="cpu")


def check_seeds(graph: Any, indices: Any, sampler: Any, native: MiniBatchSampler | None) -> None:
    """Check the seeds of node-wise and edge-wise samplers.

    An id outside the graph would crash DGL's code. Other samplers, and subclasses that override
    ``sample``, decide what their indices mean. ``native`` is our sampler that replaces the sampler.

    Raises:
        DGLError: The dtype is not the graph's, a type is unknown, or types are needed but not
            given.
        IndexError: An id is outside the graph, or a cluster's number is not one of the sampler's.
        ValueError: Ids are not 1-D; an edge sampler's ``exclude`` is unknown, or the argument that
            names the reverse edges is missing.
    """
    on_cpu = isinstance(graph, dgl.DGLGraph) and not graph.is_block and graph.device.type == "cpu"
    if not on_cpu or not isinstance(indices, Tensor | Mapping):
        return
    if isinstance(native, ClusterSampler) and isinstance(indices, Tensor):
        check_range("indices", indices, native.num_clusters, IndexError)
    if _samples_as(sampler, _EDGE_WISE):
        _check_exclusion(sampler)
        kind = "edge"
        types = graph.canonical_etypes
        count = graph.num_edges
    elif (native is not None and native.seeds_are_vertices) or _samples_as(sampler, _NODE_WISE):
        kind = "node"
        types = graph.ntypes
        count = graph.num_nodes
    else:
        return
    if isinstance(indices, Tensor):
        if len(types) > 1:
            raise dgl.DGLError(
                f"indices must be a dict for a graph of the {kind} types {types}, got a tensor"
            )
        _check_ids("indices", indices, graph.idtype, count())
        return
    for name, ids in indices.items():
        if not _is_type(graph, kind, name):
            several = ""
            if kind == "edge" and name in graph.etypes:
                several = ", a name that several edge types have"
            raise dgl.DGLError(
                f"indices must name {kind} types among {types}, got {name!r}{several}"
            )
        _check_ids(f"indices[{name!r}]", ids, graph.idtype, count(name))


_NODE_WISE = (
    dgl.dataloading.NeighborSampler,
    dgl.dataloading.LaborSampler,
    dgl.dataloading.ShaDowKHopSampler,
)
_EDGE_WISE = (dgl.dataloading.EdgePredictionSampler,)


def _samples_as(sampler: Any, bases: tuple[Any, ...]) -> bool:
    """Whether the sampler is one of these, with DGL's own ``sample``."""
    base = next((base for base in bases if isinstance(sampler, base)), None)
    return base is not None and is_unchanged(sampler, {"sample": base})


def _is_type(graph: Any, kind: str, name: Any) -> bool:
    """Whether the graph has a type. An edge type is named by its triple, or relation if unique."""
    if kind == "node":
        return name in graph.ntypes
    return name in graph.canonical_etypes or graph.etypes.count(name) == 1


def _check_exclusion(sampler: Any) -> None:
    mode = sampler.exclude
    needs = {"self": None, "reverse_id": "reverse_eids", "reverse_types": "reverse_etypes"}
    if not isinstance(mode, str):
        return
    if mode not in needs:
        raise ValueError(
            f"exclude must be one of {list(needs)}, edges, or a function; got {mode!r}"
        )
    if (needed := needs[mode]) is not None and getattr(sampler, needed) is None:
        raise ValueError(f"{needed} must be given with exclude={mode!r}, got None")


def _check_ids(name: str, ids: Tensor, dtype: torch.dtype, count: int) -> None:
    if ids.dtype != dtype:
        advice = ""
        if ids.dtype == torch.bool:
            advice = f", a mask: {name} must be ids, such as mask.nonzero().squeeze(1)"
        raise dgl.DGLError(
            f"{name} must have the graph's id dtype {dtype}, got {ids.dtype}{advice}"
        )
    if ids.dim() != 1:
        raise ValueError(f"{name} must be 1-D, got shape {tuple(ids.shape)}")
    check_range(name, ids, count, IndexError)
