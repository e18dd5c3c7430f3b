"""DeviceSampler: neighbour sampling on an accelerator, bit for bit what the CPU samples."""

from __future__ import annotations

import queue
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...accelerator import StagingRing
from ...errors import FormatError, MissingDependencyError, PipelineError
from ..block_sampler import NeighborSampler
from ..sampler import edge_ends, seeds_by_type
from ..subgraph_sampler import SubgraphSampler
from .run import MOST_PICKS, DeviceRun, most_known
from .state import Plan, Sizes, state_words
from .topology import Topology

if TYPE_CHECKING:
    from ...accelerator import Accelerator, Event
    from ...graph.graph import Graph
    from ...system.budget import Budget

_SLOT_BYTES = 1 << 16  # 8000 seeds
_RECORDED = 2  # runs: the device draws a batch while another one's sizes are on their way


@dataclass(frozen=True, eq=False)
class SampledBatch:
    """A mini-batch on its way on the sampler's stream.

    Attributes:
        batch: Blocks, or a subgraph: all tensors on the device, ids in the seeds' dtype; its sizes
            are known.
        begun: Before the batch's first work.
        ready: After its last; whoever reads the tensors elsewhere waits for it.
    """

    batch: Any
    begun: Event
    ready: Event


class DeviceSampler:
    """Samples a graph of one type or several on an accelerator, uniformly; the batches are those of
    ``sampler``, bit for bit.

    Safe from any number of threads: their batches follow each other on :attr:`stream`. The host
    waits once for a batch, for all its sizes at the end, and once more in a hop that takes all
    neighbours or for which the most edges there can be would need large buffers; along several edge
    types each counts as a hop. Batches without such hops and of the usual number of seeds are
    recorded.

    Args:
        graph: The graph.
        sampler: Of blocks, or of subgraphs that are no trees, with fan-outs up to 128, or -1.
        accelerator: The device.
        budget: Bytes of the device that the graph's arrays may take; see ``Topology.place``. Beside
            it a batch needs 20 to 32 bytes for each edge that a hop may draw.
        usual: Number, by vertex type where there are several, and dtype of most batches' seeds,
            whose kernels are recorded now, in buffers that are kept for two batches; None: of no
            batch. See ``Accelerator.recorded``.

    Attributes:
        placement: Where the graph's arrays are, in words.
        nbytes: Bytes of the device that they and the table of vertices take.
        stream: In which it draws: that of the rows.

    Raises:
        ValueError: The sampler or the graph is of a kind that only the CPU samples; what
            ``Topology.place`` refuses.
        MissingDependencyError: Triton is missing.
        OutOfMemory: The device has no room for 4 bytes per vertex.
    """

    def __init__(
        self,
        graph: Graph,
        sampler: NeighborSampler | SubgraphSampler,
        accelerator: Accelerator,
        budget: Budget | None = None,
        usual: tuple[int | Mapping[str, int], torch.dtype] | None = None,
    ) -> None:
        self._picks = _picks(graph, sampler)
        self._plans = dict[tuple[bool, ...], Plan]()
        if not accelerator.runs_kernels:
            raise MissingDependencyError(
                f"sampling on {accelerator.device} needs Triton for that device (pip install "
                "triton); "
                "sampling_device='cpu' needs none"
            )
        self._graph = graph
        self._sampler = sampler
        self._accelerator = accelerator
        # That of the rows: what uses the table of vertices, or rows while a cache shrinks, is in
        # order without an event.
        self.stream = accelerator.stream("reading")
        self._ring = StagingRing(accelerator, slots=8, slot_bytes=_SLOT_BYTES)
        with self.stream.use():
            topology = Topology.shared(graph, sampler.edge_dir, accelerator, budget)
            self._lock = topology.lock
            self._usual: tuple[tuple[int, ...], torch.dtype] | None = None
            if usual is not None:
                count, dtype = usual
                by_type = count if isinstance(count, Mapping) else {graph.only_node_type: count}
                counts = tuple(by_type.get(name, 0) for name in graph.node_types)
                self._usual = counts, dtype
            with self._lock:
                if sampler.expands_once:
                    topology.place_edge_ids()
                self._recorded = self._record(topology)
        self._has_lent = False
        self._topology: Topology | None = topology
        self.placement: str = topology.placement
        self.nbytes: int = topology.nbytes

    def sample(
        self,
        seeds: Tensor | Mapping[str, Tensor],
        key: int = 0,
        dtype: torch.dtype | None = None,
    ) -> SampledBatch:
        """Sample one mini-batch; returns when its sizes are known.

        Args:
            seeds: Shape ``(batch,)``, int32 or int64, on the CPU; for a graph of several types a
                mapping from vertex type to such tensors. Repeated seeds keep their own rows.
            key: Any 64-bit number; equal keys give equal batches.
            dtype: Of ids in the batch, int32 or int64. Default: the seeds'.

        Raises:
            KeyError: A vertex type that the graph does not have.
            IndexError: A seed is outside ``[0, num_nodes)`` of its type.
            FormatError: The graph's arrays lead out of the graph (a damaged file).
            OutOfMemory: The device has no room for the batch.
            PipelineError: The sampler is closed.
            ValueError: A hop has 2**31 vertices and edges, or more.
        """
        by_type = seeds_by_type(self._graph, seeds)
        wanted = dtype or next((ids.dtype for ids in by_type.values()), torch.int64)
        none = torch.empty(0, dtype=wanted, device="cpu")
        each = [by_type.get(name, none).to(wanted) for name in self._graph.node_types]
        runs = self._recorded
        if runs is None or (tuple(map(len, each)), wanted) != self._usual:
            return self._sampled(seeds, each, key, None)
        recorded = runs.get()
        try:
            return self._sampled(seeds, each, key, recorded)
        finally:
            runs.put(recorded)

    def close(self) -> None:
        """Give the device's memory back and unpin the host's; safe to call twice."""
        with self._lock:
            if self._topology is not None:
                self._topology.close()
                self._topology = None
                self._recorded = None

    @property
    def hops(self) -> int:
        """Number of hops."""
        return len(self._picks)

    @contextmanager
    def enqueuing(self) -> Iterator[Topology | None]:
        """Give work to the stream that draws, in the ``with`` body; None: the sampler is closed."""
        with self._lock, self.stream.use():
            yield self._topology

    @property
    def is_recorded(self) -> bool:
        """Whether batches of the usual size are recorded."""
        return self._recorded is not None

    def lend(self) -> tuple[DeviceRun, Plan] | None:
        """The buffers of one of the recorded runs, for work that is recorded otherwise, and what it
        draws; None where there is none. Waits for a batch that is made in them."""
        runs = self._recorded
        if runs is None or self._has_lent:
            return None
        self._has_lent = True
        lent = runs.get()
        return lent.run, lent.plan

    def _plan(self, counts: Sequence[int]) -> Plan:
        """The steps of batches with seeds of these types."""
        seeded = tuple(count > 0 for count in counts)
        if self._graph.is_homogeneous:
            seeded = (True,)
        if seeded not in self._plans:
            ends = edge_ends(self._graph).tolist()
            self._plans[seeded] = Plan(
                self._picks, self._sampler.replace, self._sampler.expands_once, ends, seeded
            )
        return self._plans[seeded]

    def _record(self, topology: Topology) -> queue.SimpleQueue[RecordedRun] | None:
        """Runs for the usual batches; None where there can be none, or no room for them."""
        if self._usual is None:
            return None
        counts, dtype = self._usual
        plan = self._plan(counts)
        if not RecordedRun.fits(plan, counts, topology):
            return None
        runs = queue.SimpleQueue[RecordedRun]()
        try:
            # Where an evaluation makes the loader, others write to the buffers too.
            with torch.inference_mode(False):
                for _ in range(_RECORDED):
                    runs.put(RecordedRun(self._accelerator, topology, plan, counts, dtype))
        except RuntimeError as error:
            # Memory is short, or another capture is in the way: batches are the same without.
            topology.first.zero_()
            warnings.warn(
                f"batches on {self._accelerator.device} are sampled kernel by kernel, which takes "
                f"more of the interpreter's time: they could not be recorded ({error})",
                RuntimeWarning,
                stacklevel=4,
            )
            return None
        return runs

    def _sampled(
        self,
        seeds: Tensor | Mapping[str, Tensor],
        each: list[Tensor],
        key: int,
        recorded: RecordedRun | None,
    ) -> SampledBatch:
        with self._lock, self.stream.use():
            if self._topology is None:
                raise PipelineError("a device sampler must not be used after close()")
            begun = self.stream.record()
            if recorded is None:
                run, sizes = self._enqueue(self._topology, each, key)
            else:
                run = recorded.run
                sizes = recorded.begin(each, key)
        sizes.wait()
        if sizes.damaged:
            # The CPU meets the same damage, and says where.
            self._sampler.sample(self._graph, seeds, key)
            raise FormatError(
                "the graph's arrays lead out of the graph on the device only: was a file changed?"
            )
        with self.stream.use():
            batch: Any
            if isinstance(seeds, Tensor) and self._graph.is_homogeneous:
                batch = run.batch(sizes)
            else:
                names = seeds if isinstance(seeds, Mapping) else [self._graph.only_node_type]
                types = self._graph.node_types
                given = {name: len(each[types.index(name)]) for name in names}
                batch = run.typed_batch(sizes, self._graph, given)
            ready = self.stream.record()
        return SampledBatch(batch, begun, ready)

    def _enqueue(self, topology: Topology, each: list[Tensor], key: int) -> tuple[DeviceRun, Sizes]:
        plan = self._plan([len(ids) for ids in each])
        run = DeviceRun(self._accelerator, topology, plan, each[0].dtype)
        whole = False
        try:
            (state,) = self._ring.upload([state_words(plan, each, key)])
            run.begin(state, [len(ids) for ids in each])
            whole = all(run.hop(hop) for hop in range(len(plan.hops)))
            return run, run.ask()
        finally:
            if not whole:
                topology.first.zero_()


