"""LinkNeighborLoader: takes what PyG's takes, yields what it yields, from pip alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..cache.policy import Policy
from ..sampling.pair_batches import PairBatches
from .engine import Workload
from .link_inputs import check_links, checked_edge_label_index
from .links import end_types
from .package import import_pyg
from .pipelined import LoadingOptions, Pipelined
from .sampler import NeighborSampler
from .view import LinkView, Viewed

import_pyg()
from torch_geometric.loader import LinkLoader as _PyGLinkLoader  # noqa: E402
from torch_geometric.loader import LinkNeighborLoader as _PyGLinkNeighborLoader  # noqa: E402

__all__ = ["LinkNeighborLoader"]


class LinkNeighborLoader(Pipelined, _PyGLinkNeighborLoader):
    """Drop-in for ``torch_geometric.loader.LinkNeighborLoader`` (PyG 2.5 and newer): the same arguments and batches.

    Needs neither pyg-lib nor torch-sparse. Negatives are a function of the batch's key, not of torch's generator. Where
    PyG's go wrong, ours do not: in disjoint subgraphs ``batch`` numbers the links for any amount of negatives, and
    negatives of temporal sampling have the distribution that PyG's repeated draws tend to.

    Args:
        data: As in PyG.
        num_neighbors: As in PyG.
        edge_label_index: As in PyG; NumPy arrays too.
        edge_label: As in PyG.
        edge_label_time: As in PyG: int64, the time of both ends of a link and of its negatives.
        replace: As in PyG.
        subgraph_type: As in PyG.
        disjoint: As in PyG.
        temporal_strategy: As in PyG.
        neg_sampling: As in PyG. Negatives may be edges of the graph.
        neg_sampling_ratio: As in PyG.
        time_attr: As in PyG.
        weight_attr: As in PyG.
        transform: As in PyG.
        transform_sampler_output: As in PyG.
        is_sorted: As in PyG.
        filter_per_worker: As in PyG.
        neighbor_sampler: As in PyG.
        directed: As in PyG.
        cache: See :class:`~pagraph.pyg.NeighborLoader`, as for the arguments that follow.
        cache_policy: As said.
        cache_dtype: As said.
        prefetch: As said.
        seed: As said.
        device: As said.
        **kwargs: Of ``torch.utils.data.DataLoader``; workers are threads.

    Raises:
        IndexError: A link leads out of the graph.
        TypeError, ValueError: An argument is not what it should be.
    """

    link_sampler = Viewed()
    neg_sampling = Viewed()

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
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
        self._view = LinkView()
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
            edge_label_index=checked_edge_label_index(data, edge_label_index),
            edge_label=edge_label,
            edge_label_time=edge_label_time,
            neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio,
            time_attr=time_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            **kwargs,
        )
        if isinstance(neighbor_sampler, NeighborSampler):
            check_links(self.input_data, neighbor_sampler.graph)
        options = LoadingOptions(cache, cache_policy, cache_dtype, prefetch, seed, device)
        self._begin(options, _PyGLinkLoader.filter_fn)

    def _workload(self, order: Any) -> Workload:
        sampler, inputs = self.link_sampler, self.input_data
        ours = isinstance(sampler, NeighborSampler)
        counts = {t: sampler.graph.num_nodes_of(t) for t in sampler.graph.node_types} if ours else {}
        return Workload(
            graph=sampler.graph if ours else None,
            seeds=torch.stack([inputs.row, inputs.col], 1).long(),
            sampler=self._pair_batches(counts) if ours else None,
            num_nodes=counts,
            batch_size=order.batch_size or 1,
            shuffle=order.shuffle,
            seed=order.seed or 0,
        )

    def _pair_batches(self, num_nodes: dict[str, int]) -> PairBatches | None:
        """What samples the batches without times, which no policy can tell: then none."""
        sampler, types = self.link_sampler, end_types(self.input_data.input_type)
        negatives = sampler.link_negatives(self.neg_sampling, types)
        if self.input_data.time is not None:
            return None
        return PairBatches(sampler.core, types, num_nodes, negatives)
