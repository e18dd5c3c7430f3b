"""BlockSource: makes the core loader's batches, on the CPU or on an accelerator beside the reader's
computation."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from ..accelerator import Event, StagingRing
from ..features.field import Read
from ..graph.minibatch import HeteroMiniBatch, MiniBatch
from .batch_arrays import arrays_of, links_of, tensors_of, with_arrays
from .steps import Sampled

if TYPE_CHECKING:
    from ..cache.fields import FieldSet
    from ..graph.graph import Graph
    from ..sampling import BlockSampler, EdgeBatches
    from ..sampling.gpu.sampler import DeviceSampler
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder
    from ..system.buffers import BufferPools

__all__ = ["BlockSource", "Column"]

_BLOCK_SLOT_BYTES = 2 << 20
_Batch = MiniBatch | HeteroMiniBatch


class Column(NamedTuple):
    """A field of vertices that batches have: its key in the field set, its vertex type in batches
    by type, its name."""

    key: Hashable
    ntype: str | None
    name: str


class _Prepared(NamedTuple):
    """A sampled batch without fields; on an accelerator when its arrays are there, and when their
    copy began."""

    batch: _Batch
    ready: Event | None = None
    begun: Event | None = None


class BlockSource:
    """Samples blocks and reads the fields of their vertices, of one type (``MiniBatch``) or by
    type.

    With an accelerator, preparing gives work to the streams "sampling" and "copying" (blocks that
    the CPU has sampled) and waits only for the sizes of a batch that the device samples; delivering
    makes the reader's stream wait. Where the device's memory is too small for a step, the cache
    gives up half of its rows and the step is done again.

    Args:
        graph, sampler: The graph and what draws its blocks; batches have types unless it has one of
            each.
        fields, features, labels: Reads rows; the fields of the input nodes and of the seeds.
        pools: Recycled memory.
        device_sampler: Samples on the device; None: the CPU samples.
    """

    draw = None
    is_pure = True
    rereads = False

    def __init__(
        self,
        graph: Graph,
        sampler: BlockSampler | EdgeBatches,
        fields: FieldSet,
        features: Sequence[Column],
        labels: Sequence[Column],
        pools: BufferPools,
        device_sampler: DeviceSampler | None = None,
    ) -> None:
        self._graph, self._sampler, self._fields, self._pools = graph, sampler, fields, pools
        self._features, self._labels = tuple(features), tuple(labels)
        self._device_sampler = device_sampler
        # A sampler of links has types in all of its batches.
        self._drops_types = graph.is_homogeneous
        accelerator = fields.accelerator
        self._ring = (
            None if accelerator is None else StagingRing(accelerator, slot_bytes=_BLOCK_SLOT_BYTES)
        )

    @property
    def looks_ahead(self) -> bool:
        """Not with a device that samples: ids on a device are no window's, and its memory is the
        model's."""
        return self._device_sampler is None

    @property
    def build(self) -> Callable[[_Prepared, Any], _Prepared] | None:
        """Upload of the blocks that the CPU has sampled for an accelerator."""
        return None if self._ring is None or self._device_sampler is not None else self._upload

    def sample(self, ticket: Ticket, recorder: EpochRecorder) -> Sampled:
        """The blocks, on the CPU or by the device."""
        begin = time.perf_counter_ns()
        try:
            if self._device_sampler is not None:
                sample = partial(self._device_sampler.sample, ticket.seeds, ticket.key)
                there = self._fields.with_room(sample)
                recorder.device_time("sampling", there.begun, there.ready)
                batch, ready = there.batch, there.ready
            else:
                made: Any = self._sampler.sample(
                    self._graph, ticket.seeds, ticket.key, pools=self._pools
                )
                drops = self._drops_types and isinstance(made, HeteroMiniBatch)
                batch, ready = made.only() if drops else made, None
        finally:
            recorder.spent("sampling", begin)
        return Sampled(_Prepared(batch, ready), self._reads(batch), ready)

    def _reads(self, batch: _Batch) -> list[Read]:
        """Features are read for the input nodes, labels for the seeds."""
        nodes: Any = batch.input_nodes
        hop_ends: Any = batch.hop_ends
        reads = []
        for key, ntype, _ in self._features:
            if ntype is None:
                reads.append(Read(key, nodes, hop_ends))
            else:
                reads.append(Read(key, nodes[ntype], hop_ends[ntype]))
        for key, ntype, _ in self._labels:
            ends = hop_ends if ntype is None else hop_ends[ntype]
            of_type = nodes if ntype is None else nodes[ntype]
            reads.append(Read(key, of_type[: ends[0]], ends[:1]))
        return reads

    def _upload(self, prepared: _Prepared, rows: object) -> _Prepared:
        """The batch on the device, in one copy for all of its arrays."""
        assert self._ring is not None
        stream = self._ring.accelerator.stream("copying")
        with stream.use():
            begun = stream.record()
            there = with_arrays(prepared.batch, self._ring.upload(arrays_of(prepared.batch)))
            return _Prepared(there, stream.record(), begun)

    def deliver(
        self, prepared: _Prepared, rows: Sequence[Tensor] | None, recorder: EpochRecorder
    ) -> _Batch:
        """The batch with its fields, for the reader's stream."""
        begin = time.perf_counter_ns()
        batch = prepared.batch
        accelerator = self._fields.accelerator
        if accelerator is not None and prepared.ready is not None:
            if prepared.begun is not None:
                recorder.device_time("copying", prepared.begun, prepared.ready)
            accelerator.hand_over(tensors_of(batch), prepared.ready)
        assert rows is not None
        left = iter(rows)
        for columns, places in ((self._features, batch.features), (self._labels, batch.labels)):
            by_name: Any = places
            for _, ntype, name in columns:
                place = by_name if ntype is None else by_name.setdefault(ntype, {})
                place[name] = next(left)
        recorder.spent("building", begin)
        seeds, edges, input_nodes = _counts(batch)
        recorder.delivered(seeds=seeds, edges=edges, input_nodes=input_nodes)
        return batch


def _counts(batch: _Batch) -> tuple[int, int, int]:
    """Numbers of seeds (vertices, or links), of edges and of input nodes."""
    links = (
        None if batch.links is None else sum(links.positive.shape[1] for links in links_of(batch))
    )
    if isinstance(batch, MiniBatch):
        edges = 0
        for block in batch.blocks:
            edges += block.indices.shape[0]
        return (
            batch.output_nodes.shape[0] if links is None else links,
            edges,
            batch.input_nodes.shape[0],
        )
    seeds, inputs = (
        sum(map(len, nodes.values())) for nodes in (batch.output_nodes, batch.input_nodes)
    )
    return seeds if links is None else links, sum(block.num_edges for block in batch.blocks), inputs
