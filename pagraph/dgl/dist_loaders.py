"""Drop-ins for DistDGL's loaders: DGL's servers sample and serve rows, which are read ahead."""

from __future__ import annotations

import atexit
import functools
import inspect
import queue
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .._postponed import interrupt_later
from ..errors import PipelineError
from ..stats.reads import ReadCounters
from ..stats.stats import EpochRecorder, LoaderStats
from ..system.budget import Budget
from ..system.checks import as_integer
from ..system.stage import SerialStage, Stage
from .graphbolt import import_dgl
from .remote import RemoteCache, RemoteField, check_policy, expected_reads, refuse_writes

dgl = import_dgl()
from dgl.distributed import (  # noqa: E402
    dist_context,
    graph_services,
    kvstore,
    rpc,
    standalone_kvstore,
)

# The loaders' module depends on DGL's version.
_home = dgl.dataloading if hasattr(dgl.dataloading, "DistNodeDataLoader") else dgl.distributed

if TYPE_CHECKING:
    from torch import Tensor

    from ..typing import CacheSize

_PREFETCHED = {
    "prefetch_node_feats": "src",
    "prefetch_labels": "dst",
    "prefetch_edge_feats": "edge",
}
"""A sampler's attributes that name fields, and which rows are read: of the first block's source
vertices, of the last block's destination vertices, or of all blocks' edges."""


class _Place(NamedTuple):
    """A column of a batch, and the field that fills it."""

    frame: str
    name: str
    field: RemoteField


class _Fields:
    """The fields that a loader reads ahead.

    It does not refer to the loader, which the reading thread would then keep alive.
    """

    def __init__(self, graph: Any, sampler: Any, cache: RemoteCache | None) -> None:
        self._graph = graph
        self._sampler = sampler
        self._cache = cache
        self.counters = ReadCounters()
        self._known: dict[tuple[str, Any, str], RemoteField] = {}
        self.places: list[_Place] = []
        self.resolve()

    def resolve(self) -> None:
        """Find the fields that the sampler names now; a replaced tensor is a new field."""
        self.places = []
        for argument, frame in _PREFETCHED.items():
            for row_type, name in _named(self._graph, self._sampler, argument, frame):
                field = self._field(argument, frame, row_type, name)
                self.places.append(_Place(frame, name, field))

    def _field(self, argument: str, frame: str, row_type: Any, name: str) -> RemoteField:
        graph = self._graph
        view, types = graph.nodes, graph.ntypes
        if frame == "edge":
            view, types = graph.edges, graph.canonical_etypes
        columns = view[row_type].data
        if name not in columns:
            raise ValueError(
                f"{argument} must name fields of {row_type!r}, which has {sorted(columns)}; got "
                f"{name!r}"
            )
        tensor = columns[name]
        # Labels are not cached: they are of seeds, which `node_split` takes from this machine's
        # part.
        key = frame, row_type, name
        field = self._known.get(key)
        if field is None or field.tensor is not tensor:
            text = row_type if isinstance(row_type, str) else ":".join(row_type)
            label = name if len(types) == 1 else f"{text}/{name}"
            cacheable = self._cache is not None and frame == "src"
            field = self._known[key] = RemoteField(tensor, row_type, label, cacheable=cacheable)
        return field

    def begin(self) -> None:
        """Fill the cache if it is due; from now on fields that are read must not be written."""
        self.resolve()
        for place in self.places:
            place.field.is_read = True
        if self._cache is not None:
            self._cache.prepare([place.field for place in self.places])

    def end(self) -> None:
        """Allow writes again, when rows are no longer read ahead."""
        for field in self._known.values():
            field.is_read = False

    def forget(self) -> None:
        """Drop all cached rows."""
        for field in self._known.values():
            field.cache = None

    def add_to(self, recorder: EpochRecorder, batch: Any) -> Any:
        """DGL's batch, with the rows of all fields on its blocks."""
        begin = time.perf_counter_ns()
        blocks = batch[-1]
        reads: dict[str, Tensor] = {}
        for frame, name, field in self.places:
            if frame == "edge":
                for block in blocks:
                    self._put(block.edges[field.type].data, dgl.EID, name, field)
            elif frame == "dst":
                self._put(blocks[-1].dstnodes[field.type].data, dgl.NID, name, field)
            else:
                columns = blocks[0].srcnodes[field.type].data
                reads[field.type] = self._put(columns, dgl.NID, name, field)
        if self._cache is not None:
            self._cache.count(reads)
        recorder.spent("fetching", begin)
        return batch

    def _put(self, columns: Any, ids_name: str, name: str, field: RemoteField) -> Tensor:
        ids: Tensor = columns[ids_name]
        columns[name] = field.read(ids, self.counters)
        return ids


