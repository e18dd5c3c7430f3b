"""A batch holds what PyG's would at the moment it is delivered, whatever was done to the data and
however far ahead batches are prepared."""

import copy
import gc
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch
from fresh_processes import HANGING
from joined_batches import assert_same, edges_of, expected_of, hetero_of, recording
from torch_geometric.data import Data

from pagraph.pyg import NeighborLoader

N, E = 40, 300


def data_of():
    edge_index = edges_of(N, E)
    return Data(
        x=torch.randn(N, 3),
        y=torch.arange(N),
        edge_index=edge_index,
        edge_attr=torch.randn(E, 2),
        k={"a": 1},
    )


def delete(data, _):
    del data.x


def delete_all_but_the_structure(data, _):
    del data.x, data.y
    data.num_nodes = N
    data.n_id = torch.arange(N)


def add(data, step):
    data[f"late{step}"] = torch.full((N,), step)
    data[f"late_edge{step}"] = torch.full((E,), step)


def replace(data, _):
    data.x, data.edge_attr = torch.randn(N, 5), torch.randn(E)


def write(data, _):
    data.x += 1
    data.edge_attr[:] = data.edge_attr + 1


def write_through_a_view(data, _):
    data.x[::2, 1].neg_()
    data.edge_attr.view(-1)[3:].zero_()


def replace_behind_the_tensor(data, _):
    data.x.data = torch.randn(N, 3)


def change_level(data, step):
    data.y = torch.arange(N) if step % 2 else torch.tensor([step])
    data.edge_attr = torch.randn(E) if step % 2 else "none"


def change_dtype(data, step):
    data.x = data.x.double() if step % 2 else data.x.half()


def become_an_array(data, step):
    data.x = np.random.default_rng(step).random((N, 2)) if step % 2 == 0 else torch.randn(N, 2)


def become_a_list(data, step):
    data.x = "no tensor" if step % 2 == 0 else torch.randn(N, 2)
    data.num_nodes = N


def change_what_is_passed_on(data, step):
    data.name, data.k = str(step), {"a": step}


def require_gradients(data, step):
    data.x = data.x.detach().requires_grad_(step % 2 == 0)


def rename(data, step):
    data[f"x{step}"] = data.x
    data.x = data.x.clone()


CHANGES = [
    delete,
    delete_all_but_the_structure,
    add,
    replace,
    write,
    write_through_a_view,
    replace_behind_the_tensor,
]
CHANGES += [
    change_level,
    change_dtype,
    become_an_array,
    become_a_list,
    change_what_is_passed_on,
    require_gradients,
    rename,
]


@pytest.mark.every
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_changes_in_the_middle_of_an_epoch(change, prefetch, no_threads_left):
    loader = recording(
        data_of(),
        torch.arange(N),
        batch_size=4,
        prefetch=prefetch,
        num_workers=2 if prefetch else 0,
    )
    for step, batch in enumerate(loader):
        assert_same(batch, expected_of(loader, batch))
        change(loader.data, step)
    for batch in loader:
        assert_same(batch, expected_of(loader, batch))


def test_another_data_object_takes_the_place_of_the_first():
    loader = recording(data_of(), torch.arange(N), batch_size=4)
    for step, batch in enumerate(loader):
        assert_same(batch, expected_of(loader, batch))
        loader.data = copy.copy(loader.data) if step % 2 else data_of()
        loader.data.mark = torch.full((N,), step)


def test_hetero_data_is_changed_in_the_middle_of_an_epoch():
    loader = recording(hetero_of(), ("paper", None), batch_size=3)
    for step, batch in enumerate(loader):
        assert_same(batch, expected_of(loader, batch))
        papers = loader.data["paper"]
        if step == 1:
            loader.data["author"].x += 1
        elif step == 2:
            del papers.y
        elif step == 3:
            papers.late = torch.arange(30)
        elif step == 4:
            loader.data["paper", "cites", "paper"].edge_attr.zero_()
        elif step == 5:
            loader.data["new"].x = torch.ones(3, 1)


