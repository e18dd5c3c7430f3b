"""DeviceSampler: neighbour sampling on an accelerator, with the CPU's batches bit for bit."""

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
from ..plan import edge_ends
from ..sampler import own_fields, seeds_by_type
from ..subgraph_sampler import SubgraphSampler
from ..times import TimedEdges, TreeTimes
from .run import MOST_PICKS, DeviceRun, most_known
from .state import ComingSizes, Plan, state_words
from .topology import Drawn, Topology

if TYPE_CHECKING:
    from ...accelerator import Accelerator, Event
    from ...graph.graph import Graph
    from ...system.budget import Budget
    from ..edge_values import EdgeField

_SLOT_BYTES = 1 << 16  # about 8000 seeds
_RECORDED = 2  # recorded runs: one samples while the sizes of the other are copied to the host


@dataclass(frozen=True, eq=False)
class SampledBatch:
    """A mini-batch that was enqueued on the sampler's stream, with sizes already known.

    Attributes:
        batch: Blocks, or a subgraph. All tensors are on the device; ids have the dtype asked for.
        begun: Event before the batch's work.
        ready: Event after it. Wait for it before reading the tensors on another stream.
        words: The batch's sizes as state words, see ``Plan``.
    """

    batch: Any
    begun: Event
    ready: Event
    words: list[int]


