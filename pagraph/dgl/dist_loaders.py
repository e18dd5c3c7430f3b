"""Replacements of DGL's loaders of DistDGL: DGL's servers sample and serve, rows are read ahead."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.stage import SerialStage, Stage
from ..stats.reads import ReadCounters
from ..stats.stats import EpochRecorder, LoaderStats
from ..system.budget import Budget
from ..system.checks import as_integer
from .graphbolt import import_dgl
from .remote import RemoteCache, RemoteField, refuse_writes
from .turns import install, turns

dgl = import_dgl()
# Where they are depends on DGL's version.
_home = dgl.dataloading if hasattr(dgl.dataloading, "DistNodeDataLoader") else dgl.distributed

if TYPE_CHECKING:
    from torch import Tensor

    from ..typing import CacheSize


class _Place(NamedTuple):
    """Where the rows of a field go: a block's source or destination vertices, or edges of all
    blocks."""

    frame: str
    name: str
    field: RemoteField


_PREFETCHED = {
    "prefetch_node_feats": "src",
    "prefetch_labels": "dst",
    "prefetch_edge_feats": "edge",
}
"""What a sampler says of its fields, and whose rows they are."""


class _Reads:
    """What a loader reads ahead; no reference to the loader, which its thread would keep alive."""

    def __init__(
        self, graph: Any, sampler: Any, budget: Budget | None, policy: object, batches: int
    ):
        self._graph = graph
        self._sampler = sampler
        self.counters = ReadCounters()
        self.cache = None if budget is None else RemoteCache(graph, budget, policy, batches)
        self._fields: dict[tuple[str, Any, str], RemoteField] = {}
        self.places: list[_Place] = []
        self.resolve()

    def resolve(self) -> None:
        """Find the fields that the sampler names now; a tensor that took another's place is a new
        field."""
        places = []
        for argument, frame in _PREFETCHED.items():
            for row_type, name in _named(self._graph, argument, frame, self._sampler):
                tensor = _tensor(self._graph, argument, frame, row_type, name)
                kind = "edge" if frame == "edge" else "node"
                key = kind, row_type, name
                field = self._fields.get(key)
                if field is None or field.tensor is not tensor:
                    several = len(self._types(kind)) > 1
                    label = f"{_text(row_type)}/{name}" if several else name
                    # Labels are those of seeds, which DGL's node_split takes from the own part.
                    cacheable = self.cache is not None and frame == "src"
                    field = RemoteField(tensor, row_type, label, cacheable=cacheable)
                    self._fields[key] = field
                places.append(_Place(frame, name, field))
        self.places = places

    def _types(self, kind: str) -> Any:
        return self._graph.canonical_etypes if kind == "edge" else self._graph.ntypes

    @property
    def fields(self) -> list[RemoteField]:
        """Each field once."""
        return list(dict.fromkeys(place.field for place in self.places))

    def begin(self) -> None:
        """Fill the cache where that is due, and have writes be refused until :meth:`end`."""
        self.resolve()
        for field in self.fields:
            field.is_read = True
        if self.cache is not None:
            self.cache.prepare(self.fields)

    def end(self) -> None:
        """Rows are not read ahead any more."""
        for field in self._fields.values():
            field.is_read = False

    def forget(self) -> None:
        """Give all cached rows up."""
        if self.cache is not None:
            self.cache.forget(self._fields.values())

    def add_to(self, batch: Any, recorder: EpochRecorder) -> Any:
        """DGL's batch with the rows of its blocks."""
        blocks = batch[-1]
        begin = time.perf_counter_ns()
        for frame, name, field in self.places:
            if frame == "edge":
                for block in blocks:
                    self._put(block.edges[field.type].data, dgl.EID, name, field)
            elif frame == "dst":
                self._put(blocks[-1].dstnodes[field.type].data, dgl.NID, name, field)
            else:
                ids = self._put(blocks[0].srcnodes[field.type].data, dgl.NID, name, field)
                if self.cache is not None:
                    self.cache.count(field, ids)
        if self.cache is not None:
            self.cache.batch_done()
        recorder.spent("fetching", begin)
        return batch

    def _put(self, columns: Any, ids_name: str, name: str, field: RemoteField) -> Tensor:
        ids: Tensor = columns[ids_name]
        columns[name] = field.read(ids, self.counters)
        return ids


def _text(row_type: Any) -> str:
    return row_type if isinstance(row_type, str) else ":".join(row_type)


def _named(graph: Any, argument: str, frame: str, sampler: Any) -> list[tuple[Any, str]]:
    """(type, name) of each field that a sampler names; ValueError where types are needed."""
    names = getattr(sampler, argument, None) or []
    types = graph.canonical_etypes if frame == "edge" else graph.ntypes
    if isinstance(names, Mapping):
        canonical = graph.to_canonical_etype if frame == "edge" else lambda name: name
        return [(canonical(t), name) for t, of_type in names.items() for name in of_type]
    if names and len(types) > 1:
        raise ValueError(
            f"{argument} must be a dict for a graph of the types {list(types)}, got {names!r}"
        )
    return [(types[0], name) for name in names]


