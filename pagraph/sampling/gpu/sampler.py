"""DeviceSampler: neighbour sampling on an accelerator, bit for bit what the CPU samples."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...accelerator import StagingRing
from ...errors import FormatError, MissingDependencyError, PipelineError
from ..block_sampler import NeighborSampler
from ..sampler import edge_ends, own_fields, seeds_by_type
from ..subgraph_sampler import SubgraphSampler
from ..tree_batch import TimedEdges
from ..trees import TreeTimes
from .run import MOST_PICKS, DeviceRun, most_known
from .state import Plan, Sizes, state_words
from .topology import Drawn, Topology

if TYPE_CHECKING:
    from ...accelerator import Accelerator, Event
    from ...graph.graph import Graph
    from ...system.budget import Budget
    from ..edge_values import EdgeField

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
        words: Its sizes, see ``Plan``.
    """

    batch: Any
    begun: Event
    ready: Event
    words: list[int]


class DeviceSampler:
    """Samples a graph of one type or several on an accelerator: uniformly, by weight, or by time;
    the batches are those of ``sampler``, bit for bit (see weighted.py about weights).

    Where the field of weights or times has been written to, or is another one, the graph is placed
    and recorded again.

    Safe from any number of threads: their batches follow each other on :attr:`stream`. The host
    waits once for a batch, for all its sizes at the end, and once more in a hop that takes all
    neighbours or for which the most edges there can be would need large buffers; along several edge
    types each counts as a hop. Batches without such hops and of the usual number of seeds are
    recorded.

    Args:
        graph: The graph.
        sampler: Of blocks, or of subgraphs that are not induced, with fan-outs up to 128, or -1.
        accelerator: The device.
        budget: Bytes of the device that the graph's arrays may take; see ``Topology.place``. Beside
            it a batch needs 20 to 32 bytes for each edge that a hop may draw, and in trees 24 to 48
            more for each vertex that it may find.
        usual: Number, by vertex type where there are several, and dtype of most batches' seeds,
            whose kernels are recorded now, in buffers that are kept for two batches; None: of no
            batch. See ``Accelerator.recorded``.
        field: Where the edges' weights and times come from. Default: the graph's own fields.

    Attributes:
        placement: Where the graph's arrays are, in words.
        nbytes: Bytes of the device that they and the table of vertices take.
        stream: In which it draws: that of the rows.
        is_by_fields: Whether edges are drawn by weights or times.

    Raises:
        ValueError: The sampler or the graph is of a kind that only the CPU samples; what
            ``Topology.place``, or the sampler of the fields of weights and times, refuses.
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
        field: EdgeField | None = None,
    ) -> None:
        self._field = field
        self._picks = _picks(graph, sampler)
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
        self._budget = budget
        self._usual: tuple[tuple[int, ...], torch.dtype] | None = None
        if usual is not None:
            count, dtype = usual
            by_type = count if isinstance(count, Mapping) else {graph.only_node_type: count}
            counts = tuple(by_type.get(name, 0) for name in graph.node_types)
            self._usual = counts, dtype
        self.is_by_fields: bool = sampler.time is not None or sampler.prob is not None
        # Guards what follows. Its holder may take a topology's lock, and wait for the stream.
        self._placing = threading.Lock()
        self._placed: _Placed | None = None
        self._place(self._drawn_by())

    def _drawn_by(self) -> tuple[Drawn, ...]:
        """What each edge type is drawn by now."""
        graph = self._graph
        sampler = self._sampler
        field = self._field or own_fields(graph)
        drawn = []
        for edge_type in graph.edge_types:
            times = None
            if isinstance(sampler, SubgraphSampler):
                times = sampler.times(graph, edge_type, field)
            weights = sampler.weights(graph, edge_type, field)
            csc = graph.adjacency(sampler.edge_dir, edge_type)
            drawn.append(Drawn(csc, times, weights))
        return tuple(drawn)

    def _place(self, drawn: tuple[Drawn, ...]) -> None:
        """Place the graph and record the usual batches."""
        sampler = self._sampler
        timed = None
        if isinstance(sampler, SubgraphSampler) and sampler.time is not None:
            timed = sampler.timed_edges(self._graph, self._field)
        with self.stream.use():
            topology = Topology.shared(self._graph, drawn, self._accelerator, self._budget)
            placed = _Placed(topology, timed, {}, [])
            with topology.lock:
                if sampler.expands_once:
                    topology.place_edge_ids()
                placed = placed._replace(recorded=self._record(placed))
        self._placed = placed
        self.placement: str = topology.placement
        self.nbytes: int = topology.nbytes

    @contextmanager
    def _in_use(self) -> Iterator[_Placed]:
        """What a batch is drawn from, by the fields as they are now; kept in the ``with`` body."""
        with self._placing:
            placed = self._placed
            if placed is None:
                raise PipelineError("a device sampler must not be used after close()")
            if self.is_by_fields:
                drawn = self._drawn_by()
                if placed.topology.drawn != drawn:
                    self._place(drawn)
                    self._leave(placed.topology)
                    placed = self._placed
                    assert placed is not None
            placed.topology.open()
        try:
            yield placed
        finally:
            placed.topology.close()

    def _leave(self, topology: Topology) -> None:
        """Close what no batch is drawn from any more, once those on their way are through."""
        with topology.lock, self.stream.use():
            passed = self.stream.record()
        passed.wait()
        topology.close()

    @property
    def has_changed(self) -> bool:
        """Whether the fields of weights or times are others than those that batches were drawn by
        last; raises what ``sample`` does."""
        placed = self._placed
        return placed is not None and placed.topology.drawn != self._drawn_by()

    def sample(
        self,
        seeds: Tensor | Mapping[str, Tensor],
        key: int = 0,
        dtype: torch.dtype | None = None,
        seed_times: Tensor | Mapping[str, Tensor] | None = None,
    ) -> SampledBatch:
        """Sample one mini-batch; returns when its sizes are known.

        Args:
            seeds: Shape ``(batch,)``, int32 or int64, on the CPU; for a graph of several types a
                mapping from vertex type to such tensors. Repeated seeds keep their own rows.
            key: Any 64-bit number; equal keys give equal batches.
            dtype: Of ids in the batch, int32 or int64. Default: the seeds'.
            seed_times: See ``SubgraphSampler.sample``, also for what is raised.

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
        with self._in_use() as placed:
            each, limits = self._entered(placed, by_type, seed_times, wanted)
            given = _Given(seeds, each, key, wanted, limits, seed_times)
            runs = placed.recorded
            if runs is None or (tuple(map(len, each)), wanted) != self._usual:
                return self._sampled(given, placed, None)
            recorded = runs.get()
            try:
                return self._sampled(given, placed, recorded)
            finally:
                runs.put(recorded)

    def entered(
        self, seeds: Tensor | Mapping[str, Tensor], seed_times: Any
    ) -> tuple[list[Tensor], Tensor | None]:
        """What a batch's state has after its first words, see ``state_words``: the seeds of each
        type, and the rows of limits, if there are any. Arguments and errors are those of
        :meth:`sample`; seeds are in range."""
        if isinstance(seeds, Tensor):
            seeds = {self._graph.only_node_type: seeds}
        placed = self._placed
        if placed is None:
            raise PipelineError("a device sampler must not be used after close()")
        return self._entered(placed, seeds, seed_times, torch.int64)

    def _entered(
        self, placed: _Placed, by_type: Mapping[str, Tensor], seed_times: Any, dtype: torch.dtype
    ) -> tuple[list[Tensor], Tensor | None]:
        none = torch.empty(0, dtype=dtype, device="cpu")
        each = [by_type.get(name, none).to(dtype) for name in self._graph.node_types]
        if placed.timed is None and seed_times is not None:
            raise ValueError("seed_times must be None for a sampler without time, got some")
        if not self._sampler.disjoint:
            return each, None
        trees_of, limits = self._trees(placed.timed, by_type, seed_times)
        return self._in_trees(each, trees_of), limits

    def _trees(
        self, timed: TimedEdges | None, seeds: Mapping[str, Tensor], seed_times: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The tree of each seed, and the rows of limits of the trees, where there are times."""
        if timed is None:
            return torch.arange(sum(map(len, seeds.values())), device="cpu"), None
        sampler = self._sampler
        assert isinstance(sampler, SubgraphSampler) and sampler.time is not None
        share = sampler.share_trees
        trees = TreeTimes.of(
            self._graph, sampler.time, timed.dtypes, seeds, seed_times, share=share
        )
        return trees.of_seeds, torch.from_numpy(timed.limits(trees))

    def _in_trees(self, seeds: list[Tensor], trees_of: Tensor) -> list[Tensor]:
        """The numbers of seeds in their trees, int64."""
        graph = self._graph
        parts = torch.split(trees_of, [len(ids) for ids in seeds])
        return [
            ids.long() + graph.num_nodes_of(name) * trees
            for name, ids, trees in zip(graph.node_types, seeds, parts, strict=True)
        ]

    def close(self) -> None:
        """Give the device's memory back and unpin the host's; safe to call twice."""
        with self._placing:
            placed = self._placed
            self._placed = None
        if placed is not None:
            with placed.topology.lock:
                placed.topology.close()

    @property
    def node_types(self) -> Sequence[str]:
        """The graph's vertex types, in the order of their numbers."""
        return self._graph.node_types

    @property
    def topology(self) -> Topology | None:
        """What batches are drawn from; None: the sampler is closed."""
        placed = self._placed
        return None if placed is None else placed.topology

    @property
    def hops(self) -> int:
        """Number of hops."""
        return len(self._picks)

    @contextmanager
    def enqueuing(self) -> Iterator[Topology | None]:
        """Give work to the stream that draws, in the ``with`` body; None: the sampler is closed."""
        placed = self._placed
        if placed is None:
            yield None
            return
        with placed.topology.lock, self.stream.use():
            # It may have been closed, or placed anew, before the lock was there.
            yield placed.topology if self._placed is placed else None

    @property
    def is_recorded(self) -> bool:
        """Whether batches of the usual size are recorded."""
        return self._placed is not None and self._placed.recorded is not None

    @property
    def usual(self) -> tuple[Sequence[int], Plan]:
        """The seeds of each type that most batches have, and the steps of these batches. Only where
        they are recorded."""
        assert self._usual is not None and self._placed is not None
        counts, _ = self._usual
        return counts, self._plan(self._placed, counts)

    def lend(self) -> DeviceRun | None:
        """The buffers of one of the recorded runs, for work that is recorded otherwise; None where
        there is none, or one has been lent. Waits for a batch that is made in them.

        They are of no use once its topology is not that of the sampler any more.
        """
        placed = self._placed
        if placed is None or placed.recorded is None or placed.lent:
            return None
        placed.lent.append(placed.recorded.get().run)
        return placed.lent[0]

    def _plan(self, placed: _Placed, counts: Sequence[int]) -> Plan:
        """The steps of batches with seeds of these types."""
        seeded = tuple(count > 0 for count in counts)
        if self._graph.is_homogeneous:
            seeded = (True,)
        if seeded not in placed.plans:
            sampler = self._sampler
            ends = edge_ends(self._graph).tolist()
            more: dict[str, Any] = {}
            if isinstance(sampler, SubgraphSampler) and placed.timed is not None:
                more["limits"] = 1 + len(placed.timed.windows)
                more["since"] = placed.timed.table[:, -1].tolist()
                more["latest"] = sampler.latest
            placed.plans[seeded] = Plan(
                self._picks,
                sampler.replace,
                sampler.expands_once,
                ends,
                seeded,
                trees=sampler.disjoint,
                **more,
            )
        return placed.plans[seeded]

    def _record(self, placed: _Placed) -> queue.SimpleQueue[RecordedRun] | None:
        """Runs for the usual batches; None where there can be none, or no room for them."""
        if self._usual is None:
            return None
        counts, dtype = self._usual
        topology = placed.topology
        plan = self._plan(placed, counts)
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
        self, given: _Given, placed: _Placed, recorded: RecordedRun | None
    ) -> SampledBatch:
        with placed.topology.lock, self.stream.use():
            begun = self.stream.record()
            if recorded is None:
                run, sizes = self._enqueue(placed, given)
            else:
                run = recorded.run
                sizes = recorded.begin(given.each, given.key, given.limits)
        sizes.wait()
        seeds = given.seeds
        if sizes.damaged:
            # The CPU meets the same damage, and says where.
            times: dict[str, Any] = {} if given.times is None else {"seed_times": given.times}
            self._sampler.sample(self._graph, seeds, given.key, field=self._field, **times)
            raise FormatError(
                "the graph's arrays lead out of the graph on the device only: was a file changed?"
            )
        with self.stream.use():
            batch: Any
            if isinstance(seeds, Tensor) and self._graph.is_homogeneous and not run.plan.trees:
                batch = run.batch(sizes)
            else:
                names = seeds if isinstance(seeds, Mapping) else [self._graph.only_node_type]
                types = self._graph.node_types
                counts = {name: len(given.each[types.index(name)]) for name in names}
                batch = run.typed_batch(sizes, self._graph, counts)
            ready = self.stream.record()
        return SampledBatch(batch, begun, ready, sizes.words)

    def _enqueue(self, placed: _Placed, given: _Given) -> tuple[DeviceRun, Sizes]:
        counts = [len(ids) for ids in given.each]
        plan = self._plan(placed, counts)
        run = DeviceRun(self._accelerator, placed.topology, plan, given.dtype)
        whole = False
        try:
            (state,) = self._ring.upload([state_words(plan, given.each, given.key, given.limits)])
            run.begin(state, counts)
            whole = all(run.hop(hop) for hop in range(len(plan.hops)))
            return run, run.ask()
        finally:
            if not whole:
                placed.topology.first.zero_()


