"""Stale values are never served: whatever is done to a field, the next read has its present
values."""

import threading

import numpy as np
import pytest
import torch
from plain_rows import is_current

from pagraph.cache import FieldSet
from pagraph.features import on_disk
from pagraph.graph.graph import NODE_TYPE
from pagraph.graph.mapped import map_npy
from pagraph.ranking import Ranking
from pagraph.system import Budget
from pagraph.system.buffers import BufferPool

N = 200
IDS = torch.arange(N - 1, -1, -3)
SETTLED = 40  # reads after which a changed field is cached again, for the first few changes


class Graph:
    """Fields as a user holds them: a dict of tensors."""

    def __init__(self, folder, share="50%"):
        self._folder = folder
        self.ndata = {"h": self.mapped(torch.arange(N * 3, dtype=torch.float32).view(N, 3))}
        pool = BufferPool(4)
        self.fields = FieldSet(
            {"h": lambda: self.ndata["h"]},
            device=torch.device("cpu"),
            budget=Budget.parse(share),
            rank=lambda types: {NODE_TYPE: Ranking(torch.arange(N))},
            pool_of=lambda key: pool,
            num_nodes=N,
        )
        self.fields.prepare()

    def mapped(self, tensor):
        path = self._folder / f"{len(list(self._folder.iterdir()))}.npy"
        np.save(path, tensor.numpy())
        return map_npy(path)

    def read(self, ids=IDS):
        return self.fields.read("h", ids)

    def check(self):
        rows = self.read()
        assert rows.tensor.dtype == self.ndata["h"].dtype
        assert torch.equal(rows.tensor, self.ndata["h"][IDS])
        return rows

    def is_cached(self):
        before = self.fields.counters
        self.read()
        return (self.fields.counters - before).fields["h"].hits > 0


@pytest.fixture(params=["1%", "50%", 1.0])
def graph(request, tmp_path):
    graph = Graph(tmp_path, request.param)
    if not on_disk(graph.ndata["h"]):
        pytest.skip("needs temporary files on a disk")
    return graph


def test_undisturbed_fields_are_served_from_the_cache(graph):
    assert graph.is_cached()
    rows = graph.check()
    assert is_current(graph.fields, "h", rows)


def changes():
    yield "in place", lambda g: g.ndata["h"].mul_(-1)
    yield "slice", lambda g: g.ndata["h"].__setitem__(slice(0, 50), 7)
    yield "one element", lambda g: g.ndata["h"].__setitem__((int(IDS[-1]), 1), -5)
    yield "through a view", lambda g: g.ndata["h"].view(-1).add_(3)
    yield "index_put", lambda g: g.ndata["h"].index_put_((IDS,), torch.ones(len(IDS), 3))
    yield "replaced in memory", lambda g: g.ndata.update(h=torch.full((N, 3), 2.0))
    yield "replaced on disk", lambda g: g.ndata.update(h=g.mapped(torch.full((N, 3), 2.0)))
    yield "wider", lambda g: g.ndata.update(h=g.mapped(torch.rand(N, 17)))
    yield "narrower", lambda g: g.ndata.update(h=g.mapped(torch.rand(N, 1)))
    yield "one dimension", lambda g: g.ndata.update(h=g.mapped(torch.rand(N)))
    yield "three dimensions", lambda g: g.ndata.update(h=g.mapped(torch.rand(N, 2, 5)))
    yield "another dtype", lambda g: g.ndata.update(h=g.mapped(torch.arange(N * 3).view(N, 3)))
    yield "same bytes, other dtype", lambda g: g.ndata.update(h=g.ndata["h"].view(torch.int32))
    yield "reversed columns", lambda g: g.ndata.update(h=g.ndata["h"].flip(1))
    yield "column slice", lambda g: g.ndata.update(h=g.ndata["h"][:, 1:])
    yield "no columns", lambda g: g.ndata.update(h=g.ndata["h"][:, :0])