class DeviceSampler:
    """Samples a graph of one type or several on an accelerator: uniformly, by weight or by time.

    Batches are bit-identical to those of ``sampler`` (for weights see weighted.py). If the field of
    weights or times is written or replaced, the graph is placed and recorded again.

    Thread-safe; all batches are enqueued on :attr:`stream`. The host waits once per batch, for its
    sizes at the end. It also waits in each step that takes all neighbours, or whose largest
    possible number of edges would need large buffers. Batches without such steps are recorded for
    the usual number of seeds.

    Args:
        graph: The graph.
        sampler: A sampler of blocks, or of subgraphs that are not induced, with fan-outs of at most
            128, or -1.
        accelerator: The device.
        budget: Device memory for the graph's arrays, see ``Topology.place``. A batch needs another
            20 to 32 bytes per edge that a hop may draw, and for trees 24 to 48 bytes per vertex
            that it may find.
        usual: Number (by vertex type if there are several) and dtype of most batches' seeds.
            Batches of this shape are recorded now, with buffers for two. None: none are recorded.
            See ``Accelerator.recorded``.
        field: Returns the edges' weights and times. Default: the graph's own fields.

    Attributes:
        placement: Where the graph's arrays are, as text.
        nbytes: Device memory of the graph's arrays and the vertex table, in bytes.
        stream: The stream on which it samples, and on which rows are read.
        is_by_fields: Whether edges are drawn by weights or times.

    Raises:
        ValueError: Only the CPU supports this sampler or graph; or ``Topology.place``, or the check
            of weights and times, raises it.
        MissingDependencyError: Triton is missing.
        OutOfMemory: The device has no room for the vertex table, 4 bytes per vertex.
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
        # Rows are read on this stream, too. So uses of the vertex table, and reads of rows while a
        # cache shrinks, are ordered without events.
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
        # Guards what follows. Lock order: this one, then a topology's. Its holder may wait for the
        # stream.
        self._placing = threading.Lock()
        self._placed: _Placed | None = None
        self._place(self._drawn_by())

    def _drawn_by(self) -> tuple[Drawn, ...]:
        """The edges of each type, with their current times and weights."""
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
        """Place the graph on the device, and record batches of the usual shape."""
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
        """The placed graph for the current fields; stays open in the ``with`` body."""
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
        """Close a topology that was replaced, after the batches in flight."""
        with topology.lock, self.stream.use():
            passed = self.stream.record()
        passed.wait()
        topology.close()

    @property
    def has_changed(self) -> bool:
        """Whether weights or times have changed since the graph was placed; raises as
        :meth:`sample`."""
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
                mapping from vertex type to such tensors. Repeated seeds keep their own places.
            key: Any 64-bit number; equal keys give equal batches.
            dtype: Dtype of ids in the batch, int32 or int64. Default: the seeds'.
            seed_times: See ``SubgraphSampler.sample``, also for its errors.

        Raises:
            KeyError: The graph does not have a vertex type.
            IndexError: A seed is outside ``[0, num_nodes)`` of its type.
            FormatError: The graph's arrays point outside the graph (a damaged file).
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
        """The seeds of each vertex type and the rows of limits, as ``state_words`` takes them.

        Arguments and errors are those of :meth:`sample`, but seeds are not checked. Limits are None
        without times.
        """
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
        """The tree of each seed, and the rows of limits of the trees; None without times."""
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
        """The seeds of each type as vertices of trees, ``tree * num_nodes + id``, int64."""
        graph = self._graph
        parts = torch.split(trees_of, [len(ids) for ids in seeds])
        return [
            ids.long() + graph.num_nodes_of(name) * trees
            for name, ids, trees in zip(graph.node_types, seeds, parts, strict=True)
        ]

    def close(self) -> None:
        """Free device memory and unpin host memory; safe to call twice."""
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
        """The graph on the device; None if the sampler is closed."""
        placed = self._placed
        return None if placed is None else placed.topology

    @property
    def hops(self) -> int:
        """Number of hops."""
        return len(self._picks)

    @contextmanager
    def enqueuing(self) -> Iterator[Topology | None]:
        """Hold the topology's lock and use the sampler's stream in the ``with`` body.

        Yields the topology; None if the sampler is closed, or the graph was placed again meanwhile.
        """
        placed = self._placed
        if placed is None:
            yield None
            return
        with placed.topology.lock, self.stream.use():
            # Checked again under the lock.
            yield placed.topology if self._placed is placed else None

    @property
    def is_recorded(self) -> bool:
        """Whether batches with the usual number of seeds are recorded."""
        return self._placed is not None and self._placed.recorded is not None

    @property
    def usual(self) -> tuple[Sequence[int], Plan]:
        """The number of seeds of each type in most batches, and the plan of these batches.

        Only if they are recorded.
        """
        assert self._usual is not None and self._placed is not None
        counts, _ = self._usual
        return counts, self._plan(self._placed, counts)

    def lend(self) -> DeviceRun | None:
        """Lend the buffers of one recorded run, for a caller that records its own launch.

        Waits if batches are being made in all of them. None if no run is recorded, or one is lent
        already. Valid while the run's topology is :attr:`topology`.
        """
        placed = self._placed
        if placed is None or placed.recorded is None or placed.lent:
            return None
        placed.lent.append(placed.recorded.get().run)
        return placed.lent[0]

    def _plan(self, placed: _Placed, counts: Sequence[int]) -> Plan:
        """The plan of batches with these numbers of seeds; depends on which are 0."""
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
        """Recorded runs for batches of the usual shape; None if they cannot be recorded."""
        if self._usual is None:
            return None
        counts, dtype = self._usual
        topology = placed.topology
        plan = self._plan(placed, counts)
        if not RecordedRun.fits(plan, counts, topology):
            return None
        runs = queue.SimpleQueue[RecordedRun]()
        try:
            # The loader may be made in inference mode, whose tensors could not be written outside.
            with torch.inference_mode(False):
                for _ in range(_RECORDED):
                    runs.put(RecordedRun(self._accelerator, topology, plan, counts, dtype))
        except RuntimeError as error:
            # Memory is short, or another capture is going on. Batches are the same without it, but
            # the table may have known vertices left.
            topology.first.zero_()
            warnings.warn(
                f"batches on {self._accelerator.device} are sampled kernel by kernel, which takes "
                f"more Python time: they could not be recorded ({error})",
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
            # The CPU samples the same batch, and raises an error that names the place.
            times: dict[str, Any] = {} if given.times is None else {"seed_times": given.times}
            self._sampler.sample(self._graph, seeds, given.key, field=self._field, **times)
            raise FormatError(
                "the graph's arrays point outside the graph on the device only: was a file changed?"
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

    def _enqueue(self, placed: _Placed, given: _Given) -> tuple[DeviceRun, ComingSizes]:
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
            if not whole:  # the last kernel, which clears the table, was not launched
                placed.topology.first.zero_()


class _Given(NamedTuple):
    """The arguments of a batch.

    Attributes:
        seeds: The seeds as the caller gave them.
        each: The seeds of each vertex type; for trees, as vertices of trees.
        key: Key of the random numbers.
        dtype: Dtype of ids in the batch.
        limits: Rows of time limits by tree; None without times.
        times: The seeds' times as the caller gave them.
    """

    seeds: Tensor | Mapping[str, Tensor]
    each: Sequence[Tensor]
    key: int
    dtype: torch.dtype
    limits: Tensor | None
    times: Tensor | Mapping[str, Tensor] | None


class _Placed(NamedTuple):
    """A graph on the device, placed for one version of its fields.

    Attributes:
        topology: The graph.
        timed: The times of its edges; None if they are not drawn by time.
        plans: Plans, by which vertex types have seeds.
        lent: The lent run; empty if none is lent.
        recorded: Recorded runs that are free; None if no batches are recorded.
    """

    topology: Topology
    timed: TimedEdges | None
    plans: dict[tuple[bool, ...], Plan]
    lent: list[DeviceRun]
    recorded: queue.SimpleQueue[RecordedRun] | None = None


def _picks(graph: Graph, sampler: Any) -> list[list[int]]:
    """The picks per vertex in each hop along each edge type.

    Raises:
        ValueError: The device does not support the sampler.
    """
    instead = "; use sampling_device='cpu'"
    # Not isinstance: a subclass may pick in another way.
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
    """Samples batches with a fixed number of seeds by one recorded launch each, copies included.

    A batch of three hops takes 35 launches and allocations, 1.6 ms of Python (H100), during which
    a training step waits for the GIL. Replaying them takes a tenth of that. The buffers have room
    for the largest possible batch and are reused: copy a batch out of them (``run.batch``) before
    the next :meth:`begin`.

    Make and replay it on the same stream.

    Args:
        accelerator, topology, plan, dtype: See ``DeviceRun``.
        counts: Number of seeds of each type; at least one seed.

    Attributes:
        run: The recorded run.
        plan: Its plan.

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
        """Whether batches with these numbers of seeds can be recorded: no step waits for a size."""
        # Recording runs the kernels once with vertex 0 as seed, which must exist.
        has_seeds = any(counts) and all(
            len(table) > 0 or not count
            for count, table in zip(counts, topology.tables, strict=True)
        )
        return has_seeds and plan.reads_no_size(counts, most_known(plan, counts, topology))

    def begin(self, seeds: Sequence[Tensor], key: int, limits: Tensor | None) -> ComingSizes:
        """Enqueue a batch; arguments are those of ``state_words``, with ``counts`` seeds."""
        self._given.copy_(state_words(self.plan, seeds, key, limits))
        self._repeat()
        return ComingSizes(self._sizes, self._accelerator.current_stream.record())

    def _enqueue(self) -> None:
        self._state.copy_(self._given, non_blocking=True)
        self.run.begin(self._state, self._counts)
        for hop in range(len(self.plan.hops)):
            self.run.hop(hop)
        self._sizes.copy_(self._state[: len(self._sizes)], non_blocking=True)
