"""BlockSource: makes the core loader's batches, on the CPU or concurrently on an accelerator."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from ..accelerator import Event, StagingRing
from ..features.field import Read
from ..features.padding import Padding
from ..graph.fields import Named
from ..graph.minibatch import Block, HeteroBlock, HeteroMiniBatch, Links, MiniBatch, Relation
from ..sampling.edge_batches import EdgeBatches
from ..sampling.fixed_shapes import Sizes, empty_of, pad_blocks
from ..sampling.gpu.state import blocks_of, typed_blocks_of
from .program import Arrays
from .steps import BatchSource, Sampled, Send

if TYPE_CHECKING:
    from ..cache.fields import FieldSet
    from ..graph.graph import Graph
    from ..sampling import BlockSampler
    from ..sampling.gpu.sampler import DeviceSampler, SampledBatch
    from ..sampling.gpu.state import Plan
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder
    from ..system.buffers import BufferPools
    from .envelope import Envelope

# Smaller than for rows: a batch has several index arrays, and these are smaller.
_BLOCK_SLOT_BYTES = 2 << 20
_Batch = MiniBatch | HeteroMiniBatch


class Column(NamedTuple):
    """A vertex field of batches: key in the field set, vertex type (if typed), name."""

    key: Hashable
    ntype: str | None
    name: str


class _Prepared(NamedTuple):
    """A sampled batch without fields.

    Attributes:
        batch: The batch.
        ready: Event after which its arrays on an accelerator are valid.
        begun: Event at the start of their copy, if the CPU sampled them.
        sampled: Its sizes without padding; None: not padded.
        copied: One of the copied arrays; all share its storage.
        words: Its sizes if a device sampled it; see ``Plan``; read by the program.
    """

    batch: _Batch
    ready: Event | None = None
    begun: Event | None = None
    sampled: Sizes | None = None
    copied: Tensor | None = None
    words: Sequence[int] = ()


class BlockSource(BatchSource[_Batch]):
    """Samples blocks and reads the fields of their vertices, untyped (``MiniBatch``) or by type.

    With an accelerator, preparing enqueues work on the stream "reading"; the host waits only for
    the sizes of a batch sampled on the device. Delivering makes the reader's stream wait. When the
    device runs out of memory, the cache drops half of its rows and the step is repeated.

    Args:
        graph: The graph; batches are untyped if it has one vertex type and one edge type.
        sampler: Samples its blocks.
        fields: Reads rows.
        features, labels: The fields to read for input nodes, and for seeds.
        pools: Recycled memory.
        device_sampler: Samples on the device; None: the CPU samples.
        envelope: The sizes that untyped batches are padded to; None: no padding.
    """

    begin = None

    def __init__(
        self,
        graph: Graph,
        sampler: BlockSampler | EdgeBatches,
        fields: FieldSet,
        features: Sequence[Column],
        labels: Sequence[Column],
        pools: BufferPools,
        device_sampler: DeviceSampler | None = None,
        envelope: Envelope | None = None,
    ) -> None:
        self._graph = graph
        self._sampler = sampler
        self._fields = fields
        self._pools = pools
        self._features = tuple(features)
        self._labels = tuple(labels)
        # See ``ProgramSource``.
        self.inputs = [column.key for column in features]
        self.outputs = [column.key for column in labels]
        self._device_sampler = device_sampler
        self._envelope = envelope
        # A sampler of links makes typed batches only.
        self._drops_types = graph.is_homogeneous
        accelerator = fields.accelerator
        self._ring = (
            None if accelerator is None else StagingRing(accelerator, slot_bytes=_BLOCK_SLOT_BYTES)
        )

    @property
    def looks_ahead(self) -> bool:
        """False if a device samples: windows need ids on the CPU, and its memory is the model's."""
        return self._device_sampler is None

    @property
    def send(self) -> Send | None:
        """Copies blocks sampled on the CPU to an accelerator."""
        return None if self._ring is None or self._device_sampler is not None else self._send

    def sample(self, ticket: Ticket, recorder: EpochRecorder) -> Sampled:
        """Sample the blocks, on the CPU or on the device."""
        begin = time.perf_counter_ns()
        batch: Any
        ready = None
        words: Sequence[int] = ()
        try:
            if self._device_sampler is not None:
                batch, ready, words = self._sampled_there(self._device_sampler, ticket, recorder)
            else:
                batch = self._sampler.sample(
                    self._graph, ticket.seeds, ticket.key, pools=self._pools
                )
            if self._drops_types and isinstance(batch, HeteroMiniBatch):
                batch = batch.only()
            reads = self._reads(batch)
            prepared = _Prepared(batch, ready, words=words)
            if self._envelope is not None:
                prepared, reads = self._padded(self._envelope, prepared, reads)
        finally:
            recorder.spent("sampling", begin)
        return Sampled(prepared, reads, prepared.ready)

    def _sampled_there(
        self, sampler: DeviceSampler, ticket: Ticket, recorder: EpochRecorder
    ) -> tuple[_Batch, Event, Sequence[int]]:
        """Blocks sampled on the device, the event when they are ready, and their sizes."""
        made: list[SampledBatch] = []

        def draw(seeds: Any, key: int) -> Any:
            made.append(self._fields.with_room(partial(sampler.sample, seeds, key)))
            return made[0].batch

        batch: Any
        if isinstance(self._sampler, EdgeBatches):
            batch = self._sampler.sample(self._graph, ticket.seeds, ticket.key, draw=draw)
        else:
            batch = draw(ticket.seeds, ticket.key)
        found = made[0]
        ready = found.ready
        links = list(links_of(batch))
        if links:
            # Pairs are made on the CPU; copied together, after the blocks.
            assert self._ring is not None
            with sampler.stream.use():
                arrays = [array for of_type in links for array in arrays_of_links(of_type)]
                left = iter(self._ring.upload(arrays))
                batch.links = {t: _links(of_type, left) for t, of_type in batch.links.items()}
                ready = sampler.stream.record()
        recorder.device_time("sampling", found.begun, ready)
        return batch, ready, found.words

    def _padded(
        self, envelope: Envelope, prepared: _Prepared, reads: list[Read]
    ) -> tuple[_Prepared, list[Read]]:
        """The batch and its reads, padded to one of the loader's sizes, on the device of its
        arrays."""
        batch = prepared.batch
        assert isinstance(batch, MiniBatch)
        sampled = sizes_of(batch)
        number = envelope.number_of(sampled)
        sizes = envelope.sizes[number]
        ready = prepared.ready
        pad = partial(pad_blocks, batch, sampled, sizes, empty_of(self._pools))
        if self._device_sampler is None:
            padded = pad()
        else:
            # On the sampling stream, which owns the memory.
            stream = self._device_sampler.stream
            with stream.use():
                padded = self._fields.with_room(pad)
                ready = stream.record()
        padded.shape_number = number
        padding = [Padding(sampled.nodes, sizes.nodes)] * len(self._features)
        padding += [Padding(sampled.nodes[:1], sizes.nodes[:1], marks=True)] * len(self._labels)
        reads = [read._replace(padding=room) for read, room in zip(reads, padding, strict=True)]
        return _Prepared(padded, ready, sampled=sampled, words=prepared.words), reads

    def _reads(self, batch: _Batch) -> list[Read]:
        """The reads of features for the input nodes, and of labels for the seeds."""
        nodes: Any = batch.input_nodes
        hop_ends: Any = batch.hop_ends
        reads: list[Read] = []
        for column in (*self._features, *self._labels):
            ids = nodes if column.ntype is None else nodes[column.ntype]
            ends = hop_ends if column.ntype is None else hop_ends[column.ntype]
            if len(reads) >= len(self._features):
                ids = ids[: ends[0]]
                ends = ends[:1]
            reads.append(Read(column.key, ids, ends))
        return reads

    def _send(self, sampled: Sampled) -> Sampled:
        """Copy the batch to the device, all arrays at once."""
        assert self._ring is not None
        prepared: _Prepared = sampled.batch
        # On the stream of the rows, whose kernels read the ids: ordered without an event.
        stream = self._ring.accelerator.stream("reading")
        with stream.use():
            begun = stream.record()
            copies = self._ring.upload(arrays_of(prepared.batch))
            batch = with_arrays(prepared.batch, copies)
            ready = stream.record()
        reads = sampled.reads
        # Padded arrays are not ids; ids are sent with the rows.
        if prepared.sampled is None:
            reads = []
            nodes: Any = batch.input_nodes
            columns = chain(self._features, self._labels)
            for (_, ntype, _), read in zip(columns, sampled.reads, strict=True):
                there = nodes if ntype is None else nodes[ntype]
                reads.append(read._replace(there=there[: read.ids.shape[0]]))
        return Sampled(_Prepared(batch, ready, begun, prepared.sampled, copies[0]), reads)

    def arrays(self, sampled: Sampled) -> Arrays | None:
        """See ``ProgramSource``: untyped blocks without weights, links or padding."""
        prepared: _Prepared = sampled.batch
        batch = prepared.batch
        if not isinstance(batch, MiniBatch) or batch.links is not None or prepared.sampled:
            return None
        blocks = batch.blocks[::-1]
        arrays = [batch.input_nodes]
        for block in blocks:
            if block.weights is not None:
                return None
            arrays += [block.indptr, block.indices, block.positions]
        return Arrays(arrays, batch.hop_ends, [block.indices.shape[0] for block in blocks])

    def made(
        self,
        origin: Any,
        plan: Plan,
        arrays: Sequence[Tensor],
        words: Sequence[int],
        keys: Sequence[Hashable],
        rows: Sequence[Tensor],
        recorder: EpochRecorder,
    ) -> _Batch:
        """See ``ProgramSource``: a batch with its fields."""
        batch: _Batch
        if self._drops_types:
            batch = blocks_of(arrays, words, len(plan.hops))
            if self._envelope is not None:
                batch.seed_mask = batch.output_nodes >= 0
                batch.shape_number = 0
        else:
            seeds = {ntype: len(ids) for ntype, ids in origin.seeds.items()}
            batch = typed_blocks_of(plan, self._graph, seeds, arrays, words)
        self._put(batch, rows)
        return batch

    def _put(self, batch: _Batch, rows: Sequence[Tensor]) -> None:
        """Put the rows of its fields into a batch."""
        left = iter(rows)
        for columns, places in ((self._features, batch.features), (self._labels, batch.labels)):
            by_name: Any = places
            for _, ntype, name in columns:
                place = by_name if ntype is None else by_name.setdefault(ntype, Named())
                place[name] = next(left)

    def deliver(
        self, prepared: _Prepared, rows: Sequence[Tensor], recorder: EpochRecorder
    ) -> _Batch:
        """The batch with its fields, for the reader's stream."""
        begin = time.perf_counter_ns()
        batch = prepared.batch
        accelerator = self._fields.accelerator
        if accelerator is not None and prepared.ready is not None:
            if prepared.begun is not None:
                recorder.device_time("copying", prepared.begun, prepared.ready)
            copied = prepared.copied
            arrays = arrays_of(batch) if copied is None else [copied]
            accelerator.hand_over(arrays, prepared.ready)
        self._put(batch, rows)
        sampled = prepared.sampled
        if sampled is not None and isinstance(batch, MiniBatch):
            batch.seed_mask = batch.output_nodes >= 0
            assert self._envelope is not None and batch.shape_number is not None
            self._envelope.delivered(sampled, batch.shape_number, recorder)
        recorder.spent("building", begin)
        if sampled is None:
            seeds, edges, input_nodes = _counts(batch)
        else:
            seeds = sampled.nodes[0]
            edges = sum(sampled.edges)
            input_nodes = sum(sampled.nodes)
        recorder.delivered(seeds=seeds, edges=edges, input_nodes=input_nodes)
        return batch


