"""DGL's blocks that a device samples, here the CPU: those that the CPU samples."""

import copy

import pytest
import torch
from cases import bits, dgl, make_graph, ours
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_accelerator import RecordingAccelerator, memory_of
from stream_races import RaceDetector, Watch
from tiers import pairs

from pagraph.accelerator import HostAccelerator
from pagraph.errors import MissingDependencyError

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="kernels are compiled here, not interpreted"
    ),
]
d = dgl.dataloading


@pytest.fixture
def device(monkeypatch):
    """Loaders made with ``device="cpu"`` deliver on it."""
    return use(monkeypatch, RecordingAccelerator())


def use(monkeypatch, accelerator):
    monkeypatch.setattr("pagraph.engine.engine.accelerator_for", lambda device: accelerator)
    return accelerator


def sampler_of(fanouts=(3, 2), **options):
    names = {"prefetch_node_feats": ["feat"], "prefetch_labels": ["label"]}
    return d.NeighborSampler(list(fanouts), **(names | options))


def made(graph, sampler, sampling_device="auto", indices=None, **options):
    defaults = {"batch_size": 16, "shuffle": True, "seed": 5}
    indices = torch.arange(60, dtype=graph.idtype) if indices is None else indices
    return ours(graph, indices, sampler, sampling_device=sampling_device, **(defaults | options))


def rows_of(blocks):
    """Columns that are read ahead, and others, which are gathered when they are first read."""
    return [
        blocks[0].srcdata["feat"],
        blocks[0].srcdata["wide"],
        blocks[-1].dstdata["label"],
        blocks[-1].dstdata["feat"],
        blocks[0].edata["w"],
    ]


def assert_all_same(loader, others, epochs=2):
    """All batches are kept: none is changed by those after it."""
    found = [batch for _ in range(epochs) for batch in loader]
    expected = [batch for _ in range(epochs) for batch in others]
    for batch, other in zip(found, expected, strict=True):
        assert bits(batch) == bits(other)
        for rows, wanted in zip(rows_of(batch[2]), rows_of(other[2]), strict=True):
            assert torch.equal(rows, wanted)


@pytest.mark.every
@pytest.mark.parametrize(
    *pairs(
        fanouts=[(3, 2), (-1, 2), (20,)],
        replace=[False, True],
        edge_dir=["in", "out"],
        workers=[0, 2],
    )
)
def test_batches_are_those_of_the_cpu(device, fanouts, replace, edge_dir, workers):
    idtype = torch.int32 if replace else torch.int64
    graph = make_graph(n=90, m=700, idtype=idtype)
    sampler = sampler_of(fanouts, replace=replace, edge_dir=edge_dir)
    options = {"num_workers": workers, "cache": 0.3}
    there = made(graph, sampler, **options)
    assert there.sampling_placement == "device"
    assert_all_same(there, made(graph, sampler, "cpu", **options))
    assert there.stats.total.device_seconds["sampling"] > 0
    there.close()


@pytest.mark.compilers
@settings(max_examples=8)
@given(
    edges=st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))
        )
    ),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 7]), min_size=1, max_size=3),
    replace=st.booleans(),
    seeds=st.data(),
)
def test_any_graph(edges, fanouts, replace, seeds):
    """Isolated vertices, self-loops and parallel edges."""
    n, ends = edges
    src, dst = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T
    graph = dgl.graph((src, dst), num_nodes=n)
    for name in ("feat", "wide", "label"):
        graph.ndata[name] = torch.randn(n, 2)
    graph.edata["w"] = torch.randn(len(src))
    ids = seeds.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=9))
    sampler = sampler_of(fanouts, replace=replace)
    options = {"indices": torch.tensor(ids), "batch_size": 3}
    with pytest.MonkeyPatch.context() as patch:
        use(patch, HostAccelerator())
        there = made(graph, sampler, **options)
        assert_all_same(there, made(graph, sampler, "cpu", **options), epochs=1)
        there.close()


@pytest.mark.every
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("replace", [False, True])
def test_weights_where_the_device_is_named(device, edge_dir, replace):
    graph = make_graph(n=90, m=900)
    graph.edata["w"] = graph.edata["w"].abs() * (torch.arange(900) % 5 > 0)
    sampler = sampler_of((3,), prob="w", replace=replace, edge_dir=edge_dir)
    assert "to sample weighted edges" in made(graph, sampler).sampling_placement
    options = {"indices": torch.arange(0, 90, 8)}
    there = made(graph, sampler, device, **options)
    others = made(graph, sampler, "cpu", **options)
    assert there.sampling_placement == "device"
    assert_all_same(there, others, epochs=1)
    # What is written, or put in its place, counts.
    graph.edata["w"][:450] = 0
    assert_all_same(there, others, epochs=1)
    graph.edata["w"] = torch.arange(900) % 7 + 0.5
    assert_all_same(there, others, epochs=1)
    there.close()


def typed_bits(batch):
    _, _, blocks = batch
    found = []
    for block in blocks:
        for etype in block.canonical_etypes:
            found += [end.tolist() for end in block.edges(etype=etype)]
            found.append(block.edges[etype].data[dgl.EID].tolist())
        found += [ids.tolist() for ids in block.srcdata[dgl.NID].values()]
    return found


