"""EdgeTimes: rows in the order of time, when they are made anew, when they are let go, and what is
refused."""

import gc
import math
import threading
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import CSC, FormatError, Graph
from pagraph.sampling import SubgraphSampler
from pagraph.sampling.hop import Hop, Scratch
from pagraph.sampling.kernels.times import BLOCK, count_until
from pagraph.sampling.pickers import TimedPicker
from pagraph.sampling.times import edge_times
from pagraph.system.buffers import BufferPool

DTYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def shuffled(num_edges=300, num_nodes=12, seed=0):
    rng = np.random.default_rng(seed)
    return CSC.from_coo(
        rng.integers(0, num_nodes, num_edges), rng.integers(0, num_nodes, num_edges), num_nodes
    )


def destinations(csc):
    return np.repeat(np.arange(csc.num_dst), csc.indptr.diff().numpy())


def check_order(csc, in_order, times):
    """Against numpy's sort, which keeps equal times in order."""
    expected = np.lexsort([in_order.numpy(), destinations(csc)])
    narrow = all(-(2**31) <= time < 2**31 for time in in_order.tolist())
    assert times.num_edges == csc.num_edges and times.values.dtype == (
        torch.int32 if narrow else torch.int64
    )
    assert times.values.tolist() == in_order[expected].tolist()
    assert times.marks.tolist() == times.values[::32].tolist()
    if times.edges is None:
        assert expected.tolist() == list(range(csc.num_edges)) and times.in_order(csc) is csc
    else:
        assert times.edges.dtype == csc.indices.dtype and expected.tolist() != list(
            range(csc.num_edges)
        )
        ids = torch.arange(csc.num_edges) if csc.edge_ids is None else csc.edge_ids
        assert (
            times.edges.tolist() == torch.stack([csc.indices[expected], ids[expected]], 1).tolist()
        )
        assert torch.equal(times.in_order(csc).indices, csc.indices[expected])


@settings(max_examples=examples(150))
@given(
    num_nodes=st.sampled_from([1, 2, 5]),  # rows of one to a hundred edges
    values=st.lists(st.integers(-3, 100), max_size=110),
    dtype=st.sampled_from(DTYPES),
    wide=st.booleans(),
    column=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_rows_are_in_the_order_of_time(num_nodes, values, dtype, wide, column, seed):
    csc = shuffled(len(values), num_nodes, seed)
    if wide:
        csc = CSC(csc.indptr.long(), csc.indices.long(), csc.num_src, csc.edge_ids)
    of_edges = torch.tensor(values, dtype=torch.int64).to(dtype)
    ids = torch.arange(len(values)) if csc.edge_ids is None else csc.edge_ids.long()
    check_order(
        csc, of_edges[ids].long(), edge_times(csc, of_edges[:, None] if column else of_edges)
    )
    of_nodes = torch.randint(0, 9, (num_nodes,), generator=torch.Generator().manual_seed(seed)).to(
        dtype
    )
    in_order = of_nodes[csc.indices.long()].long()
    check_order(
        csc, in_order, edge_times(csc, of_sources=of_nodes[:, None] if column else of_nodes)
    )


def test_large_times_and_long_rows():
    csc = CSC(torch.tensor([0, 5000, 5000, 5001]), torch.zeros(5001, dtype=torch.int64), 1)
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.choice([-(2**63), -(2**40), 0, 2**40, 2**63 - 1], 5001))
    check_order(csc, values, edge_times(csc, values))


