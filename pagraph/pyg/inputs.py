"""Checks of a loader's arguments, ``input_nodes`` in all of PyG's forms, and loaders' workloads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import check_range, check_width
from ..graph.graph import NODE_TYPE, Graph
from ..ranking.policy import RowType
from ..ranking.workload import Sampled, Workload
from ..sampling.block_sampler import foreign_sampler
from ..seeds.order import BatchOrder, SeedOrder, num_seeds
from ..seeds.torch_order import takes_all
from ..system.checks import kind_of
from .graphs import core_graph
from .package import import_pyg
from .sampler import KeyedSampler

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402


def check_data(data: Any) -> None:
    """Raise PyG's ValueError for data that its loaders do not accept."""
    if isinstance(data, Graph):
        raise ValueError(
            "data must be a Data or HeteroData, got a pagraph.Graph: pagraph.pyg.to_pyg(graph) "
            "converts it"
        )
    if not isinstance(data, Data | HeteroData | tuple):
        raise ValueError(
            "Expected a 'Data', 'HeteroData', or a tuple of 'FeatureStore' and 'GraphStore' (got "
            f"'{type(data)}')"
        )


def check_has_edges(data: Any) -> None:
    """Raise TypeError for anything but a ``Data``, ValueError for one without ``edge_index``."""
    if not isinstance(data, Data):
        raise TypeError(f"data must be a Data, got {type(data).__name__}")
    if data.edge_index is None:
        raise ValueError("data must have an edge_index, got None")


TRANSFORMS = ("transform", "transform_sampler_output")
"""Arguments of loaders that are functions, or None."""


def check_calls(sampler: Any, method: str, arguments: Mapping[str, Any]) -> None:
    """Raise TypeError for a sampler without ``method``, or a transform that is not callable."""
    if isinstance(sampler, type) or not callable(getattr(sampler, method, None)):
        got = repr(sampler.__name__) if isinstance(sampler, type) else type(sampler).__name__
        advice = foreign_sampler(sampler, "PyG")
        advice = "" if advice is None else f": {advice}"
        raise TypeError(
            f"neighbor_sampler must be a BaseSampler with {method}(), got {got}{advice}"
        )
    for name in TRANSFORMS:
        if arguments[name] is not None and not callable(arguments[name]):
            raise TypeError(f"{name} must be callable, got {arguments[name]!r}")


def node_input(
    data: Any, sampler: Any, input_nodes: Any, input_id: Any = None, *, name: str = "input_nodes"
) -> tuple[Any, Tensor | None]:
    """Check a node loader's ``input_nodes`` and ``input_id`` against the sampler's graph.

    Returns:
        The ids, shape ``(n,)``, int64, in a pair with their type if there are several types. And
        the ``input_id`` of each, shape ``(n,)``; None: its position.

    Raises:
        ValueError: The vertex type is missing or unknown, or a mask or ``input_id`` has the wrong
            length.
        TypeError: The ids are not integers.
        IndexError: A vertex is out of range.
    """
    counts = _counts(data, sampler)
    if counts is None:
        return input_nodes, input_id
    hetero = (
        sampler.is_hetero if isinstance(sampler, KeyedSampler) else isinstance(data, HeteroData)
    )
    ntype, nodes = _typed(name, list(counts), input_nodes) if hetero else (NODE_TYPE, input_nodes)
    ids, is_mask = vertex_ids(name, nodes, counts[ntype])
    if input_id is not None:
        given = (
            input_id if isinstance(input_id, Tensor) else torch.as_tensor(input_id, device="cpu")
        )
        input_id = None if nodes is None else given  # as in PyG
    elif is_mask:
        input_id = ids
    if input_id is not None and len(input_id) != len(ids):
        raise ValueError(
            f"input_id must have one entry for each of the {len(ids)} input nodes, got "
            f"{len(input_id)}"
        )
    return ((ntype, ids) if hetero else ids), input_id


def _counts(data: Any, sampler: Any) -> dict[str, int] | None:
    """Number of vertices by type; None if only the user's own sampler knows."""
    if isinstance(sampler, KeyedSampler):
        return sampler.graph.num_nodes_by_type
    if isinstance(data, Data):
        return {NODE_TYPE: int(data.num_nodes or 0)}
    if isinstance(data, HeteroData):
        return {ntype: int(data[ntype].num_nodes or 0) for ntype in data.node_types}
    return None