def _picks(graph: Graph, sampler: Any) -> list[list[int]]:
    """The picks of a sampler that a device can follow, along each edge type in each hop; ValueError
    if it cannot."""
    instead = "; use sampling_device='cpu'"
    # A subclass may pick otherwise.
    if type(sampler) not in (NeighborSampler, SubgraphSampler):
        raise ValueError(
            f"sampling on a device needs a NeighborSampler, got {type(sampler).__name__}{instead}"
        )
    once = sampler.expands_once
    for name in ("disjoint", "induced") if once else ():
        if getattr(sampler, name):
            raise ValueError(f"{name} must be False for sampling on a device, got True{instead}")
    if sampler.prob is not None:
        raise ValueError(
            f"prob must be None for sampling on a device, got {sampler.prob!r}{instead}"
        )
    if sampler.batch_dependency != 1:
        raise ValueError(
            "batch_dependency must be 1 for sampling on a device, got "
            f"{sampler.batch_dependency}{instead}"
        )
    picks = [
        [sampler.fanout(hop, edge_type) for edge_type in graph.edge_types]
        for hop in range(sampler.num_hops)
    ]
    most = max((number for of_hop in picks for number in of_hop), default=0)
    if most > MOST_PICKS:
        raise ValueError(
            f"fanouts must be at most {MOST_PICKS} or -1 for sampling on a device, got "
            f"{most}{instead}"
        )
    return picks