def _named(graph: Any, sampler: Any, argument: str, frame: str) -> list[tuple[Any, str]]:
    """(type, name) of each field that a sampler names; ValueError if types are missing."""
    names = getattr(sampler, argument, None) or []
    types = graph.canonical_etypes if frame == "edge" else graph.ntypes
    if isinstance(names, Mapping):
        canonical = graph.to_canonical_etype if frame == "edge" else str
        return [(canonical(t), name) for t, of_type in names.items() for name in of_type]
    if names and len(types) > 1:
        raise ValueError(
            f"{argument} must be a dict for a graph of the types {list(types)}, got {names!r}"
        )
    return [(types[0], name) for name in names]


class _Failed(NamedTuple):
    """What a sampler process returns for a batch that failed, its traceback."""

    text: str


class _Guarded:
    """DGL's collate function for sampler processes, which returns exceptions as ``_Failed``.

    Otherwise an exception would end the process, and the loop would never see it.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, items: Any) -> Any:
        try:
            return self._collate(items)
        except Exception:
            return _Failed(traceback.format_exc())


def _guard(inner: Any) -> None:
    """Make a loader's sampler processes report exceptions."""
    if inner.pool is not None:
        inner.collate_fn = _Guarded(inner.collate_fn)
        inner.pool.set_collate_fn(inner.collate_fn, inner.name)


def _sampled(inner: Any, recorder: EpochRecorder) -> Iterator[Any]:
    """DGL's batches."""
    while True:
        begin = time.perf_counter_ns()
        try:
            batch = next(inner)
        except StopIteration:
            return
        finally:
            recorder.spent("sampling", begin)
        if isinstance(batch, _Failed):
            raise PipelineError(f"a DGL sampler process failed:\n\n{batch.text}")
        yield batch


class _Pass:
    """One pass: DGL's batches with their rows, some of them ahead of the reader."""

    def __init__(self, inner: Any, fields: _Fields, recorder: EpochRecorder, prefetch: int) -> None:
        self._inner = inner
        self._fields = fields
        self._recorder = recorder
        source = _sampled(inner, recorder)

        def work(batch: Any) -> Any:
            return fields.add_to(recorder, batch)

        self._stage: Stage[Any, Any] | SerialStage[Any, Any]
        if prefetch:
            # One thread is enough, since servers are asked one request at a time.
            self._stage = Stage(source, work, workers=1, ahead=1 + prefetch)
        else:
            self._stage = SerialStage(source, work)
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
        """End the thread and discard pending results, which the next pass would otherwise get."""
        self._stage.close()
        self._fields.end()
        self._recorder.close()
        inner = self._inner
        if inner.pool is not None:
            while inner.num_pending > 0:
                # Counted first, because a dead process's results will never come.
                inner.num_pending -= 1
                inner._get_data_from_result_queue()


_running: weakref.WeakSet[_Pass] = weakref.WeakSet()


def _end_all() -> None:
    """End all passes before DGL's exit function closes the connection."""
    for running in list(_running):
        running.close()


