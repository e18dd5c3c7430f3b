"""The core loader on an accelerator: the CPU in its part, its kernels under Triton's
interpreter."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from fresh_processes import HANGING
from recording_accelerator import RecordingAccelerator, memory_of

from pagraph import Graph, Loader, NeighborSampler
from pagraph.accelerator import HostAccelerator, OutOfMemory
from pagraph.datasets import rmat
from pagraph.engine import envelope, program
from pagraph.errors import FormatError
from pagraph.sampling import LaborSampler

pytest.importorskip("triton")

pytestmark = pytest.mark.usefixtures("no_threads_left")
DEVICES = [
    HostAccelerator,
    pytest.param(
        lambda: "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
        id="cuda",
    ),
]


def make_graph(n=120, m=900, seed=0):
    rng = np.random.default_rng(seed)
    graph = Graph.from_coo(rng.integers(0, n, m), rng.integers(0, n, m), n)
    graph.set_field("feat", torch.randn(n, 6, generator=torch.Generator().manual_seed(seed)))
    graph.set_field("label", torch.arange(n) % 7)
    return graph


def make_loader(graph, sampler=None, **options):
    defaults = dict(fields=["feat"], labels=["label"], batch_size=16, shuffle=True, seed=5)
    return Loader(
        graph, torch.arange(0, 120, 2), sampler or NeighborSampler([4, 3]), **(defaults | options)
    )


def bits(batch):
    blocks = [
        (b.indptr.tolist(), b.indices.tolist(), b.positions.tolist(), b.src_nodes.tolist())
        for b in batch.blocks
    ]
    fields = [batch.features["feat"].tolist(), batch.labels["label"].tolist()]
    return batch.output_nodes.tolist(), [b.num_dst for b in batch.blocks], blocks, fields


def placed(device, there):
    return {"device": device, "sampling_device": device if there else "cpu"}


@pytest.mark.every
@pytest.mark.parametrize(
    "there", [False, True], ids=["sampled by the CPU", "sampled by the device"]
)
@pytest.mark.parametrize("transfer", ["zero-copy", "staging"])
@pytest.mark.parametrize("cache", [0, 0.2, 1.0])
@pytest.mark.parametrize("make_device", DEVICES)
def test_the_same_bits_as_on_the_cpu(make_device, cache, transfer, there):
    graph, device = make_graph(), make_device()
    plain = make_loader(graph, cache=0)
    expected = [bits(b) for _ in range(2) for b in plain]
    loader = make_loader(graph, cache=cache, transfer=transfer, **placed(device, there))
    got = [b for _ in range(2) for b in loader]
    assert [bits(b) for b in got] == expected
    for batch in got:
        tensors = [batch.output_nodes, *batch.features.values(), *batch.labels.values()]
        tensors += [
            t for b in batch.blocks for t in (b.indptr, b.indices, b.positions, b.src_nodes)
        ]
        assert {t.device for t in tensors} == {loader.device}
    loader.close()


@pytest.mark.every
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("there", [False, True])
def test_the_same_bits_for_any_workers_and_depth(workers, prefetch, there):
    graph = make_graph()
    expected = [bits(b) for b in make_loader(graph, cache=0)]
    loader = make_loader(
        graph, num_workers=workers, prefetch=prefetch, **placed(HostAccelerator(), there)
    )
    assert [bits(b) for b in loader] == expected


@pytest.mark.parametrize("make_device", DEVICES)
@pytest.mark.parametrize(
    "sampler",
    [LaborSampler([4, 3], prob="w"), NeighborSampler([4, 3], prob="w")],
    ids=["labor", "by weight"],
)
def test_edge_weights_come_along(sampler, make_device):
    graph = make_graph()
    graph.edata["w"] = torch.rand(graph.num_edges)
    expected = list(make_loader(graph, sampler, cache=0))
    for batch, other in zip(
        make_loader(graph, sampler, device=make_device()), expected, strict=True
    ):
        assert bits(batch) == bits(other)
        for block, as_on_cpu in zip(batch.blocks, other.blocks, strict=True):
            if as_on_cpu.weights is None:
                assert block.weights is None
            else:
                assert torch.equal(block.weights.cpu(), as_on_cpu.weights)


@pytest.mark.parametrize("there", [False, True])
def test_counts_rows_hits_and_hops_as_on_the_cpu(there, tmp_path):
    graph = make_graph()
    # On the CPU only rows on disk are cached: the same field in a mapped file.
    np.save(tmp_path / "feat.npy", graph.ndata["feat"].numpy())
    mapped = make_graph()
    mapped.set_field("feat", torch.from_numpy(np.load(tmp_path / "feat.npy", mmap_mode="c")))
    host = make_loader(mapped, cache=0.3, labels=[], cache_policy="degree")
    device = make_loader(
        graph, cache=0.3, labels=[], cache_policy="degree", **placed(HostAccelerator(), there)
    )
    for loader in (host, device):
        for _ in loader:
            pass
    ours, theirs = (loader.stats.total.reads.fields["feat"] for loader in (device, host))
    assert ours.asked == theirs.asked > 0
    if theirs.cacheable:
        assert (ours.hits, ours.hits_by_hop) == (theirs.hits, theirs.hits_by_hop)
    assert 0 < ours.hits < ours.asked and sum(ours.hits_by_hop) == ours.hits
    assert ours.asked_by_hop == theirs.asked_by_hop
    assert device.stats.total.counts == host.stats.total.counts


@pytest.mark.parametrize("there", [False, True])
def test_all_that_is_delivered_was_handed_to_the_readers_stream(there):
    device = RecordingAccelerator()
    loader = make_loader(make_graph(), **placed(device, there))
    for batch in loader:
        handed = device.handed_in(threading.current_thread().name)
        tensors = [batch.output_nodes, *batch.features.values(), *batch.labels.values()]
        tensors += [
            t for b in batch.blocks for t in (b.indptr, b.indices, b.positions, b.src_nodes)
        ]
        assert {memory_of(t) for t in tensors if t.numel()} <= handed
        assert all(event.has_happened for _, _, event in device.handed)


@pytest.mark.parametrize("transfer", ["zero-copy", "staging"])
@pytest.mark.parametrize("there", [False, True])
def test_no_memory_is_made_in_the_streams_of_others(there, transfer):
    device = RecordingAccelerator()
    for _ in make_loader(make_graph(), cache=0.3, transfer=transfer, **placed(device, there)):
        pass
    assert {stream for _, stream in device.made_in} == {"reading"}


@pytest.mark.parametrize("there", [False, True])
def test_a_field_that_is_replaced_or_written_is_read_again(there):
    graph = make_graph()
    loader = make_loader(graph, cache=0.5, **placed(HostAccelerator(), there))
    batches = iter(loader)
    next(batches)
    graph.set_field("feat", graph.ndata["feat"] * 2)
    batch = next(batches)
    assert torch.equal(batch.features["feat"], graph.ndata["feat"][batch.input_nodes.long()])
    graph.ndata["feat"].add_(1)
    batch = next(batches)
    assert torch.equal(batch.features["feat"], graph.ndata["feat"][batch.input_nodes.long()])
    del batches


def test_what_is_not_supported_on_a_device():
    graph, device = make_graph(), HostAccelerator()
    with pytest.raises(
        ValueError, match="sampling_device must be 'cpu' or the batches' device 'cpu'"
    ):
        make_loader(graph, sampling_device=device)
    with pytest.raises(ValueError, match="transfer must be"):
        make_loader(graph, device=device, transfer="fast")
    with pytest.raises(ValueError, match="device must be 'cpu' or a CUDA device, got 'meta'"):
        make_loader(graph, device="meta")
    with pytest.raises(ValueError, match="sampling_budget must be .* got 'much'"):
        make_loader(graph, sampling_budget="much")
    with pytest.raises(ValueError, match="sampling_budget must be at least 0 bytes, got -1"):
        make_loader(graph, sampling_budget=-1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what happens without CUDA")
@pytest.mark.parametrize("name", ["device", "sampling_device"])
def test_no_cuda(name):
    with pytest.raises(
        ValueError, match=f"{name}='cuda' needs a CUDA device, this machine has none"
    ):
        make_loader(make_graph(), **{name: "cuda"})


@pytest.mark.compilers
def test_a_batch_that_does_not_fit_takes_from_the_cache():
    graph = make_graph(n=4000, m=30000)
    graph.set_field("feat", torch.randn(4000, 64))
    device = HostAccelerator(memory=1_000_000)
    seeds = torch.arange(4000)
    options = dict(
        fields=["feat"], batch_size=256, seed=1, device=device, prefetch=0, transfer="staging"
    )
    loader = Loader(graph, seeds, NeighborSampler([5, 5]), cache=990_000, **options)
    for batch in loader:
        assert torch.equal(batch.features["feat"], graph.ndata["feat"][batch.input_nodes])
        del batch
    assert 0 <= loader.cache_plan.nbytes < 700_000


def test_a_batch_that_never_fits_says_so():
    graph = make_graph(n=4000, m=30000)
    graph.set_field("feat", torch.randn(4000, 64))
    device = HostAccelerator(memory=100_000)
    loader = Loader(
        graph,
        torch.arange(4000),
        NeighborSampler([5, 5]),
        fields=["feat"],
        batch_size=512,
        device=device,
        cache=0,
    )
    with pytest.raises(OutOfMemory, match="a batch does not fit on cpu with the model"):
        next(iter(loader))


@pytest.mark.compilers
def test_shrinking_by_hand_and_reading_on():
    graph = make_graph()
    loader = make_loader(graph, cache=0.5, device=HostAccelerator())
    batches = iter(loader)
    next(batches)
    before = loader.cache_plan.nbytes
    assert loader.shrink_cache() and loader.cache_plan.nbytes < before
    for batch in batches:
        assert torch.equal(batch.features["feat"], graph.ndata["feat"][batch.input_nodes])
    while loader.shrink_cache():
        pass
    assert loader.cache_plan.rows == 0


@pytest.mark.compilers
def test_closing_and_dropping_unpins():
    device = RecordingAccelerator()
    loader = make_loader(make_graph(), transfer="zero-copy", cache=0, **placed(device, True))
    batches = iter(loader)
    next(batches)
    assert device.pinned > 0
    loader.close()
    gc.collect()
    assert device.pinned == 0
    dropped = make_loader(make_graph(), transfer="zero-copy", cache=0, **placed(device, True))
    next(iter(dropped))
    gone = weakref.ref(dropped)
    del dropped
    gc.collect()
    # A thread that prepared a batch lets go of the memory when it ends.
    end = time.monotonic() + HANGING
    while device.pinned and time.monotonic() < end:
        time.sleep(0.05)
        gc.collect()
    assert gone() is None and device.pinned == 0


def test_a_damaged_graph_is_told_as_on_the_cpu():
    graph = make_graph()
    graph.csc.indices[:] = 10**6
    for there in (False, True):
        with pytest.raises(FormatError, match="indices must be in"):
            next(iter(make_loader(graph, **placed(HostAccelerator(), there))))


def test_resuming_in_the_middle():
    graph = make_graph()
    expected = [bits(b) for b in make_loader(graph, cache=0)]
    first = make_loader(graph, **placed(HostAccelerator(), True))
    batches = iter(first)
    head = [bits(next(batches)) for _ in range(2)]
    state = first.state_dict()
    del batches
    second = make_loader(graph, **placed(HostAccelerator(), True))
    second.load_state_dict(state)
    assert head + [bits(b) for b in second] == expected


def test_without_kernels_rows_are_staged(monkeypatch):
    monkeypatch.setattr(HostAccelerator, "runs_kernels", False)
    graph = make_graph()
    expected = [bits(b) for b in make_loader(graph, cache=0)]
    loader = make_loader(graph, cache=0.3, device=HostAccelerator())
    assert [bits(b) for b in loader] == expected
    assert "staging" in loader.transfers["feat"] and "Triton" in loader.transfers["feat"]


@pytest.mark.every
@pytest.mark.parametrize(
    "there", [False, True], ids=["sampled by the CPU", "sampled by the device"]
)
@pytest.mark.parametrize(
    "options",
    [
        dict(prefetch=0),
        dict(cache=0.2),
        dict(prefetch=0, transfer="staging"),
        dict(cache=0.2, transfer="staging"),
    ],
    ids=str,
)
@pytest.mark.parametrize("make_device", DEVICES)
def test_what_is_made_in_inference_mode_is_used_outside_of_it(make_device, options, there):
    graph, device = make_graph(), make_device()
    plain = make_loader(graph, cache=0)
    expected = [bits(b) for _ in range(4) for b in plain]
    with torch.inference_mode():
        loader = make_loader(graph, **options, **placed(device, there))
        got = [bits(b) for b in loader]
    # Buffers, caches and the table of vertices are from the first pass.
    for inside in (False, True, False):
        with torch.inference_mode(inside):
            got += [bits(b) for b in loader]
    assert got == expected
    loader.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shapes", ["sampled", "fixed"])
@pytest.mark.parametrize("fits", [True, False], ids=["fits", "overflows"])
@pytest.mark.parametrize("fields", [("feat", "label"), ()], ids=["read", "sampled"])
def test_batches_of_one_launch_are_the_cpu_s_on_a_gpu(fields, fits, shapes, monkeypatch):
    """All batches are kept, computed with on a stream of the reader's, and compared at the end."""
    monkeypatch.setattr(program, "_LEAST_MARGIN", 0.02 if fits else -0.05)
    monkeypatch.setattr(program, "_SIGMAS", 0)
    monkeypatch.setattr(envelope, "_MARGIN", 3.5 if fits else -1.0)
    monkeypatch.setattr(envelope, "_TRIALS", 8)
    graph = rmat(12, edge_factor=8, seed=0)
    generator = torch.Generator().manual_seed(0)
    graph.ndata["feat"] = torch.randn(graph.num_nodes, 20, generator=generator)
    graph.ndata["label"] = torch.arange(graph.num_nodes)
    options = {"fields": fields[:1], "labels": fields[1:], "batch_size": 64, "shuffle": True}
    options["shapes"] = shapes
    sampler = NeighborSampler([7, 5, 3])
    seeds = torch.arange(0, graph.num_nodes, 3)
    place = {"device": "cuda", "sampling_device": "cuda", "transfer": "zero-copy"}
    place |= {"cache": 0.3, "cache_policy": "degree"}
    loader = Loader(graph, seeds, sampler, seed=1, **(options | place))
    on_cpu = Loader(graph, seeds, sampler, seed=1, **options)
    for reader in (loader, on_cpu):
        for _ in range(2):
            for _ in reader:
                pass
        reader.set_epoch(0)
    expected = [*on_cpu]
    found, sums = [], []
    with torch.cuda.stream(torch.cuda.Stream()):
        for batch in loader:
            found.append(batch)
            sums.append(batch.input_nodes.sum() + sum(b.indices.sum() for b in batch.blocks))
        torch.cuda.synchronize()
    made = loader._engine.epochs.steps.program
    assert made._made > (len(found) if fits else 0)
    for batch, total, other in zip(found, sums, expected, strict=True):
        for block, same in zip(batch.blocks, other.blocks, strict=True):
            for name in ("indptr", "indices", "positions", "src_nodes"):
                assert torch.equal(getattr(block, name).cpu(), getattr(same, name)), name
        assert total == other.input_nodes.sum() + sum(b.indices.sum() for b in other.blocks)
        for name in fields:
            place = "features" if name in fields[:1] else "labels"
            assert torch.equal(getattr(batch, place)[name].cpu(), getattr(other, place)[name])
    loader.close()
