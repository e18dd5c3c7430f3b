"""Each GPU kernel of sampling against plain Python, by Triton's interpreter; and whole runs at the
int32 border."""

import mmap
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_sampler import pick as plain_pick
from plain_sampler import sample as plain_sample
from tiers import examples

from pagraph.accelerator import HostAccelerator
from pagraph.accelerator.triton_kernels import launch
from pagraph.sampling.gpu import state
from pagraph.sampling.gpu.run import DeviceRun
from pagraph.sampling.gpu.state import Plan, Room, state_words
from pagraph.sampling.gpu.topology import DeviceEdges
from pagraph.seeds import derive_key

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled here, not interpreted"
)

LAST = 2**31 - 1
UNTOUCHED = -99
dtypes = st.sampled_from([torch.int32, torch.int64])
blocks = st.sampled_from([1, 4, 16, 64])


# Words of the first hop of a graph of one type: who draws, and how many sources are known.
DRAWING = (-1, 0)
KNOWING = (*DRAWING, 0)


# Words of limits, which only rows with times have.
UNTIMED = (0, 0)


def table_of(first):
    """The table of vertices as kernels take it, where each vertex has a place of its own."""
    return first, first, 0


def state_of(known, key=0, more=()):
    """The state's words as hop 0 finds them, with what follows them."""
    key = key - (key >> 63 << 64)
    return torch.tensor([known, 0, key, 0, 0, 0, 0, 0, *more], dtype=torch.int64)


def run(name, programs, *arguments, **constants):
    from pagraph.sampling.gpu import kernels

    launch(getattr(kernels, name), programs, *arguments, **constants)


