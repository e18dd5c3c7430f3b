"""NeighborLoader: takes what ``torch_geometric.loader.NeighborLoader`` takes, yields what it yields, from pip alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..cache.policy import Policy
from ..graph import NODE_TYPE
from .engine import Workload
from .package import import_pyg
from .pipelined import LoadingOptions, Pipelined
from .sampler import NeighborSampler
from .times import check_times
from .view import NodeView, Viewed

import_pyg()
from torch_geometric.loader import NeighborLoader as _PyGNeighborLoader  # noqa: E402
from torch_geometric.loader import NodeLoader as _PyGNodeLoader  # noqa: E402

__all__ = ["NeighborLoader"]


class NeighborLoader(Pipelined, _PyGNeighborLoader):
    """Drop-in for ``torch_geometric.loader.NeighborLoader`` (PyG 2.5 and newer): the same arguments, the same batches.

    Needs neither pyg-lib nor torch-sparse.
    """

    node_sampler = Viewed()

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        cache: Any = "auto",
        cache_policy: str | Policy = "auto",
        cache_dtype: str | torch.dtype | None = None,
        prefetch: int = 2,
        seed: int | None = None,
        device: Any = None,
        **kwargs: Any,
    ) -> None:
        self._view = NodeView()
        if neighbor_sampler is None:
            neighbor_sampler = NeighborSampler(
                data,
                num_neighbors,
                subgraph_type=subgraph_type,
                replace=replace,
                disjoint=disjoint,
                temporal_strategy=temporal_strategy,
                time_attr=time_attr,
                weight_attr=weight_attr,
                is_sorted=is_sorted,
                directed=directed,
            )
        super().__init__(
            data,
            num_neighbors,
            input_nodes=input_nodes,
            input_time=input_time,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            time_attr=time_attr,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            **kwargs,
        )
        check_times("input_time", self.input_data.time, len(self.input_data.node), "input node")
        options = LoadingOptions(cache, cache_policy, cache_dtype, prefetch, seed, device)
        self._begin(options, _PyGNodeLoader.filter_fn)

    def _workload(self, order: Any) -> Workload:
        sampler, inputs = self.node_sampler, self.input_data
        ours = isinstance(sampler, NeighborSampler)
        return Workload(
            graph=sampler.graph if ours else None,
            seeds={inputs.input_type or NODE_TYPE: inputs.node},
            # Policies know no times but those of the vertices.
            sampler=sampler.core if ours and inputs.time is None else None,
            num_nodes={t: sampler.graph.num_nodes_of(t) for t in sampler.graph.node_types} if ours else {},
            batch_size=order.batch_size or 1,
            shuffle=order.shuffle,
            seed=order.seed or 0,
        )
