"""The core loader: a graph's mini-batches with their rows, as plain tensors, for any framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .accelerator.cuda import resolve_accelerator, samples_on_device
from .cache.choice import Role
from .engine import PipelineOptions, parse_lookahead
from .engine.block_source import BlockSource
from .engine.engine import Engine, LoaderControls
from .features.narrow import parse_cache_dtype
from .graph.csc import as_ids, check_range
from .graph.graph import Graph
from .ranking.degree import turned
from .ranking.policies import resolve_policy
from .ranking.policy import Policy, RowType
from .ranking.workload import Sampled, Workload
from .sampling import BlockSampler
from .sampling.block_sampler import foreign_sampler
from .seeds.order import SeedOrder
from .system.budget import Budget, memory_budget
from .system.checks import as_integer, as_names

if TYPE_CHECKING:
    from .accelerator import Accelerator
    from .cache.plan import CachePlan
    from .graph.minibatch import MiniBatch
    from .sampling.gpu.sampler import DeviceSampler

__all__ = ["Loader"]


class Loader(LoaderControls):
    """Iterates over mini-batches of a homogeneous graph; each ``iter()`` is an epoch.

    Seeds, sampling, feature fetch and delivery run as stages, ``prefetch`` batches ahead of the reader. For one
    ``seed`` every batch is bit-identical whatever ``num_workers`` and ``prefetch`` are.

    Args:
        graph: A homogeneous graph.
        seeds: Vertex ids, shape ``(n,)``: a list, an array or a tensor of integers, or a mask of all vertices. Batches
            have their dtype, int32 or int64.
        sampler: Draws the blocks; one of ``pagraph.sampling``.
        fields: Vertex fields to read for the input nodes (``batch.features``).
        labels: Vertex fields to read for the output nodes (``batch.labels``).
        batch_size: Seeds a batch.
        shuffle: New order every epoch.
        drop_last: Leave out an incomplete last batch.
        device: Where batches are delivered: ``"cpu"``, or a CUDA device, on which they are then made beside the
            computation. (For tests also an ``Accelerator``.)
        sampling_device: ``"cpu"``, or the CUDA device that is also ``device``: it samples itself, with the same result.
            For uniform sampling with fan-outs up to 128 and -1.
        sampling_budget: What the graph may take on the sampling device, as ``cache`` is given: what does not fit stays
            in host memory, pinned, and is read over the bus. ``"auto"``: at most half of what is free.
        transfer: How rows that are not cached reach a CUDA device: ``"zero-copy"`` (a kernel reads pinned host memory),
            ``"staging"`` (the CPU gathers them into pinned buffers), or ``"auto"``: the faster one, as measured.
        cache: What the static feature cache may take: ``"2GiB"``, bytes, a fraction, ``"auto"``, or 0 for none.
        cache_policy: Ranks the vertices: a name of ``pagraph.ranking.POLICIES`` or a ``pagraph.ranking.Policy``.
        cache_dtype: ``"float16"``, ``"bfloat16"`` or ``"int8"``: floats are cached so, 2 or 4 times as many. Rows of
            fields that a cache may serve are all rounded (see ``pagraph.features.narrow``), in the field's dtype.
        num_workers: Threads; 0 lets the loader choose.
        prefetch: Finished batches that may wait; 0 prepares each when it is asked for, without threads.
        lookahead: Batches of a graph on disk that are sampled ahead, so that the rows that all of them miss are read
            once and in the order of the file; ``"auto"``, or 0 for none.
        memory: Bytes of host memory for the caches, the graph and the batches together, such as ``"4GiB"``; see
            ``memory_plan``. ``"auto"``: what is free, less a reserve.
        seed: Makes order and sampling reproducible. Default: the global generators of NumPy and torch.

    Raises:
        KeyError, IndexError: A field that the graph does not have; a seed outside it.
        TypeError: Seeds that are no integers; a sampler of another kind, such as one of DGL's.
        TypeError, ValueError: See ``SeedOrder``, ``PipelineOptions``, ``Budget`` and ``DeviceSampler``; a device that
            this machine does not have.
        MissingDependencyError: ``sampling_device`` is a GPU, and Triton is not installed.

    Example:
        >>> from pagraph import Graph, Loader, NeighborSampler
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 3], ndata={"feat": torch.eye(4)})
        >>> loader = Loader(graph, torch.tensor([3, 1]), NeighborSampler([2]), fields=["feat"], batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch.input_nodes.tolist(), tuple(batch.features["feat"].shape)
        ([3, 1, 2, 0], (4, 4))
    """

    def __init__(
        self,
        graph: Graph,
        seeds: Any,
        sampler: BlockSampler,
        *,
        fields: Sequence[str] = (),
        labels: Sequence[str] = (),
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        device: str | torch.device | Accelerator = "cpu",
        sampling_device: str | torch.device | Accelerator = "cpu",
        sampling_budget: Any = "auto",
        transfer: str = "auto",
        cache: Any = "auto",
        cache_policy: str | Policy = "auto",
        cache_dtype: str | torch.dtype | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        lookahead: int | str = "auto",
        memory: Any = "auto",
        seed: int | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        if not isinstance(graph, Graph):
            raise TypeError(f"graph must be a pagraph.Graph (see its from_pyg, from_dgl), got {type(graph).__name__}")
        check_sampler(sampler)
        self._arguments = given  # for pickling
        self.graph, self.sampler = graph, sampler
        self.device, accelerator = resolve_accelerator(device)
        room = Budget.parse(sampling_budget, name="sampling_budget")
        samples_there = samples_on_device(sampling_device, self.device, accelerator)
        self.cache_dtype = parse_cache_dtype(cache_dtype)
        fields, labels = as_names("fields", fields), as_names("labels", labels)
        for name in (*fields, *labels):
            if name not in graph.ndata:
                which = "fields" if name in fields else "labels"
                raise KeyError(f"{which} must be among {sorted(graph.ndata)}, got {name!r}")
        options = PipelineOptions(as_integer("num_workers", num_workers, least=0), prefetch, parse_lookahead(lookahead))
        ids = seed_ids(seeds, graph.num_nodes)
        order = SeedOrder(ids, batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        self._engine: Engine[MiniBatch] = Engine(
            _workload(graph, sampler, order),
            policy=resolve_policy(cache_policy),
            budget=Budget.parse(cache),
            options=options,
            device=self.device,
            accelerator=accelerator,
            cache_dtype=self.cache_dtype,
            transfer=transfer,
            memory=memory_budget(memory),
        )
        of = self._engine.fields
        for names, role in ((fields, Role.INPUT), (labels, Role.OUTPUT)):
            for name in names:
                of.add_source(name, partial(graph.ndata.__getitem__, name), role=role)
        self._device_sampler: DeviceSampler | None = None
        if accelerator is not None and samples_there:
            from .sampling.gpu.sampler import DeviceSampler  # a module that nobody needs on the CPU

            self._device_sampler = DeviceSampler(graph, sampler, accelerator, room)  # type: ignore[arg-type]
        self._engine.use(BlockSource(graph, sampler, of, fields, labels, self._engine.pools, self._device_sampler))

    def __len__(self) -> int:
        return len(self._engine.epochs)

    def __iter__(self) -> Iterator[MiniBatch]:
        return iter(self._engine.epochs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._arguments, self.state_dict())

    @property
    def cache_plan(self) -> CachePlan:  # type: ignore[override]  # graphs with one vertex type have one plan
        """The static cache's rows, bytes and what they should save, by field; prints as a table."""
        return self._engine.fields.plan

    @property
    def sampling_placement(self) -> str:
        """Place of the graph that is sampled, such as "host" or "device"."""
        return "host" if self._device_sampler is None else self._device_sampler.placement

    @property
    def transfers(self) -> dict[str, str]:
        """Path of each field's uncached rows to the device, and why; empty on the CPU."""
        return {str(key): str(transfer) for key, transfer in self._engine.fields.transfers.items()}

    def close(self) -> None:
        """Unpin host memory and free the graph on a device; also done when nobody has the loader any more.

        Ends the newest pass, if it is not over. The loader cannot be used again. Rows cached on a device, which other
        loaders may use too, are freed when nobody has it any more.
        """
        super().close()
        if self._device_sampler is not None:
            self._device_sampler.close()


def _rebuild(cls: type[Loader], arguments: Mapping[str, Any], state: dict[str, Any]) -> Loader:
    """A pickled or copied loader: made anew with the same arguments, at the same place."""
    loader = cls(**arguments)
    loader.load_state_dict(state)
    return loader


def seed_ids(seeds: Any, num_nodes: int) -> Tensor:
    """Seeds in any form as a 1-D int32 or int64 tensor on their device.

    Raises:
        TypeError: They are no integers, nor a mask.
        ValueError: They are not 1-D, or a mask is not of all vertices.
        IndexError: One is outside ``[0, num_nodes)``.
    """
    mask = seeds if isinstance(seeds, Tensor) else None
    if not isinstance(seeds, Tensor):
        array = np.asarray(seeds)
        mask = torch.from_numpy(array) if array.dtype == np.bool_ else None
    if mask is not None and mask.dtype == torch.bool:
        if mask.shape != (num_nodes,):
            raise ValueError(f"seeds must have shape ({num_nodes},) as a mask of all vertices, got {tuple(mask.shape)}")
        return mask.nonzero().squeeze(1)
    ids = as_ids("seeds", seeds)
    check_range("seeds", ids, num_nodes, IndexError)
    return ids


def check_sampler(sampler: Any) -> None:
    """Raise TypeError for what does not make blocks, naming the loader that takes it."""
    if isinstance(sampler, BlockSampler):
        return
    advice = foreign_sampler(sampler, "pagraph") or "see pagraph.sampling"
    kind = f"the class {sampler.__name__}" if isinstance(sampler, type) else type(sampler).__name__
    raise TypeError(f"sampler must be a pagraph sampler of blocks, such as NeighborSampler, got {kind}: {advice}")


def _workload(graph: Graph, sampler: BlockSampler, order: SeedOrder) -> Workload:
    return Workload(
        order,
        {graph.only_node_type: graph.num_nodes},
        sampler,
        lambda: Sampled(turned(graph, sampler.edge_dir), order.ids, sampler.with_in_edges()),
        source=graph,
        edge_dir=sampler.edge_dir,
        seeds=order,
        seed_reads=partial(_seed_reads, graph, order),
    )


def _seed_reads(graph: Graph, order: SeedOrder, row_type: RowType) -> Tensor:
    """Counts of each vertex as a seed in an epoch."""
    ids = order.ids
    assert isinstance(ids, Tensor)
    return torch.bincount(ids.long().cpu(), minlength=graph.num_nodes)