def sizes_of(batch: MiniBatch) -> Sizes:
    """The sizes of a sampled batch."""
    return Sizes.of(batch.hop_ends, [block.num_edges for block in reversed(batch.blocks)])


def _counts(batch: _Batch) -> tuple[int, int, int]:
    """Numbers of seeds (vertices, or links), of edges and of input nodes."""
    if isinstance(batch, MiniBatch):
        seeds = batch.output_nodes.shape[0]
        edges = 0
        for block in batch.blocks:
            edges += block.indices.shape[0]
        # Like `input_nodes`, without the call.
        inputs = batch.blocks[0].src_nodes.shape[0] if batch.blocks else seeds
    else:
        seeds = sum(len(nodes) for nodes in batch.output_nodes.values())
        edges = sum(block.num_edges for block in batch.blocks)
        inputs = sum(len(nodes) for nodes in batch.input_nodes.values())
    if batch.links is not None:
        seeds = sum(links.positive.shape[1] for links in links_of(batch))
    return seeds, edges, inputs


def arrays_of(batch: MiniBatch | HeteroMiniBatch) -> list[Tensor]:
    """The arrays of a sampled batch without fields, except prefixes of others (the vertices of
    inner blocks, and seeds)."""
    relations: list[Block | Relation] = []
    if isinstance(batch, MiniBatch):
        arrays = [batch.input_nodes]
        relations += batch.blocks
    else:
        arrays = list(batch.input_nodes.values())
        for hetero in batch.blocks:
            relations += hetero.relations.values()
    for edges in relations:
        arrays += [edges.indptr, edges.indices, edges.positions]
        if edges.weights is not None:
            arrays.append(edges.weights)
    for links in links_of(batch):
        arrays += arrays_of_links(links)
    return arrays


