"""PyG's batches made on an accelerator, here the CPU: the same batches, handed over in the reader's
thread."""

import copy
import gc

import pytest
import torch
from joined_batches import assert_same, edges_of, expected_of, hetero_of, recording
from recording_accelerator import RecordingAccelerator, memory_of
from torch_geometric.data import Data, HeteroData

from pagraph.accelerator import OutOfMemory, StagingRing
from pagraph.features.gpu.transfer import Transfer
from pagraph.pyg import LinkNeighborLoader, NeighborLoader
from pagraph.pyg.source import Sender

pytestmark = pytest.mark.usefixtures("no_threads_left")

N, E = 60, 400


class Accelerator(RecordingAccelerator):
    runs_kernels = False


@pytest.fixture
def on_accelerator(monkeypatch):
    """Loaders made from now on deliver on an accelerator."""

    def use(accelerator):
        monkeypatch.setattr("pagraph.engine.engine.accelerator_for", lambda device: accelerator)
        return accelerator

    return use


def data_of():
    data = Data(
        x=torch.randn(N, 3),
        y=torch.arange(N),
        edge_index=edges_of(N, E),
        edge_attr=torch.randn(E, 2),
    )
    data.name, data.constants = "graph", torch.arange(5)
    return data


def plain_tensors(batch):
    return [
        x for store in batch.stores for x in store.values() if type(x) is torch.Tensor and x.numel()
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [data_of, hetero_of])
def test_batches_are_pygs_and_handed_over_in_the_readers_thread(on_accelerator, make, workers):
    device, data = on_accelerator(Accelerator()), make()
    kind = None if isinstance(data, Data) else "paper"
    fanouts = [3, 2]
    loader = recording(
        data,
        kind,
        num_neighbors=fanouts,
        device="cpu",
        cache="50%",
        num_workers=workers,
        prefetch=2 * bool(workers),
    )
    for batch in loader:
        assert_same(batch, expected_of(loader, batch))
        assert {memory_of(x) for x in plain_tensors(batch)} <= device.handed_in("MainThread")
    assert {thread for _, thread, _ in device.handed} == {"MainThread"}
    assert loader.stats.total.device_seconds["copying"] > 0
    assert loader.stats.total.device_seconds["reading"] > 0


def test_batches_are_the_same_with_kernels(on_accelerator):
    device, data = on_accelerator(RecordingAccelerator()), data_of()
    if not device.runs_kernels:
        pytest.skip("needs Triton and TRITON_INTERPRET=1")
    loader = recording(data, torch.arange(12), device="cpu", cache="50%")
    for batch in loader:
        assert_same(batch, expected_of(loader, batch))


@pytest.mark.parametrize("workers", [0, 2])
def test_transforms(on_accelerator, workers):
    on_accelerator(Accelerator())

    def of_output(output):
        output.node = output.node.clone()
        return output

    def of_batch(batch):
        batch.twice = 2 * batch.x
        return batch

    loader = NeighborLoader(
        data_of(), [3], batch_size=9, device="cpu", num_workers=workers, transform=of_batch,
        transform_sampler_output=of_output,
    )  # fmt: skip
    for batch in loader:
        assert torch.equal(batch.x, loader.data.x[batch.n_id])
        assert torch.equal(batch.twice, 2 * batch.x)


def test_attributes_that_are_replaced_or_written_are_current(on_accelerator):
    on_accelerator(Accelerator())
    loader = recording(data_of(), device="cpu", cache="50%", num_workers=2)
    for step, batch in enumerate(loader):
        assert_same(batch, expected_of(loader, batch))
        if step % 3 == 0:
            loader.data.x = torch.randn(N, 4)
        elif step % 3 == 1:
            loader.data.x.add_(1)
        else:
            loader.data.edge_attr.mul_(2)


def test_links(on_accelerator):
    device, data = on_accelerator(Accelerator()), data_of()
    loader = LinkNeighborLoader(
        data, [3], neg_sampling="binary", batch_size=20, device="cpu", num_workers=1
    )
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert memory_of(batch.edge_label_index) in device.handed_in("MainThread")


def test_what_is_not_a_plain_tensor_is_left_to_pyg():
    batch = Data(
        x=torch.randn(4, 2),
        sparse=torch.eye(3).to_sparse(),
        text="a",
        parts=[torch.arange(3), {"b": torch.ones(2)}],
    )
    batch.needs = torch.ones(2, requires_grad=True)
    batch.same = batch.x
    before = {"x": batch.x, "sparse": batch.sparse, "needs": batch.needs, "part": batch.parts[0]}
    there = torch.arange(7)
    batch.there = there
    handover, is_whole = Sender(Accelerator()).send(batch, [there])
    assert not is_whole
    assert batch.there is there
    assert batch.sparse is before["sparse"]
    assert batch.needs is before["needs"]
    assert batch.text == "a"
    assert batch.x is not before["x"]
    assert batch.same is batch.x
    assert torch.equal(batch.x, before["x"])
    assert batch.parts[0] is not before["part"]
    assert torch.equal(batch.parts[0], before["part"])
    assert batch.parts[1]["b"].tolist() == [1, 1]
    handed = {memory_of(x) for x in handover.tensors}
    assert {memory_of(batch.x), memory_of(batch.parts[0])} <= handed


def test_views_arrive_with_their_values():
    batch = Data(
        a=torch.arange(12).view(3, 4).t(),
        b=torch.arange(5)[::2],
        c=torch.empty(0, 3),
        d=torch.tensor(7),
    )
    expected = {name: batch[name].clone() for name in "abcd"}
    Sender(Accelerator()).send(batch, [])
    assert all(torch.equal(batch[name], value) for name, value in expected.items())


