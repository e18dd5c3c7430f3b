"""Rows by reference through every way of reading: one pass, cached or not, mapped or not, rounded
or not."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_rows import is_current
from tiers import examples

from pagraph import Graph, Loader, NeighborSampler
from pagraph.cache import FieldSet
from pagraph.features import CachedFeature, DiskFeature, HostFeature, IndexedRows, on_disk
from pagraph.features.field import host_feature
from pagraph.features.store import fill_cache
from pagraph.graph.graph import NODE_TYPE
from pagraph.graph.mapped import map_npy
from pagraph.ranking import Ranking
from pagraph.system import Budget
from pagraph.system.buffers import BufferPool

pytestmark = pytest.mark.kernels


CPU = torch.device("cpu")
N, SOURCE_ROWS = 120, 500
ID_DTYPES = [torch.int32, torch.int64]


def draw(count, limit, seed):
    return torch.randint(0, limit, (count,), generator=torch.Generator().manual_seed(seed))


def rows_of(source, table_dtype=torch.int64, count=N):
    return IndexedRows(source, draw(count, len(source), 1).to(table_dtype))


def wide(shape=(7,), dtype=torch.float32, count=SOURCE_ROWS):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0)).mul(50).to(dtype)


@pytest.fixture
def mapped(tmp_path):
    path = tmp_path / "source.npy"
    np.save(path, wide((33,)).numpy())
    tensor = map_npy(path)
    if not on_disk(tensor):
        pytest.skip("needs temporary files on a disk")
    return tensor


# -- one read
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table_dtype", ID_DTYPES, ids=str)
@pytest.mark.parametrize("id_dtype", ID_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (17,), (128,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64], ids=str
)
def test_read_is_indexing_twice(table_dtype, id_dtype, shape, dtype):
    rows = rows_of(wide(shape, dtype), table_dtype)
    ids = draw(400, N, 2)
    assert torch.equal(HostFeature(rows).read(ids.to(id_dtype)), rows.source[rows.ids.long()[ids]])


@settings(max_examples=examples(60))
@given(st.data())
def test_read_of_any_rows_of_any_source(data):
    num_source = data.draw(st.integers(1, 20))
    table = data.draw(st.lists(st.integers(0, num_source - 1), max_size=30))
    asked = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=80)) if table else []
    step = data.draw(st.integers(1, 3))
    source = torch.arange(num_source * step * 3, dtype=torch.int32).view(-1, 3)[::step]
    rows = IndexedRows(source, torch.tensor(table, dtype=torch.int64))
    ids = torch.tensor(asked, dtype=torch.int64)
    feature = HostFeature(rows)
    assert torch.equal(feature.read(ids), rows.materialize()[ids])
    chosen = torch.tensor(
        data.draw(st.lists(st.sampled_from(range(len(table))), unique=True)) if table else []
    )
    cache = fill_cache(feature, chosen.long(), device=CPU, num_nodes=len(table))
    got, (hits,) = CachedFeature(feature, cache).read_counted(ids)
    assert torch.equal(got, rows.materialize()[ids])
    assert hits == int(torch.isin(ids, chosen.long()).sum())


def test_sources_that_are_no_runs_of_bytes(mapped):
    for source in (wide((4, 5)).transpose(1, 2), wide((6,))[:, ::2], mapped[:, :9], mapped[3:, 5:]):
        rows = rows_of(source)
        ids = draw(300, N, 3)
        feature = host_feature(rows, CPU)
        assert torch.equal(feature.read(ids), source[rows.ids[ids]])
        cached = CachedFeature(
            feature, fill_cache(feature, torch.arange(0, N, 3), device=CPU, num_nodes=N)
        )
        assert torch.equal(cached.read(ids), source[rows.ids[ids]])


@pytest.mark.parametrize("owned", [True, False])
def test_a_conjugated_source_keeps_its_values(owned):
    rows = rows_of(wide(dtype=torch.complex64).conj())
    ids = draw(50, N, 3)
    read = host_feature(rows, CPU, owned=owned).read(ids)
    assert torch.equal(read, rows.materialize()[ids])


@pytest.mark.parametrize("bad", [-1, N, SOURCE_ROWS, 2**40])
@pytest.mark.parametrize("share", [0, 2])
def test_ids_outside_the_rows_are_refused(mapped, bad, share):
    feature = host_feature(rows_of(mapped), CPU)
    if share:
        feature = CachedFeature(
            feature, fill_cache(feature, torch.arange(N // share), device=CPU, num_nodes=N)
        )
    with pytest.raises(IndexError, match=rf"ids must be in \[0, {N}\), got {bad} at position 2"):
        feature.read(torch.tensor([0, N - 1, bad, 3]))


@pytest.mark.parametrize("wrong", [-5, SOURCE_ROWS, 2**50])
def test_ids_that_were_spoilt_later_are_refused(wrong):
    """Whoever wrote to the ids: nothing outside the source is read."""
    rows = rows_of(wide())
    feature = HostFeature(rows)
    rows.ids[7] = wrong
    with pytest.raises(
        IndexError, match=rf"ids of rows must be in \[0, {SOURCE_ROWS}\), got {wrong} for row 7"
    ):
        feature.read(torch.tensor([0, 7]))


def test_rows_of_a_mapped_file_are_on_disk_and_others_are_not(mapped):
    assert on_disk(rows_of(mapped)) and isinstance(host_feature(rows_of(mapped), CPU), DiskFeature)
    assert not on_disk(rows_of(wide())) and host_feature(rows_of(wide()), CPU).tier == "host"


# -- rounded rows
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [0, 40, N])
def test_rounded_rows_are_those_of_the_gathered_field(mapped, cache_dtype, count):
    rows = rows_of(mapped)
    ids = draw(300, N, 4)
    got = [values.read(ids) for values in both(rows, cache_dtype, count)]
    assert torch.equal(*got) and torch.equal(got[0], rows[ids].to(cache_dtype).float())


def both(rows, cache_dtype, count):
    """The same rows by reference and gathered, rounded, with the first ``count`` cached."""
    from pagraph.features.narrow import NarrowFeature, WideFeature

    for values in (rows, rows.materialize()):
        narrow = NarrowFeature(HostFeature(values), cache_dtype, "x")
        if count == 0:
            yield WideFeature(narrow)
        else:
            yield CachedFeature(
                narrow, fill_cache(narrow, torch.arange(count), device=CPU, num_nodes=N)
            )


# -- a loader's fields
# ------------------------------------------------------------------------------------


def field_set(values, budget):
    pool = BufferPool(4)
    return FieldSet(
        {"feat": values if callable(values) else lambda: values},
        device=CPU,
        budget=Budget.parse(budget),
        rank=lambda types: {NODE_TYPE: Ranking(torch.arange(N).flip(0))},
        pool_of=lambda key: pool,
        num_nodes=N,
    )


@pytest.mark.parametrize("budget", [None, 0, "30%", 1.0, "1GiB"])
def test_a_field_set_reads_and_caches_them(mapped, budget):
    rows = rows_of(mapped)
    fields = field_set(rows, budget)
    fields.prepare()
    ids = draw(200, N, 5)
    for _ in range(3):
        assert torch.equal(fields.read("feat", ids).tensor, rows[ids])
    counted = fields.counters.fields["feat"]
    if budget in ("30%", 1.0, "1GiB"):
        assert counted.hits > 0 and fields.plan.rows <= N
        assert fields.plan.rows == N or budget == "30%"


def test_rows_written_or_replaced_are_read_anew(mapped):
    now = [rows_of(mapped)]
    fields = field_set(lambda: now[0], 1.0)
    fields.prepare()
    ids = torch.arange(N)
    first = fields.read("feat", ids)
    assert is_current(fields, "feat", first)
    mapped[now[0].ids[4]] = 1.5
    assert not is_current(fields, "feat", first)
    assert torch.equal(fields.read("feat", ids).tensor, now[0].materialize())
    now[0].ids[:] = now[0].ids.flip(0).clone()
    assert torch.equal(fields.read("feat", ids).tensor, now[0].materialize())
    now[0] = rows_of(wide((33,)))
    assert torch.equal(fields.read("feat", ids).tensor, now[0].materialize())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_core_loader_gives_the_same_batches_with_any_cache(mapped, num_workers):
    graph = Graph.from_coo(draw(900, N, 7), draw(900, N, 8), N, ndata={"feat": rows_of(mapped)})
    whole = graph.ndata["feat"].materialize()
    for cache in (0, "20%", 1.0):
        loader = Loader(
            graph,
            torch.arange(N),
            NeighborSampler([4, 3]),
            fields=["feat"],
            batch_size=16,
            cache=cache,
            num_workers=num_workers,
            seed=0,
        )
        for batch in [batch for _ in range(2) for batch in loader]:
            assert torch.equal(batch.features["feat"], whole[batch.input_nodes])
        assert (loader.stats.total.hit_rate > 0) == (cache != 0)


def test_loaders_of_the_same_rows_share_a_cache_and_those_of_other_ids_do_not(mapped):
    rows = rows_of(mapped)
    graphs = [Graph.from_coo(draw(900, N, 7), draw(900, N, 8), N) for _ in range(2)]
    graphs[0].set_field("feat", rows)
    graphs[1].set_field("feat", IndexedRows(mapped, rows.ids.flip(0)))
    options = {"fields": ["feat"], "cache": "20%", "batch_size": 30, "seed": 0}
    loaders = [
        Loader(g, torch.arange(N), NeighborSampler([4]), **options)
        for g in (graphs[0], graphs[0], graphs[1])
    ]
    for loader in loaders:
        for batch in loader:
            assert torch.equal(
                batch.features["feat"], loader.graph.ndata["feat"][batch.input_nodes]
            )
    places = [loader._engine.fields._fields["feat"]._cache.rows.data_ptr() for loader in loaders]
    assert places[0] == places[1] != places[2]


def test_threads_read_the_same_rows(mapped):
    rows = rows_of(mapped)
    fields = field_set(rows, "30%")
    fields.prepare()
    wrong = []

    def read(seed):
        for step in range(30):
            ids = draw(150, N, seed * 100 + step)
            if not torch.equal(fields.read("feat", ids).tensor, rows[ids]):
                wrong.append((seed, step))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
