"""DeviceSource: makes the core loader's batches on an accelerator, beside the reader's computation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from .accelerator import Accelerator, Event, OutOfMemory, StagingRing, with_room
from .batch_source import FieldNames, Reads, count_batch
from .minibatch import Block, MiniBatch

if TYPE_CHECKING:
    from .buffers import BufferPools
    from .features.fields import FieldRows, FieldSet
    from .graph import Graph
    from .pipeline.stats import EpochRecorder
    from .sampling import NeighborSampler
    from .sampling.device_sampler import DeviceSampler
    from .sampling.seeds import Ticket

__all__ = ["DeviceSource", "Placed"]


@dataclass(frozen=True, eq=False)
class Placed:
    """A batch whose blocks are on their way to the device, and its rows.

    Attributes:
        batch: Without fields, on the device.
        ready: When the batch is there.
        ids: The input nodes where the fields are read by them: on the CPU if the CPU has sampled.
        reads: The rows.
    """

    batch: MiniBatch
    ready: Event
    ids: Tensor
    reads: Reads


@dataclass(frozen=True, eq=False)
class DeviceSource:
    """Samples on the CPU or on the device, and reads onto the device, each in a stream of its own.

    Preparing gives work to the streams "sampling", "copying" (blocks that the CPU has sampled) and "reading" (rows) and
    waits for none of it but for the sizes of a batch that the device samples. Delivering makes the reader's stream
    wait for them. Apart from the loader, which its threads must not keep alive.

    Where the device's memory is too small for a batch, the cache gives up half of its rows and the batch is made again.

    Attributes:
        device_sampler: Samples on the device; None: the CPU samples.
        ring: What blocks are copied through.
    """

    graph: Graph
    sampler: NeighborSampler
    fields: FieldSet
    names: FieldNames
    pools: BufferPools
    accelerator: Accelerator
    ring: StagingRing
    device_sampler: DeviceSampler | None

    def prepare(self, ticket: Ticket, recorder: EpochRecorder) -> Placed:
        """Sample, then read the fields."""
        return with_room(lambda: self._prepare(ticket, recorder), self.accelerator, self.fields.shrink)

    def deliver(self, placed: Placed, recorder: EpochRecorder) -> MiniBatch:
        """The batch with its fields as they are now, for the reader's stream."""
        batch, reads = placed.batch, placed.reads
        with recorder.time("building"):
            tensors = [batch.output_nodes, *(t for block in batch.blocks for t in _tensors_of(block))]
            self.accelerator.hand_over(tensors, placed.ready)
            ends, seeds = batch.hop_ends, placed.ids[: len(batch.output_nodes)]
            features = {name: self._current(name, r, placed.ids, ends, placed) for name, r in reads.features.items()}
            labels = {name: self._current(name, r, seeds, ends[:1], placed) for name, r in reads.labels.items()}
            for rows in (*features.values(), *labels.values()):
                recorder.device_time("reading", rows.begun, rows.ready)
            batch.features = {name: rows.arrive() for name, rows in features.items()}
            batch.labels = {name: rows.arrive() for name, rows in labels.items()}
        count_batch(batch, recorder)
        return batch

    def _prepare(self, ticket: Ticket, recorder: EpochRecorder) -> Placed:
        with recorder.time("sampling"):
            if self.device_sampler is not None:
                sampled = self.device_sampler.sample(ticket.seeds, ticket.key)
                batch, ready, ids = sampled.batch, sampled.ready, sampled.batch.input_nodes
                recorder.device_time("sampling", sampled.begun, sampled.ready)
            else:
                on_host = self.sampler.sample(self.graph, ticket.seeds, ticket.key, pools=self.pools)
                batch, begun, ready = self._upload(on_host)
                ids = on_host.input_nodes
                recorder.device_time("copying", begun, ready)
        with recorder.time("fetching"):
            ends, seeds = batch.hop_ends, ids[: len(batch.output_nodes)]
            features = {name: self._read_ahead(name, ids, ends, ready) for name in self.names.features}
            labels = {name: self._read_ahead(name, seeds, ends[:1], ready) for name in self.names.labels}
        return Placed(batch, ready, ids, Reads(features, labels))

    def _upload(self, batch: MiniBatch) -> tuple[MiniBatch, Event, Event]:
        """The batch on the device, in one copy for all of its arrays, and when that begins and ends."""
        arrays = [batch.input_nodes]
        for block in batch.blocks:
            arrays += [block.indptr, block.indices, block.positions]
            if block.weights is not None:
                arrays.append(block.weights)
        stream = self.accelerator.stream("copying")
        with stream.use():
            begun = stream.record()
            there = iter(self.ring.upload(arrays))
            ready = stream.record()
        # The vertices of every block are the first of the outermost one's, and the seeds the first of all.
        nodes = next(there)
        blocks = []
        for block in batch.blocks:
            indptr, indices, positions = next(there), next(there), next(there)
            weights = None if block.weights is None else next(there)
            blocks.append(Block(indptr, indices, nodes[: block.num_src], positions, block.num_dst, weights))
        return MiniBatch(nodes[: len(batch.output_nodes)], blocks), begun, ready

    def _read_ahead(self, name: str, ids: Tensor, ends: list[int], ready: Event) -> FieldRows | None:
        """The rows; None where there is no such field, which may just be about to be set again."""
        try:
            return self.fields.read(name, ids, ends, after=ready)
        except OutOfMemory:  # a RuntimeError too
            raise
        except (KeyError, RuntimeError):
            return None

    def _current(self, name: str, rows: FieldRows | None, ids: Tensor, ends: list[int], placed: Placed) -> FieldRows:
        """The rows, read again if the field was replaced or written since."""
        if rows is None or not self.fields.is_current(name, rows):
            read = partial(self.fields.read, name, ids, ends, after=placed.ready)
            return with_room(read, self.accelerator, self.fields.shrink)
        return rows


def _tensors_of(block: Block) -> list[Tensor]:
    weights = [] if block.weights is None else [block.weights]
    return [block.indptr, block.indices, block.src_nodes, block.positions, *weights]