@settings(max_examples=examples(100))
@given(data=st.data())
def test_edges_up_to_a_time_are_counted(data):
    """Against numpy's search: blocks at the ends, rows within one and over many, equal times."""
    lengths = data.draw(
        st.lists(st.sampled_from([0, 1, 2, 31, 32, 33, 64, 200]), min_size=1, max_size=12)
    )
    most = data.draw(st.sampled_from([1, 5, 1000]))
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows = [np.sort(rng.integers(-most, most + 1, length)) for length in lengths]
    times = np.concatenate(rows).astype(dtype)
    which = rng.integers(0, len(rows), 100)
    limits = rng.integers(-most - 1, most + 2, 100)
    limits[:2] = -(2**63), 2**63 - 1
    degrees = np.array(lengths)[which]
    starts = (np.cumsum(lengths) - lengths)[which]
    counts = np.empty(100, np.int64)
    count_until(times, times[::BLOCK].copy(), limits, starts, degrees, counts)
    assert counts.tolist() == [
        rows[row].searchsorted(limit, "right") for row, limit in zip(which, limits, strict=True)
    ]


def test_rows_in_order_take_no_copy_of_the_edges():
    csc = CSC(torch.tensor([0, 2, 2, 4]), torch.tensor([0, 1, 1, 2]), 3)
    times = edge_times(csc, torch.tensor([4, 4, 1, 2]))
    assert times.edges is None and times.nbytes == 4 * 4 + 4
    assert repr(times) == "EdgeTimes(num_edges=4, sorted=True)"
    assert edge_times(csc, torch.tensor([4, 3, 1, 2])).nbytes == 4 * 4 + 4 + 4 * 2 * 8
    assert edge_times(csc, torch.tensor([4, 4, 1, 2**31])).nbytes == 4 * 8 + 8


def test_made_once_for_a_version_of_the_field():
    csc, other = shuffled(seed=1), shuffled(seed=1)
    values = torch.randint(1000, (300,))
    first = edge_times(csc, values)
    assert edge_times(csc, values) is first and edge_times(csc, values[:, None]) is first
    assert edge_times(other, values) is not first
    before = first.values.clone()
    values[:] = values.flip(0)
    second = edge_times(csc, values)
    assert second is not first and edge_times(csc, values) is second
    assert torch.equal(first.values, before)  # batches in flight keep what they began with
    assert not torch.equal(second.values, before)


def test_one_tensor_of_edges_and_of_vertices():
    csc = shuffled(12, 12)  # as many edges as vertices
    values = torch.randint(1000, (12,), generator=torch.Generator().manual_seed(0))
    of_edges, of_sources = edge_times(csc, values), edge_times(csc, of_sources=values)
    assert sorted(of_edges.values.tolist()) == sorted(values.tolist())
    assert sorted(of_sources.values.tolist()) == sorted(values[csc.indices.long()].tolist())
    assert edge_times(csc, values) is of_edges and edge_times(csc, of_sources=values) is of_sources


def test_times_go_with_their_csc_and_not_the_csc_with_its_times():
    csc, values = shuffled(), torch.randint(1000, (300,))
    kept, owner = edge_times(csc, values), weakref.ref(csc)
    made = weakref.ref(edge_times(csc, of_sources=values[:12]))
    del csc
    gc.collect()
    assert owner() is None and made() is None and kept.num_edges == 300


def test_threads_that_ask_at_once_get_the_same():
    csc, values = shuffled(40_000, 500), torch.randint(10**6, (40_000,))
    barrier, got = threading.Barrier(6), []

    def ask():
        barrier.wait()
        got.append(edge_times(csc, values))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 6 and len({id(times) for times in got}) == 1


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (
            torch.zeros(299, dtype=torch.int64),
            ValueError,
            r"one time per edge \(300\), got shape \(299,\)",
        ),
        (torch.zeros(300, 2, dtype=torch.int64), ValueError, r"got shape \(300, 2\)"),
        (
            torch.zeros(300, dtype=torch.complex64),
            TypeError,
            "must be a tensor of integers or floats, got torch.complex64",
        ),
        (torch.zeros(300, dtype=torch.bool), TypeError, "got torch.bool"),
        (np.zeros(300, dtype=np.int64), TypeError, "got ndarray"),
        (
            torch.zeros(300, dtype=torch.int64, device="meta"),
            TypeError,
            "must be on the CPU, got meta",
        ),
    ],
)
def test_what_cannot_be_times(values, error, message):
    with pytest.raises(error, match="edge field 't' .*" + message):
        edge_times(shuffled(), values, name="t")


