"""DGL's batches made on an accelerator, here the CPU: the same batches, handed over in the reader's
thread."""

import gc

import pytest
import torch
from cases import FIELD_DTYPES, bits, dgl, make_graph, ours, random_field
from recording_accelerator import RecordingAccelerator, memory_of

from pagraph.accelerator import OutOfMemory
from pagraph.features.gpu.transfer import Transfer

pytestmark = pytest.mark.usefixtures("no_threads_left")

d = dgl.dataloading


class Accelerator(RecordingAccelerator):
    runs_kernels = False


@pytest.fixture
def on_accelerator(monkeypatch):
    """Loaders made from now on deliver on an accelerator."""

    def use(accelerator):
        monkeypatch.setattr("pagraph.engine.engine.accelerator_for", lambda device: accelerator)
        return accelerator

    return use


def sampler_of(**options):
    return d.NeighborSampler(
        [3, 2],
        prefetch_node_feats=["feat", "wide"],
        prefetch_labels=["label"],
        prefetch_edge_feats=["w"],
        **options,
    )


def rows_of(blocks):
    return [
        blocks[0].srcdata["feat"],
        blocks[0].srcdata["wide"],
        blocks[-1].dstdata["label"],
        blocks[0].edata["w"],
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", ["50%", "auto", 0])
def test_batches_are_the_same_and_handed_over_in_the_readers_thread(on_accelerator, workers, cache):
    graph, settings = (
        make_graph(),
        {"batch_size": 32, "seed": 3, "shuffle": True, "num_workers": workers},
    )
    settings["prefetch"] = 2 * bool(workers)
    plain = list(ours(graph, torch.arange(100), sampler_of(), **settings))
    device = on_accelerator(Accelerator())
    loader = ours(graph, torch.arange(100), sampler_of(), cache=cache, **settings)
    for expected, batch in zip(plain, loader, strict=True):
        assert bits(batch) == bits(expected)
        for rows, wanted in zip(rows_of(batch[2]), rows_of(expected[2]), strict=True):
            assert torch.equal(rows, wanted)
            assert memory_of(rows) in device.handed_in("MainThread")
    assert loader.stats.total.reads.fields["feat"].rows
    if cache != "auto":  # then the first step must be over, and workers may be done before
        assert (loader.stats.total.hit_rate > 0) == (cache == "50%")
    assert loader.stats.total.device_seconds["reading"] > 0


def test_batches_are_the_same_with_kernels(on_accelerator):
    graph, settings = make_graph(), {"batch_size": 16, "seed": 3}
    device = on_accelerator(RecordingAccelerator())
    if not device.runs_kernels:
        pytest.skip("needs Triton and TRITON_INTERPRET=1")
    loader = ours(graph, torch.arange(30), sampler_of(), cache="30%", **settings)
    batches = list(loader)
    on_accelerator(None)
    for batch, expected in zip(
        batches, ours(graph, torch.arange(30), sampler_of(), **settings), strict=True
    ):
        assert bits(batch) == bits(expected)
        assert all(map(torch.equal, rows_of(batch[2]), rows_of(expected[2])))


@pytest.mark.parametrize("dtype", FIELD_DTYPES, ids=str)
def test_any_dtype(on_accelerator, dtype):
    graph = make_graph()
    graph.ndata["field"] = random_field(300, (5,), dtype)
    on_accelerator(Accelerator())
    sampler = d.NeighborSampler([3], prefetch_node_feats=["field"])
    for input_nodes, _, blocks in ours(
        graph, torch.arange(50), sampler, batch_size=20, cache="50%"
    ):
        assert torch.equal(blocks[0].srcdata["field"], graph.ndata["field"][input_nodes])


def test_edge_batches(on_accelerator):
    graph = make_graph()
    sampler = d.as_edge_prediction_sampler(
        sampler_of(), prefetch_labels=["w"], negative_sampler=d.negative_sampler.Uniform(1)
    )
    device = on_accelerator(Accelerator())
    for input_nodes, pairs, _, blocks in ours(graph, torch.arange(90), sampler, batch_size=40):
        assert torch.equal(pairs.edata["w"], graph.edata["w"][pairs.edata[dgl.EID]])
        assert memory_of(pairs.edata["w"]) in device.handed_in("MainThread")
        assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][input_nodes])