def arrays_of_links(links: Links) -> list[Tensor]:
    """The arrays of the pairs of one edge type."""
    arrays = [links.positive, links.negative]
    return arrays if links.edge_ids is None else [*arrays, links.edge_ids]


def with_arrays(
    batch: MiniBatch | HeteroMiniBatch, arrays: Iterable[Tensor]
) -> MiniBatch | HeteroMiniBatch:
    """The batch with other arrays in place of :func:`arrays_of`.

    The vertices of each block, and the seeds, become prefixes of the outermost block's vertices.
    """
    left = iter(arrays)
    if isinstance(batch, MiniBatch):
        nodes = next(left)
        blocks = []
        for block in batch.blocks:
            made = _edges(block, left)
            src_nodes = nodes[: block.num_src]
            blocks.append(
                Block(
                    made.indptr,
                    made.indices,
                    src_nodes,
                    made.positions,
                    block.num_dst,
                    made.weights,
                )
            )
        links = None if batch.links is None else _links(batch.links, left)
        output_nodes = nodes[: len(batch.output_nodes)]
        return MiniBatch(output_nodes, blocks, links=links, shape_number=batch.shape_number)
    by_type = {ntype: next(left) for ntype in batch.input_nodes}
    hetero_blocks = []
    for hetero in batch.blocks:
        relations = {etype: _edges(relation, left) for etype, relation in hetero.relations.items()}
        sources = {ntype: by_type[ntype][: len(ids)] for ntype, ids in hetero.src_nodes.items()}
        hetero_blocks.append(HeteroBlock(relations, sources, hetero.num_dst))
    seeds = {ntype: by_type[ntype][: len(ids)] for ntype, ids in batch.output_nodes.items()}
    pairs = None
    if batch.links is not None:
        pairs = {etype: _links(links, left) for etype, links in batch.links.items()}
    return HeteroMiniBatch(seeds, hetero_blocks, by_type, links=pairs)


def links_of(batch: MiniBatch | HeteroMiniBatch) -> Iterable[Links]:
    """The links of all edge types; empty for batches of vertices."""
    if batch.links is None:
        return ()
    return (batch.links,) if isinstance(batch.links, Links) else batch.links.values()


def _edges(edges: Block | Relation, left: Iterator[Tensor]) -> Relation:
    indptr = next(left)
    indices = next(left)
    positions = next(left)
    weights = None if edges.weights is None else next(left)
    return Relation(indptr, indices, positions, weights)


def _links(links: Links, left: Iterator[Tensor]) -> Links:
    positive = next(left)
    negative = next(left)
    edge_ids = None if links.edge_ids is None else next(left)
    return Links(positive, negative, edge_ids)