class _Given(NamedTuple):
    """What a batch is made of.

    Attributes:
        seeds: As they were given.
        each: The seeds of each vertex type; in trees, their numbers there.
        key: Of the random numbers.
        dtype: Of ids in the batch.
        limits: The rows of times that the trees' edges lie between; None: there are no times.
        times: The seeds' own times, as they were given.
    """

    seeds: Tensor | Mapping[str, Tensor]
    each: Sequence[Tensor]
    key: int
    dtype: torch.dtype
    limits: Tensor | None
    times: Tensor | Mapping[str, Tensor] | None


class _Placed(NamedTuple):
    """A graph on the device by one version of its fields.

    Attributes:
        topology: The graph.
        timed: The times of its edges, where they are drawn by time.
        plans: What is known of batches, by the vertex types that have seeds.
        lent: The run that was lent, if one was.
        recorded: Runs that draw from it; None: no batches are recorded.
    """

    topology: Topology
    timed: TimedEdges | None
    plans: dict[tuple[bool, ...], Plan]
    lent: list[DeviceRun]
    recorded: queue.SimpleQueue[RecordedRun] | None = None


def _picks(graph: Graph, sampler: Any) -> list[list[int]]:
    """The picks of a sampler that a device can follow, along each edge type in each hop; ValueError
    if it cannot."""
    instead = "; use sampling_device='cpu'"
    # A subclass may pick otherwise.
    if type(sampler) not in (NeighborSampler, SubgraphSampler):
        raise ValueError(
            f"sampling on a device needs a NeighborSampler, got {type(sampler).__name__}{instead}"
        )
    if isinstance(sampler, SubgraphSampler) and sampler.induced:
        raise ValueError(f"induced must be False for sampling on a device, got True{instead}")
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
        words = plan.size(counts)
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
        return has_seeds and plan.reads_no_size(counts, most_known(plan, counts, topology))

    def begin(self, seeds: Sequence[Tensor], key: int, limits: Tensor | None) -> Sizes:
        """Enqueue the batch of ``seeds``, as many of each type as promised; see ``state_words``."""
        self._given.copy_(state_words(self.plan, seeds, key, limits))
        self._repeat()
        return Sizes(self._sizes, self._accelerator.current_stream.record())

    def _enqueue(self) -> None:
        self._state.copy_(self._given, non_blocking=True)
        self.run.begin(self._state, self._counts)
        for hop in range(len(self.plan.hops)):
            self.run.hop(hop)
        self._sizes.copy_(self._state[: len(self._sizes)], non_blocking=True)
