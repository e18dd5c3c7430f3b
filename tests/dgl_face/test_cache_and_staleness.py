"""The cache behind the face: the same values with and without it, honest counts, never a stale
row."""

import gc
import weakref

import numpy as np
import pytest
import torch
from cases import FIELD_DTYPES, collect, dgl, make_graph, ours, random_field, theirs

pytestmark = pytest.mark.usefixtures("no_threads_left")

NeighborSampler = dgl.dataloading.NeighborSampler


def on_disk(tensor, folder, name="x"):
    """The same values as a memory-mapped tensor: what the CPU's cache is for."""
    path = folder / f"{name}.bin"
    tensor.contiguous().view(-1).view(torch.uint8).numpy().tofile(path)
    size = tensor.numel() * tensor.element_size()
    storage = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
    return storage.view(tensor.dtype).view(tensor.shape)


def disk_graph(folder, **kwargs):
    graph = make_graph(**kwargs)
    graph.ndata["disk"] = on_disk(graph.ndata["feat"], folder)
    return graph


@pytest.mark.every
@pytest.mark.parametrize("cache", [0, 1300, "1%", "30%", 1.0, "auto", None], ids=str)
@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_values_are_the_same_with_any_cache_and_depth(tmp_path, cache, prefetch):
    graph = disk_graph(tmp_path)
    sampler = NeighborSampler(
        [4, 3], prefetch_node_feats=["disk", "feat"], prefetch_labels=["label"]
    )
    loader = ours(graph, torch.arange(200), sampler, batch_size=20, cache=cache, prefetch=prefetch)
    for _ in range(2):
        for input_nodes, output_nodes, blocks in loader:
            assert torch.equal(blocks[0].srcdata["disk"], graph.ndata["feat"][input_nodes])
            assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][input_nodes])
            assert torch.equal(blocks[-1].dstdata["label"], graph.ndata["label"][output_nodes])


@pytest.mark.every
@pytest.mark.parametrize("dtype", FIELD_DTYPES, ids=str)
def test_every_dtype_through_the_cache(tmp_path, dtype):
    graph = make_graph()
    values = random_field(graph.num_nodes(), (3, 2), dtype)
    graph.ndata["x"] = on_disk(values, tmp_path)
    loader = ours(
        graph,
        torch.arange(100),
        NeighborSampler([4], prefetch_node_feats=["x"]),
        batch_size=30,
        cache="40%",
    )
    for input_nodes, _, blocks in loader:
        assert torch.equal(blocks[0].srcdata["x"], values[input_nodes])
    assert 0 < loader.stats.total.hit_rate < 1


