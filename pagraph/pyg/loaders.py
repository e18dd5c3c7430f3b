"""NeighborLoader and LinkNeighborLoader: PyG's arguments and batches, by our kernels."""

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
"""Arguments that both loaders pass to PyG's constructors unchanged.

Arguments of sampling are left out, since PyG gets our sampler.
"""


class NeighborLoader(Pipelined[D], _pyg.NeighborLoader):
    """Drop-in for ``torch_geometric.loader.NeighborLoader`` of PyG 2.6 and newer.

    Takes the same arguments and makes the same batches, without pyg-lib or torch-sparse. Our
    kernels sample batches in threads, ahead of the training loop. Vertex attributes are read
    through a static cache. Threads replace worker processes. Batches come in order, and are the
    same for any number of threads.

    ``data`` is never changed. Attributes that are added to, written in or deleted from
    ``loader.data`` take effect with the next batch. The graph is fixed at construction. A subclass
    that overrides ``filter_fn`` or ``collate_fn`` is iterated as in PyG, without threads and cache.

    Args:
        data: A ``Data``, a ``HeteroData``, or a pair of a ``FeatureStore`` and a ``GraphStore``.
        num_neighbors: Fanout of each hop, from the seeds on; negative: all neighbours. Or a mapping
            from edge type.
        input_nodes: Seeds: None for all, ids, or a mask of all vertices, each as a tensor, an array
            or a sequence. With several vertex types: a type, or a pair of a type and any of these.
        input_time: A time for each input node, shape ``(n,)``, integers or floats like the data's
            times; needs ``time_attr``. Default: the seeds' own.
        replace: Sample with replacement.
        subgraph_type: ``"directional"``, ``"bidirectional"`` or ``"induced"``. With disjoint trees,
            induced subgraphs are within each tree; with times, they have no edges later than the
            seed (PyG refuses both).
        disjoint: Sample a tree for each seed; ``batch`` has its number.
        temporal_strategy: ``"uniform"`` or ``"last"``.
        time_attr: The attribute of vertices, edges or both that holds their times, integers or
            floats. No neighbour is later than its seed. Neighbours with a missing time (NaN, or
            NumPy's NaT as int64) are never drawn.
        weight_attr: The attribute of edges that holds their weights.
        transform: Maps a batch to what the loader returns. With workers, it is called in their
            threads, ahead of the loop, in order, one call at a time; else in the reader's thread.
            Torch's random numbers in it are a function of the batch's key. An error in it affects
            only that batch.
        transform_sampler_output: Maps a sampler's output before it is joined with attributes;
            called like ``transform``.
        is_sorted: ``edge_index`` is sorted by column, and by time within.
        filter_per_worker: Ignored: threads share the data.
        neighbor_sampler: Samples instead of ours: any ``BaseSampler``. It is called for one batch
            at a time, in order, in the reader's thread unless there are workers. Arguments of
            sampling are then ignored, as in PyG.
        directed: Deprecated by PyG; False is ``subgraph_type="induced"``.
        time_window: For a seed of time ``t``, draw only edges and vertices later than
            ``t - time_window``. Or a mapping from edge type to window; other types have none.
        share_trees: Seeds of a batch with equal times share a tree; ``batch`` numbers the trees by
            time. Saves most if many seeds have the same time.
        cache: Size of the static feature cache: ``"2GiB"``, bytes, a fraction, ``"auto"``, or 0 for
            none. On a CUDA device it caches attributes in host memory; on the CPU, those on disk.
        cache_policy: Ranking of the vertices: ``"auto"``, ``"adaptive"``, ``"degree"`` (PaGraph),
            ``"presample"``, ``"presample:K"``, ``"vip"``, ``"random"``, or a callable, see
            ``pagraph.ranking.policy``.
        cache_dtype: ``"float16"``, ``"bfloat16"`` or ``"int8"``: the form of cached float
            attributes, so that 2x or 4x more rows fit. All rows of attributes that the cache may
            serve are rounded, and delivered in the attribute's dtype. For the errors see
            ``pagraph.features.narrow``. Default: unchanged.
        prefetch: Maximal number of finished batches that wait. 0 makes each batch on request,
            without threads.
        lookahead: Batches of a graph on disk to sample ahead, so that the rows they miss are read
            once and in file order; ``"auto"``, or 0 for none.
        memory: Host memory for caches, graph and batches together, such as ``"4GiB"``; see
            ``memory_plan``. ``"auto"``: free memory, less a reserve. Without effect (and with a
            warning) for a graph that is entirely in memory.
        shapes: ``"fixed"`` pads batches of a ``Data`` to one of at most three sizes, nearly always
            the first, so that compiled and recorded steps see the same shapes. For padding,
            ``n_id``, ``e_id`` and ``input_id`` are -1, ``y`` is -100 or NaN, and all else is zero.
            ``seed_mask`` marks the seeds among the first ``batch_size`` vertices. See ``envelope``.
            ``"sampled"`` does not pad.
        seed: Makes order and sampling a function of (seed, epoch); for a user's own sampler, only
            the sampling. Without it, both follow ``torch.manual_seed``, the order as in PyG.
        device: Where batches are delivered. Default: where their attributes are.
        sampling_device: ``"cpu"``, or the CUDA device that is also ``device``, which then samples.
            That needs attributes that are plain tensors, and directional samples; batches are the
            same. ``"auto"`` is the device for a ``Data`` if possible, with the graph in its memory
            or in pinned host memory, and the CPU for a ``HeteroData``, trees, times, weights and
            edges with attributes. ``loader.sampling_placement`` has the choice, and the reason.
        batch_dependency: Number of batches of an epoch for which a vertex keeps its draws, so that
            successive batches share many rows. 1: independent batches, as in PyG. Each batch alone
            has the same distribution as with 1. Not for disjoint subgraphs; see
            ``pagraph.sampling.NeighborSampler``.
        use_ddp: Split the input nodes evenly between the processes of ``torch.distributed``, anew
            in each epoch; needs torch's own samplers.
        **kwargs: ``custom_cls`` and ``input_id`` of PyG's ``NodeLoader``; torch's ``batch_size``,
            ``shuffle``, ``drop_last``, ``sampler``, ``batch_sampler``, ``generator``,
            ``pin_memory``, ``num_workers`` (threads; 0 lets the loader choose) and
            ``worker_init_fn`` (called in each thread). ``persistent_workers``, ``prefetch_factor``,
            ``timeout`` and ``multiprocessing_context`` are checked as in torch, but have no effect
            on threads.

    Raises:
        ValueError: As in PyG and torch; also if a mask, times or ``input_id`` have the wrong
            length, the vertex type is missing or unknown, a time is missing, a window is not
            positive, or fixed shapes are not of directional samples of a ``Data``.
        TypeError: ``input_nodes`` or a number are not integers, or a transform is not callable.
        IndexError: An input node is out of range.

    Example:
        >>> import torch
        >>> from pagraph.pyg import NeighborLoader
        >>> from torch_geometric.data import Data
        >>> edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> data = Data(x=torch.arange(4.0).view(4, 1), edge_index=edges)
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
        # As given, instead of PyG's converted values: Lightning makes the loader again from these.
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
        """Make one batch of any seeds, outside of epochs, for inference services.

        The calling thread makes it, through the loader's cache. Any number of threads may call,
        also while an epoch runs. Equal seeds, times and keys give equal batches, whatever was
        requested before. ``batch.input_id`` are positions in ``seeds``. The first two requests fill
        the cache, and others wait for that.

        Args:
            seeds: Like ``input_nodes``, of the loader's vertex type. They need not be among the
                loader's input nodes.
            time: Like ``input_time``: a time for each seed. Default: the seeds' own.
            key: Key of the random numbers, at least 0: another key draws other neighbours.

        Raises:
            ValueError, TypeError, IndexError: As in the constructor; also for ``time`` without
                ``time_attr``, seeds of another type, or a subclass that overrides ``filter_fn`` or
                ``collate_fn``.
        """
        if not self._makes_batches:
            raise ValueError(
                "batch() needs a loader without a custom filter_fn or collate_fn: call the "
                "loader with positions of its inputs"
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
                "shapes='fixed' needs a loader without a custom filter_fn or collate_fn, got "
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
            # There a seed is a pair of integers: a vertex, and the bits of its time.
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
        yield sizes_of(view.sample_ahead(inputs, ticket.key, BufferPools(batches=0))[0])


class LinkNeighborLoader(Pipelined[D], _pyg.LinkNeighborLoader):
    """Drop-in for ``torch_geometric.loader.LinkNeighborLoader`` of PyG 2.6 and newer.

    Takes the same arguments and makes the same batches, without pyg-lib or torch-sparse. Negatives,
    like neighbours, are a function of (seed, epoch, batch). As in PyG, the links of a batch stay in
    the graph that is sampled. There are two corrections. In disjoint subgraphs ``batch`` numbers
    the links for any amount of negatives (PyG: only for integers). With times, every vertex that is
    early enough is drawn by its weight (PyG draws up to six times, then takes the earliest).

    Args:
        data: A ``Data``, a ``HeteroData``, or a pair of a ``FeatureStore`` and a ``GraphStore``.
        num_neighbors: Fanout of each hop, from the links' ends on; negative: all neighbours. Or a
            mapping from edge type.
        edge_label_index: Links, shape ``(2, n)``, as a tensor or an array of integers; None for all
            edges. With several types: an edge type, or a pair of a type and any of these. The type
            need not be in the graph.
        edge_label: A label for each link, shape ``(n, ...)``. With binary negatives, labels from 0
            on are raised by 1.
        edge_label_time: A time for each link, its ends and its negatives, shape ``(n,)``, integers
            or floats like the data's times. Required with ``time_attr``, and only then.
        replace: Sample with replacement.
        subgraph_type: ``"directional"``, ``"bidirectional"`` or ``"induced"``.
        disjoint: Sample a tree for each end; ``batch`` has the number of its link.
        temporal_strategy: ``"uniform"`` or ``"last"``.
        neg_sampling: PyG's ``NegativeSampling``, or its arguments: ``"binary"`` or ``"triplet"``, a
            mapping or a tuple. Weights are read at each batch. Its negatives may be edges of the
            graph. Or :class:`~pagraph.pyg.HardNegatives`, whose negatives may not.
        neg_sampling_ratio: Binary negatives per link; 0.0 for none.
        time_attr: The attribute of vertices, edges or both that holds their times, see
            :class:`~pagraph.pyg.NeighborLoader`; no neighbour is later than its link.
        weight_attr: The attribute of edges that holds their weights.
        transform: See :class:`~pagraph.pyg.NeighborLoader`.
        transform_sampler_output: See there.
        is_sorted: ``edge_index`` is sorted by column, and by time within.
        filter_per_worker: Ignored: threads share the data.
        neighbor_sampler: Samples instead of ours, see :class:`~pagraph.pyg.NeighborLoader`.
        directed: Deprecated by PyG; False is ``subgraph_type="induced"``.
        time_window: Window before each link's time, see :class:`~pagraph.pyg.NeighborLoader`.
            Negatives are drawn from the window of the links' type, or from the latest vertices
            before it if it is empty.
        share_trees: Links of a batch with equal times share a tree, see there; ``batch`` then
            numbers trees.
        cache: See :class:`~pagraph.pyg.NeighborLoader`, also for the following arguments.
        cache_policy: See there.
        cache_dtype: See there.
        prefetch: See there.
        lookahead: See there.
        memory: See there.
        shapes: ``"sampled"`` only, since the number of distinct ends varies.
        seed: See there.
        device: See there.
        sampling_device: See there; negatives are drawn on the CPU.
        batch_dependency: See there. Negatives are always drawn independently.
        use_ddp: See there.
        **kwargs: See there.

    Raises:
        ValueError: As in PyG and torch; also if links, labels, times or weights do not match, or
            the edge type is missing.
        TypeError: Links, times or numbers have the wrong type, or a transform is not callable.
        IndexError: A link has an end outside the graph.

    Example:
        >>> import torch
        >>> from pagraph.pyg import LinkNeighborLoader
        >>> from torch_geometric.data import Data
        >>> edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> data = Data(x=torch.arange(4.0).view(4, 1), edge_index=edges)
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