def test_several_types_where_the_device_is_named(device):
    graph = typed_graph()
    sampler = d.NeighborSampler([2, 3])
    seeds = {"user": torch.arange(20), "item": torch.arange(10)}
    options = {"indices": seeds, "batch_size": 8}
    assert (
        "sampling_device must name a device" in made(graph, sampler, **options).sampling_placement
    )
    there = made(graph, sampler, device, **options)
    assert there.sampling_placement == "device"
    others = list(made(graph, sampler, "cpu", **options))
    for batch, other in zip(there, others, strict=True):
        assert typed_bits(batch) == typed_bits(other)
        assert batch[1].keys() == other[1].keys()
    there.close()


def typed_graph():
    generator = torch.Generator().manual_seed(1)

    def ends(num_src, num_dst, count):
        src = torch.randint(0, num_src, (count,), generator=generator)
        return src, torch.randint(0, num_dst, (count,), generator=generator)

    edges = {
        ("user", "buys", "item"): ends(40, 25, 200),
        ("item", "of", "user"): ends(25, 40, 150),
        ("user", "knows", "user"): ends(40, 40, 120),
    }
    return dgl.heterograph(edges, {"user": 40, "item": 25})


@pytest.mark.parametrize("exclude", [None, "self"])
def test_links(device, exclude):
    """Batches that exclude edges are sampled on the CPU."""
    graph = make_graph(n=90, m=700)
    sampler = d.as_edge_prediction_sampler(
        sampler_of(), negative_sampler=d.negative_sampler.Uniform(1), exclude=exclude
    )
    there = made(graph, sampler)
    for batch, other in zip(there, made(graph, sampler, "cpu"), strict=True):
        assert bits((batch[0], batch[0], batch[3])) == bits((other[0], other[0], other[3]))
        for found, expected in zip(batch[1:3], other[1:3], strict=True):
            assert torch.equal(torch.stack(found.edges()), torch.stack(expected.edges()))
        for rows, wanted in zip(rows_of(batch[3]), rows_of(other[3]), strict=True):
            assert torch.equal(rows, wanted)
    assert ("sampling" in there.stats.total.device_seconds) == (exclude is None)
    there.close()


def test_all_memory_is_handed_over_in_the_readers_thread(device):
    graph = make_graph(n=90, m=700)
    for input_nodes, _, blocks in made(graph, sampler_of(), num_workers=2):
        arrays = [input_nodes, blocks[0].srcdata["feat"]]
        arrays += [block._edge_frames[0]._columns[dgl.EID].index for block in blocks]
        assert {memory_of(array) for array in arrays} <= device.handed_in("MainThread")


def test_no_stream_reads_what_another_writes(monkeypatch):
    device = use(monkeypatch, RaceDetector())
    graph = make_graph(n=90, m=700)
    with Watch(device):
        for _, _, blocks in made(graph, sampler_of(), num_workers=2, cache=0.3):
            for block in blocks:
                block.srcdata[dgl.NID].sum()


def test_a_changed_sampler_is_followed(device):
    graph = make_graph(n=90, m=700)
    sampler = sampler_of((3, 2))
    there = made(graph, sampler)
    others = made(graph, sampler, "cpu")
    assert_all_same(there, others, epochs=1)
    sampler.fanouts = [1, 4]
    assert_all_same(there, others, epochs=1)
    sampler.fanouts = [200, 4]
    assert_all_same(there, others, epochs=1)
    assert "fanouts must be at most 128" in there.sampling_placement
    there.close()


def test_a_closed_loader_samples_there_again(device):
    graph = make_graph(n=90, m=700)
    there = made(graph, sampler_of())
    there.close()
    assert_all_same(there, made(graph, sampler_of(), "cpu"), epochs=1)
    there.close()


def test_a_copy_samples_alike(device):
    graph = make_graph(n=90, m=700)
    there = made(graph, sampler_of())
    twin = copy.copy(there)
    assert_all_same(there, twin, epochs=1)
    there.close()
    twin.close()


@pytest.mark.parametrize(
    ("sampler", "reason"),
    [
        (sampler_of(prefetch_edge_feats=["w"]), "a sampler without prefetch_edge_feats"),
        (sampler_of((200,)), "fanouts must be at most 128 or -1"),
        (d.LaborSampler([3]), "a NeighborSampler, got LaborSampler"),
        (d.ShaDowKHopSampler([3]), "a NeighborSampler, got ShaDowKHopSampler"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_only_the_cpu_samples(device, sampler, reason):
    graph = make_graph(n=90, m=700)
    graph.edata["w"] = graph.edata["w"].abs()
    loader = made(graph, sampler)
    assert loader.sampling_placement.startswith("host: ")
    assert reason in loader.sampling_placement
    next(iter(loader))
    loader.close()
    with pytest.raises(ValueError, match=reason):
        made(graph, sampler, device)


def test_a_device_without_kernels(monkeypatch):
    class Without(HostAccelerator):
        runs_kernels = False

    device = use(monkeypatch, Without())
    graph = make_graph(n=90, m=700)
    assert "needs Triton" in made(graph, sampler_of()).sampling_placement
    with pytest.raises(MissingDependencyError, match="needs Triton"):
        made(graph, sampler_of(), device)


def test_another_device(device):
    graph = make_graph(n=90, m=700)
    with pytest.raises(ValueError, match="must be 'cpu' or the batches' device 'cpu'"):
        made(graph, sampler_of(), HostAccelerator())


def test_on_a_cpu_nothing_changes():
    graph = make_graph(n=90, m=700)
    assert made(graph, sampler_of()).sampling_placement == "host"
    with pytest.raises(ValueError, match="sampling_device must be"):
        made(graph, sampler_of(), HostAccelerator())