def whole(length, block):
    """Buffers end where a program does, and there is one at least."""
    return max(1, -(-length // block)) * block


def untouched(length, dtype):
    return torch.full((length,), UNTOUCHED, dtype=dtype)


@given(data=st.data(), n=st.integers(1, 30), dtype=dtypes, block=blocks, spare=st.integers(0, 40))
def test_enter_seeds(data, n, dtype, block, spare):
    seeds = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    nodes, first = untouched(len(seeds) + spare, dtype), torch.zeros(n, dtype=torch.int32)
    run(
        "enter_seeds",
        -(-len(nodes) // block),
        state_of(len(seeds), more=seeds),
        0,
        8,
        nodes,
        *table_of(first),
        BLOCK=block,
    )
    assert nodes.tolist() == seeds + [UNTOUCHED] * spare
    assert first.tolist() == [LAST - seeds.index(v) if v in seeds else 0 for v in range(n)]


@given(
    data=st.data(),
    degrees=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    dtypes=st.tuples(dtypes, dtypes),
    fanout=st.sampled_from([-1, 0, 1, 3, 9, 10]),
    replace=st.booleans(),
    block=blocks,
    more=st.integers(0, 3),
)
def test_measure(data, degrees, dtypes, fanout, replace, block, more):
    graph, batch = dtypes
    indptr = torch.tensor([0, *np.cumsum(degrees)], dtype=graph)
    frontier = data.draw(st.lists(st.integers(0, len(degrees) - 1), max_size=20))
    n, capacity = len(frontier), whole(len(frontier) + more, block)
    spare = capacity - n
    nodes = torch.tensor(frontier + [UNTOUCHED] * spare, dtype=batch)
    state = state_of(n)
    starts, lengths = untouched(capacity, graph), untouched(capacity, graph)
    counts, out_indptr = untouched(capacity, batch), untouched(capacity + 1, batch)
    arguments = (
        indptr,
        int(indptr[-1]),
        nodes,
        len(degrees),
        indptr,
        state,
        *DRAWING,
        *UNTIMED,
        starts,
        lengths,
        counts,
        out_indptr,
    )
    run("measure", capacity // block, *arguments, FANOUT=fanout, REPLACE=replace, BLOCK=block)
    expected = [
        len(plain_pick(v, 0, degrees[v], fanout, replace, 0)) if fanout else 0 for v in frontier
    ]
    assert counts.tolist() == expected + [0] * spare
    assert out_indptr.tolist() == [0] + [UNTOUCHED] * capacity
    assert starts.tolist() == [int(indptr[v]) for v in frontier] + [0] * spare
    assert lengths.tolist() == [degrees[v] for v in frontier] + [0] * spare
    assert state.tolist() == state_of(n).tolist()


@pytest.mark.parametrize("bad", [[0, 5, 3, 8], [0, -2, 3, 8], [0, 3, 100, 8]])
@pytest.mark.parametrize("fanout", [-1, 0, 2])
def test_rows_that_lead_out_of_the_graph_are_empty(bad, fanout):
    state, out = state_of(3), [untouched(length, torch.int64) for length in (4, 4, 4, 5)]
    indptr, nodes = torch.tensor(bad), torch.tensor([0, 1, 2, UNTOUCHED])
    arguments = (indptr, 8, nodes, 3, indptr, state, *DRAWING, *UNTIMED, *out)
    run("measure", 1, *arguments, FANOUT=fanout, REPLACE=False, BLOCK=4)
    rows = [end - start for start, end in zip(bad, bad[1:], strict=False)]
    good = [0 <= start <= end <= 8 for start, end in zip(bad, bad[1:], strict=False)]
    expected = [
        min(row, fanout if fanout >= 0 else row) * ok for row, ok in zip(rows, good, strict=True)
    ]
    assert out[2].tolist() == [*expected, 0]
    assert state[3] == (fanout != 0)


class Picking:
    """A graph's rows, a frontier, and what kernels that pick write."""

    def __init__(self, data, degrees, dtypes, fanout, replace, key, spare=7):
        graph, batch = dtypes
        n = len(degrees)
        rng = np.random.default_rng(key % 1000)
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        self.indices = torch.tensor(rng.integers(0, n, indptr[-1]), dtype=graph)
        frontier = data.draw(st.lists(st.integers(0, n - 1), max_size=12))
        self.known, self.num_nodes = len(frontier), n
        self.state = state_of(self.known, key)
        rows = [plain_pick(v, int(indptr[v]), degrees[v], fanout, replace, key) for v in frontier]
        self.expected = [position for row in rows for position in row]
        self.nodes = torch.tensor([*frontier, *[0] * spare], dtype=batch)
        self.starts = torch.tensor([*(int(indptr[v]) for v in frontier), *[0] * spare], dtype=graph)
        self.degrees = torch.tensor([*(degrees[v] for v in frontier), *[0] * spare], dtype=graph)
        ends = np.cumsum([len(row) for row in rows]).tolist()
        total = ends[-1] if ends else 0
        self.out_indptr = torch.tensor([0, *ends, *[total] * spare], dtype=batch)
        self.positions, self.neighbors = (
            untouched(total + spare, graph),
            untouched(total + spare, graph),
        )
        self.first = torch.zeros(n, dtype=torch.int32)
        self.first[frontier] = torch.tensor(
            [LAST - frontier.index(v) for v in frontier], dtype=torch.int32
        )
        self.before, self.spare = self.first.clone(), spare

    @property
    def arguments(self):
        """Those that all kernels that pick have."""
        rows = self.starts, self.degrees, self.out_indptr
        graph = self.indices, self.indices, self.num_nodes, self.nodes, self.num_nodes
        out = self.positions, self.neighbors, *table_of(self.first)
        return *graph, *rows, self.state, *KNOWING, *out

    def check(self):
        spare = [UNTOUCHED] * self.spare
        sources = [int(self.indices[position]) for position in self.expected]
        assert self.positions.tolist() == self.expected + spare
        assert self.neighbors.tolist() == sources + spare
        places = {}
        for e, v in enumerate(sources):
            places.setdefault(v, LAST - self.known - e)
        expected = [int(self.before[v]) or places.get(v, 0) for v in range(self.num_nodes)]
        assert self.first.tolist() == expected
        assert self.state[3] == 0


degree_lists = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 9, 20]), min_size=1, max_size=8)
keys = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("kernel", ["pick_distinct", "pick_repeated"])
@settings(max_examples=examples(40))
@given(
    data=st.data(),
    degrees=degree_lists,
    dtypes=st.tuples(dtypes, dtypes),
    fanout=st.sampled_from([1, 2, 3, 8, 9, 19, 20]),
    key=keys,
    block=st.sampled_from([1, 4, 16]),
)
def test_picks(kernel, data, degrees, dtypes, fanout, key, block):
    p = Picking(data, degrees, dtypes, fanout, kernel == "pick_repeated", key)
    arguments = p.arguments
    width = 1 << (fanout - 1).bit_length()
    constants = {"FANOUT": fanout, "K": width, "BLOCK": block}
    run(
        kernel,
        -(-len(p.nodes) // block),
        *arguments,
        2,
        **constants,
    )
    p.check()


@settings(max_examples=examples(40))
@given(
    data=st.data(),
    degrees=degree_lists,
    dtypes=st.tuples(dtypes, dtypes),
    block=blocks,
    more=st.integers(0, 5),
)
def test_pick_all(data, degrees, dtypes, block, more):
    p = Picking(data, degrees, dtypes, -1, False, 3)
    steps = p.known.bit_length() + more
    run("pick_all", -(-len(p.positions) // block), *p.arguments, STEPS=steps, BLOCK=block)
    p.check()


@pytest.mark.parametrize("bad", [-1, 3, 2**31 - 1, -(2**31)])
def test_sources_outside_the_graph_are_not_looked_up(bad):
    indices, first, state = (
        torch.tensor([1, bad, 2], dtype=torch.int32),
        torch.zeros(3, dtype=torch.int32),
        state_of(1),
    )
    positions, neighbors = (untouched(4, torch.int32) for _ in range(2))
    out_indptr = torch.tensor([0, 3])
    nothing = torch.tensor([0])
    arguments = (
        *(indices, indices, 3, nothing, 3, nothing, nothing),
        out_indptr,
        state,
        *KNOWING,
        positions,
        neighbors,
        *table_of(first),
    )
    run("pick_all", 1, *arguments, STEPS=1, BLOCK=4)
    assert first.tolist() == [0, LAST - 1, LAST - 3]
    assert state[3] == 1
    places, flags = untouched(4, torch.int64), untouched(4, torch.int32)
    arguments = (neighbors, 3, out_indptr, state, *KNOWING, *table_of(first), places, flags)
    run("find_places", 1, *arguments, BLOCK=4)
    assert (places.tolist(), flags.tolist()) == ([1, -1, 3, -1], [1, 0, 1, 0])


@settings(max_examples=examples(40))
@given(
    known=st.integers(0, 10),
    neighbors=st.lists(st.integers(0, 19), max_size=40),
    dtypes=st.tuples(dtypes, dtypes),
    block=blocks,
    more=st.integers(0, 30),
    last=st.booleans(),
)
def test_relabelling(known, neighbors, dtypes, block, more, last):
    """``find_places``, a running sum, ``relabel`` and ``settle``, after edges have offered their
    places."""
    graph, batch = dtypes
    neighbors = neighbors if known else []
    total, capacity = len(neighbors), whole(len(neighbors) + more, block)
    spare = capacity - total
    expected = [*range(known)]  # vertex i is known as i
    for v in neighbors:
        if v not in expected:
            expected.append(v)
    first = torch.zeros(20, dtype=torch.int32)
    first[:known] = LAST - torch.arange(known, dtype=torch.int32)
    for e, v in enumerate(neighbors):
        first[v] = max(int(first[v]), LAST - known - e)
    nodes = torch.cat([torch.arange(known), torch.full((capacity,), UNTOUCHED)]).to(batch)
    state, out_indptr = state_of(known), torch.tensor([0] * known + [total], dtype=batch)
    # What lies behind the edges means nothing.
    sources = torch.tensor([*neighbors, *[5] * spare], dtype=graph)
    ids, flags = untouched(capacity, batch), untouched(capacity, torch.int32)
    programs = capacity // block

    arguments = (sources, 20, out_indptr, state, *KNOWING, *table_of(first), ids, flags)
    run("find_places", programs, *arguments, BLOCK=block)
    news = [v >= known and v not in neighbors[:e] for e, v in enumerate(neighbors)]
    assert flags.tolist() == [*map(int, news), *[0] * spare]
    first_places = [v if v < known else known + neighbors.index(v) for v in neighbors]
    assert ids.tolist()[:total] == first_places

    ranks = torch.cumsum(flags, 0, dtype=torch.int32)
    arguments = (sources, out_indptr, state, *KNOWING, ranks, ids, nodes)
    run("relabel", programs, *arguments, BLOCK=block)
    assert ids.tolist()[:total] == [expected.index(v) for v in neighbors]
    assert nodes.tolist() == expected + [UNTOUCHED] * (known + capacity - len(expected))

    arguments = (nodes, out_indptr, ranks, capacity, state, *KNOWING, 1, 4, *table_of(first))
    run("settle", max(1, -(-len(nodes) // block)), *arguments, CLEAR=last, BLOCK=block)
    assert state.tolist()[:5] == [known, total, 0, 0, len(expected)]
    table = {v: LAST - i for i, v in enumerate(expected)}
    assert first.tolist() == [0 if last else table.get(v, 0) for v in range(20)]


class LongTensor(torch.Tensor):
    """A tensor over more memory than it has elements for.

    The interpreter writes back the whole memory of a kernel's arguments, which for a table of 8 GB
    would fill it.
    """

    def __len__(self):
        return self.full_length


def lazily_mapped(length, dtype):
    """Zeros of which only the pages that are used take memory, and the array that shows them."""
    try:
        nbytes = length * dtype.itemsize
        pages = mmap.mmap(
            -1,
            nbytes,
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0),
        )
    except OSError as error:
        pytest.skip(f"the system does not map {nbytes} bytes lazily: {error}")
    tensor = torch.Tensor._make_subclass(LongTensor, torch.frombuffer(pages, dtype=dtype, count=1))
    tensor.full_length = length
    return tensor, np.frombuffer(pages, dtype=np.dtype(str(dtype).removeprefix("torch.")))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [[3, 4], [-1, 2], [2, -1]])
@pytest.mark.parametrize("size_first", [0, 1 << 22])
def test_ids_at_the_int32_border(monkeypatch, fanouts, replace, size_first):
    """Vertices on both sides of 2**31, in a table and an ``indptr`` that are longer than that."""
    monkeypatch.setattr(state, "_SIZE_FIRST", size_first)
    length, low = 2**31 + 500, 2**31 - 500
    rng = np.random.default_rng(5)
    degrees = rng.integers(0, 9, 1000)
    ends = np.cumsum(degrees)
    first, table = lazily_mapped(length, torch.int32)
    indptr, rows = lazily_mapped(length + 1, torch.int64)
    rows[low + 1 :] = ends
    indices = torch.from_numpy(rng.integers(low, length, ends[-1]))
    relations = [DeviceEdges(indptr, indices, 0, 0)]
    topology = SimpleNamespace(relations=relations, tables=[first])
    plan = Plan([[picks] for picks in fanouts[::-1]], replace)
    run = DeviceRun(HostAccelerator(), topology, plan, torch.int64)
    seeds = [2**31 - 1, 2**31, 2**31 + 1, low + 3, length - 1, 2**31]
    hop_keys = [derive_key(11, hop) for hop in range(2)]
    run.begin(state_words(plan, [torch.tensor(seeds)], 11), [len(seeds)])
    assert run.hop(0)
    assert run.hop(1)
    sizes = run.ask()
    sizes.wait()
    assert not sizes.damaged
    batch = run.batch(sizes)

    class Rows:
        def __getitem__(self, v):
            return int(rows[v])

    expected = plain_sample(Rows(), indices.tolist(), seeds, fanouts, hop_keys, replace)
    for block, (indptr, local, positions, nodes) in zip(batch.blocks[::-1], expected, strict=True):
        assert block.indptr.tolist() == indptr
        assert block.indices.tolist() == local
        assert block.positions.tolist() == positions
        assert block.src_nodes.tolist() == nodes
    assert not table[low:].any()


def test_int32_ids_of_a_batch_are_cut_as_the_cpus_are():
    """In a graph with more vertices than int32 can name the kernels use int64, whatever the batch's
    dtype."""
    length = 2**31 + 100
    first, table = lazily_mapped(length, torch.int32)
    indptr, rows = lazily_mapped(length + 1, torch.int64)
    rows[4] = 2  # of the others nothing is read
    indices = torch.tensor([2**31 + 7, 5])
    relations = [DeviceEdges(indptr, indices, 0, 0)]
    topology = SimpleNamespace(relations=relations, tables=[first])
    plan = Plan([[2]], False)
    run = DeviceRun(HostAccelerator(), topology, plan, torch.int32)
    run.begin(state_words(plan, [torch.tensor([3], dtype=torch.int32)], 1), [1])
    assert run.hop(0)
    sizes = run.ask()
    sizes.wait()
    batch = run.batch(sizes)
    assert batch.input_nodes.tolist() == [3, 7 - 2**31, 5]
    assert (
        batch.output_nodes.dtype
        == batch.input_nodes.dtype
        == batch.blocks[0].indices.dtype
        == torch.int32
    )
    assert batch.blocks[0].positions.dtype == torch.int64


def test_bounds_of_a_batch():
    def needs(picks, count, limit, done=0, once=False):
        """Vertices that may be known when a size is read next, after so many hops without any
        edge."""
        room = Room(Plan([[number] for number in picks], False, once), [count], [limit])
        for _ in range(done):
            room.grow(0)
        return room.needs()

    assert needs([5, 10, 15], 1000, 10**9) == [1000 * 6 * 11 * 16]
    assert needs([5, 10, 15], 1000, 50_000) == [50_000]
    assert needs([5, 10, 15], 10**6, 10**9, done=2) == [10**6]
    assert needs([5, -1, 5], 1000, 10**9) == [6000]
    # What draws in a hop of a subgraph was found by the hop before.
    assert needs([5, 10, 15], 1000, 10**9, once=True) == [1000 * (1 + 5 + 50 + 750)]

    def most(picks, drawing):
        plan = Plan([[picks]], False)
        return plan.most_edges(plan.steps[0], drawing)

    assert most(5, 1000) == 5000
    assert most(5, 10**6) is None
    assert most(-1, 0) is None
    assert most(0, 10) == 0
