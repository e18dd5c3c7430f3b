"""Looking ahead changes when rows are read, and nothing else: the same bits, errors at their place,
nothing left."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples, pairs

import pagraph.engine.engine as engine
from pagraph import Graph, Loader, NeighborSampler
from pagraph.accelerator import HostAccelerator
from pagraph.features import DiskFeature, IndexedRows, NarrowRows
from pagraph.features.disk import RowsAhead
from pagraph.features.store import FeatureCache, GrowingCache, slots_for
from pagraph.graph.mapped import map_npy
from pagraph.system.buffers import BufferPool

NUM_NODES, NUM_EDGES, WIDTH = 6000, 40_000, 64


@pytest.fixture(params=[False, True], ids=["pages", "rows"])
def holds_rows(request, monkeypatch):
    """Files that fit into memory keep their pages there; of larger ones rows are copied."""
    monkeypatch.setattr(engine, "MAPPED_SHARE", 0.0 if request.param else 0.5)
    return request.param


@pytest.fixture
def values():
    return np.random.default_rng(0).random((NUM_NODES, WIDTH), dtype=np.float32)


@pytest.fixture
def graph():
    src, dst = np.random.default_rng(1).integers(0, NUM_NODES, (2, NUM_EDGES))
    return Graph.from_coo(src, dst, NUM_NODES, ndata={"label": torch.arange(NUM_NODES)})


def make(graph, values=None, **options):
    """A loader of the graph, whose features are in memory or in a file."""
    if values is not None:
        graph.set_field("feat", values)
    settings = {"batch_size": 100, "shuffle": True, "seed": 3, "cache": 0, "prefetch": 2, **options}
    return Loader(
        graph,
        torch.arange(0, NUM_NODES, 3),
        NeighborSampler([5, 3]),
        fields=["feat"],
        labels=["label"],
        **settings,
    )


def bits(batches):
    """All that a batch delivers."""
    return [
        (b.input_nodes.tolist(), b.features["feat"].numpy().tobytes(), b.labels["label"].tolist())
        for b in batches
    ]


@pytest.mark.every
@pytest.mark.parametrize(
    *pairs(lookahead=[1, 3, 64, "auto"], prefetch=[0, 3], holds_rows=[False, True]),
    indirect=["holds_rows"],
)
def test_batches_are_those_without(graph, values, cold_file, holds_rows, lookahead, prefetch):
    expected = [bits(epoch) for epoch in [list(make(graph, torch.from_numpy(values)))]]
    loader = make(graph, map_npy(cold_file("feat", values)), lookahead=lookahead, prefetch=prefetch)
    assert [bits(loader)] == expected
    counts = loader.stats.total.counts
    assert 0 < counts["window_rows"] <= counts["input_nodes"]
    assert counts["window_bytes"] == counts["window_rows"] * WIDTH * 4


@pytest.mark.every
@pytest.mark.parametrize("cache", [0, 0.2])
def test_batches_on_an_accelerator_are_those_without(graph, values, cold_file, holds_rows, cache):
    expected = bits(make(graph, torch.from_numpy(values)))
    mapped = map_npy(cold_file("feat", values))
    loader = make(graph, mapped, lookahead=4, cache=cache, device=HostAccelerator())
    assert bits(loader) == expected
    if not cache:  # filling one has brought the file into memory
        assert loader.stats.total.counts["window_rows"] > 0
    loader.close()


@pytest.mark.every
@pytest.mark.parametrize(
    *pairs(form=["float16", "bfloat16", "int8"], cache=[0, 0.2], holds_rows=[False, True]),
    indirect=["holds_rows"],
)
def test_rows_in_fewer_bytes_are_widened(graph, values, cold_file, holds_rows, form, cache):
    narrow = NarrowRows.of(torch.from_numpy(values), form)
    expected = bits(make(graph, narrow.materialize()))
    stored = narrow.stored
    as_numbers = stored.view(torch.int16) if stored.dtype == torch.bfloat16 else stored
    mapped = map_npy(cold_file("feat", as_numbers.numpy())).view(stored.dtype)
    loader = make(graph, NarrowRows(mapped), lookahead=4, cache=cache)
    assert [bits(loader) for _ in range(2)][0] == expected
    assert (
        loader.stats.total.counts["window_bytes"]
        < loader.stats.total.counts["window_rows"] * WIDTH * 4
    )


@pytest.mark.every
@pytest.mark.parametrize(
    *pairs(
        cache=["100KB", 0.2, 1.0],
        cache_dtype=[None, "float16", "bfloat16"],
        holds_rows=[False, True],
    ),
    indirect=["holds_rows"],
)
def test_a_cache_grows_from_what_is_read(graph, values, cold_file, holds_rows, cache, cache_dtype):
    options = {"cache": cache, "cache_dtype": cache_dtype, "cache_policy": "degree"}
    memory = make(graph, map_npy(cold_file("first", values)), lookahead=0, **options)
    expected = [bits(memory) for _ in range(2)]
    loader = make(graph, map_npy(cold_file("feat", values)), lookahead=4, **options)
    assert [bits(loader) for _ in range(2)] == expected
    epochs = loader.stats.epochs
    # Rows are ranked beside the first epoch, whose 20 batches may be over before that is.
    assert epochs[0].hit_rate < 1 and 0 < epochs[1].hit_rate <= memory.stats.epochs[1].hit_rate
    if cache == 1.0:
        assert epochs[0].hit_rate < epochs[1].hit_rate


def test_a_row_is_read_once_in_two_groups(graph, values, cold_file, monkeypatch):
    monkeypatch.setattr(engine, "MAPPED_SHARE", 0.0)
    loader = make(graph, map_npy(cold_file("feat", values)), lookahead=64, batch_size=50)
    distinct = set()
    for batch in loader:
        distinct.update(batch.input_nodes.tolist())
    counts = loader.stats.total.counts
    assert len(distinct) <= counts["window_rows"] < 0.9 * counts["input_nodes"]


def test_resumed_in_the_middle(graph, values, cold_file, holds_rows):
    whole = bits(make(graph, torch.from_numpy(values)))
    loader = make(graph, map_npy(cold_file("feat", values)), lookahead=4)
    batches = iter(loader)
    first = bits(next(batches) for _ in range(7))
    state = loader.state_dict()
    batches.close()
    again = make(graph, map_npy(cold_file("again", values)), lookahead=4)
    again.load_state_dict(state)
    assert first + bits(again) == whole


def test_leaving_the_loop_leaves_no_thread_and_no_memory(graph, values, cold_file, holds_rows):
    loader = make(graph, map_npy(cold_file("feat", values)), lookahead=4)
    batch = next(iter(loader))
    rows = weakref.ref(batch.features["feat"].untyped_storage())
    del batch
    loader.close()
    names = [thread.name for thread in threading.enumerate() if "pagraph" in thread.name]
    assert names == []
    del loader
    gc.collect()
    assert rows() is None


def test_a_field_that_is_replaced_is_read_anew(graph, values, cold_file, holds_rows):
    loader = make(graph, map_npy(cold_file("feat", values)), lookahead=8)
    batches = iter(loader)
    first = next(batches)
    assert torch.equal(first.features["feat"], torch.from_numpy(values)[first.input_nodes.long()])
    graph.set_field("feat", torch.from_numpy(values + 1))
    for batch in batches:
        assert torch.equal(
            batch.features["feat"], torch.from_numpy(values + 1)[batch.input_nodes.long()]
        )


def test_written_rows_are_seen(graph, values, cold_file, holds_rows):
    mapped = map_npy(cold_file("feat", values))
    loader = make(graph, mapped, lookahead=8)
    batches = iter(loader)
    next(batches)
    mapped += 1
    for batch in batches:
        assert torch.equal(
            batch.features["feat"], torch.from_numpy(values + 1)[batch.input_nodes.long()]
        )


@pytest.mark.parametrize("prefetch", [0, 2])
def test_errors_come_after_the_batches_before(graph, values, cold_file, holds_rows, prefetch):
    loader = make(
        graph, map_npy(cold_file("feat", values)), lookahead=4, prefetch=prefetch, shuffle=False
    )
    sample, calls = NeighborSampler.sample, []

    def broken(self, graph, seeds, *rest, **options):
        calls.append(None)
        if int(seeds[0]) == 3 * 100 * 9:
            raise ArithmeticError("the tenth batch")
        return sample(self, graph, seeds, *rest, **options)

    done = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ArithmeticError, match="the tenth batch"),
    ):
        patch.setattr(NeighborSampler, "sample", broken)
        for _ in loader:
            done += 1
    assert done == 9


def test_a_warm_file_is_read_as_it_is(graph, values, cold_file, monkeypatch):
    monkeypatch.setattr(engine, "MAPPED_SHARE", 0.0)
    path = cold_file("feat", values)
    path.read_bytes()
    loader = make(graph, map_npy(path), lookahead=8)
    assert len(list(loader)) == 20
    assert "window_rows" not in loader.stats.total.counts


# -- windows by themselves, against a plain reference
# ------------------------------------------------------


@pytest.mark.many
@settings(max_examples=examples(40))
@given(st.data())
def test_windows_have_the_rows(tmp_path_factory, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    num_rows, by_reference = data.draw(st.integers(1, 60)), data.draw(st.booleans())
    array = rng.integers(0, 255, (num_rows, data.draw(st.integers(1, 9))), dtype=np.uint8)
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, array)
    values = map_npy(path)
    if by_reference:
        values = IndexedRows(
            values, torch.from_numpy(rng.integers(0, num_rows, data.draw(st.integers(1, 40))))
        )
    plain = values.materialize() if by_reference else values.clone()
    feature, pool = DiskFeature(values), BufferPool(2)
    ids = torch.from_numpy(rng.integers(0, feature.num_rows, data.draw(st.integers(0, 30))))
    chosen = torch.from_numpy(
        rng.permutation(feature.num_rows)[: data.draw(st.integers(1, feature.num_rows))]
    )
    full = FeatureCache(plain[chosen], slots_for(chosen, feature.num_rows))
    growing = GrowingCache(torch.empty_like(full.rows), full.slots)
    before, earlier = None, set()
    for _ in range(data.draw(st.integers(1, 3))):
        cache = data.draw(st.sampled_from([None, full, growing]))
        ids = torch.from_numpy(rng.integers(0, feature.num_rows, data.draw(st.integers(0, 30))))
        window = RowsAhead(feature, holds_rows=True)
        window.add(ids, cache)
        cached = torch.zeros(0) if cache is None else chosen[cache.slots[chosen] >= 0]
        missing = set(ids.tolist()) - set(cached.tolist())
        assert len(window) == len(missing)
        assert window.load(before, pool) == len(missing - earlier)
        rows, found = window.read(ids, cache)
        expected = plain[ids]
        for place in range(len(ids)):
            slot = -1 if found is None else int(found.slots[place])
            got = found.rows[slot] if slot >= 0 else rows.read(torch.tensor([place]))[0]
            assert torch.equal(got, expected[place])
        window.feed(growing, lambda rows: rows)
        there = growing.slots[chosen] >= 0
        assert torch.equal(growing.rows[there], plain[chosen[there]])
        assert set(chosen.tolist()) & missing <= set(chosen[there].tolist())
        before, earlier = window, missing
    outside = torch.tensor([feature.num_rows, -1])
    assert window.read(outside, None) is None