def test_hits_and_misses_add_up_to_the_rows_asked(tmp_path):
    graph = disk_graph(tmp_path)
    sampler = NeighborSampler([4, 3], prefetch_node_feats=["disk"])
    options = {"cache": "25%", "cache_policy": "degree", "num_workers": 2}
    loader = ours(graph, torch.arange(200), sampler, batch_size=20, seed=0, **options)
    asked = [sum(len(input_nodes) for input_nodes, _, _ in loader) for _ in range(2)]
    cached = torch.zeros(graph.num_nodes(), dtype=torch.bool)
    ranking = torch.argsort(graph.out_degrees(), descending=True, stable=True)
    cached[ranking[: graph.num_nodes() // 4]] = True
    again = ours(graph, torch.arange(200), sampler, batch_size=20, cache=0, seed=0)
    expected = [sum(int(cached[i].sum()) for i, _, _ in again) for _ in range(2)]
    for epoch, rows, hits in zip(loader.stats.epochs, asked, expected, strict=True):
        field = epoch.reads.fields["disk"]
        assert (field.asked, field.hits, field.misses) == (rows, hits, rows - hits)
        assert epoch.hit_rate == hits / rows
    (plan,) = loader.cache_plan
    assert "disk" in repr(plan)
    assert "disk" in str(loader.stats) and "waiting" in str(loader.stats)


def test_at_full_capacity_no_row_is_read_from_disk(tmp_path):
    graph = disk_graph(tmp_path)
    sampler = NeighborSampler([4], prefetch_node_feats=["disk"])
    loader = ours(graph, torch.arange(100), sampler, batch_size=20, cache=1.0)
    collect(loader)
    field = loader.stats.total.reads.fields["disk"]
    assert field.hits == field.asked > 0 and field.rows.get("disk", 0) == 0


def test_auto_is_decided_after_the_first_step(tmp_path):
    graph = disk_graph(tmp_path)
    sampler = NeighborSampler([4], prefetch_node_feats=["disk"])
    loader = ours(graph, torch.arange(100), sampler, batch_size=20, prefetch=0)
    batches = iter(loader)
    next(batches)
    assert loader.stats.total.hit_rate == 0
    next(batches)
    assert loader.stats.total.reads.fields["disk"].hits > 0


def test_fields_in_memory_are_not_cached_again():
    graph = make_graph()
    sampler = NeighborSampler([4], prefetch_node_feats=["feat"])
    loader = ours(graph, torch.arange(100), sampler, batch_size=20, cache=1.0)
    collect(loader)
    assert loader.stats.total.reads.fields["feat"].hits == 0


def test_a_policy_of_the_users_own(tmp_path):
    graph = disk_graph(tmp_path)
    seen = {}

    def seeds_first(core, seeds, sampler, seed):
        seen.update(nodes=core.num_nodes, seeds=seeds.tolist(), seed=seed)
        return seeds

    sampler = NeighborSampler([4], prefetch_labels=["disk"])
    loader = ours(
        graph,
        torch.arange(30),
        sampler,
        batch_size=10,
        cache="10%",
        cache_policy=seeds_first,
        seed=5,
    )
    collect(loader)
    assert seen == {"nodes": 300, "seeds": list(range(30)), "seed": 5}
    assert loader.stats.total.hit_rate == 1.0
    with pytest.raises(ValueError, match="cache_policy must be one of .*degree"):
        ours(graph, torch.arange(3), sampler, cache_policy="best")


CHANGES = {
    "replace": lambda g, n: g.ndata.__setitem__("h", torch.full((g.num_nodes(), 4), float(n))),
    "other width": lambda g, n: g.ndata.__setitem__(
        "h", torch.full((g.num_nodes(), 3 + n), float(n))
    ),
    "other dtype": lambda g, n: g.ndata.__setitem__(
        "h", torch.full((g.num_nodes(),), n, dtype=torch.int64)
    ),
    "write all": lambda g, n: g.ndata["h"].__setitem__(slice(None), float(n)),
    "write a view": lambda g, n: g.ndata["h"][:, :2].fill_(float(n)),
    "delete and set": lambda g, n: (
        g.ndata.pop("h"),
        g.ndata.__setitem__("h", torch.ones(g.num_nodes(), 2) * n),
    ),
}


@pytest.mark.every
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("disk", [False, True])
def test_the_next_batch_after_a_change_has_the_new_values(tmp_path, change, prefetch, lazy, disk):
    graph = make_graph()
    values = torch.zeros(graph.num_nodes(), 4)
    graph.ndata["h"] = on_disk(values, tmp_path) if disk else values
    sampler = NeighborSampler(
        [3, 2], prefetch_node_feats=[] if lazy else ["h"], prefetch_labels=[] if lazy else ["h"]
    )
    loader = ours(
        graph,
        torch.arange(200),
        sampler,
        batch_size=10,
        cache=1.0,
        prefetch=prefetch,
        num_workers=2,
    )
    for _ in range(2):
        for step, (input_nodes, output_nodes, blocks) in enumerate(loader):
            assert torch.equal(blocks[0].srcdata["h"], graph.ndata["h"][input_nodes])
            assert torch.equal(blocks[-1].dstdata["h"], graph.ndata["h"][output_nodes])
            if step % 3 == 1:
                CHANGES[change](graph, step + 1)


def test_a_foreign_sampler_sees_changes_too():
    graph = make_graph()
    graph.ndata["h"] = torch.zeros(graph.num_nodes(), 2)
    sampler = dgl.dataloading.LaborSampler([3, 2], prefetch_node_feats=["h"])
    loader = ours(graph, torch.arange(100), sampler, batch_size=10, num_workers=2, prefetch=3)
    for step, (input_nodes, _, blocks) in enumerate(loader):
        assert torch.equal(blocks[0].srcdata["h"], graph.ndata["h"][input_nodes])
        assert torch.equal(blocks[-1].dstdata["h"], graph.ndata["h"][blocks[-1].dstdata[dgl.NID]])
        graph.ndata["h"] = torch.full((graph.num_nodes(), 2 + step % 2), float(step))


def test_a_deleted_column_is_an_error_at_the_next_batch():
    graph = make_graph()
    loader = ours(
        graph,
        torch.arange(100),
        NeighborSampler([2], prefetch_node_feats=["feat"]),
        batch_size=10,
        prefetch=2,
    )
    batches = iter(loader)
    next(batches)
    del graph.ndata["feat"]
    with pytest.raises(KeyError, match="feat"):
        next(batches)


def test_writes_that_nobody_can_see_need_an_explicit_call(tmp_path):
    graph = disk_graph(tmp_path)
    view = graph.ndata["disk"].numpy()
    sampler = NeighborSampler([2], prefetch_node_feats=["disk"])
    loader = ours(graph, torch.arange(100), sampler, batch_size=10, cache=1.0)
    collect(loader)
    view[:] = 7.0
    loader.invalidate_cache()
    for _, _, blocks in loader:
        assert bool((blocks[0].srcdata["disk"] == 7.0).all())


def test_columns_that_require_gradients():
    graph = make_graph()
    graph.ndata["emb"] = torch.randn(graph.num_nodes(), 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="requires_grad"):
        collect(
            ours(
                graph,
                torch.arange(10),
                NeighborSampler([2], prefetch_node_feats=["emb"]),
                batch_size=5,
            )
        )
    _, _, blocks = next(iter(ours(graph, torch.arange(10), NeighborSampler([2]), batch_size=5)))
    blocks[0].srcdata["emb"].sum().backward()
    assert graph.ndata["emb"].grad is not None and float(graph.ndata["emb"].grad.sum()) > 0


def test_two_loaders_with_one_sampler_in_turn_and_interleaved():
    graph = make_graph()
    sampler = NeighborSampler([3, 2], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    train = ours(graph, torch.arange(100), sampler, batch_size=10, seed=0)
    val = ours(graph, torch.arange(100, 200), sampler, batch_size=10, seed=0, num_workers=2)
    for (i, o, b), (vi, vo, vb) in zip(train, val, strict=True):
        for input_nodes, output_nodes, blocks in ((i, o, b), (vi, vo, vb)):
            assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][input_nodes])
            assert torch.equal(blocks[-1].dstdata["label"], graph.ndata["label"][output_nodes])
    reference = collect(theirs(graph, torch.arange(100, 200), sampler, batch_size=10))
    assert [o.tolist() for _, o, _ in val] == [o.tolist() for _, o, _ in reference]


def test_loader_cache_and_graph_are_freed_at_once(tmp_path):
    """Without the garbage collector: a cycle would keep gigabytes of cache until it happens to
    run."""
    graph = disk_graph(tmp_path)
    loader = ours(
        graph,
        torch.arange(50),
        NeighborSampler([2], prefetch_node_feats=["disk"]),
        batch_size=10,
        cache=1.0,
    )
    gc.collect()
    gc.disable()
    try:
        batch = next(iter(loader))
        collect(loader)
        watched = [weakref.ref(x) for x in (graph, loader, loader._engine, loader._columns)]
        del graph, loader, batch
        assert [ref() for ref in watched] == [None] * 4
    finally:
        gc.enable()


def test_memory_stays_bounded_by_the_depth():
    """Buffers in flight are never more than the pipeline's depth and the reader's batch."""
    graph = make_graph()
    loader = ours(
        graph,
        torch.arange(300),
        NeighborSampler([3], prefetch_node_feats=["wide"]),
        batch_size=5,
        prefetch=2,
        num_workers=2,
    )
    addresses = set()
    for _ in range(5):
        for _, _, blocks in loader:
            addresses.add(blocks[0].srcdata["wide"].data_ptr())
            np.random.rand(10)
            del blocks
    # workers + prefetch + the reader's own + the one that is being replaced
    assert len(addresses) <= 4 * (2 + 2 + 2)


def test_a_cache_that_is_given_counts_for_more_than_gpu_cache(tmp_path):
    graph = disk_graph(tmp_path)
    sampler = NeighborSampler([4, 3], prefetch_node_feats=["disk"])
    rows = {"gpu_cache": {"node": {"disk": 0}}}
    for options, cached in (({"cache": 1.0}, graph.num_nodes()), ({}, 0)):
        loader = ours(graph, torch.arange(50), sampler, batch_size=20, **rows, **options)
        collect(loader)
        collect(loader)
        assert [plan.rows for plan in loader.cache_plan] == [cached]


def test_the_plan_tells_what_is_cached_now(tmp_path):
    graph = disk_graph(tmp_path)
    mapped = graph.ndata["disk"]
    sampler = NeighborSampler([4], prefetch_node_feats=["disk"])
    loader = ours(graph, torch.arange(100), sampler, batch_size=10, cache=1.0, num_workers=1)
    collect(loader)
    assert [plan.rows for plan in loader.cache_plan] == [graph.num_nodes()]
    graph.ndata["disk"] = graph.ndata["feat"]  # in memory: nothing to cache
    collect(loader)
    assert [plan.rows for plan in loader.cache_plan] == [0] and "no field" in str(loader.cache_plan)
    graph.ndata["disk"] = mapped
    for _ in range(5):
        collect(loader)
    assert [plan.rows for plan in loader.cache_plan] == [graph.num_nodes()]


def test_no_hit_rate_is_shown_where_there_is_nothing_to_cache(tmp_path):
    graph = disk_graph(tmp_path)
    sampler = NeighborSampler([4], prefetch_node_feats=["disk", "feat"])
    both, memory = (
        ours(graph, torch.arange(100), s, batch_size=50, cache=1.0)
        for s in (sampler, NeighborSampler([4], prefetch_node_feats=["feat"]))
    )
    collect(both), collect(memory)
    assert "%" not in str(memory.stats)
    shown = {line.split()[0]: "%" in line for line in str(both.stats).splitlines() if line}
    assert shown == {
        "epoch": False,
        "0": True,
        "total": True,
        "field": False,
        "disk": True,
        "feat": False,
    }