def test_times_of_sources_are_one_for_each_vertex():
    with pytest.raises(
        ValueError,
        match=r"vertex field 't' must have one time per vertex \(12\), got shape \(300,\)",
    ):
        edge_times(shuffled(), of_sources=torch.zeros(300, dtype=torch.int64), name="t")


def test_damaged_arrays_are_an_error():
    times = torch.zeros(4, dtype=torch.int64)
    bent = CSC(torch.tensor([0, 9, 4]), torch.tensor([0, 1, 1, 0]), 2)
    with pytest.raises(FormatError, match="indptr must be non-decreasing"):
        edge_times(bent, times)
    lost = CSC(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 0]), 2, torch.tensor([0, 1, 2, 9]))
    with pytest.raises(FormatError, match=r"edge_ids must be in \[0, 4\), got 9"):
        edge_times(lost, times)
    far = CSC(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 9]), 2)
    with pytest.raises(FormatError, match=r"indices must be in \[0, 2\), got 9"):
        edge_times(far, of_sources=times[:2])


def test_times_of_another_graph_are_refused():
    key = np.uint64(0)
    hop = Hop(
        shuffled(),
        np.arange(3),
        key,
        key,
        key,
        Scratch(),
        torch.int64,
        BufferPool(0),
        until=np.zeros(3, int),
    )
    with pytest.raises(
        ValueError, match="times must be of the graph's 300 edges, got times of 200 edges"
    ):
        TimedPicker(
            2, False, False, edge_times(shuffled(200), torch.zeros(200, dtype=torch.int64))
        ).pick(hop)


ROUNDED = [
    (
        torch.float64,
        2.0**53 + 2,
        "53 bits of float64, .* got 9007199254740994.0: keep .* as int64 ",
    ),
    (torch.float32, 1_700_000_000, "24 bits of float32, .* got 1700000000.0: .* int64 or float64"),
    (torch.float32, -(2.0**24) - 2, "24 bits of float32, .* got -16777218.0"),
    (torch.float16, 2050, "11 bits of float16, .* got 2050.0"),
    (torch.float16, 1_700_000_000, "11 bits of float16, .* got inf"),
    (torch.bfloat16, 258, "8 bits of bfloat16, .* got 258.0"),
]


@pytest.mark.parametrize(("dtype", "value", "message"), ROUNDED)
def test_times_that_their_dtype_rounds_are_refused(dtype, value, message):
    """float32 has seconds since 1970 in steps of 128: an edge would be drawn for a seed that it
    follows."""
    graph = Graph.from_coo([0, 1], [1, 2], 3)
    seeds, sampler = torch.tensor([2]), SubgraphSampler([1, 1], time="t")
    bad = torch.tensor([0, value, 0], dtype=torch.float64).to(dtype)
    # Equal to the largest one that is exact, or infinitely late: both are what they were before.
    good = torch.tensor([2 / torch.finfo(dtype).eps, 0, math.nan], dtype=dtype)
    if dtype != torch.float16:
        good[1] = math.inf
    when = {"seed_times": torch.tensor([1], dtype=dtype)}
    for times, error in ((good, None), (bad, "field 't' must fit into the " + message)):
        for place in ({"node_type": "_N"}, {"edge_type": graph.edge_types[0]}):
            timed = Graph.from_coo([0, 1], [1, 2], 3)
            timed.set_field("t", times[: 3 if "node_type" in place else 2], **place)
            with nullcontext() if error is None else pytest.raises(ValueError, match=error):
                sampler.sample(timed, seeds, **when)
    graph.set_field("t", torch.zeros(3, dtype=dtype), node_type="_N")
    with pytest.raises(ValueError, match=r"seed_times\['_N'\] must fit into the " + message):
        sampler.sample(graph, seeds, seed_times=bad[1:2])
