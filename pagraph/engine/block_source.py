"""BlockSource: makes the core loader's batches, on the CPU or on an accelerator beside the reader's computation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from ..accelerator import Event, StagingRing
from ..graph.minibatch import Block, MiniBatch
from .read_ahead import ReadAhead

if TYPE_CHECKING:
    from ..cache.fields import FieldSet
    from ..graph.graph import Graph
    from ..sampling import BlockSampler
    from ..sampling.gpu.sampler import DeviceSampler
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder
    from ..system.buffers import BufferPools

__all__ = ["BlockSource"]

_BLOCK_SLOT_BYTES = 2 << 20


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A sampled batch without fields, rows of its input nodes and seeds, and when it is on the accelerator, if any."""

    batch: MiniBatch
    features: dict[str, ReadAhead]
    labels: dict[str, ReadAhead]
    ready: Event | None


class BlockSource:
    """Samples blocks and reads the fields of their vertices.

    With an accelerator, preparing gives work to the streams "sampling", "copying" (blocks that the CPU has sampled) and
    "reading" (rows) and waits only for the sizes of a batch that the device samples; delivering makes the reader's
    stream wait. Where the device's memory is too small for a batch, the cache gives up half of its rows and the batch
    is made again.

    Args:
        graph, sampler: The graph and what draws its blocks.
        fields, features, labels: Reads rows; the fields of the input nodes and of the seeds.
        pools: Recycled memory.
        device_sampler: Samples on the device; None: the CPU samples.
    """

    draw = None
    is_pure = True

    def __init__(
        self,
        graph: Graph,
        sampler: BlockSampler,
        fields: FieldSet,
        features: Sequence[str],
        labels: Sequence[str],
        pools: BufferPools,
        device_sampler: DeviceSampler | None = None,
    ) -> None:
        self._graph, self._sampler, self._fields, self._pools = graph, sampler, fields, pools
        self._features, self._labels = tuple(features), tuple(labels)
        self._device_sampler = device_sampler
        accelerator = fields.accelerator
        self._ring = None if accelerator is None else StagingRing(accelerator, slot_bytes=_BLOCK_SLOT_BYTES)

    def sample(self, ticket: Ticket, recorder: EpochRecorder) -> MiniBatch | Ticket:
        """The blocks, on the CPU; a device that samples itself does so in :meth:`fetch`."""
        if self._device_sampler is not None:
            return ticket
        begin = time.perf_counter_ns()
        try:
            batch: MiniBatch = self._sampler.sample(self._graph, ticket.seeds, ticket.key, pools=self._pools)
            return batch
        finally:
            recorder.spent("sampling", begin)

    def reads(self, sampled: MiniBatch | Ticket) -> Iterator[tuple[str, Tensor]]:
        """Features are read for the input nodes, labels for the seeds."""
        if isinstance(sampled, MiniBatch):
            yield from ((name, sampled.input_nodes) for name in self._features)
            yield from ((name, sampled.output_nodes) for name in self._labels)

    def fetch(self, sampled: MiniBatch | Ticket, recorder: EpochRecorder) -> _Prepared:
        """Read the fields; on an accelerator the blocks go there first."""
        if self._ring is None:
            assert isinstance(sampled, MiniBatch)
            return self._read(sampled, sampled.input_nodes, None, recorder)
        return self._fields.with_room(partial(self._fetch_there, sampled, recorder, self._ring))

    def _fetch_there(self, sampled: MiniBatch | Ticket, recorder: EpochRecorder, ring: StagingRing) -> _Prepared:
        begin = time.perf_counter_ns()
        if isinstance(sampled, MiniBatch):
            batch, begun, ready = _uploaded(sampled, ring)
            ids = sampled.input_nodes
            recorder.device_time("copying", begun, ready)
        else:
            assert self._device_sampler is not None
            there = self._device_sampler.sample(sampled.seeds, sampled.key)
            batch, ready, ids = there.batch, there.ready, there.batch.input_nodes
            recorder.device_time("sampling", there.begun, there.ready)
        recorder.spent("sampling", begin)
        return self._read(batch, ids, ready, recorder)

    def _read(self, batch: MiniBatch, ids: Tensor, ready: Event | None, recorder: EpochRecorder) -> _Prepared:
        """Read the fields by the input nodes ``ids``, which are on the CPU if the CPU has sampled."""
        begin, ends, fields = time.perf_counter_ns(), batch.hop_ends, self._fields
        features, labels = {}, {}
        for name in self._features:
            features[name] = ReadAhead(fields, name, ids, ends, ready)
        if self._labels:
            seeds = ids[: ends[0]]
            for name in self._labels:
                labels[name] = ReadAhead(fields, name, seeds, ends[:1], ready)
        recorder.spent("fetching", begin)
        return _Prepared(batch, features, labels, ready)

    def deliver(self, prepared: _Prepared, recorder: EpochRecorder) -> MiniBatch:
        """The batch with its fields as they are now, for the reader's stream."""
        begin, batch, accelerator = time.perf_counter_ns(), prepared.batch, self._fields.accelerator
        if accelerator is not None and prepared.ready is not None:
            tensors = [batch.output_nodes, *(t for block in batch.blocks for t in _tensors_of(block))]
            accelerator.hand_over(tensors, prepared.ready)
        for name, rows in prepared.features.items():
            batch.features[name] = rows.current(recorder)
        for name, rows in prepared.labels.items():
            batch.labels[name] = rows.current(recorder)
        recorder.spent("building", begin)
        edges = 0
        for block in batch.blocks:
            edges += block.indices.shape[0]
        recorder.delivered(seeds=batch.output_nodes.shape[0], edges=edges, input_nodes=batch.input_nodes.shape[0])
        return batch


def _uploaded(batch: MiniBatch, ring: StagingRing) -> tuple[MiniBatch, Event, Event]:
    """The batch on the device, in one copy for all of its arrays, and when that begins and ends."""
    arrays = [batch.input_nodes]
    for block in batch.blocks:
        arrays += [block.indptr, block.indices, block.positions]
        if block.weights is not None:
            arrays.append(block.weights)
    stream = ring.accelerator.stream("copying")
    with stream.use():
        begun = stream.record()
        there = iter(ring.upload(arrays))
        ready = stream.record()
    # The vertices of every block are the first of the outermost one's, and the seeds the first of all.
    nodes = next(there)
    blocks = []
    for block in batch.blocks:
        indptr, indices, positions = next(there), next(there), next(there)
        weights = None if block.weights is None else next(there)
        blocks.append(Block(indptr, indices, nodes[: block.num_src], positions, block.num_dst, weights))
    return MiniBatch(nodes[: len(batch.output_nodes)], blocks), begun, ready


def _tensors_of(block: Block) -> list[Tensor]:
    weights = [] if block.weights is None else [block.weights]
    return [block.indptr, block.indices, block.src_nodes, block.positions, *weights]