@pytest.mark.every
@pytest.mark.parametrize(("name", "change"), list(changes()), ids=[name for name, _ in changes()])
def test_the_next_read_has_the_new_values(graph, name, change):
    for again in range(2):
        ahead = graph.check()
        change(graph)
        current = is_current(graph.fields, "h", ahead)
        assert not current or (again and torch.equal(ahead.tensor, graph.ndata["h"][IDS]))
        for _ in range(SETTLED):  # also when it is cached again
            rows = graph.check()
            assert is_current(graph.fields, "h", rows)


@pytest.mark.parametrize("width", [1, 3, 17])
def test_a_settled_field_is_cached_again_within_its_bytes(tmp_path, width):
    graph = Graph(tmp_path, "50%")
    allowed = graph.fields.plan.budget_bytes
    graph.ndata["h"] = graph.mapped(torch.rand(N, width))
    for _ in range(SETTLED):
        graph.check()
    assert graph.is_cached()
    (part,) = graph.fields.plan
    assert part.rows == min(N // 2, (allowed - 4 * N) // (4 * width))
    assert graph.fields.plan.nbytes <= allowed


def test_a_field_that_moves_to_memory_is_no_longer_cached(tmp_path):
    graph = Graph(tmp_path, 1.0)
    graph.ndata["h"] = torch.rand(N, 3)
    for _ in range(SETTLED):
        graph.check()
    assert not graph.is_cached()
    graph.ndata["h"] = graph.mapped(torch.rand(N, 3))
    for _ in range(SETTLED):
        graph.check()
    assert graph.is_cached()


def test_a_field_written_at_every_step_is_right_and_rarely_filled(tmp_path):
    graph = Graph(tmp_path, 1.0)
    for _ in range(100):
        graph.ndata["h"].add_(1)
        rows = graph.check()
        assert is_current(graph.fields, "h", rows)
    assert graph.fields.counters.hit_rate == 0.0


def test_a_deleted_field_raises_and_comes_back(graph):
    rows = graph.check()
    kept = graph.ndata.pop("h")
    assert not is_current(graph.fields, "h", rows)
    with pytest.raises(KeyError, match="h"):
        graph.read()
    graph.ndata["h"] = kept.clone() + 1
    graph.check()


def test_back_to_an_earlier_tensor(graph):
    first, second = graph.ndata["h"], graph.mapped(torch.rand(N, 3))
    for step in range(60):
        graph.ndata["h"] = (first, second)[(step // 7) % 2]
        graph.check()


def test_hidden_writes_are_seen_after_invalidating(graph):
    rows = graph.check()
    graph.ndata["h"].numpy()[:] = 9
    assert is_current(graph.fields, "h", rows)  # nobody can see such a write
    graph.fields.invalidate("h")
    assert not is_current(graph.fields, "h", rows)
    for _ in range(SETTLED):
        graph.check()
    graph.ndata["h"].numpy()[:] = 8
    graph.fields.invalidate()
    graph.check()


def test_inference_tensors_are_read_anew_every_time(tmp_path):
    graph = Graph(tmp_path, 1.0)
    with torch.inference_mode():
        graph.ndata["h"] = torch.zeros(N, 3)
        for step in range(30):
            graph.ndata["h"].add_(step)
            rows = graph.check()
            assert not is_current(graph.fields, "h", rows)


@pytest.mark.many
def test_a_read_that_starts_after_a_write_never_sees_older_values(tmp_path):
    graph = Graph(tmp_path, 1.0)
    graph.ndata["h"].fill_(0)
    written, failures, stop = [0], [], threading.Event()

    def work():
        while not stop.is_set():
            least = written[0]
            rows = graph.read()
            if float(rows.tensor.min()) < least:
                failures.append((least, float(rows.tensor.min())))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(1, 60):
        if step % 3 == 0:
            graph.ndata["h"] = graph.mapped(torch.full((N, 1 + step % 4), float(step)))
        else:
            graph.ndata["h"].fill_(step)
        written[0] = step
        rows = graph.read()  # what the loader does at delivery
        assert is_current(graph.fields, "h", rows) and (rows.tensor == step).all()
        for _ in range(step % 30):  # some versions live long enough to be cached
            graph.read()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