class Foreign(d.Sampler):
    """A user's own: a lazy column of the graph, and a lazy leaf."""

    def sample(self, graph, indices):
        part = dgl.in_subgraph(graph, indices, relabel_nodes=True)
        part.ndata["own"] = dgl.frame.LazyFeature("feat", part.ndata[dgl.NID])
        return indices, part, dgl.frame.LazyFeature("outside", indices)


@pytest.mark.parametrize("workers", [0, 2])
def test_foreign_samplers(on_accelerator, workers):
    graph, outside = make_graph(), torch.randn(300, 2)
    device = on_accelerator(Accelerator())
    loader = ours(graph, torch.arange(50), Foreign(), batch_size=20, num_workers=workers)
    loader.attach_data("outside", outside)
    for indices, part, leaf in loader:
        assert torch.equal(leaf, outside[indices])
        assert torch.equal(part.ndata["own"], graph.ndata["feat"][part.ndata[dgl.NID]])
        assert {memory_of(leaf), memory_of(part.ndata["own"])} <= device.handed_in("MainThread")


def test_columns_that_are_replaced_or_written_are_current(on_accelerator):
    graph = make_graph()
    on_accelerator(Accelerator())
    loader = ours(graph, torch.arange(120), sampler_of(), batch_size=20, cache="50%", num_workers=2)
    for step, (input_nodes, _, blocks) in enumerate(loader):
        assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][input_nodes])
        if step % 2:
            graph.ndata["feat"] = torch.randn(300, 16)
        else:
            graph.ndata["feat"].add_(1)


@pytest.mark.parametrize("end", ["close", "drop"])
def test_pins_are_released(on_accelerator, end, monkeypatch):
    monkeypatch.setattr(Transfer, "_compare", lambda self, *_: setattr(self, "chosen", "zero-copy"))
    device = on_accelerator(RecordingAccelerator())
    if not device.runs_kernels:
        pytest.skip("needs Triton and TRITON_INTERPRET=1")
    graph = make_graph()
    loader = ours(
        graph, torch.arange(20), d.NeighborSampler([2], prefetch_node_feats=["feat"]), batch_size=20
    )
    batches = list(loader)
    assert device.pinned
    if end == "close":
        loader.close()
    else:
        del loader
        gc.collect()
    assert not device.pinned
    assert len(batches) == 1


@pytest.mark.compilers
def test_a_cache_gives_way_to_batches(on_accelerator):
    graph = make_graph()
    graph.ndata["feat"] = torch.randn(300, 16)
    device = on_accelerator(Accelerator(memory=40_000))
    sampler = d.NeighborSampler([3, 2], prefetch_node_feats=["feat"])
    loader = ours(
        graph, torch.arange(300), sampler, batch_size=150, cache="100%", num_workers=0, prefetch=0
    )
    for input_nodes, _, blocks in loader:
        assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][input_nodes])
        del blocks
    assert loader.shrink_cache() in (True, False)
    assert device.free_bytes()[0] >= 0


@pytest.mark.compilers
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_never_fits_says_so(on_accelerator, workers):
    on_accelerator(Accelerator(memory=500))
    loader = ours(
        make_graph(), torch.arange(100), sampler_of(), batch_size=50, num_workers=workers, cache=0
    )
    with pytest.raises(
        OutOfMemory, match="a batch does not fit on cpu with the model, even without a cache"
    ):
        next(iter(loader))


@pytest.fixture
def a_gpu_for_torch_alone(monkeypatch):
    """torch sees a CUDA device; DGL is as it was built."""
    if dgl.ndarray.gpu(0).exist:
        pytest.skip("this DGL was built for CUDA")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.mark.parametrize(
    "options", [{"device": "cuda"}, {"device": "cuda:0"}, {"use_uva": True}], ids=str
)
def test_a_dgl_without_cuda_is_told_at_construction(a_gpu_for_torch_alone, options):
    message = (
        r"device='cuda:0' needs a DGL that was built for CUDA, this DGL .* was not: install one "
        r"from data\.dgl\.ai, or use pagraph\.pyg\.NeighborLoader, "
        r"pagraph\.Loader with block\.to_pyg\(\), or "
        r"device='cpu'"
    )
    with pytest.raises(dgl.DGLError, match=message):
        ours(make_graph(), torch.arange(10), sampler_of(), **options)