class _ReadAhead:
    """Base of both loaders; see :class:`DistNodeDataLoader`."""

    # DGL's class of `_inner`. This loader is not itself the inner one, because the reading thread
    # refers to that and would keep it alive.
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
                "graphs on one machine"
            )
        if device is not None and str(device) != "cpu":
            raise ValueError(
                f"device must be the CPU, which DGL's servers deliver to, got {str(device)!r}"
            )
        self._prefetch = as_integer("prefetch", prefetch, least=0)
        check_policy(cache_policy)
        budget = Budget.parse(cache)
        _share_connection(refuse_writes)
        self._inner = self._kind(g, ids, graph_sampler, device, **kwargs)
        _guard(self._inner)
        remote = None
        if budget is not None:
            seeds = ids if self._kind is _home.DistNodeDataLoader else None
            size = self._inner.batch_size

            def first() -> dict[str, Tensor]:
                return expected_reads(g, cache_policy, graph_sampler, seeds, size)

            remote = RemoteCache(budget, first, len(self) if cache_policy == "auto" else None)
        self._fields = _Fields(g, graph_sampler, remote)
        self.stats: LoaderStats = LoaderStats(self._fields.counters.snapshot)
        self._pass: _Pass | None = None
        self._epoch = 0
        # DGL registers its exit function when it connects. The last one registered runs first.
        atexit.unregister(_end_all)
        atexit.register(_end_all)

    def __getattr__(self, name: str) -> Any:
        inner = vars(self).get("_inner")
        if inner is None:
            raise AttributeError(name)
        return getattr(inner, name)

    def __del__(self) -> None:
        # Replaces DGL's, which makes sampler processes drop the collate function: `_inner` does so.
        running = vars(self).get("_pass")
        if running is not None:
            try:
                running.close()
            except KeyboardInterrupt:
                interrupt_later()

    def __len__(self) -> int:
        """Batches of a pass. (DGL's loaders have no length.)"""
        return int(self._inner.expected_idxs)

    def __iter__(self) -> Any:
        self._end_pass()
        recorder = self.stats.begin(self._epoch)
        self._epoch += 1
        try:
            with recorder.time("waiting"), recorder.time("filling"):
                self._fields.begin()
            inner = iter(self._inner)
        except BaseException:
            self._fields.end()
            raise
        self._pass = _Pass(inner, self._fields, recorder, self._prefetch)
        return self

    def __next__(self) -> Any:
        if self._pass is None:
            iter(self)
        assert self._pass is not None
        return next(self._pass)

    def __repr__(self) -> str:
        fields = list(dict.fromkeys(place.field for place in self._fields.places))
        names = ", ".join(field.label for field in fields) or "none"
        rows = "".join(
            f", {len(field.cache):,} rows of {field.label} cached"
            for field in fields
            if field.cache is not None
        )
        return f"{type(self).__name__}({len(self):,} batches, fields: {names}{rows})"

    def close(self) -> None:
        """End a running pass and drop the cache, so that its fields may be written.

        The next pass fills the cache again. Every process must close its loader before any of them
        writes.
        """
        self._end_pass()
        self._fields.forget()

    def _end_pass(self) -> None:
        running = self._pass
        self._pass = None
        if running is not None:
            running.close()


class DistNodeDataLoader(_ReadAhead, _home.DistNodeDataLoader):  # type: ignore[name-defined]
    """Drop-in for ``dgl.dataloading.DistNodeDataLoader`` that reads rows ahead of the loop.

    DGL's servers and sampler processes sample and serve the rows. A thread reads the rows of the
    next batches.

    Batches are DGL's. Their blocks also have the rows that the sampler's ``prefetch_node_feats``,
    ``prefetch_labels`` and ``prefetch_edge_feats`` name, like those of
    ``dgl.dataloading.DataLoader``. (DistDGL's own loader leaves them out.) Other fields are read in
    the loop, as before. Embeddings, and anything else that training writes, must be read in the
    loop, too: a named field must not be written while a pass runs, nor while it is cached. A
    process that writes one gets an error; writes of other processes are not noticed.

    The training loop may ask DGL's servers meanwhile: threads take turns.

    Args:
        g: The ``dgl.distributed.DistGraph``.
        nids: Seeds of this process, from ``node_split``, as for DGL's loader.
        graph_sampler: A sampler of blocks.
        device: None or "cpu", as in DGL.
        prefetch: Finished batches that may wait. 0 reads each batch when it is requested, without a
            thread.
        cache: Memory of a static cache of other machines' rows: ``"2GiB"``, bytes, a fraction of
            the rows of ``prefetch_node_feats``, ``"auto"``, or 0 for none. Cached fields must not
            be written.
        cache_policy: ``"vip"`` ranks rows by their expected reads per pass, computed on this
            machine's part. ``"degree"`` ranks by the out-degree within the part. ``"auto"`` starts
            with "vip", or "degree" if expected reads are unknown, and after the first pass ranks by
            its counts, corrected for chance.
        **kwargs: ``batch_size``, ``shuffle``, ``drop_last``, ``queue_size``, as for DGL's loader.
            ``num_workers`` is ignored, as in DGL: ``DGL_NUM_SAMPLER``, which ``launch.py
            --num_samplers`` sets, is the number of sampler processes.

    Attributes:
        stats: Rows, bytes, hits and seconds of each pass and in total; prints as a table. Each
            field counts other machines' rows ("remote", "cache"). Rows of this machine's part are
            counted separately, so that the hit rate is that of rows that would cross the network.

    Raises:
        TypeError: ``g`` is not a DistGraph, or an argument has a wrong type.
        ValueError: ``device``, ``prefetch``, ``cache`` or ``cache_policy`` is none of these, or the
            sampler names a field that the graph does not have.
        PipelineError: In the loop, if a sampler process failed or has ended.
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
        eids: Seeds of this process, from ``edge_split``, as for DGL's loader.
        graph_sampler: A sampler of blocks.
        device: None or "cpu", as in DGL.
        **kwargs: Those of :class:`DistNodeDataLoader`, and ``negative_sampler``, ``exclude``,
            ``reverse_eids``, ``reverse_etypes`` and ``g_sampling``, as for DGL's loader. DGL 2.1
            passes ``exclude`` to its ``DistGraph``, which nevertheless samples excluded edges.
    """

    _kind = _home.DistEdgeDataLoader

    def __init__(self, g: Any, eids: Any, graph_sampler: Any, device: Any = None, **kwargs: Any):
        super().__init__(g, eids, graph_sampler, device, **kwargs)


