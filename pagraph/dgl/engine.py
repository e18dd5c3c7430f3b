"""The engine behind a DataLoader: columns, epochs and the source of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ..accelerator import Accelerator, accelerator_for
from ..buffers import BufferPools
from ..cache.auto import refills
from ..cache.budget import Budget
from ..cache.policies import ranks_all
from ..cache.policy import Policy
from ..cache.sharing import share_of
from ..pipeline import Epochs, LoaderStats, PipelineOptions, Steps
from ..pipeline.worker_init import run_worker_init
from ..sampling.seeds import DatasetOrder, SeedOrder
from .columns import Columns
from .edge_source import EdgeSource
from .foreign_source import ForeignSource
from .graphbolt import import_dgl
from .node_source import NodeSource
from .ranking import edge_dir, first_epoch, rank_types
from .recognise import is_edge_sampler, native_sampler, runs_users_code
from .seed_reads import seed_reads

dgl = import_dgl()

if TYPE_CHECKING:
    from .loader import DataLoader

__all__ = ["Engine"]


class Engine:
    """Made once for a loader; takes graph and sampler as they are when an epoch begins.

    It refers to what the loader was made of, never to the loader: a cycle would keep the cache in memory until the
    garbage collector runs.

    Args:
        loader: A DataLoader whose arguments are set and checked.
        order: Its seeds.
        budget: What the cache may take.
        policy: Ranks the vertices.
        prefetch: Finished batches that may wait.
        accelerator: What batches are delivered on. Default: that of the loader's device, where it has one.
    """

    def __init__(
        self,
        loader: DataLoader,
        order: SeedOrder | DatasetOrder,
        *,
        budget: Budget | None,
        policy: Policy,
        prefetch: int,
        accelerator: Accelerator | None = None,
    ) -> None:
        self.order = order
        self.worker_init_fn = loader.worker_init_fn if loader.num_workers else None
        self._asked = PipelineOptions(loader.num_workers, prefetch)
        self._graph, self._sampler, self._device = loader.graph, loader.graph_sampler, loader.device
        self._accelerator = accelerator or accelerator_for(self._device)
        self._storages = loader.other_storages
        self._seeds_native = isinstance(order, SeedOrder)
        self._move_seeds = loader.use_uva or self._graph.device.type != "cpu"
        self._pools = BufferPools(self._asked.max_batches)
        native = self._native()
        self.columns = Columns(
            self._graph,
            self._device,
            budget=budget,
            rank=partial(rank_types, policy, self._graph, self._sampler, order),
            outputs=partial(seed_reads, self._graph, self._sampler, order),
            ranks_all=ranks_all(policy),
            pool_of=self._pools,
            first_epoch=partial(first_epoch, self._graph, self._sampler, order) if refills(policy, native) else None,
            share=share_of(policy, graph=self._graph, edge_dir=edge_dir(self._sampler), sampler=native, order=order),
            cache_dtype=loader.cache_dtype,
            accelerator=self._accelerator,
        )
        self.stats = LoaderStats(self.columns.counters, self._accelerator)
        self.epochs: Epochs[Any] = Epochs(order, self._steps(), options=self._options(), stats=self.stats)
        self.columns.observe(self.epochs.tracing.read)

    def start(self) -> Iterator[Any]:
        """Begin an epoch."""
        self.epochs.steps, self.epochs.options = self._steps(), self._options()
        return iter(self.epochs)

    def close(self) -> None:
        """End the newest pass, and unpin host memory."""
        self.epochs.close()
        self.columns.close()

    def _native(self) -> Any:
        return native_sampler(self._graph, self._sampler) if self._seeds_native else None

    def _options(self) -> PipelineOptions:
        """What the user wrote stays in the reader's thread, with its random state, unless workers are asked for."""
        if (self._native() is None or runs_users_code(self._sampler)) and self._asked.workers == 0:
            return PipelineOptions(0, 0)
        return self._asked

    def _steps(self) -> Steps[Any]:
        source, accelerator = self._source(), self._accelerator
        return Steps(
            source.prepare,
            source.deliver,
            draw=source.draw,
            on_start=None if self.worker_init_fn is None else partial(run_worker_init, self.worker_init_fn),
            before_first_batch=self.columns.prepare,
            after_first_step=self.columns.after_first_step,
            mark=None if accelerator is None else lambda: accelerator.current_stream.record(),
            settle=None if accelerator is None else self.columns.settle,
            shrink=None if accelerator is None else self.columns.shrink,
        )

    def _source(self) -> NodeSource | EdgeSource | ForeignSource:
        sampler = self._native()
        if sampler is not None:
            edge_wise = is_edge_sampler(self._sampler)
            nodes = NodeSource(
                self._graph,
                self._sampler.sampler if edge_wise else self._sampler,
                sampler,
                columns=self.columns,
                pools=self._pools,
                device=self._device,
            )
            return EdgeSource(self._graph, self._sampler, nodes) if edge_wise else nodes
        if isinstance(self._graph, dgl.DGLGraph) and self._asked.workers:
            self._graph.create_formats_()  # else threads would make them at the same time
        return ForeignSource(
            self._graph,
            self._sampler,
            columns=self.columns,
            storages=self._storages,
            device=self._device,
            move_seeds=self._move_seeds,
            threads=self._asked.workers > 0,
            accelerator=self._accelerator,
        )
