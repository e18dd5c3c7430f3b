"""What a process of ``per_batch.py`` measures: loaders of one graph, of the pagraph that it
imports.
"""

import gc
import itertools
import os
import statistics
import sys
import threading
import time
import warnings
from functools import lru_cache, partial

import torch

import pagraph
import pagraph.dgl
import pagraph.pyg
from pagraph.datasets import rmat

import dgl  # isort: skip
from dgl.dataloading import NeighborSampler  # isort: skip
from rmat_graph import random_ids  # isort: skip
from torch_geometric import typing  # isort: skip
from torch_geometric.data import Data  # isort: skip
from torch_geometric.loader import NeighborLoader  # isort: skip

PYGS_BACKENDS = [
    name for name in ("pyg_lib", "torch_sparse") if getattr(typing, f"WITH_{name.upper()}")
]
_FOLDER = os.path.dirname(pagraph.__file__) + os.sep
_LONGEST_LOOP = 5_000_000
_WINDOW = 8
WARM_UP = 10
"""Batches that are read before any is measured."""


class Loaders:
    """Loaders over one RMAT graph, each made when it is first asked for, as for training.

    Methods answer ``per_batch.py``: their ``loader`` is "core", "dgl" or "pyg", which are ours, or
    "dgl's" or "pyg's", the peer's.

    Args:
        scale, edges, dim: The graph's.
        fanout: As DGL's sampler takes it.
        batches: Length of an epoch, where the graph has seeds enough.
    """

    def __init__(self, scale, edges, dim, fanout, batches):
        self._core = rmat(
            scale,
            num_edges=edges,
            undirected=True,
            simple=True,
            num_features=dim,
            num_classes=16,
            seed=0,
        )
        self._memory = torch.zeros(self._core.num_nodes, dim)
        self._core.ndata["memory"] = self._memory
        self._dgl = pagraph.dgl.to_dgl(self._core)
        self._dgl.create_formats_()
        src, dst = self._dgl.edges()
        fields = {"x": self._core.ndata["feat"], "y": self._core.ndata["label"]}
        fields["memory"] = self._memory
        self._pyg = Data(
            edge_index=torch.stack([src, dst]), num_nodes=self._core.num_nodes, **fields
        )
        self._fanouts = [int(fanout) for fanout in fanout.split(",")]
        self._batches = batches
        self._get = lru_cache(maxsize=None)(self._make)
        # DGL's advice on CPU affinity, PyG's on its backends; each epoch.
        warnings.simplefilter("ignore")

    def versions(self):
        """Where pagraph was imported from, what PyG samples with, and the graph's size."""
        return {
            "pagraph": pagraph.__file__,
            "pygs_backend": PYGS_BACKENDS[0] if PYGS_BACKENDS else None,
            "vertices": self._core.num_nodes,
            "edges": self._core.num_edges,
        }

    def calls(self, loader, seeds, batches):
        """See :func:`count_calls`; a label is read too."""
        return count_calls(self._get(loader, seeds, 0, True), batches)

    def read_calls(self, loader, seeds, batches):
        """See :func:`count_read_calls`."""
        return count_read_calls(self._get(loader, seeds, 0, True), batches)

    def time(self, loader, seeds, workers, batches, seconds):
        """See :func:`time_batches`."""
        return time_batches(self._get(loader, seeds, workers, False), batches, seconds)

    def time_written(self, loader, seeds, workers, batches, seconds):
        """See :func:`time_batches`; a second field, as large, is written after each batch."""
        made = self._get(loader, seeds, workers, False, True)
        return time_batches(made, batches, seconds, self._write)

    def _write(self):
        self._memory[:16] += 1

    def lock(self, loader, seeds, workers, batches, seconds):
        """See :func:`time_lock`."""
        iterator = forever(self._get(loader, seeds, workers, False))
        try:
            for _ in range(WARM_UP):
                next(iterator)
            return time_lock(iterator, batches, seconds)
        finally:
            iterator.close()

    def check_lock(self, held, batches, seconds):
        """See :func:`check_lock`."""
        return check_lock(held, batches, seconds)

    def _make(self, name, seeds, workers, labels, written=False):
        ids = random_ids(self._core.num_nodes, seeds * (self._batches + WARM_UP))
        options = {"batch_size": seeds, "shuffle": True}
        if name in ("core", "dgl", "pyg"):
            options |= {"num_workers": workers} if workers else {"prefetch": 0}
        features = ["feat", "memory"] if written else ["feat"]
        if name == "core":
            fields = {"fields": features, "labels": ["label"] if labels else []}
            return pagraph.Loader(
                self._core, ids, pagraph.NeighborSampler(self._fanouts), **fields, **options
            )
        if name.startswith("dgl"):
            sampler = NeighborSampler(
                self._fanouts,
                prefetch_node_feats=features,
                prefetch_labels=["label"] if labels else [],
            )
            made_by = pagraph.dgl.DataLoader if name == "dgl" else dgl.dataloading.DataLoader
            return made_by(self._dgl, ids, sampler, **options)
        data = self._pyg.clone()
        if not labels:
            del data.y
        if not written:
            del data.memory
        made_by = pagraph.pyg.NeighborLoader if name == "pyg" else NeighborLoader
        return made_by(data, self._fanouts[::-1], input_nodes=ids, **options)