def _tensor(graph: Any, argument: str, frame: str, row_type: Any, name: str) -> Any:
    view = graph.edges if frame == "edge" else graph.nodes
    columns = view[row_type].data
    if name not in columns:
        raise ValueError(
            f"{argument} must name fields of {row_type!r}, which has {sorted(columns)}; got "
            f"{name!r}"
        )
    return columns[name]


class _Batches:
    """DGL's batches, in the thread that reads ahead."""

    def __init__(self, inner: Any, recorder: EpochRecorder) -> None:
        self._inner = inner
        self._recorder = recorder

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        begin = time.perf_counter_ns()
        try:
            return next(self._inner)
        except BaseException:
            turns.leave()
            raise
        finally:
            self._recorder.spent("sampling", begin)


class _Pass:
    """One pass over the batches: DGL's, and their rows, some of them ahead of the reader."""

    def __init__(self, inner: Any, reads: _Reads, recorder: EpochRecorder, prefetch: int) -> None:
        self._inner = inner
        self._reads = reads
        self._recorder = recorder
        batches = _Batches(inner, recorder)

        def work(batch: Any) -> Any:
            try:
                return reads.add_to(batch, recorder)
            except BaseException:
                turns.leave()
                raise

        # One thread: questions to the servers are asked one after the other in any case.
        self._stage: Stage[Any, Any] | SerialStage[Any, Any] = (
            Stage(batches, work, workers=1, ahead=1 + prefetch)
            if prefetch
            else SerialStage(batches, work)
        )
        _running.add(self)

    def __next__(self) -> Any:
        begin = time.perf_counter_ns()
        delivered = False
        try:
            batch = next(self._stage)
            delivered = True
        except BaseException:
            self.close()
            raise
        finally:
            self._recorder.waited(begin, delivered=delivered)
        blocks = batch[-1]
        self._recorder.delivered(
            seeds=blocks[-1].num_dst_nodes(),
            edges=sum(block.num_edges() for block in blocks),
            input_nodes=blocks[0].num_src_nodes(),
        )
        return batch

    def close(self) -> None:
        """End the thread, and take what DGL's sampler processes still owe: a later pass would get
        it."""
        self._stage.close()
        self._reads.end()
        self._recorder.close()
        inner = self._inner
        if inner.pool is not None:
            while inner.num_pending > 0:
                inner._get_data_from_result_queue()
                inner.num_pending -= 1


_running: weakref.WeakSet[_Pass] = weakref.WeakSet()


def _end_all() -> None:
    """End all passes; DGL's own function at exit, which must come after it, takes the connection
    down."""
    for running in list(_running):
        running.close()


class _ReadAhead:
    """What both loaders do; see :class:`DistNodeDataLoader`."""

    # DGL's class, of which `_inner` is.
    _kind: Any = None

    def __init__(
        self,
        g: Any,
        ids: Any,
        graph_sampler: Any,
        device: Any = None,
        *,
        prefetch: int = 2,
        cache: CacheSize = 0,
        cache_policy: str = "auto",
        **kwargs: Any,
    ) -> None:
        if not isinstance(g, dgl.distributed.DistGraph):
            raise TypeError(
                f"g must be a DistGraph, got {type(g).__name__}: pagraph.dgl.DataLoader takes "
                "graphs that one machine holds"
            )
        install(refuse_writes)
        self._prefetch = as_integer("prefetch", prefetch, least=0)
        budget = Budget.parse(cache)
        if device is not None and str(device) != "cpu":
            raise ValueError(
                f"device must be the CPU, which DGL's servers deliver to, got {device}"
            )
        self._inner = self._kind(g, ids, graph_sampler, device, **kwargs)
        self._reads = _Reads(g, graph_sampler, budget, cache_policy, len(self))
        counters = self._reads.counters
        self.stats: LoaderStats = LoaderStats(counters.snapshot)
        self._pass: _Pass | None = None
        self._epoch = 0
        # DGL registers its own when it connects; the last one registered is called first.
        atexit.unregister(_end_all)
        atexit.register(_end_all)

    def __getattr__(self, name: str) -> Any:
        inner = vars(self).get("_inner")
        if inner is None:
            raise AttributeError(name)
        return getattr(inner, name)

    def __del__(self) -> None:
        # Not DGL's, which takes its batches' function out of the sampler processes: `_inner` does.
        running = vars(self).get("_pass")
        if running is not None:
            running.close()

    def __len__(self) -> int:
        """Batches of a pass. (DGL's loaders have no length.)"""
        return int(self._inner.expected_idxs)

    def __iter__(self) -> Any:
        self._end_pass()
        inner = iter(self._inner)
        recorder = self.stats.begin(self._epoch)
        self._epoch += 1
        try:
            with recorder.time("waiting"), recorder.time("filling"):
                self._reads.begin()
        except BaseException:
            self._reads.end()
            turns.leave()
            raise
        self._pass = _Pass(inner, self._reads, recorder, self._prefetch)
        return self

    def __next__(self) -> Any:
        if self._pass is None:
            iter(self)
        assert self._pass is not None
        return next(self._pass)

    def __repr__(self) -> str:
        fields = ", ".join(field.label for field in self._reads.fields) or "none"
        cached = {f.label: len(f.cache) for f in self._reads.fields if f.cache is not None}
        rows = "".join(f", {count:,} rows of {label} cached" for label, count in cached.items())
        return f"{type(self).__name__}({len(self):,} batches, fields: {fields}{rows})"

    def close(self) -> None:
        """End the pass, if one is running, and give the cache up, so that its fields may be
        written; the next pass fills it again.

        Every process closes its loader before any of them writes.
        """
        self._end_pass()
        self._reads.forget()

    invalidate_cache = close

    def _end_pass(self) -> None:
        running = self._pass
        self._pass = None
        if running is not None:
            running.close()


