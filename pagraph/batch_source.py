"""HostSource: makes the core loader's batches on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from .buffers import BufferPools
    from .features.fields import FieldRows, FieldSet
    from .graph import Graph
    from .minibatch import MiniBatch
    from .pipeline.stats import EpochRecorder
    from .sampling import NeighborSampler
    from .sampling.seeds import Ticket

__all__ = ["FieldNames", "HostSource", "Reads", "count_batch"]


@dataclass(frozen=True)
class FieldNames:
    """Which fields a batch has.

    Attributes:
        features: Read for the input nodes.
        labels: Read for the output nodes.
    """

    features: tuple[str, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Reads:
    """The rows of a batch's fields, read ahead; None where there was no such field, or it could not be read."""

    features: dict[str, FieldRows | None]
    labels: dict[str, FieldRows | None]


@dataclass(frozen=True, eq=False)
class HostSource:
    """Samples and reads on the CPU. Apart from the loader, which its threads must not keep alive."""

    graph: Graph
    sampler: NeighborSampler
    fields: FieldSet
    names: FieldNames
    pools: BufferPools

    def prepare(self, ticket: Ticket, recorder: EpochRecorder) -> tuple[MiniBatch, Reads]:
        """Sample, then read the fields."""
        with recorder.time("sampling"):
            batch = self.sampler.sample(self.graph, ticket.seeds, ticket.key, pools=self.pools)
        with recorder.time("fetching"):
            ends = batch.hop_ends
            features = {name: self._read_ahead(name, batch.input_nodes, ends) for name in self.names.features}
            labels = {name: self._read_ahead(name, batch.output_nodes, ends[:1]) for name in self.names.labels}
        return batch, Reads(features, labels)

    def deliver(self, prepared: tuple[MiniBatch, Reads], recorder: EpochRecorder) -> MiniBatch:
        """The batch with its fields as they are now."""
        batch, reads = prepared
        with recorder.time("building"):
            ends = batch.hop_ends
            batch.features = {n: self._current(n, r, batch.input_nodes, ends) for n, r in reads.features.items()}
            batch.labels = {n: self._current(n, r, batch.output_nodes, ends[:1]) for n, r in reads.labels.items()}
        count_batch(batch, recorder)
        return batch

    def _read_ahead(self, name: str, ids: Tensor, ends: list[int]) -> FieldRows | None:
        """The rows; None where there is no such field, which may just be about to be set again."""
        try:
            return self.fields.read(name, ids, ends)
        except (KeyError, RuntimeError):
            return None

    def _current(self, name: str, rows: FieldRows | None, ids: Tensor, ends: list[int]) -> Tensor:
        """The rows, read again if the field was replaced or written since."""
        if rows is None or not self.fields.is_current(name, rows):
            return self.fields.read(name, ids, ends).tensor
        return rows.tensor


def count_batch(batch: MiniBatch, recorder: EpochRecorder) -> None:
    """Count a batch that is delivered."""
    recorder.delivered(
        seeds=len(batch.output_nodes),
        edges=sum(block.num_edges for block in batch.blocks),
        input_nodes=len(batch.input_nodes),
    )