def forever(loader):
    """Passes over a loader without an end."""
    while True:
        yield from loader


def touch(batch):
    """Read what a training step reads: DGL hands columns over lazily."""
    if isinstance(batch, (list, tuple)) and len(batch) == 3:
        _, _, blocks = batch
        assert len(blocks[0].srcdata["feat"])


def _nothing():
    pass


def count_calls(loader, batches):
    """Calls of Python functions in the reader's thread until ``next()`` returns, batch by batch."""
    iterator = iter(loader)
    for _ in range(WARM_UP):
        next(iterator)
    return [_calls_of(partial(next, iterator)) for _ in range(batches)]


def count_read_calls(loader, batches):
    """Calls of one read of the core loader's uncached field, ``FieldSet.read`` included."""
    for _ in itertools.islice(loader, WARM_UP):  # buffers are recycled, the field has been seen
        pass
    read, ids = _field_set(loader).read, torch.arange(100)
    return [_calls_of(partial(read, "feat", ids)) for _ in range(batches)]


def _field_set(loader):
    """The loader's FieldSet: no part of the interface, so it is looked for wherever a version keeps
    it."""
    parts, known = [loader], set()
    for part in parts:
        if type(part).__name__ == "FieldSet":
            return part
        for value in getattr(part, "__dict__", {}).values():
            if type(value).__module__.startswith("pagraph") and id(value) not in known:
                known.add(id(value))
                parts.append(value)
    raise LookupError(f"no FieldSet among the parts of {loader!r}")


def _calls_of(work):
    """The calls while ``work`` runs: "all", and "named", of functions with a name in pagraph's own
    files.

    Comprehensions and generator expressions have none: a generator is "called" for each item, and
    from Python 3.12 a comprehension is no call at all.
    """
    calls = {"named": 0, "all": 0}

    def hook(frame, event, arg):
        if event == "call":
            code = frame.f_code
            calls["all"] += 1
            calls["named"] += code.co_filename.startswith(_FOLDER) and not code.co_name.startswith(
                "<"
            )

    gc.disable()  # finalizers are no part of a batch
    sys.setprofile(hook)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def time_batches(loader, most, seconds, step=_nothing):
    """Milliseconds a batch, first ones left out; over at most so many batches, and about so many
    seconds. A ``step`` follows each batch."""
    batches = forever(loader)
    for _ in range(WARM_UP):
        touch(next(batches))
        step()
    count = 0
    begin = now = time.perf_counter()
    while count < most and (now - begin < seconds or count < 5):
        touch(next(batches))
        step()
        count += 1
        now = time.perf_counter()
    batches.close()
    return (now - begin) / count * 1e3


