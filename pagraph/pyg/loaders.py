"""NeighborLoader and LinkNeighborLoader: PyG's arguments and batches, without pyg-lib and
torch-sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import torch
from torch import Tensor

from ..engine.envelope import trial_tickets
from ..graph.graph import NODE_TYPE
from ..sampling.batches import PairBatches, TimedSeeds
from ..sampling.fixed_shapes import Sizes, largest_sizes
from ..sampling.times import time_bits
from ..seeds.keys import check_key
from ..system.buffers import BufferPools
from .filtering import link_batch, node_batch
from .inputs import TRANSFORMS, check_calls, check_data, core_workload, foreign_workload, node_input
from .links import check_are_tensors, check_links, checked_edge_label_index, end_types
from .package import import_pyg
from .padding import check_fixed, sizes_of
from .pipelined import D, LinkView, NodeView, Pipelined, Viewed, sampler_of
from .sampler import NeighborSampler
from .times import check_times

import_pyg()
from torch_geometric import loader as _pyg  # noqa: E402
from torch_geometric.sampler import NodeSamplerInput  # noqa: E402

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.sampler import BaseSampler, NegativeSampling
    from torch_geometric.sampler.base import SubgraphType
    from typing_extensions import Unpack

    from ..ranking.workload import Workload
    from ..typing import (
        CacheDtype,
        CachePolicy,
        CacheSize,
        EdgeType,
        Ids,
        MemorySize,
        PyGOptions,
    )
    from .links import HardNegatives
    from .sampler import Fanouts
    from .typing import HeteroBatch, LinkBatch, NodeBatch

    Nodes: TypeAlias = Ids | str | tuple[str, Ids | None] | None
    Links: TypeAlias = Tensor | EdgeType | tuple[EdgeType, Tensor | None] | None
    Negatives: TypeAlias = NegativeSampling | HardNegatives | str | Mapping[str, Any] | None
    Window: TypeAlias = float | Tensor | Mapping[EdgeType, float | Tensor] | None

_PYGS = (*TRANSFORMS, "time_attr", "filter_per_worker")
"""Arguments that go to PyG's constructors as they are, besides those of one class. What says how to
sample does not: they get our sampler."""


class NeighborLoader(Pipelined[D], _pyg.NeighborLoader):
    """Drop-in for ``torch_geometric.loader.NeighborLoader`` (PyG 2.5 and newer): the same
    arguments, the same batches.

    Needs neither pyg-lib nor torch-sparse. Batches are sampled by our kernels, in threads, ahead of
    the training loop; attributes of vertices are read through a static cache. Threads take the
    place of worker processes: batches always come in order, and are the same for any number of
    threads. ``data`` stays as it is, and what is added to ``loader.data``, written into it or
    deleted from it counts for the next batch; the graph is that of construction. A subclass that
    overrides ``filter_fn`` or ``collate_fn`` is iterated as PyG's would be, without threads and
    cache.

    Args:
        data: A ``Data``, a ``HeteroData``, or a pair of a ``FeatureStore`` and a ``GraphStore``.
        num_neighbors: Neighbours for each vertex by hop, the seeds' first; negative: all. Or a
            mapping from edge type.
        input_nodes: Seeds: None for all, ids, or a mask of all vertices (NumPy's, too), each as a
            tensor, an array, or a sequence. Of a graph with several vertex types: a type, or a pair
            of it and any of these.
        input_time: A time for each input node, shape ``(n,)``, integers or floats as the data's
            times are; needs ``time_attr``. Default: the seeds' own.
        replace: Sample with replacement.
        subgraph_type: ``"directional"``, ``"bidirectional"`` or ``"induced"``: that is within each
            of disjoint trees, and with times without edges later than its seed (PyG refuses both).
        disjoint: A tree for each seed, with its number in ``batch``.
        temporal_strategy: ``"uniform"`` or ``"last"``.
        time_attr: The attribute of vertices or edges, or both, that holds their times: integers or
            floats. No neighbour is later than its seed, and none is drawn whose time is missing
            (NaN, or numpy's NaT as an int64).
        weight_attr: The attribute of edges that holds their weights.
        transform: Batch to what the loader gives. With workers it is called in their threads, ahead
            of the loop, in order, one call at a time; else in the reader's. Torch's random numbers
            in it are a function of the batch's key; an error it raises is that batch's alone.
        transform_sampler_output: What was sampled to what is joined with attributes; called as
            ``transform`` is.
        is_sorted: ``edge_index`` is sorted by column, and by time within.
        filter_per_worker: Accepted: threads share the data.
        neighbor_sampler: Samples in place of ours: any ``BaseSampler``, called for one batch at a
            time, in order, in the reader's thread unless there are workers. All that says how to
            sample is then ignored, as by PyG.
        directed: Deprecated by PyG; False is ``subgraph_type="induced"``.
        time_window: Length of a window: only edges and vertices later than ``t - time_window`` are
            drawn for a seed of time ``t``. Or a mapping from edge type to lengths, others having no
            window.
        share_trees: Seeds of a batch that have the same time share a tree; ``batch`` numbers the
            trees in the order of time. Saves most where many seeds have one time.
        cache: What the static feature cache may take: ``"2GiB"``, bytes, a fraction, ``"auto"``, or
            0 for none. On a CUDA device it holds attributes that live in host memory; on the CPU
            those that lie on disk.
        cache_policy: Ranks the vertices: ``"auto"``, ``"adaptive"``, ``"degree"`` (PaGraph),
            ``"presample"``, ``"presample:K"``, ``"vip"``, ``"random"``, or a callable as
            ``pagraph.ranking.policy`` says.
        cache_dtype: ``"float16"``, ``"bfloat16"`` or ``"int8"``: float attributes are cached so, 2
            or 4 times as many. All rows of attributes that the cache may serve are delivered
            rounded, in the attribute's dtype; see ``pagraph.features.narrow`` for how much that
            changes. Default: as they are.
        prefetch: Finished batches that may wait. 0 prepares each batch when it is asked for,
            without threads.
        lookahead: Batches of a graph on disk that are sampled ahead, so that the rows that all of
            them miss are read once and in the order of the file; ``"auto"``, or 0 for none.
        memory: Bytes of host memory for the caches, the graph and the batches together, such as
            ``"4GiB"``; see ``memory_plan``. ``"auto"``: what is free, less a reserve. Of a graph
            that is all in memory nothing is divided, and a warning says so.
        shapes: ``"fixed"``: batches of a ``Data`` are padded to one of at most three sizes, nearly
            all to the first, so that compiled and recorded steps meet the same shapes again and
            again. ``n_id``, ``e_id`` and ``input_id`` of padding are -1, its ``y`` -100 or NaN, all
            else of it zeros; ``seed_mask`` says which of the first ``batch_size`` vertices are
            seeds. See ``envelope``. ``"sampled"``: batches are as large as what was sampled.
        seed: Makes the order and the sampling a function of (seed, epoch); of a sampler of the
            user's own it makes the sampling so. Without it, both follow ``torch.manual_seed``, the
            order as in PyG's loader.
        device: Where batches are delivered. Default: where their attributes are.
        sampling_device: ``"cpu"``, or the CUDA device that is also ``device``: it samples itself.
            That takes data without edge attributes, and directional samples; batches are the same.
            ``"auto"``: the device where it can, in its memory or from pinned memory of the host,
            for a ``Data``; the CPU for a ``HeteroData``, and for trees and times.
            ``loader.sampling_placement`` says where, and why not.
        batch_dependency: Batches of an epoch for which a vertex keeps what it draws, so that
            batches behind each other read many of the same rows; 1: batches are independent, as
            PyG's. Each batch by itself is as with 1. Not for disjoint subgraphs; see
            ``pagraph.sampling.NeighborSampler``.
        use_ddp: Divide the input nodes between the processes of ``torch.distributed``, in each
            epoch again, into equally many for each; with torch's own samplers.
        **kwargs: ``custom_cls`` and ``input_id`` of PyG's ``NodeLoader``; torch's ``batch_size``,
            ``shuffle``, ``drop_last``, ``sampler``, ``batch_sampler``, ``generator``,
            ``pin_memory``, ``num_workers`` (threads; 0 lets the loader choose) and
            ``worker_init_fn`` (called in each thread). ``persistent_workers``, ``prefetch_factor``,
            ``timeout`` and ``multiprocessing_context`` are checked as by torch and mean nothing to
            threads.

    Raises:
        ValueError: PyG's and torch's; a mask, a time or an ``input_id`` for another number of
            vertices; no vertex type, or an unknown one; a missing time, or a window that is not
            positive; fixed shapes of anything but directional samples of a ``Data``.
        TypeError: ``input_nodes`` are not integers, a number is not an integer, or what is to be
            called cannot be.
        IndexError: An input node that is not there.

    Example:
        >>> import torch
        >>> from pagraph.pyg import NeighborLoader
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.arange(4.0).view(4, 1), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
        >>> loader = NeighborLoader(data, [2, 2], input_nodes=[2, 3], batch_size=1)
        >>> [batch.n_id.tolist() for batch in loader]
        [[2, 1, 0], [3, 2, 1]]
    """

    node_sampler: Any = Viewed()

    def __init__(
        self,
        data: D,
        num_neighbors: Fanouts,
        input_nodes: Nodes = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        time_window: Window = None,
        share_trees: bool = False,
        cache: CacheSize = "auto",
        cache_policy: CachePolicy = "auto",
        cache_dtype: CacheDtype = None,
        prefetch: int = 2,
        lookahead: int | str = "auto",
        memory: MemorySize = "auto",
        shapes: str = "sampled",
        seed: int | None = None,
        device: str | torch.device | None = None,
        sampling_device: str | torch.device = "auto",
        use_ddp: bool = False,
        batch_dependency: int = 1,
        **kwargs: Unpack[PyGOptions],
    ) -> None:
        given = dict(locals())
        check_data(data)
        self._view = NodeView()
        neighbor_sampler = sampler_of(given)
        check_calls(neighbor_sampler, "sample_from_nodes", given)
        input_id = kwargs.pop("input_id", None)
        nodes, seed_id = node_input(data, neighbor_sampler, input_nodes, input_id)
        check_are_tensors(input_time=input_time)
        super().__init__(
            data,
            num_neighbors,
            input_nodes=nodes,
            input_id=seed_id,
            input_time=input_time,
            neighbor_sampler=neighbor_sampler,
            **{name: given[name] for name in _PYGS},
            **kwargs,
        )
        inputs = self.input_data
        check_times("input_time", inputs.time, len(inputs.node), "input node")
        if isinstance(self.node_sampler, NeighborSampler):
            self.node_sampler.check_seed_times("input_time", inputs.time, inputs.input_type)
        # What was given, in place of what PyG keeps: Lightning makes the loader again from these.
        self.input_nodes = input_nodes
        self.input_id = input_id
        self._begin(given, node_batch)

    @overload
    def batch(
        self: NeighborLoader[Data], seeds: Nodes, *, time: Tensor | None = None, key: int = 0
    ) -> NodeBatch: ...
    @overload
    def batch(
        self: NeighborLoader[Any], seeds: Nodes, *, time: Tensor | None = None, key: int = 0
    ) -> HeteroBatch | NodeBatch: ...
    def batch(self, seeds: Nodes, *, time: Tensor | None = None, key: int = 0) -> Any:
        """Make one batch of any seeds, outside of any epoch: for a service that answers requests.

        It is made in the calling thread, through the loader's cache; any number of threads may ask,
        also while an epoch runs. Equal seeds, times and keys give equal batches, whatever was asked
        before. ``batch.input_id`` are places in ``seeds``. The first two requests fill the cache,
        and others wait for that.

        Args:
            seeds: As ``input_nodes``; of several vertex types one that the loader has, too. They
                need not be among the loader's own.
            time: As ``input_time``: a time for each seed. Default: the seeds' own.
            key: Of the random numbers, from 0 on: another key draws other neighbours.

        Raises:
            ValueError, TypeError, IndexError: As the constructor; ``time`` without ``time_attr``,
                seeds of another type than the loader's, or a subclass with a ``filter_fn`` or
                ``collate_fn`` of its own.
        """
        if not self._makes_batches:
            raise ValueError(
                "batch() must be of a loader without a filter_fn or collate_fn of its own: call "
                "the loader with places among its inputs"
            )
        inputs = self._request(seeds, time)
        view = replace(self._view, input_data=inputs)
        places = torch.arange(len(inputs.node), device="cpu")
        known = self._engine.request_key(check_key(key))
        return self._engine.on_request(self._source(view), places, known)

    def _fix_shapes(self, order: Any) -> None:
        sampler = self.node_sampler
        if not self._makes_batches:
            raise ValueError(
                "shapes='fixed' needs a loader without a filter_fn or collate_fn of its own, got "
                f"{type(self).__name__}"
            )
        check_fixed(self.data, sampler, order.batch_size)
        count = len(self.input_data.node)
        self._engine.fix_shapes(
            partial(_trials, self._view, count, order.batch_size, order.shuffle),
            partial(largest_sizes, sampler.core, sampler.graph, order.batch_size),
        )

    def _request(self, seeds: Nodes, time: Tensor | None) -> NodeSamplerInput:
        """The checked input of a request."""
        check_are_tensors(time=time)
        nodes, _ = node_input(self.data, self.node_sampler, seeds, name="seeds")
        kind, ids = nodes if isinstance(nodes, tuple) else (None, nodes)
        own = self.input_data.input_type
        if kind != own:
            raise ValueError(f"seeds must be of the loader's vertex type {own!r}, got {kind!r}")
        check_times("time", time, len(ids), "seed")
        if isinstance(self.node_sampler, NeighborSampler):
            if time is not None and not self.node_sampler.is_temporal:
                raise ValueError("time must be None for a loader without time_attr")
            self.node_sampler.check_seed_times("time", time, kind)
        return NodeSamplerInput(None, ids, time, kind)

    def _workload(self, order: Any) -> Workload:
        sampler = self.node_sampler
        inputs = self.input_data
        if not isinstance(sampler, NeighborSampler):
            return foreign_workload(self.data, order)
        ntype = inputs.input_type or NODE_TYPE
        if sampler.is_temporal and inputs.time is not None:
            # A seed is a pair of integers there: a vertex, and the bits of its time.
            timed = torch.stack([inputs.node.long(), time_bits(inputs.time)], 1)
            batches = TimedSeeds(sampler.core, ntype, sampler.times_are_floats)
            return core_workload(sampler.graph, order, timed, batches)
        seeds: Any = inputs.node if sampler.graph.is_homogeneous else {ntype: inputs.node}
        return core_workload(sampler.graph, order, seeds, sampler.core)


def _trials(
    view: NodeView, num_inputs: int, batch_size: int, shuffle: bool, count: int
) -> Iterator[Sizes]:
    """The sizes of trial batches."""
    places = torch.arange(num_inputs, device="cpu")
    for ticket in trial_tickets(places, batch_size, shuffle, count):
        inputs = view.inputs(ticket.seeds)
        yield sizes_of(view.sample_ahead(inputs, ticket.key, BufferPools(max_free=0))[0])


class LinkNeighborLoader(Pipelined[D], _pyg.LinkNeighborLoader):
    """Drop-in for ``torch_geometric.loader.LinkNeighborLoader`` (PyG 2.5 and newer): the same
    arguments and batches.

    Needs neither pyg-lib nor torch-sparse. Negatives are a function of (seed, epoch, batch), as
    neighbours are. In disjoint subgraphs ``batch`` numbers the links for any amount of negatives
    (PyG's is right for whole amounts), and with times all vertices that are early enough are as
    likely as their weights say (PyG draws up to six times, and then takes the earliest). The links
    of a batch are not taken out of the graph that is sampled, as in PyG.

    Args:
        data: A ``Data``, a ``HeteroData``, or a pair of a ``FeatureStore`` and a ``GraphStore``.
        num_neighbors: Neighbours for each vertex by hop, the ends' first; negative: all. Or a
            mapping from edge type.
        edge_label_index: Links, shape ``(2, n)``, as a tensor or an array of integers; None for all
            edges. Of a graph with several types: an edge type, or a pair of one and any of these;
            it need not be in the graph.
        edge_label: A label for each link, shape ``(n, ...)``. With binary negatives labels from 0
            on are raised by 1.
        edge_label_time: A time for each link, shape ``(n,)``, integers or floats as the data's
            times are: that of its ends and its negatives. With ``time_attr``, and only then.
        replace: Sample with replacement.
        subgraph_type: ``"directional"``, ``"bidirectional"`` or ``"induced"``.
        disjoint: A tree for each end, with the number of its link in ``batch``.
        temporal_strategy: ``"uniform"`` or ``"last"``.
        neg_sampling: PyG's ``NegativeSampling``, or what it is made of: ``"binary"`` or
            ``"triplet"``, a mapping or a tuple of its arguments. Weights are read as they are now.
            Negatives may be edges of the graph. Or :class:`~pagraph.pyg.HardNegatives`, which may
            not.
        neg_sampling_ratio: So many binary negatives for each link; 0.0 for none.
        time_attr: The attribute of vertices or edges, or both, that holds their times, see
            :class:`~pagraph.pyg.NeighborLoader`; no neighbour is later than its link.
        weight_attr: The attribute of edges that holds their weights.
        transform: See :class:`~pagraph.pyg.NeighborLoader`.
        transform_sampler_output: See there.
        is_sorted: ``edge_index`` is sorted by column, and by time within.
        filter_per_worker: Accepted: threads share the data.
        neighbor_sampler: Samples in place of ours, see :class:`~pagraph.pyg.NeighborLoader`.
        directed: Deprecated by PyG; False is ``subgraph_type="induced"``.
        time_window: Length of a window before each link's time, as of
            :class:`~pagraph.pyg.NeighborLoader`; negatives are drawn from it, too, by that of the
            links' type. Where no vertex is in it, from the latest before.
        share_trees: Links of a batch that have the same time share a tree, see there; ``batch``
            then numbers trees.
        cache: See :class:`~pagraph.pyg.NeighborLoader`, as for all that follow.
        cache_policy: See there.
        cache_dtype: See there.
        prefetch: See there.
        lookahead: See there.
        memory: See there.
        shapes: ``"sampled"``, as the ends of links differ in number.
        seed: See there.
        device: See there.
        sampling_device: See there; negatives are drawn on the CPU.
        batch_dependency: See there. Negatives are drawn anew for each batch.
        use_ddp: See there.
        **kwargs: See there.

    Raises:
        ValueError: PyG's and torch's; links, labels, times or weights that do not fit each other,
            or no edge type.
        TypeError: Links or times are not integers, a number is not one, or what is to be called
            cannot be.
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

    link_sampler: Any = Viewed()
    neg_sampling: Any = Viewed()

    if TYPE_CHECKING:

        @overload
        def __iter__(self: LinkNeighborLoader[Data]) -> Iterator[LinkBatch]: ...
        @overload
        def __iter__(self: LinkNeighborLoader[HeteroData]) -> Iterator[HeteroBatch]: ...
        @overload
        def __iter__(self: LinkNeighborLoader[Any]) -> Iterator[LinkBatch | HeteroBatch]: ...
        def __iter__(self) -> Iterator[Any]: ...

    def __init__(
        self,
        data: D,
        num_neighbors: Fanouts,
        edge_label_index: Links = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Negatives = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        time_window: Window = None,
        share_trees: bool = False,
        cache: CacheSize = "auto",
        cache_policy: CachePolicy = "auto",
        cache_dtype: CacheDtype = None,
        prefetch: int = 2,
        lookahead: int | str = "auto",
        memory: MemorySize = "auto",
        shapes: str = "sampled",
        seed: int | None = None,
        device: str | torch.device | None = None,
        sampling_device: str | torch.device = "auto",
        use_ddp: bool = False,
        batch_dependency: int = 1,
        **kwargs: Unpack[PyGOptions],
    ) -> None:
        given = dict(locals())
        check_data(data)
        check_are_tensors(edge_label=edge_label, edge_label_time=edge_label_time)
        self._view = LinkView()
        neighbor_sampler = sampler_of(given)
        check_calls(neighbor_sampler, "sample_from_edges", given)
        super().__init__(
            data,
            num_neighbors,
            edge_label_index=checked_edge_label_index(data, edge_label_index),
            edge_label=edge_label,
            edge_label_time=edge_label_time,
            neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio,
            neighbor_sampler=neighbor_sampler,
            **{name: given[name] for name in _PYGS},
            **kwargs,
        )
        inputs = self.input_data
        if isinstance(neighbor_sampler, NeighborSampler):
            check_links(inputs, neighbor_sampler.graph)
            if inputs.time is not None:
                neighbor_sampler.check_seed_times("edge_label_time", inputs.time)
        else:
            check_links(inputs, None)
        self.edge_label_index = edge_label_index
        self.input_id: Tensor | None = kwargs.get("input_id")
        self._begin(given, link_batch)

    def _workload(self, order: Any) -> Workload:
        sampler = self.link_sampler
        inputs = self.input_data
        if not isinstance(sampler, NeighborSampler):
            return foreign_workload(self.data, order)
        types = end_types(inputs.input_type)
        rows = [inputs.row.long(), inputs.col.long()]
        if sampler.is_temporal and inputs.time is not None:
            rows.append(time_bits(inputs.time))
        graph = sampler.graph
        negatives = sampler.link_negatives(self.neg_sampling, inputs.input_type)
        batches = PairBatches(
            sampler.core, types, graph.num_nodes_by_type, negatives, sampler.times_are_floats
        )
        return core_workload(graph, order, torch.stack(rows, 1), batches)