# -- DGL's connection to its servers, shared between threads ---------------------------------------

# A process of DistDGL has one queue of answers, and a request takes the next answer as its own. So
# DGL allows only one thread. Here a thread holds a lock from a request until all its answers have
# come, so that one thread can read ahead. This covers all DGL functions that ask servers: reads of
# rows, sampling, barriers, and pushes of embeddings in the training loop.

# Held while servers are asked. Servers wait for no thread of this process; a barrier waits only for
# other processes' training loops. So the holder always finishes. It is re-entrant, because these
# functions of DGL call each other.
_connection = threading.RLock()
# Held while waiting for a result of the sampler processes. The result may be another loader's; DGL
# keeps it for that loader. No other lock is taken while it is held.
_results = threading.Lock()

_LOOK_SECONDS = 1.0
"""How long to wait for a sampler process before other threads may look, and before checking that it
is alive."""

_SERVICES = (
    "_distributed_access",
    "_distributed_edge_access",
    "_distributed_get_node_property",
)
"""The functions through which all of ``graph_services`` asks servers."""


def _conversations() -> Iterator[tuple[Any, str]]:
    """DGL's functions that ask servers and wait for answers, each as (owner, name)."""
    for name, function in vars(kvstore.KVClient).items():
        if inspect.isfunction(function) and not name.startswith("_"):
            yield kvstore.KVClient, name
    for name in _SERVICES:
        yield graph_services, name
    for name in ("remote_call", "remote_call_to_machine", "client_barrier"):
        yield rpc, name


@functools.cache
def _share_connection(before_push: Callable[[str], None]) -> None:
    """Let threads share the connection from now on; later calls do nothing.

    Args:
        before_push: Called with a distributed tensor's name before this process writes it.
    """
    for owner, name in _conversations():
        setattr(owner, name, _locked(getattr(owner, name)))
    for client in (kvstore.KVClient, standalone_kvstore.KVClient):
        client.push = _checked(client.push, before_push)
    pool = dist_context.CustomPool
    pool.get_result = _looking(pool.get_result)


def _locked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with _connection:
            return function(*args, **kwargs)

    return locked


def _checked(push: Callable[..., Any], before: Callable[[str], None]) -> Callable[..., Any]:
    @functools.wraps(push)
    def checked(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        before(name)
        return push(self, name, *args, **kwargs)

    return checked


def _looking(get_result: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get_result)
    def looking(pool: Any, dataloader_name: str, timeout: float = 1800) -> Any:
        """DGL's ``get_result`` for several threads.

        Raises PipelineError if a sampler process has died. DGL would wait for half an hour.
        """
        until = time.monotonic() + timeout
        while True:
            # Read before the queue, which may still hold what a dead process had sent.
            codes = [process.exitcode for process in pool.process_list]
            try:
                with _results:
                    return get_result(pool, dataloader_name, timeout=_LOOK_SECONDS)
            except queue.Empty:
                if any(code is not None for code in codes):
                    raise PipelineError(
                        "DGL's sampler processes must be alive, got one with exit code "
                        f"{next(code for code in codes if code is not None)}: its own output "
                        "says why"
                    ) from None
                if time.monotonic() > until:
                    raise

    return looking
