"""EdgeWeights: what is made of a field, when it is made anew, when it is let go, and what is
refused."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph import CSC, FormatError
from pagraph.datasets import rmat
from pagraph.sampling.edge_values import edge_weights
from pagraph.sampling.hop import Scratch
from pagraph.sampling.pickers import WeightedPicker
from pagraph.seeds.keys import derive_key

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int8,
    torch.int16,
]
DTYPES += [torch.int32, torch.int64]


def shuffled(num_edges=300, num_nodes=12, seed=0):
    rng = np.random.default_rng(seed)
    return CSC.from_coo(
        rng.integers(0, num_nodes, num_edges), rng.integers(0, num_nodes, num_edges), num_nodes
    )


@given(
    values=st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 100]), min_size=1, max_size=60),
    dtype=st.sampled_from(DTYPES),
    column=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_weights_are_the_fields_values_in_csc_order(values, dtype, column, seed):
    csc = shuffled(len(values), 5, seed)
    field = torch.tensor(values).to(dtype)
    weights = edge_weights(csc, field[:, None] if column else field)
    ids = torch.arange(len(values)) if csc.edge_ids is None else csc.edge_ids.long()
    expected = torch.tensor(values, dtype=torch.float64)[ids]
    positive = expected[expected > 0]
    assert weights.num_edges == len(values) and weights.num_positive == len(positive)
    assert (weights.kept is None) == (len(positive) == len(values))
    if len(set(positive.tolist())) <= 1:
        assert weights.values is None
        expected = (expected > 0).double()
    else:
        assert torch.equal(weights.values.double(), positive)
    assert torch.equal(weights.in_order.double(), expected)
    if weights.kept is not None:
        assert torch.equal(weights.kept.indices.long(), torch.nonzero(expected)[:, 0])
        owners = torch.bucketize(weights.kept.indices, csc.indptr, right=True)
        assert torch.equal(
            weights.kept.indptr.diff().long(), torch.bincount(owners - 1, minlength=5)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tables_hold_the_running_sums_of_every_row(dtype):
    csc = rmat(7, edge_factor=20, seed=4).csc
    weights = edge_weights(
        csc, torch.rand(csc.num_edges, generator=torch.Generator().manual_seed(0)).to(dtype) + 0.1
    )
    sums, guide = weights.tables()
    values, checked = weights.values.double().numpy(), 0
    for start, end in zip(csc.indptr.tolist(), csc.indptr.tolist()[1:], strict=False):
        first, last = -(-start // 16), end // 16
        for i, g in enumerate(range(first, last)):
            until = end if g == last - 1 else 16 * (g + 1)
            assert sums[g] == pytest.approx(values[start:until].sum(), rel=1e-12)
            bound = sums[last - 1] * i / (last - first)
            assert guide[g] == min(int((sums[first:last] <= bound).sum()), last - first - 1)
            checked += 1
    assert checked > 50


def test_what_the_tables_take():
    csc = rmat(10, edge_factor=16, seed=1).csc
    values = torch.rand(csc.num_edges, generator=torch.Generator().manual_seed(0)) + 0.5
    plain = edge_weights(csc, values)
    assert plain.nbytes == values.nbytes
    plain.tables()
    assert plain.nbytes - values.nbytes <= 0.75 * csc.num_edges
    half = edge_weights(csc, values * (torch.arange(csc.num_edges) % 2))
    half.tables()
    assert half.nbytes - values.nbytes / 2 <= 6 * csc.num_edges
    mask = edge_weights(csc, values > 1)
    assert mask.values is None and mask.nbytes <= 4 * (csc.num_edges + len(csc.indptr))


def test_made_once_for_a_version_of_the_field():
    csc, other = shuffled(seed=1), shuffled(seed=1)
    values = torch.rand(300)
    first = edge_weights(csc, values)
    assert edge_weights(csc, values) is first
    assert edge_weights(other, values) is not first
    mask = values > 0.5
    assert edge_weights(csc, mask) is edge_weights(csc, mask)
    assert edge_weights(csc, values) is first  # both are kept
    before = first.in_order.clone()
    values[:] = values.flip(0)
    second = edge_weights(csc, values)
    assert second is not first and edge_weights(csc, values) is second
    assert torch.equal(first.in_order, before)  # batches in flight keep what they began with
    assert not torch.equal(second.in_order, before)


def test_only_the_last_versions_are_kept():
    csc = shuffled()
    values = torch.rand(300)
    overwritten = weakref.ref(edge_weights(csc, values))
    values += 1
    edge_weights(csc, values)
    gc.collect()
    assert overwritten() is None
    fields = [torch.rand(300) for _ in range(5)]
    made = [weakref.ref(edge_weights(csc, field)) for field in fields]
    gc.collect()
    assert [weights() is None for weights in made] == [True, False, False, False, False]
    replaced = made[-1]
    fields.pop()
    edge_weights(csc, fields[-1])
    gc.collect()
    assert replaced() is None


def test_weights_go_with_their_csc():
    csc = shuffled()
    values = torch.rand(300)
    made, owner = weakref.ref(edge_weights(csc, values)), weakref.ref(csc)
    del csc
    gc.collect()
    assert made() is None and owner() is None


def test_threads_that_ask_at_once_get_the_same():
    csc = rmat(12, edge_factor=16, seed=1).csc
    values = torch.rand(csc.num_edges)
    barrier, got = threading.Barrier(6), []

    def ask():
        barrier.wait()
        weights = edge_weights(csc, values)
        got.append((weights, weights.tables()[0]))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(weights) for weights, _ in got}) == 1 and len({id(sums) for _, sums in got}) == 1


def test_inference_tensors_and_gradients_can_be_weights():
    csc = shuffled()
    with torch.inference_mode():
        values = torch.rand(300)
    assert torch.equal(
        edge_weights(csc, values).in_order, edge_weights(csc, values.clone()).in_order
    )
    grown = torch.rand(300, requires_grad=True)
    assert not edge_weights(csc, grown).in_order.requires_grad


def test_columns_of_a_matrix_are_fields_of_their_own():
    csc, matrix = shuffled(), torch.rand(300, 3)
    columns = [edge_weights(csc, matrix[:, i]) for i in range(3)]
    for i, weights in enumerate(columns):
        assert torch.equal(weights.in_order, edge_weights(csc, matrix[:, i].clone()).in_order)
    assert edge_weights(csc, matrix[:, 2]) is columns[2]
    mask = (matrix > 0.5)[:, 1]
    assert torch.equal(edge_weights(csc, mask).in_order, edge_weights(csc, mask.clone()).in_order)


def test_far_float64_values_come_into_range():
    csc = CSC(torch.tensor([0, 4]), torch.tensor([0, 0, 0, 0]), 1)
    weights = edge_weights(csc, torch.tensor([1e-320, 0.0, 1.0, 1e300], dtype=torch.float64))
    assert weights.in_order.tolist() == [1e-290, 0.0, 1.0, 1e290]


def test_a_wrong_value_is_refused_and_can_be_mended():
    csc = shuffled()
    values = torch.rand(300)
    values[5] = float("nan")
    for _ in range(2):
        with pytest.raises(ValueError, match="values must be finite and not negative, got nan"):
            edge_weights(csc, values)
    values[5] = 0.5
    assert edge_weights(csc, values).num_positive > 0


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (torch.full((300,), -0.5), ValueError, "must be finite and not negative, got -0.5"),
        (torch.full((300,), float("inf")), ValueError, "got inf"),
        (torch.full((300,), -float("inf"), dtype=torch.float64), ValueError, "got -inf"),
        (torch.full((300,), -1, dtype=torch.int8), ValueError, "got -1"),
        (torch.ones(299), ValueError, r"must have one number per edge \(300\), got shape \(299,\)"),
        (torch.ones(300, 2), ValueError, r"got shape \(300, 2\)"),
        (torch.ones(1, 300), ValueError, r"got shape \(1, 300\)"),
        (
            torch.ones(300, dtype=torch.complex64),
            TypeError,
            "must be a tensor of floats, .*, got torch.complex64",
        ),
        (np.ones(300), TypeError, "got ndarray"),
        (torch.ones(300, device="meta"), TypeError, "must be on the CPU, got meta"),
    ],
)
def test_what_cannot_be_weights(values, error, message):
    with pytest.raises(error, match="edge field 'p' .*" + message):
        edge_weights(shuffled(), values, name="edge field 'p'")


def test_damaged_arrays_are_an_error():
    bent = CSC(torch.tensor([0, 9, 4]), torch.tensor([0, 1, 1, 0]), 2)
    with pytest.raises(FormatError, match="indptr must be non-decreasing"):
        edge_weights(bent, torch.ones(4))
    lost = CSC(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 0]), 2, torch.tensor([0, 1, 2, 9]))
    with pytest.raises(ValueError, match=r"edge_ids must be in \[0, 4\), got 9"):
        edge_weights(lost, torch.rand(4))


def test_empty_csc():
    csc = CSC.from_coo([], [], 3)
    for dtype in (torch.bool, torch.float32, torch.float64):
        weights = edge_weights(csc, torch.empty(0, dtype=dtype))
        assert (weights.num_positive, weights.values, len(weights.in_order)) == (0, None, 0)


def test_weights_of_another_graph_are_refused():
    from pagraph.sampling.hop import Hop
    from pagraph.system.buffers import BufferPool

    key = np.uint64(derive_key(0, 0))
    hop = Hop(shuffled(), np.arange(3), key, key, key, Scratch(), torch.int64, BufferPool(0))
    weights = edge_weights(shuffled(200), torch.rand(200))
    assert repr(weights) == "EdgeWeights(num_edges=200, num_positive=200, values=float32)"
    with pytest.raises(
        ValueError, match="weights must be of the graph's 300 edges, got weights of 200 edges"
    ):
        WeightedPicker(2, False, weights).pick(hop)