class DistNodeDataLoader(_ReadAhead, _home.DistNodeDataLoader):  # type: ignore[name-defined]
    """Drop-in for ``dgl.dataloading.DistNodeDataLoader``: DGL samples, in its servers and sampler
    processes, and serves the rows; a thread reads those of the next batches ahead of the loop.

    Batches are DGL's, with the rows that the sampler's ``prefetch_node_feats``, ``prefetch_labels``
    and ``prefetch_edge_feats`` name on their blocks, where ``dgl.dataloading.DataLoader`` has them.
    (DGL's own loader of DistDGL leaves them out.) Fields that are not named are read in the loop,
    as before. So are embeddings, and all else that training writes: a named field must stay as it
    is while a pass runs, and with a cache for as long as it has one. A process that writes one all
    the same gets an error; writes past DGL's ``DistTensor`` are not seen.

    Other threads may ask DGL's servers meanwhile, the training loop above all: all take turns.

    Args:
        g: The ``dgl.distributed.DistGraph``.
        nids: Seeds, as DGL's loader takes them: this process's own, from ``node_split``.
        graph_sampler: A sampler of blocks.
        device: None or "cpu", as in DGL.
        prefetch: Finished batches that may wait. 0 reads each batch when it is asked for, without a
            thread.
        cache: What a static cache of other machines' rows may take in memory: ``"2GiB"``, bytes, a
            fraction of the rows of ``prefetch_node_feats``, ``"auto"``, or 0 for none. It says that
            these fields stay as they are.
        cache_policy: ``"degree"``: rows of the vertices that most edges of this machine's part come
            from. ``"auto"`` and ``"adaptive"``: at first these, and after a pass those that it read
            most.
        **kwargs: ``batch_size``, ``shuffle``, ``drop_last``, ``queue_size``: as DGL's loader has
            them. ``num_workers`` means nothing, as in DGL: ``DGL_NUM_SAMPLER``, which ``launch.py
            --num_samplers`` sets, is the number of processes that sample.

    Attributes:
        stats: Rows, bytes, hits and seconds of each pass and in total; prints as a table. Fields
            count other machines' rows ("remote", "cache"), and those of this machine's part apart
            from them, so that the hit rate is that of rows which would cross the network.

    Raises:
        TypeError, ValueError: ``g`` is no DistGraph; ``device``, ``prefetch``, ``cache`` or
            ``cache_policy`` is none of these; the sampler names a field that the graph has not.
    """

    _kind = _home.DistNodeDataLoader

    def __init__(
        self,
        g: Any,
        nids: Any,
        graph_sampler: Any,
        device: Any = None,
        *,
        prefetch: int = 2,
        cache: CacheSize = 0,
        cache_policy: str = "auto",
        **kwargs: Any,
    ) -> None:
        ours: dict[str, Any] = {"prefetch": prefetch, "cache": cache, "cache_policy": cache_policy}
        super().__init__(g, nids, graph_sampler, device, **ours, **kwargs)


class DistEdgeDataLoader(_ReadAhead, _home.DistEdgeDataLoader):  # type: ignore[name-defined]
    """Drop-in for ``dgl.dataloading.DistEdgeDataLoader``; see :class:`DistNodeDataLoader`.

    Args:
        g: The ``dgl.distributed.DistGraph``.
        eids: Seeds, as DGL's loader takes them: this process's own, from ``edge_split``.
        graph_sampler: A sampler of blocks.
        device: None or "cpu", as in DGL.
        **kwargs: Those of :class:`DistNodeDataLoader`, and ``negative_sampler``, ``exclude``,
            ``reverse_eids``, ``reverse_etypes`` and ``g_sampling``, as DGL's loader has them. DGL
            2.1 gives ``exclude`` to its ``DistGraph``, which samples excluded edges all the same.
    """

    _kind = _home.DistEdgeDataLoader

    def __init__(self, g: Any, eids: Any, graph_sampler: Any, device: Any = None, **kwargs: Any):
        super().__init__(g, eids, graph_sampler, device, **kwargs)
