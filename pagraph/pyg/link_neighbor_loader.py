"""LinkNeighborLoader: takes what PyG's takes, yields what it yields, from pip alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ranking.policy import Policy
from ..ranking.workload import Workload
from .inputs import check_calls, check_data
from .links import check_are_tensors, check_links, checked_edge_label_index
from .package import import_pyg
from .pipelined import Pipelined, sampler_of
from .sampler import NeighborSampler
from .view import LinkView, Viewed
from .workload import link_workload

import_pyg()
from torch_geometric.loader import LinkLoader as _PyGLinkLoader  # noqa: E402
from torch_geometric.loader import LinkNeighborLoader as _PyGLinkNeighborLoader  # noqa: E402

__all__ = ["LinkNeighborLoader"]


class LinkNeighborLoader(Pipelined, _PyGLinkNeighborLoader):
    """Drop-in for ``torch_geometric.loader.LinkNeighborLoader`` (PyG 2.5 and newer): the same arguments and batches.

    Needs neither pyg-lib nor torch-sparse. Negatives are a function of (seed, epoch, batch), as neighbours are. In
    disjoint subgraphs ``batch`` numbers the links for any amount of negatives (PyG's is right for whole amounts), and
    with times all vertices that are early enough are as likely as their weights say (PyG draws up to six times, and
    then takes the earliest). The links of a batch are not taken out of the graph that is sampled, as in PyG.

    Args:
        data: A ``Data``, a ``HeteroData``, or a pair of a ``FeatureStore`` and a ``GraphStore``.
        num_neighbors: Neighbours for each vertex by hop, the ends' first; negative: all. Or a mapping from edge type.
        edge_label_index: Links, shape ``(2, n)``, as a tensor or an array of integers; None for all edges. Of a graph
            with several types: an edge type, or a pair of one and any of these; it need not be in the graph.
        edge_label: A label for each link, shape ``(n, ...)``. With binary negatives labels from 0 on are raised by 1.
        edge_label_time: A time for each link, int64, shape ``(n,)``: that of its ends and its negatives. With
            ``time_attr``, and only then.
        replace: Sample with replacement.
        subgraph_type: ``"directional"``, ``"bidirectional"`` or ``"induced"``.
        disjoint: A tree for each end, with the number of its link in ``batch``.
        temporal_strategy: ``"uniform"`` or ``"last"``.
        neg_sampling: PyG's ``NegativeSampling``, or what it is made of: ``"binary"`` or ``"triplet"``, a mapping or a
            tuple of its arguments. Weights are read as they are now. Negatives may be edges of the graph.
        neg_sampling_ratio: So many binary negatives for each link; 0.0 for none.
        time_attr: The attribute of vertices or edges that holds their times; neighbours are as old as their link.
        weight_attr: The attribute of edges that holds their weights.
        transform: Batch to what the loader gives.
        transform_sampler_output: What was sampled to what is joined with attributes.
        is_sorted: ``edge_index`` is sorted by column, and by time within.
        filter_per_worker: Accepted: threads share the data.
        neighbor_sampler: Samples in place of ours, see :class:`~pagraph.pyg.NeighborLoader`.
        directed: Deprecated by PyG; False is ``subgraph_type="induced"``.
        cache: See :class:`~pagraph.pyg.NeighborLoader`, as for all that follow.
        cache_policy: See there.
        cache_dtype: See there.
        prefetch: See there.
        seed: See there.
        device: See there.
        **kwargs: See there.

    Raises:
        ValueError: PyG's and torch's; links, labels, times or weights that do not fit each other, or no edge type.
        TypeError: Links or times are not integers, a number is not one, or what is to be called cannot be.
        IndexError: A link leads out of the graph.

    Example:
        >>> import torch
        >>> from pagraph.pyg import LinkNeighborLoader
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.arange(4.0).view(4, 1), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
        >>> loader = LinkNeighborLoader(data, [1], neg_sampling="binary", batch_size=2)
        >>> [batch.edge_label.tolist() for batch in loader]
        [[1.0, 1.0, 0.0, 0.0], [1.0, 0.0]]
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
        given = dict(locals())
        check_data(data)
        check_are_tensors(edge_label=edge_label, edge_label_time=edge_label_time)
        self._view = LinkView()
        neighbor_sampler = sampler_of(given)
        transforms = {"transform": transform, "transform_sampler_output": transform_sampler_output}
        check_calls(neighbor_sampler, "sample_from_edges", **transforms)
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
        graph = neighbor_sampler.graph if isinstance(neighbor_sampler, NeighborSampler) else None
        check_links(self.input_data, graph)
        self.edge_label_index = edge_label_index
        self.input_id = kwargs.get("input_id")
        self._begin(given, _PyGLinkLoader.filter_fn)

    def _workload(self, order: Any) -> Workload:
        return link_workload(self.data, self.link_sampler, order, self.input_data, self.neg_sampling)
