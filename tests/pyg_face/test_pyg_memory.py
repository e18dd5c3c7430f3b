"""What stays in memory: nothing of batches that are gone, of passes, of loaders."""

import gc
import weakref

import psutil
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from pagraph.pyg import LinkNeighborLoader, NeighborLoader

pytestmark = pytest.mark.usefixtures("no_threads_left")

MIB = 2**20


def make_data(num_nodes=2000, num_edges=20000, width=64):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return Data(x=torch.randn(num_nodes, width, generator=generator), edge_index=edge_index)


def resident():
    return psutil.Process().memory_info().rss


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "seed": 1}, {"prefetch": 0}], ids=str)
@pytest.mark.memory
def test_memory_is_flat_over_a_thousand_batches_of_twenty_epochs(options):
    """A batch is 0.4 MB: were one in ten kept, it would be 40 MB."""
    loader = NeighborLoader(make_data(), [5, 5], batch_size=40, shuffle=True, **options)
    assert len(loader) == 50
    bytes_of_a_batch = next(iter(loader)).x.nbytes
    for _ in range(5):
        list(map(len, loader))
    before = resident()
    for _ in range(20):
        for batch in loader:
            del batch
    assert bytes_of_a_batch > 0.2 * MIB
    assert resident() - before < 20 * MIB


@pytest.mark.memory
def test_memory_is_flat_where_passes_are_left_early():
    loader = NeighborLoader(make_data(), [5, 5], batch_size=40, num_workers=1)
    for _ in range(20):
        next(iter(loader))
    before = resident()
    for _ in range(150):
        for _ in loader:
            break
    assert resident() - before < 20 * MIB


def hetero():
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(50, 3), torch.randn(20, 3)
    data["a", "to", "b"].edge_index = torch.stack([torch.arange(50), torch.arange(50) % 20])
    return data


LOADERS = {
    "nodes": lambda: NeighborLoader(make_data(50, 300), [2], batch_size=9),
    "threads": lambda: NeighborLoader(
        make_data(50, 300), [2, 2], batch_size=9, num_workers=2, seed=3, shuffle=True
    ),
    "function": lambda: NeighborLoader(
        make_data(50, 300), [2], batch_size=9, transform=lambda batch: batch
    ),
    "types": lambda: NeighborLoader(hetero(), [2], "b", batch_size=9),
    "links": lambda: LinkNeighborLoader(
        make_data(50, 300), [2], batch_size=99, neg_sampling="binary"
    ),
}


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.every
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("use", ["not used", "read", "left early", "pinned"])
def test_a_loader_goes_without_the_garbage_collector(name, use):
    loader = LOADERS[name]()
    parts = [loader, loader._engine, loader._engine.fields, loader._view]
    if use == "read":
        for _ in range(2):
            for batch in loader:
                del batch
    elif use == "left early":
        next(iter(loader))
    elif use == "pinned" and loader.num_workers:
        with loader.enable_memory_log():
            list(loader)
    left = [weakref.ref(part) for part in parts]
    del loader, parts
    assert [ref() for ref in left] == [None] * 4


@pytest.mark.usefixtures("no_collector")
def test_an_iterator_keeps_what_it_needs_and_no_more():
    loader = LOADERS["threads"]()
    gone, fields = weakref.ref(loader), weakref.ref(loader._engine.fields)
    epoch = iter(loader)
    next(epoch)
    del loader
    assert gone() is None and fields() is not None
    assert len(list(epoch)) == 5
    del epoch
    assert fields() is None


@pytest.mark.usefixtures("no_collector")
def test_batches_do_not_keep_the_loader():
    loader = LOADERS["nodes"]()
    batch, gone = next(iter(loader)), weakref.ref(loader)
    data = weakref.ref(loader.data)
    del loader
    assert gone() is None and data() is None
    assert batch.x.shape == (batch.num_nodes, 64)


def test_batches_that_are_held_are_never_written_to():
    data = make_data(300, 3000, 8)
    loader = NeighborLoader(data, [3, 3], batch_size=20, num_workers=2)
    held = [(batch, batch.clone()) for _ in range(3) for batch in loader]
    for batch, copy in held:
        for key in ("x", "n_id", "e_id", "edge_index", "input_id"):
            assert torch.equal(batch[key], copy[key])


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="what is pinned is tested where there is a CUDA device"
)
def test_pinning_without_a_device_does_nothing():
    batch = next(iter(NeighborLoader(make_data(50, 300), [2], pin_memory=True)))
    assert not batch.x.is_pinned()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches(workers):
    for batch in NeighborLoader(
        make_data(50, 300), [2], batch_size=9, pin_memory=True, num_workers=workers
    ):
        assert all(
            batch[key].is_pinned() for key in ("x", "n_id", "e_id", "edge_index", "input_id")
        )
    loader = NeighborLoader(
        make_data(50, 300), [2], batch_size=9, pin_memory=True, device="cuda", num_workers=workers
    )
    for batch in loader:
        assert batch.x.is_cuda and torch.equal(batch.x.cpu(), loader.data.x[batch.n_id.cpu()])
