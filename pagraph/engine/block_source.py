"""BlockSource: makes the core loader's batches, on the CPU or on an accelerator beside the reader's computation."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from ..accelerator import Event, StagingRing
from ..graph.minibatch import HeteroMiniBatch, MiniBatch
from .batch_arrays import arrays_of, links_of, tensors_of, with_arrays
from .read_ahead import ReadAhead

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
    """A field of vertices that batches have: its key in the field set, its vertex type in batches by type, its name."""

    key: Hashable
    ntype: str | None
    name: str


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A sampled batch without fields, rows of its input nodes and seeds, and when it is on the accelerator, if any."""

    batch: _Batch
    features: list[tuple[str | None, str, ReadAhead]]
    labels: list[tuple[str | None, str, ReadAhead]]
    ready: Event | None


class BlockSource:
    """Samples blocks and reads the fields of their vertices, of one type (``MiniBatch``) or by type.

    With an accelerator, preparing gives work to the streams "sampling", "copying" (blocks that the CPU has sampled) and
    "reading" (rows) and waits only for the sizes of a batch that the device samples; delivering makes the reader's
    stream wait. Where the device's memory is too small for a batch, the cache gives up half of its rows and the batch
    is made again.

    Args:
        graph, sampler: The graph and what draws its blocks; batches have types unless it has one of each.
        fields, features, labels: Reads rows; the fields of the input nodes and of the seeds.
        pools: Recycled memory.
        device_sampler: Samples on the device; None: the CPU samples.
    """

    draw = None
    is_pure = True

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
        self._drops_types = graph.is_homogeneous  # a sampler of links has types in all of its batches
        accelerator = fields.accelerator
        self._ring = None if accelerator is None else StagingRing(accelerator, slot_bytes=_BLOCK_SLOT_BYTES)

    def sample(self, ticket: Ticket, recorder: EpochRecorder) -> _Batch | Ticket:
        """The blocks, on the CPU; a device that samples itself does so in :meth:`fetch`."""
        if self._device_sampler is not None:
            return ticket
        begin = time.perf_counter_ns()
        try:
            batch: Any = self._sampler.sample(self._graph, ticket.seeds, ticket.key, pools=self._pools)
            made: _Batch = batch.only() if self._drops_types and isinstance(batch, HeteroMiniBatch) else batch
            return made
        finally:
            recorder.spent("sampling", begin)

    def reads(self, sampled: _Batch | Ticket) -> Iterator[tuple[Hashable, Tensor]]:
        """Features are read for the input nodes, labels for the seeds."""
        if isinstance(sampled, MiniBatch | HeteroMiniBatch):
            nodes, ends = sampled.input_nodes, sampled.hop_ends
            yield from ((column.key, _of_type(nodes, column)) for column in self._features)
            yield from ((column.key, _of_type(nodes, column)[: _of_type(ends, column)[0]]) for column in self._labels)

    def fetch(self, sampled: _Batch | Ticket, recorder: EpochRecorder) -> _Prepared:
        """Read the fields; on an accelerator the blocks go there first."""
        if self._ring is None:
            assert isinstance(sampled, MiniBatch | HeteroMiniBatch)
            return self._read(sampled, sampled.input_nodes, None, recorder)
        return self._fields.with_room(partial(self._fetch_there, sampled, recorder, self._ring))

    def _fetch_there(self, sampled: _Batch | Ticket, recorder: EpochRecorder, ring: StagingRing) -> _Prepared:
        begin = time.perf_counter_ns()
        batch: _Batch
        ids: Tensor | Mapping[str, Tensor]
        if isinstance(sampled, MiniBatch | HeteroMiniBatch):
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

    def _read(
        self, batch: _Batch, ids: Tensor | Mapping[str, Tensor], ready: Event | None, recorder: EpochRecorder
    ) -> _Prepared:
        """Read the fields by the input nodes ``ids``, which are on the CPU if the CPU has sampled."""
        begin, fields = time.perf_counter_ns(), self._fields
        nodes: Any = ids
        hop_ends: Any = batch.hop_ends
        features, labels = [], []
        for key, ntype, name in self._features:
            of_type, ends = (nodes, hop_ends) if ntype is None else (nodes[ntype], hop_ends[ntype])
            features.append((ntype, name, ReadAhead(fields, key, of_type, ends, ready)))
        for key, ntype, name in self._labels:
            of_type, ends = (nodes, hop_ends) if ntype is None else (nodes[ntype], hop_ends[ntype])
            labels.append((ntype, name, ReadAhead(fields, key, of_type[: ends[0]], ends[:1], ready)))
        recorder.spent("fetching", begin)
        return _Prepared(batch, features, labels, ready)

    def deliver(self, prepared: _Prepared, recorder: EpochRecorder) -> _Batch:
        """The batch with its fields as they are now, for the reader's stream."""
        begin, batch, accelerator = time.perf_counter_ns(), prepared.batch, self._fields.accelerator
        if accelerator is not None and prepared.ready is not None:
            accelerator.hand_over(tensors_of(batch), prepared.ready)
        for rows, places in ((prepared.features, batch.features), (prepared.labels, batch.labels)):
            by_name: Any = places
            for ntype, name, ahead in rows:
                place = by_name if ntype is None else by_name.setdefault(ntype, {})
                place[name] = ahead.current(recorder)
        recorder.spent("building", begin)
        seeds, edges, input_nodes = _counts(batch)
        recorder.delivered(seeds=seeds, edges=edges, input_nodes=input_nodes)
        return batch


def _of_type(by_type: Any, column: Column) -> Any:
    """The entry of a column's vertex type; all of it in batches without types."""
    return by_type if column.ntype is None else by_type[column.ntype]


def _counts(batch: _Batch) -> tuple[int, int, int]:
    """Numbers of seeds (vertices, or links), of edges and of input nodes."""
    links = None if batch.links is None else sum(links.positive.shape[1] for links in links_of(batch))
    if isinstance(batch, MiniBatch):
        edges = 0
        for block in batch.blocks:
            edges += block.indices.shape[0]
        return batch.output_nodes.shape[0] if links is None else links, edges, batch.input_nodes.shape[0]
    seeds, inputs = (sum(map(len, nodes.values())) for nodes in (batch.output_nodes, batch.input_nodes))
    return seeds if links is None else links, sum(block.num_edges for block in batch.blocks), inputs


def _uploaded(batch: _Batch, ring: StagingRing) -> tuple[_Batch, Event, Event]:
    """The batch on the device, in one copy for all of its arrays, and when that begins and ends."""
    stream = ring.accelerator.stream("copying")
    with stream.use():
        begun = stream.record()
        there = with_arrays(batch, ring.upload(arrays_of(batch)))
        ready = stream.record()
    return there, begun, ready
