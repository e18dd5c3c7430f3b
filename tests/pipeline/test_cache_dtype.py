"""A loader that caches float rows in 16 bits: what it delivers, how much fits, what is refused."""

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.features import on_disk
from pagraph.graph.mapped import map_npy

N = 300
VALUES = {
    "single": lambda rng: rng.standard_normal((N, 16)).astype(np.float32),
    "double": lambda rng: rng.standard_normal((N, 4)),
    "half": lambda rng: rng.standard_normal((N, 8)).astype(np.float16),
    "label": lambda rng: rng.integers(0, 2**40, N),
}


@pytest.fixture
def graph(tmp_path):
    rng = np.random.default_rng(0)
    graph = Graph.from_coo(rng.integers(0, N, 3000), rng.integers(0, N, 3000), N)
    for name, values in VALUES.items():
        np.save(tmp_path / f"{name}.npy", values(rng))
        graph.set_field(name, map_npy(tmp_path / f"{name}.npy"))
        if not on_disk(graph.ndata[name]):
            pytest.skip("needs temporary files on a disk")
    graph.set_field("near", torch.randn(N, 4))
    return graph


def make(graph, fields=("single", "double", "half", "near"), **options):
    defaults = dict(
        labels=["label"], batch_size=20, shuffle=True, seed=1, cache="30%", cache_dtype="float16"
    )
    return Loader(
        graph,
        torch.arange(0, N, 2),
        NeighborSampler([4, 3]),
        fields=list(fields),
        **(defaults | options),
    )


def expected(graph, name, ids, dtype):
    rows = graph.ndata[name][ids]
    if name not in ("single", "double"):  # of other dtypes, or in memory, where no cache is wanted
        return rows
    return rows.float().to(dtype).to(rows.dtype)


@pytest.mark.every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cache", [1, "10%", 1.0, "auto", "1MiB"], ids=str)
@pytest.mark.parametrize(("num_workers", "prefetch"), [(0, 0), (2, 3)])
def test_rows_are_rounded_whatever_is_cached_and_when(graph, dtype, cache, num_workers, prefetch):
    loader = make(graph, cache=cache, cache_dtype=dtype, num_workers=num_workers, prefetch=prefetch)
    for _ in range(2):
        for batch in loader:
            for name, rows in batch.features.items():
                assert torch.equal(rows, expected(graph, name, batch.input_nodes, dtype)), name
            assert torch.equal(batch.labels["label"], graph.ndata["label"][batch.output_nodes])


def test_off_by_default_and_without_a_cache(graph):
    for options in ({"cache_dtype": None}, {"cache": 0}, {"cache": None}):
        for batch in make(graph, **options):
            for name, rows in batch.features.items():
                assert torch.equal(rows, graph.ndata[name][batch.input_nodes])


def test_twice_the_rows_for_the_same_bytes(graph):
    budget = 100 * 64 + 4 * N  # rows of 16 float32 and the table from vertex to place
    for dtype, rows in ((None, 100), ("float16", 200), ("bf16", 200)):
        loader = make(graph, ["single"], labels=[], cache=budget, cache_dtype=dtype)
        list(loader)
        (part,) = loader.cache_plan.fields
        assert (part.rows, part.nbytes) == (rows, 100 * 64)
        assert loader.cache_plan.nbytes == budget


def test_a_share_of_the_rows_takes_half_the_bytes(graph):
    plans = []
    for dtype in (None, "float16"):
        loader = make(graph, ["single"], labels=[], cache="50%", cache_dtype=dtype)
        list(loader)
        plans += loader.cache_plan.fields
    assert [(part.rows, part.nbytes) for part in plans] == [(150, 150 * 64), (150, 150 * 32)]


def test_hits_are_counted_as_ever(graph):
    loader = make(graph, ["single", "double"], labels=[], cache=1.0)
    list(loader)
    for field in loader.stats.total.reads.fields.values():
        assert field.hits == field.asked > 0 and sum(field.hits_by_hop) == field.hits


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_field_that_is_written_is_never_stale(graph, prefetch):
    loader = make(graph, ["single"], labels=[], prefetch=prefetch, cache=1.0)
    for _ in range(4):
        for step, batch in enumerate(loader):
            rows = batch.features["single"]
            assert torch.equal(rows, expected(graph, "single", batch.input_nodes, torch.float16))
            if step == 3:
                graph.ndata["single"].mul_(1.1)
    assert loader.stats.total.reads.fields["single"].hits > 0


def test_a_field_that_is_replaced_by_one_in_memory_is_exact(graph):
    loader = make(graph, ["single"], labels=[], cache=1.0)
    list(loader)
    graph.ndata["single"] = torch.randn(N, 5)
    for batch in loader:
        assert torch.equal(batch.features["single"], graph.ndata["single"][batch.input_nodes])


def test_writes_that_nobody_sees_need_an_explicit_call(graph):
    loader = make(graph, ["single"], labels=[], cache=1.0)
    list(loader)
    graph.ndata["single"].numpy()[:] = 1 / 3
    loader.invalidate_cache()
    third = torch.tensor(1 / 3).half().float()
    assert all((batch.features["single"] == third).all() for batch in loader)


@pytest.mark.every
@pytest.mark.parametrize("cache", [1, "20%", 1.0, "auto"], ids=str)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_values_beyond_float16_are_one_clear_error(graph, cache, prefetch):
    graph.ndata["double"][:, 1] = 70000.5
    loader = make(graph, cache=cache, prefetch=prefetch)
    with pytest.raises(
        ValueError,
        match="cache_dtype must hold the values of field 'double', got 70000.5, but the largest",
    ):
        list(loader)
    for batch in make(graph, cache=cache, cache_dtype="bfloat16"):
        assert (batch.features["double"][:, 1] == 70144).all()


def test_a_field_too_small_for_float16_is_warned_of(graph):
    graph.ndata["single"].mul_(1e-9)
    with pytest.warns(UserWarning, match="float16 loses most of field 'single'"):
        list(make(graph, ["single"], labels=[]))


def test_wrong_dtypes_are_refused_at_once(graph):
    with pytest.raises(
        ValueError, match="cache_dtype must be None, torch.float16, .*, got torch.uint8"
    ):
        make(graph, cache_dtype=torch.uint8)