class RecordedRun:
    """A batch's whole way through the device in one launch, with its copies in and out, for so many
    seeds.

    A batch of three hops is 35 launches and allocations of 1.6 ms of Python (H100, measured), all
    of which a training step competes with for the interpreter's lock; repeating them takes a tenth.
    The buffers, for the largest sizes that a batch can have, are kept, and batches are copied out
    of them: begin a next one when :meth:`batch` has been called.

    Call where the stream is in use on which it is to be repeated.

    Args:
        accelerator, topology, plan, dtype: See ``DeviceRun``.
        counts: Number of seeds of each type; one at least in all.

    Attributes:
        run, plan: What is repeated, and what it draws.

    Raises:
        OutOfMemory: The device has no room for the buffers.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        topology: Topology,
        plan: Plan,
        counts: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        self._accelerator = accelerator
        self.plan = plan
        self._counts = counts
        self.run = DeviceRun(accelerator, topology, plan, dtype, keeps=True)
        words = plan.words + sum(counts)
        self._given = accelerator.host_memory(words * 8).view(torch.int64)
        self._state = accelerator.empty((words,), torch.int64)
        self._sizes = accelerator.host_memory(plan.words * 8).view(torch.int64)
        zeros = [torch.zeros(count, dtype=dtype, device="cpu") for count in counts]
        self._given.copy_(state_words(plan, zeros, 0))
        self._repeat = accelerator.recorded(self._enqueue)

    @staticmethod
    def fits(plan: Plan, counts: Sequence[int], topology: Topology) -> bool:
        """Whether no hop of such batches has a size that the host must read first."""
        # A kernel that runs now, to be recorded, reads vertex 0.
        has_seeds = any(counts) and all(
            len(table) > 0 or not count
            for count, table in zip(counts, topology.tables, strict=True)
        )
        return has_seeds and plan.reads_no_size(counts, most_known(counts, topology.tables))

    def begin(self, seeds: Sequence[Tensor], key: int) -> Sizes:
        """Enqueue the batch of ``seeds``, as many of each type as promised."""
        self._given.copy_(state_words(self.plan, seeds, key))
        self._repeat()
        return Sizes(self._sizes, self._accelerator.current_stream.record())

    def _enqueue(self) -> None:
        self._state.copy_(self._given, non_blocking=True)
        self.run.begin(self._state, self._counts)
        for hop in range(len(self.plan.hops)):
            self.run.hop(hop)
        self._sizes.copy_(self._state[: len(self._sizes)], non_blocking=True)