def _typed(name: str, types: list[str], input_nodes: Any) -> tuple[str, Any]:
    """The vertex type, and its input nodes."""
    if isinstance(input_nodes, str):
        ntype = input_nodes
        nodes = None
    elif (
        isinstance(input_nodes, tuple | list)
        and len(input_nodes) == 2
        and isinstance(input_nodes[0], str)
        and not isinstance(input_nodes[1], str)
    ):
        ntype, nodes = input_nodes
    else:
        raise ValueError(
            f"{name} must be a vertex type, or a pair of a vertex type and vertices, got "
            f"{kind_of(input_nodes)}"
        )
    if ntype not in types:
        raise ValueError(f"{name} must name one of the vertex types {types}, got {ntype!r}")
    return ntype, nodes


def _check_selected(name: str, mask: Tensor, count: int) -> None:
    """Raise ValueError for a mask that selects a vertex outside the graph."""
    if mask[count:].any():
        raise _wrong_mask(name, mask, count)


def _wrong_mask(name: str, mask: Tensor, count: int) -> ValueError:
    return ValueError(f"{name} must be a mask of all {count} vertices, got one of {len(mask)}")


def vertex_ids(name: str, nodes: Any, count: int) -> tuple[Tensor, bool]:
    """Ids of ``nodes`` (None: all), and whether these are a mask; raises as :func:`node_input`."""
    if nodes is None:
        return torch.arange(count, device="cpu"), False
    values = nodes if isinstance(nodes, Tensor) else _tensor(name, nodes)
    values = values.cpu()
    if values.dtype == torch.uint64:
        values = _tensor(name, values.numpy())
    if values.dim() == 0 or values.dim() > 2 or (values.dim() == 2 and values.shape[1] != 1):
        raise ValueError(f"{name} must have one dimension, got shape {tuple(values.shape)}")
    values = values.reshape(-1)
    if values.dtype == torch.bool:
        _check_selected(name, values, count)
        if len(values) != count:
            raise _wrong_mask(name, values, count)
        return values.nonzero().view(-1), True
    if len(values) == 0:
        return values.to(torch.int64), False
    if values.is_floating_point() or values.is_complex():
        raise TypeError(f"{name} must be integers or a mask, got {values.dtype}")
    ids = values.to(torch.int64)
    check_range(name, ids, count, IndexError)
    return ids, False


def _tensor(name: str, values: Any) -> Tensor:
    """A copy of an array or a sequence of numbers; TypeError for anything else."""
    if isinstance(values, range):
        return torch.arange(values.start, values.stop, values.step, device="cpu")
    array = np.asarray(values)
    if array.dtype.kind not in "bi":
        check_width(name, values, IndexError)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} must be integers or a mask, got {type(values).__name__} of {array.dtype}"
        )
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    return torch.from_numpy(np.array(array))


def core_workload(graph: Graph, order: BatchOrder, seeds: Any, batches: Any) -> Workload:
    """The workload of a loader with our sampler; ``batches`` samples what it does from seeds."""
    counts: dict[RowType, int] = {t: graph.num_nodes_of(t) for t in graph.node_types}
    if not takes_all(order, num_seeds(seeds)):  # a user's order, which only the loader may call
        return Workload(order, counts, None, lambda: Sampled(graph, {}, None))
    # The loader orders positions; this orders the seeds themselves.
    own = SeedOrder(seeds, order.batch_size or 1, shuffle=order.shuffle)
    return Workload(
        order, counts, batches, lambda: Sampled(graph, seeds, batches), source=graph, seeds=own
    )


def foreign_workload(data: Any, order: BatchOrder) -> Workload:
    """The workload of a loader with a user's own sampler."""
    counts: dict[RowType, int] = {}
    if isinstance(data, Data):
        counts = {NODE_TYPE: int(data.num_nodes or 0)}
    elif isinstance(data, HeteroData):
        counts = {
            t: int(data[t].num_nodes) for t in data.node_types if data[t].num_nodes is not None
        }
    return Workload(order, counts, None, partial(_structure, data))


def _structure(data: Any) -> Sampled | None:
    """The graph of the data, or None."""
    if not isinstance(data, Data | HeteroData):
        return None
    try:
        return Sampled(core_graph(data), {}, None)
    except (TypeError, ValueError):  # the user's sampler may still understand it
        return None