@pytest.mark.memory
def test_an_attribute_that_was_deleted_is_not_kept_in_memory():
    loader = NeighborLoader(data_of(), [3], batch_size=4)
    for _ in loader:
        pass
    gone = weakref.ref(loader.data.x)
    array = loader.data.table = np.zeros((N, 2))
    next(iter(loader))
    del loader.data.x
    gc.collect()
    assert gone() is None
    del loader.data.table
    next(iter(loader))
    gone = weakref.ref(array)
    del array
    gc.collect()
    assert gone() is None


def test_writes_that_nobody_can_see_need_invalidate_cache(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((N, 8), dtype=np.float32))
    x = np.load(tmp_path / "x.npy", mmap_mode="r+")
    data = Data(x=x, edge_index=edges_of(N, E), num_nodes=N)
    loader = NeighborLoader(data, [3], batch_size=4, cache="1 MB", cache_policy="degree")
    assert all(batch.x.eq(0).all() for batch in loader)
    x[:] = 1
    loader.invalidate_cache()
    assert all(batch.x.eq(1).all() for batch in loader)
    for step, batch in enumerate(loader):  # batches that were prepared count as well
        assert batch.x.eq(step + 1).all()
        x += 1
        loader.invalidate_cache()


def test_an_error_that_remains_is_raised_with_its_own_type_in_the_readers_thread():
    class Failing(Data):
        threads = ()

        def __cat_dim__(self, key, value, *args, **kwargs):
            if "broken" in self._store:
                raise ZeroDivisionError("as the user wrote it")
            return super().__cat_dim__(key, value, *args, **kwargs)

    data = Failing(**data_of().to_dict())
    loader = NeighborLoader(data, [3], batch_size=4)
    batches = iter(loader)
    next(batches)
    data.broken = True
    with pytest.raises(ZeroDivisionError, match="as the user wrote it") as caught:
        next(batches)
    assert "__cat_dim__" in [entry.name for entry in caught.traceback]
    del data.broken
    assert len(list(loader)) == N // 4


def test_an_error_that_has_gone_by_the_time_of_delivery_is_none():
    begun = threading.Event()

    class Failing(Data):
        def __cat_dim__(self, key, value, *args, **kwargs):
            if threading.current_thread() is not threading.main_thread():
                begun.set()
                raise ZeroDivisionError
            return super().__cat_dim__(key, value, *args, **kwargs)

    data = Failing(**data_of().to_dict())
    loader = recording(data, batch_size=4)
    data.late = torch.arange(N)
    batches = iter(loader)
    assert begun.wait(HANGING)
    for batch in batches:
        assert_same(batch, expected_of(loader, batch))


def test_no_memory_is_said_at_once():
    """Unlike other errors of threads, for which the reader tries again."""
    begun = threading.Event()

    class Greedy(Data):
        def __cat_dim__(self, key, value, *args, **kwargs):
            is_reader = threading.current_thread() is threading.main_thread()
            if "greedy" in self._store and not is_reader:
                begun.set()
                raise MemoryError("too large")
            return super().__cat_dim__(key, value, *args, **kwargs)

    data = Greedy(**data_of().to_dict())
    loader = NeighborLoader(data, [3], batch_size=4, num_workers=1, prefetch=1)
    data.greedy = True
    batches = iter(loader)
    assert begun.wait(HANGING)
    with pytest.raises(MemoryError, match="too large"):
        list(batches)


def test_vertices_are_counted_once_where_only_the_edges_tell():
    data = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), edge_attr=torch.arange(3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = NeighborLoader(data, [2], torch.arange(4), batch_size=1, prefetch=0)
        batches = iter(loader)
        next(batches)
        seen = len(caught)
        assert len(list(batches)) == 3
        assert len(caught) == seen


def test_what_belongs_to_vertices_does_so_without_the_attribute_that_counted_them():
    data = data_of()
    data.edge_index = data.edge_index % 30  # the last vertices have no edges
    loader = recording(data, torch.arange(N), batch_size=4)
    for batch in loader:
        assert_same(batch, expected_of(loader, batch))
        assert torch.equal(batch.y, batch.n_id)
        data.x = None
