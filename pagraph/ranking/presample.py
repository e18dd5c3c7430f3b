"""Counting what sampled epochs read, ranking by the counts, and expected reads by following each
seed's neighbourhood."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.minibatch import HeteroMiniBatch, MiniBatch, Subgraph
from ..sampling.sampler import HopSampler, MiniBatchSampler
from ..seeds.keys import derive_key
from ..seeds.order import SeedOrder, Ticket
from ..system.arrays import Array, Float64Array, Int64Array
from ..system.buffers import BufferPools
from ..system.checks import as_integer
from ..system.stage import SerialStage, Stage
from ..system.threads import usable_cpus
from .policy import Ranking, out_degrees

if TYPE_CHECKING:
    from ..graph.graph import Graph


class AccessCounts:
    """Counters of each vertex as an input node, by the hop that found it; thread-safe.

    Hop 0 is the seeds. A vertex counts once in each batch that reads its row (GNNLab, EuroSys'22,
    section 5.3), or once in each of disjoint trees. So the counts of an epoch are the rows that a
    loader reads. ``batches`` is the number of batches added.

    Args:
        num_nodes: Vertex type to its number of vertices.
        num_hops: Hops of a mini-batch.
        most: An upper bound of any count. Up to 255 a counter takes 1 byte, up to 65,535 it takes
            2, else 4.
    """

    def __init__(self, num_nodes: Mapping[str, int], num_hops: int, *, most: int) -> None:
        dtype = counter_dtype(most)
        self._counts: dict[str, Array] = {
            t: np.zeros((n, num_hops + 1), dtype) for t, n in num_nodes.items()
        }
        self._lock = threading.Lock()
        self.num_hops = num_hops
        self.batches: int = 0

    def add(self, batch: MiniBatch | HeteroMiniBatch | Subgraph) -> None:
        """Count the input nodes of a batch."""
        if isinstance(batch, HeteroMiniBatch | Subgraph):
            ends = batch.hop_ends
            for ntype, ids in batch.input_nodes.items():
                self.add_reads(ntype, ids, ends[ntype])
        else:
            (only,) = self._counts
            self.add_reads(only, batch.input_nodes, batch.hop_ends)
        with self._lock:
            self.batches += 1

    def add_reads(self, node_type: str, ids: Tensor, ends: Sequence[int]) -> None:
        """Count vertices of one type; does not count a batch.

        Args:
            node_type: The type.
            ids: In order of discovery, shape ``(n,)``, in range.
            ends: Number of vertices after each hop, at most ``num_hops + 1`` numbers.
        """
        from . import _reach

        # One thread at a time, since adding to a counter is a read and a write. Counting a batch
        # takes a fraction of the time of sampling it, so threads rarely wait.
        with self._lock:
            _reach.add_accesses(ids.numpy(), np.array(ends, np.int64), self._counts[node_type])

    @property
    def node_types(self) -> list[str]:
        """The vertex types that are counted."""
        return list(self._counts)

    @property
    def nbytes(self) -> int:
        """Bytes of the counters."""
        return sum(counts.nbytes for counts in self._counts.values())

    def counters(self, node_type: str) -> Array:
        """The counters, not a copy: shape ``(num_nodes, num_hops + 1)``, uint8, uint16 or
        uint32."""
        return self._counts[node_type]

    def by_hop(self, node_type: str) -> Tensor:
        """Reads of each vertex by the hop that found it, shape ``(num_nodes, num_hops + 1)``,
        int64."""
        return torch.from_numpy(self._counts[node_type].astype(np.int64))

    def reads(self, node_type: str) -> Tensor:
        """Reads of each vertex as an input node, shape ``(num_nodes,)``, int64."""
        return self.frontier(node_type, self.num_hops)

    def frontier(self, node_type: str, hop: int) -> Tensor:
        """Number of batches that know each vertex when hop ``hop`` draws, shape ``(num_nodes,)``.

        Hop 0 draws for the seeds.
        """
        counts = self._counts[node_type]
        result = counts[:, 0].astype(np.int64)
        for column in range(1, hop + 1):  # a sum over the short axis takes 15 times as long
            result += counts[:, column]
        return torch.from_numpy(result)

    @property
    def total(self) -> int:
        """Rows read of all types."""
        return sum(int(counts.sum(dtype=np.int64)) for counts in self._counts.values())


def counter_dtype(most: int) -> np.dtype[Any]:
    """The narrowest of uint8, uint16 and uint32 that counts up to ``most``."""
    if most < 2**8:
        return np.dtype(np.uint8)
    return np.dtype(np.uint16 if most < 2**16 else np.uint32)


def count_accesses(
    graph: Graph,
    seeds: Tensor | Mapping[Any, Tensor],
    sampler: MiniBatchSampler,
    *,
    batch_size: int,
    seed: int,
    epochs: Iterable[int] = (0,),
    shuffle: bool = True,
    drop_last: bool = False,
    threads: int | None = None,
    seconds: float | None = None,
    progress: Callable[[], object] | None = None,
) -> AccessCounts:
    """Sample epochs and count what they read; no feature is read.

    The batches are those of a loader with this ``seed`` and ``shuffle`` in these epochs. Even if
    the loader's batches share random numbers these do not: the expectation is the same, and the
    counts have less noise.

    Args:
        graph: The graph.
        seeds: As for ``SeedOrder``.
        sampler: Draws the mini-batches.
        batch_size: As for ``SeedOrder``.
        seed: As for ``SeedOrder``.
        epochs: Numbers of the epochs.
        shuffle: As for ``SeedOrder``.
        drop_last: As for ``SeedOrder``.
        threads: Threads that sample. Default: one per CPU, at most 8.
        seconds: Begin no epoch but the first after this time. The result then depends on the
            machine's speed.
        progress: Called after each batch, by the threads.

    Exceptions of ``SeedOrder`` and the sampler pass through.
    """
    order = SeedOrder(seeds, batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
    epochs = list(epochs)
    most = len(order) * len(epochs) * most_repeats(order, sampler)
    counts = AccessCounts(graph.num_nodes_by_type, sampler.num_hops, most=most)
    threads = threads or default_threads()
    # Batches are dropped once they are counted, so that their memory can be recycled.
    settings = {"pools": BufferPools(threads)} if isinstance(sampler, HopSampler) else {}

    def work(ticket: Ticket) -> None:
        # A plain number instead of a BatchKey, so that batches share no random numbers.
        counts.add(sampler.sample(graph, ticket.seeds, int(ticket.key), **settings))
        if progress is not None:
            progress()

    run_tickets(work, _tickets(order, epochs, seconds), threads)
    return counts


def default_threads() -> int:
    """One thread per CPU, at most 8."""
    return min(8, usable_cpus())


def most_repeats(order: SeedOrder, sampler: MiniBatchSampler) -> int:
    """Most reads of a vertex in one batch.

    It is 1, unless the seeds have repeats or trees are disjoint.
    """
    if (sampler.hops or sampler).disjoint:
        return order.batch_size * sampler.trees_per_seed
    if not sampler.seeds_are_vertices:
        return 1
    by_type = order.ids.values() if isinstance(order.ids, Mapping) else [order.ids]
    return 1 if all(len(torch.unique(ids)) == len(ids) for ids in by_type) else order.batch_size


def _tickets(order: SeedOrder, epochs: Iterable[int], seconds: float | None) -> Iterator[Ticket]:
    begin = time.perf_counter()
    for place, epoch in enumerate(epochs):
        if place and seconds is not None and time.perf_counter() - begin > seconds:
            return
        plan = order.plan(epoch)
        yield from (order.ticket(plan, index) for index in range(len(order)))


def run_tickets(work: Callable[[Ticket], None], tickets: Iterator[Ticket], threads: int) -> None:
    """Call ``work`` for all tickets; an exception stops it after the tickets in progress."""
    if threads == 1:
        stage: Iterator[None] = SerialStage(tickets, work)
    else:
        # Two tickets per thread keep all busy, and are few enough to stop soon after a failure.
        stage = Stage(tickets, work, workers=threads, ahead=2 * threads)
    for _ in stage:
        pass


_OTHER_EPOCHS = 0x70726573  # "pres": keeps counted epochs distinct from those of training


def presampling_seed(seed: int) -> int:
    """The seed of epochs that are sampled only to be counted, unlike any that is trained on."""
    return derive_key(seed, _OTHER_EPOCHS)


@dataclass(frozen=True)
class Presample:
    """Rank by the mean number of reads in sampled epochs (PreSC of GNNLab).

    See Yang et al., EuroSys 2022, section 5.3. Ties go by out-degree, then by id. The epochs have
    the loader's seeds, sampler and batch size, but are not those it trains on. No global generator
    is used.

    Args:
        epochs: Epochs to sample (the K of PreSC#K).

    Raises:
        TypeError: ``epochs`` is not an integer.
        ValueError: It is below 1.
    """

    epochs: int = 1

    def __post_init__(self) -> None:
        as_integer("epochs", self.epochs, least=1)

    def __call__(
        self,
        graph: Graph,
        seeds: Any,
        sampler: Any,
        seed: int,
        *,
        batch_size: int = 1000,
        shuffle: bool = True,
    ) -> dict[str, Ranking]:
        """See ``pagraph.ranking.policy``; ValueError if only user code can sample."""
        if sampler is None:
            raise ValueError(
                "cache_policy 'presample' needs seeds and a sampler that can run without the "
                "loader, got custom ones; 'degree' and 'random' need neither"
            )
        settings: dict[str, Any] = {
            "batch_size": batch_size,
            "seed": presampling_seed(seed),
            "shuffle": shuffle,
        }
        counts = count_accesses(graph, seeds, sampler, epochs=range(self.epochs), **settings)
        degrees = out_degrees(graph)
        rankings = {}
        for ntype in graph.node_types:
            reads = counts.reads(ntype)
            order = torch.from_numpy(np.lexsort((-degrees[ntype].numpy(), -reads.numpy())))
            rankings[ntype] = Ranking(order, reads[order].double() / self.epochs, per_epoch=True)
        return rankings


_MOST_EDGES = 150_000_000  # edges to follow, which takes about a second
_PROBED = 64  # seeds by which the number of edges of all seeds is estimated
# Most vertices that one seed may reach. Scratch is about 100 bytes for each, of which most seeds
# touch little.
_ROOM = 1 << 22


def reads_by_seed(
    graph: Graph, seeds: Any, sampler: MiniBatchSampler, *, batch_size: int
) -> Tensor | None:
    """Expected reads of each vertex in an epoch other than as a seed.

    The analytic expectation (``vip.expected_accesses``) multiplies over the edges of a vertex, as
    if their other ends came into a batch independently. But those around one seed come together;
    only the seeds are independent. So this runs the same recursion for every seed alone. It gives
    the chance ``r`` that a batch with this seed reads the vertex. A batch with a share ``b`` of the
    seeds misses the vertex with the chance ``prod_seeds (1 - b r)``. For disjoint trees the
    expectation is the sum of all ``r``.

    The expected reads are too high where several seeds of a batch meet in a vertex, which then
    draws once for all of them. The lower of the two expectations reached, without any sampling, at
    least 0.993 of the ideal hit rate on 88 workloads of 11 graphs with 1 and 10 % of the vertices
    as seeds (VIP alone: 0.77). Each seed's neighbourhood is followed, which takes 1 to 10 ns an
    edge.

    Args:
        graph: The graph.
        seeds: Ids of vertices, shape ``(n,)``.
        sampler: Draws the mini-batches.
        batch_size: Seeds per batch.

    Returns:
        Shape ``(num_nodes,)``, float64. None for graphs with several types, edge-wise batches,
        draws by weight or time, samplers without fan-outs, and neighbourhoods with more than 150 M
        edges in total.
    """
    blocks = sampler.hops
    if not graph.is_homogeneous or not isinstance(seeds, Tensor) or not len(seeds):
        return None
    # Samplers that start from edges, or make other batches, wrap a sampler of blocks.
    if blocks is not sampler:
        return None
    if not blocks.has_fanouts or (blocks.prob, blocks.time) != (None, None):
        return None
    ids = seeds.cpu().long().numpy()
    batch_size = min(batch_size, len(ids))
    reach = _Reach(graph, blocks, 0.0 if blocks.disjoint else batch_size / len(ids))
    probe = ids[:: -(-len(ids) // _PROBED)]
    if not reach.add(probe, limit=_MOST_EDGES * len(probe) // len(ids)):
        return None
    reach.missed[:] = 0.0
    if not reach.add(ids, limit=2 * _MOST_EDGES):  # the probe may have been lucky
        return None
    if blocks.disjoint:
        return torch.from_numpy(reach.missed)
    # missed = log prod_seeds (1 - b r), so this is the chance that a batch reads the vertex.
    others = -np.expm1(reach.missed)
    # Only batches count in which the vertex is not a seed.
    times_seed = np.bincount(ids, minlength=graph.num_nodes)
    not_seed = np.maximum(0.0, 1.0 - times_seed * (batch_size / len(ids)))
    return torch.from_numpy(len(ids) / batch_size * not_seed * others)


class _Reach:
    """Adds up what seeds reach.

    ``missed``, shape ``(num_nodes,)``, is the log of the chance that no seed makes a batch read a
    vertex. For disjoint trees it is the expected number of trees with the vertex.
    """

    def __init__(self, graph: Graph, sampler: HopSampler, rate: float) -> None:
        csc = graph.adjacency(sampler.edge_dir)
        csc.validate()
        self._indptr = csc.indptr.numpy()
        self._indices = csc.indices.numpy()
        etype = graph.edge_types[0]
        self._fanouts = np.array(
            [sampler.fanout(hop, etype) for hop in range(sampler.num_hops)], np.int64
        )
        self._replace = sampler.replace
        self._once = sampler.expands_once
        self._rate = rate
        self._slots = np.full(graph.num_nodes, -1, np.int32)
        room = min(graph.num_nodes, _ROOM)
        # By place: 0 is the seed, then vertices in order of discovery. Pages that are never written
        # take no memory, and most seeds reach few vertices.
        self._ids = np.empty(room, np.int64)
        self._found = np.empty((room, sampler.num_hops + 1))
        self._known = np.empty(room)
        self._missed = np.empty(room)
        self.missed: Float64Array = np.zeros(graph.num_nodes)

    def add(self, seeds: Int64Array, *, limit: int) -> bool:
        """Add seeds; False if one reaches too many vertices, or all more than ``limit`` edges."""
        from . import _reach

        drawn = (
            self._indptr,
            self._indices,
            seeds,
            self._fanouts,
            self._replace,
            self._once,
            self._rate,
        )
        places = (self._slots, self._ids, self._found, self._known, self._missed)
        return bool(_reach.reach(*drawn, *places, limit, self.missed) >= 0)