def of_one_type():
    return Data(
        x=torch.randn(4, 3),
        edge_index=torch.tensor([[0, 1], [2, 3]]),
        num_sampled_nodes=[2, 2],
        name="graph",
        batch_size=2,
        e_id=None,
    )


def of_two_types():
    batch = HeteroData()
    batch["a"].x = torch.randn(4, 3)
    batch["a"].num_sampled_nodes = [1, 3]
    batch["a", "to", "b"].edge_index = torch.tensor([[0, 1], [2, 3]])
    batch.of_all = torch.arange(3)
    return batch


@pytest.mark.parametrize("make", [of_one_type, of_two_types])
@pytest.mark.parametrize("deep", [False, True])
def test_all_tensors_of_a_batch_are_sent(make, deep):
    batch = make()
    if deep:
        batch.deep = {"list": [torch.arange(2)]}
    before = tensors_of(copy.copy(batch))
    handover, is_whole = Sender(Accelerator()).send(batch, before[:1])
    after = tensors_of(batch)
    assert is_whole == (not deep)
    assert after[0] is before[0]
    handed = {memory_of(tensor) for tensor in handover.tensors}
    for now, then in zip(after[1:], before[1:], strict=True):
        assert now is not then
        assert memory_of(now) in handed
        assert torch.equal(now, then)


def tensors_of(batch):
    found = []
    batch.apply(lambda value: found.append(value) or value)
    return [value for value in found if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("end", ["close", "drop"])
def test_pins_are_released(on_accelerator, end, monkeypatch):
    monkeypatch.setattr(Transfer, "_compare", lambda self, *_: setattr(self, "chosen", "zero-copy"))
    device = on_accelerator(RecordingAccelerator())
    if not device.runs_kernels:
        pytest.skip("needs Triton and TRITON_INTERPRET=1")
    loader = NeighborLoader(
        data_of(), [2], input_nodes=torch.arange(5), batch_size=5, device="cpu", cache=0
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
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_never_fits_says_so(on_accelerator, workers):
    on_accelerator(Accelerator(memory=500))
    loader = NeighborLoader(
        data_of(), [3], batch_size=30, device="cpu", num_workers=workers, cache=0
    )
    with pytest.raises(
        OutOfMemory, match="a batch does not fit on cpu with the model, even without a cache"
    ):
        next(iter(loader))


@pytest.mark.compilers
def test_a_cache_gives_way_to_batches(on_accelerator, monkeypatch):
    device = on_accelerator(Accelerator(memory=1 << 20))
    data, failures = data_of(), [2]
    loader = NeighborLoader(data, [3], batch_size=30, device="cpu", cache="100%", prefetch=0)
    upload = StagingRing.upload

    def short(ring, tensors):
        tensors = list(tensors)
        if len(tensors) > 4 and failures[0]:
            failures[0] -= 1
            raise OutOfMemory("no room for blocks")
        return upload(ring, tensors)

    monkeypatch.setattr(StagingRing, "upload", short)
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
    assert failures == [0]
    assert 0 < loader.stats.total.hit_rate < 1  # it held all rows before
    assert device.free_bytes()[0] > 0


def test_an_accelerator_is_only_used_for_a_device(on_accelerator):
    device = on_accelerator(Accelerator())
    list(NeighborLoader(data_of(), [3], batch_size=30))
    assert not device.handed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("make", [data_of, hetero_of])
@pytest.mark.parametrize("workers", [0, 2])
def test_on_a_gpu_for_a_stream_of_the_users(make, workers):
    data, settings = make(), {"num_neighbors": [3, 2], "batch_size": 7, "seed": 1}
    settings["input_nodes"] = None if isinstance(data, Data) else "paper"
    expected = list(NeighborLoader(data, **settings))
    loader = NeighborLoader(data, device="cuda", cache="50%", num_workers=workers, **settings)
    for _ in range(2):
        with torch.cuda.stream(torch.cuda.Stream()):
            for batch, wanted in zip(loader, expected, strict=True):
                assert all(tensor.is_cuda for tensor in plain_tensors(batch))
                torch.cuda._sleep(1_000_000)
                assert_same(batch.cpu(), wanted)
        loader.set_epoch(0)
    loader.close()
    assert not any(tensor.is_pinned() for tensor in plain_tensors(data))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"time_attr": "time"}], ids=str)
@pytest.mark.parametrize("typed", [False, True])
def test_sampled_on_a_gpu_in_one_launch(typed, options):
    """In trees and in time, too; each batch is kept."""
    data = HeteroData()
    counts = {"a": 900, "b": 500} if typed else {"a": 900}
    for name, count in counts.items():
        data[name].x = torch.randn(count, 5)
        data[name].time = torch.arange(count) % 50
    for src in counts:
        for dst in counts:
            ends = [torch.randint(0, counts[name], (6000,)) for name in (src, dst)]
            data[src, "to", dst].edge_index = torch.stack(ends)
    settings = {"num_neighbors": [5, 3], "batch_size": 32, "seed": 1, "shuffle": True}
    settings |= {"input_nodes": ("a", None), **options}
    loaders = [
        NeighborLoader(
            data, device="cuda", sampling_device=where, cache=0.4, cache_policy="degree", **settings
        )
        for where in ("cuda", "cpu")
    ]
    found, expected = ([batch for _ in range(3) for batch in loader] for loader in loaders)
    assert "one launch" in loaders[0].sampling_placement
    for batch, wanted in zip(found, expected, strict=True):
        assert_same(batch.cpu(), wanted.cpu())
    for loader in loaders:
        loader.close()