def time_lock(batches, most, seconds):
    """How much background threads slow pure Python in the main thread, in milliseconds a batch.

    The main thread repeats: take a batch, run a loop of fixed length while the threads prepare the
    one that is missing now ("busy"), run the loop again ("alone"). It must find the next batch
    ready, or the threads would have worked while it waited, unseen: the loop is lengthened until
    ``next()`` takes no longer than after a sleep. The difference between the two loops is what one
    batch costs, whatever the clock rate. Threads that hand several batches over at once work in
    some cycles more than in others: so cycles are averaged by 8, and of these means the median is
    taken, which drops what other programs did in some of them.

    "held" is the difference in time off the processor (wall time less the main thread's CPU time):
    waiting for the lock, with each change of hands, or for a core where there is none for each
    thread. "slowed" is the difference in wall time: the same, and what the threads take of caches
    and memory. "next" is the time in ``next()``: also under the lock, but in the reader's thread.

    The switch interval is 1 ms instead of 5: a thread then waits less for the lock each time that
    it comes out of a kernel, so the loop is shorter; how long it keeps the lock is hardly changed,
    for its runs of Python are shorter.

    Args:
        batches: An iterator whose threads are at work.
        most: Cycles, at most; fewer where they take longer than ``seconds``.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-3)
    try:
        length = _long_enough(batches)
        runs, begin = [], time.perf_counter()
        while len(runs) < most and (
            time.perf_counter() - begin < seconds or len(runs) < 2 * _WINDOW
        ):
            runs.append(_cycle(batches, length))
    finally:
        sys.setswitchinterval(interval)
    windows = [runs[i : i + _WINDOW] for i in range(0, max(1, len(runs) - _WINDOW + 1), _WINDOW)]
    return {
        name: statistics.median(statistics.fmean(run[name] for run in window) for window in windows)
        * 1e3
        for name in runs[0]
    }


def _long_enough(batches):
    """A length of :func:`spin` in which the threads have a batch ready."""
    ready = statistics.median(
        _next_after(partial(time.sleep, 0.02), batches) for _ in range(WARM_UP)
    )
    length = _loop_length(2e-3)
    while length < _LONGEST_LOOP:
        waits = [_next_after(partial(spin, length), batches) for _ in range(WARM_UP)]
        if statistics.median(waits) <= 1.5 * ready + 1e-4:
            break
        length *= 2
    return int(1.5 * length)


def _cycle(batches, length):
    took = _next_after(partial(spin, 0), batches)
    busy, busy_off = _timed_spin(length)
    alone, alone_off = _timed_spin(length)
    return {"held": busy_off - alone_off, "slowed": busy - alone, "next": took, "loop": alone}


def spin(length):
    """Pure Python that holds the lock and allocates nothing."""
    for _ in range(length):
        pass


def _timed_spin(length):
    """Seconds of wall time, and those of them off the processor."""
    begin, cpu = time.perf_counter(), time.thread_time()
    spin(length)
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - begin
    return wall, wall - cpu


def _loop_length(seconds):
    """For :func:`spin`, of about so many seconds."""
    return int(1e5 * seconds / min(_timed_spin(100_000)[0] for _ in range(10)))


def _next_after(work, batches):
    """Seconds in ``next()`` after ``work``."""
    work()
    begin = time.perf_counter()
    batch = next(batches)  # freed after the clock is read
    took = time.perf_counter() - begin
    del batch
    return took


class Holder:
    """Batches of a thread that is known to hold the lock for so many seconds each: what the
    estimate is checked by."""

    def __init__(self, seconds, pieces=5):
        self._asked = threading.Semaphore(2)
        self._done = threading.Semaphore(0)
        self._length, self._pieces, self._ended = _loop_length(seconds / pieces), pieces, False
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self):
        while self._asked.acquire() and not self._ended:
            for _ in range(self._pieces):
                spin(self._length)
                time.sleep(2e-4)
            self._done.release()

    def __next__(self):
        self._done.acquire()
        self._asked.release()

    def close(self):
        self._ended = True
        self._asked.release()


def check_lock(held, most, seconds):
    """The estimates for a thread that holds the lock for so many seconds a batch."""
    batches = Holder(held)
    try:
        return time_lock(batches, most, seconds)
    finally:
        batches.close()
