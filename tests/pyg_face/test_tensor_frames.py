"""Attributes that are PyTorch Frame's ``TensorFrame``s: batches equal to those of its own indexing,
read ahead as fields, from memory and files, on a device; never stale."""

import copy
import threading

import numpy as np
import pytest
import torch

pytest.importorskip("torch_frame")
from torch_frame import TensorFrame, stype
from torch_frame.data import MultiEmbeddingTensor, MultiNestedTensor
from torch_geometric.data import Data, HeteroData

from pagraph.accelerator import HostAccelerator
from pagraph.features import on_disk
from pagraph.graph.mapped import map_npy
from pagraph.pyg import (
    ClusterData,
    ClusterLoader,
    GraphSAINTNodeSampler,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    ShaDowKHopSampler,
)

pytestmark = pytest.mark.usefixtures("no_threads_left")

N = 120
WORKERS = [0, 1, 3]


def frame_of(count=N, seed=0, *, y=True):
    """A frame with a part of every kind."""
    generator = torch.Generator().manual_seed(seed)

    def nested(columns, floats=False):
        cells = [
            [torch.randint(9, ((i + j) % 4,), generator=generator) for j in range(columns)]
            for i in range(count)
        ]
        made = [[cell.float() if floats else cell for cell in row] for row in cells]
        return MultiNestedTensor.from_tensor_mat(made)

    widths = [torch.randn(count, width, generator=generator) for width in (4, 1, 7)]
    features = {
        stype.numerical: torch.randn(count, 3, generator=generator),
        stype.categorical: torch.randint(5, (count, 2), generator=generator),
        stype.timestamp: torch.randint(60, (count, 1, 7), generator=generator),
        stype.embedding: MultiEmbeddingTensor.from_tensor_list(widths),
        stype.multicategorical: nested(2),
        stype.text_tokenized: {"input_ids": nested(1), "attention_mask": nested(1)},
    }
    names = {part: [f"{part.value}{i}" for i in range(width)] for part, width in WIDTHS.items()}
    return TensorFrame(features, names, torch.arange(count) if y else None)


WIDTHS = {
    stype.numerical: 3,
    stype.categorical: 2,
    stype.timestamp: 1,
    stype.embedding: 3,
    stype.multicategorical: 2,
    stype.text_tokenized: 1,
}
DENSE = ["categorical", "embedding", "numerical", "timestamp", "y"]


def edges(count=600):
    return torch.randint(N, (2, count), generator=torch.Generator().manual_seed(1))


def make_data(frame=None):
    return Data(tf=frame_of() if frame is None else frame, edge_index=edges(), num_nodes=N)


def typed():
    data = HeteroData()
    data["user"].tf = frame_of()
    data["item"].tf = frame_of(60, seed=1, y=False)
    data["item"].x = torch.randn(60, 2)
    to_item = torch.stack([edges()[0], edges()[1] % 60])
    data["user", "buys", "item"].edge_index = to_item
    data["item", "by", "user"].edge_index = to_item.flip(0)
    return data


def make(data=None, **options):
    defaults = {"batch_size": 16, "seed": 1, "shuffle": True}
    return NeighborLoader(make_data() if data is None else data, [4, 3], **(defaults | options))


def same(one, other):
    """Whether frames are equal bit by bit, with their names."""
    assert type(one) is type(other) is TensorFrame
    assert one.col_names_dict == other.col_names_dict
    assert list(one.feat_dict) == list(other.feat_dict)
    assert len(one) == len(other)
    for part in one.feat_dict:
        mine, theirs = one.feat_dict[part], other.feat_dict[part]
        assert type(mine) is type(theirs), part
        both = [(mine, theirs)]
        if isinstance(mine, dict):
            assert list(mine) == list(theirs)
            both = list(zip(mine.values(), theirs.values(), strict=True))
        for each, expected in both:
            if isinstance(each, torch.Tensor):
                assert each.dtype == expected.dtype and torch.equal(each, expected), part
            else:
                assert each.num_rows == expected.num_rows and each.num_cols == expected.num_cols
                assert torch.equal(each.values, expected.values), part
                assert torch.equal(each.offset, expected.offset), part
    assert (one.y is None) == (other.y is None)
    assert one.y is None or torch.equal(one.y, other.y)
    columns = [name for names in one.col_names_dict.values() for name in names]
    return one == other and columns


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_are_those_of_its_own_indexing(workers):
    data = make_data()
    loader = make(data, num_workers=workers)
    for _ in range(2):
        for batch in loader:
            assert same(batch.tf, data.tf[batch.n_id])
            assert batch.num_nodes == len(batch.n_id)


@pytest.mark.parametrize("workers", [0, 2])
def test_several_types(workers):
    data = typed()
    loader = NeighborLoader(data, [4, 3], ("user", None), batch_size=16, num_workers=workers)
    other = HGTLoader(data, [8, 8], ("user", None), batch_size=16, num_workers=workers)
    for batches in (loader, other):
        for batch in batches:
            for ntype in ("user", "item"):
                assert same(batch[ntype].tf, data[ntype].tf[batch[ntype].n_id])
    names = {f"user/tf.{part}" for part in DENSE} | {f"item/tf.{part}" for part in DENSE[:-1]}
    assert set(loader.stats.total.reads.fields) == names | {"item/x"}


def test_links_and_edge_level_frames():
    data = make_data()
    data.edge_tf = frame_of(600, seed=2)
    for batch in LinkNeighborLoader(data, [4], neg_sampling="binary", batch_size=100):
        assert same(batch.tf, data.tf[batch.n_id])
        assert same(batch.edge_tf, data.edge_tf[batch.e_id])


def test_two_parts_of_one_name():
    data = make_data()
    data.tf.feat_dict["numerical"] = -data.tf.feat_dict[stype.numerical]
    data.tf.col_names_dict["numerical"] = ["a", "b", "c"]
    for batch in make(data):
        assert same(batch.tf, data.tf[batch.n_id])


def test_subgraphs():
    data = make_data()
    data.n = torch.arange(N)
    clusters = ClusterData(data, num_parts=6, log=False)
    saint = GraphSAINTNodeSampler(data, batch_size=20, num_steps=3)
    for loader in (
        ShaDowKHopSampler(data, 2, 3, batch_size=16),
        saint,
        ClusterLoader(clusters, batch_size=2),
    ):
        for batch in loader:
            assert same(batch.tf, data.tf[batch.n])


def test_dense_parts_are_fields_in_the_statistics():
    loader = make()
    list(loader)
    fields = loader.stats.total.reads.fields
    assert set(fields) == {f"tf.{part}" for part in DENSE}
    assert len({read.asked for read in fields.values()}) == 1
    assert fields["tf.embedding"].nbytes == {"host": fields["tf.embedding"].asked * 12 * 4}
    assert "tf.numerical" in repr(loader)


def test_nothing_is_selected_in_the_loop(monkeypatch):
    """Neither dense parts nor the others: all is done where the loader's threads are."""
    threads = set()
    select = MultiNestedTensor.select

    def noted(self, *args, **kwargs):
        threads.add(threading.current_thread().name)
        return select(self, *args, **kwargs)

    def refused(self, index):
        raise AssertionError("a frame was indexed as a whole")

    monkeypatch.setattr(MultiNestedTensor, "select", noted)
    monkeypatch.setattr(TensorFrame, "__getitem__", refused)
    assert len(list(make(num_workers=2))) == 8
    assert threads and all(name.startswith("pagraph-") for name in threads)


@pytest.mark.parametrize("cache", [0, "20%"])
def test_from_files_through_a_cache(tmp_path, cache):
    def mapped(name, tensor):
        np.save(tmp_path / f"{name}.npy", tensor.numpy())
        found = map_npy(tmp_path / f"{name}.npy")
        if not on_disk(found):
            pytest.skip("needs temporary files on a disk")
        return found

    expected = frame_of()
    frame = copy.copy(expected)
    for part in (stype.numerical, stype.categorical, stype.timestamp):
        frame.feat_dict[part] = mapped(part.value, expected.feat_dict[part])
    whole = expected.feat_dict[stype.embedding]
    frame.feat_dict[stype.embedding] = MultiEmbeddingTensor(
        whole.num_rows, whole.num_cols, mapped("embedding", whole.values), whole.offset
    )
    loader = make(make_data(frame), cache=cache, num_workers=1)
    for _ in range(2):
        for batch in loader:
            assert same(batch.tf, expected[batch.n_id])
    read = loader.stats.total.reads.fields["tf.embedding"]
    assert read.nbytes["disk"] > 0
    assert (read.hit_rate > 0.1) == bool(cache)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_that_changes_is_seen_by_the_next_batch(workers):
    def number(frame):
        frame.feat_dict[stype.numerical] += 1

    def replaced(frame):
        frame.feat_dict[stype.numerical] = frame.feat_dict[stype.numerical] - 3

    def embedding(frame):
        frame.feat_dict[stype.embedding].values.mul_(2)

    def nested(frame):
        frame.feat_dict[stype.multicategorical].values.add_(1)

    def tokens(frame):
        frame.feat_dict[stype.text_tokenized]["input_ids"].values.add_(1)

    def target(frame):
        frame.y = frame.y * 2

    def without_target(frame):
        frame.y = None

    def renamed(frame):
        frame.col_names_dict[stype.numerical] = ["p", "q", "r"]

    def fewer(frame):
        del frame.feat_dict[stype.timestamp], frame.col_names_dict[stype.timestamp]

    def other(frame):
        data.tf = frame_of(seed=7)

    data = make_data()
    loader = make(data, num_workers=workers, batch_size=10)
    epoch = iter(loader)
    changes = (number, replaced, embedding, nested, tokens, target, without_target)
    for change in (*changes, renamed, fewer, other):
        change(data.tf)
        batch = next(epoch)
        assert same(batch.tf, data.tf[batch.n_id])
    data.x = torch.arange(N)
    del data.tf
    batch = next(epoch)
    assert "tf" not in batch and torch.equal(batch.x, batch.n_id)
    data.tf = frame_of(seed=8)
    for batch in [*epoch, *loader]:
        assert same(batch.tf, data.tf[batch.n_id])


def test_a_batchs_frame_is_its_own():
    data = make_data()
    before = copy.deepcopy(data.tf.feat_dict[stype.numerical])
    names = copy.deepcopy(data.tf.col_names_dict)
    kept = []
    for batch in make(data, num_workers=2):
        batch.tf.feat_dict[stype.numerical].zero_()
        batch.tf.col_names_dict["new"] = ["a"]
        del batch.tf.feat_dict[stype.timestamp]
        kept.append((batch.n_id, batch.tf.feat_dict[stype.categorical]))
    assert torch.equal(data.tf.feat_dict[stype.numerical], before)
    assert data.tf.col_names_dict == names and stype.timestamp in data.tf.feat_dict
    for n_id, rows in kept:
        assert torch.equal(rows, data.tf.feat_dict[stype.categorical][n_id])


def test_a_frame_with_another_number_of_rows_is_the_graphs():
    """As in PyG: what has no row for each vertex is passed on whole."""
    data = make_data()
    data.meta = frame_of(7)
    for batch in make(data):
        assert batch.meta is data.meta
        assert same(batch.tf, data.tf[batch.n_id])


def test_a_frame_whose_parts_no_longer_fit():
    """It is refused by the method that selects, as in PyG."""
    data = make_data()
    data.tf.feat_dict[stype.categorical] = data.tf.feat_dict[stype.categorical][:3]
    with pytest.raises(IndexError, match="out of bounds"):
        list(make(data, num_workers=1))


class Mine(TensorFrame):
    """A user's own, with a way of its own to select."""

    def __getitem__(self, index):
        frame = super().__getitem__(index)
        frame.was_selected = True
        return frame


def test_a_subclass_selects_as_it_does():
    frame = frame_of()
    mine = Mine(frame.feat_dict, frame.col_names_dict, frame.y)
    for batch in make(make_data(mine), num_workers=1):
        assert type(batch.tf) is Mine and batch.tf.was_selected
        assert torch.equal(batch.tf.y, batch.n_id)


def test_in_shared_memory():
    frame = frame_of()
    for features in (frame.feat_dict[stype.numerical], frame.feat_dict[stype.embedding].values):
        features.share_memory_()
    for batch in make(make_data(frame)):
        assert same(batch.tf, frame[batch.n_id])


def test_on_another_device():
    """PyG selects there, as it does of tensors."""
    frame = frame_of()
    simple = TensorFrame(
        {part: frame.feat_dict[part].to("meta") for part in (stype.numerical, stype.categorical)},
        {part: frame.col_names_dict[part] for part in (stype.numerical, stype.categorical)},
    )
    data = make_data(simple)
    for batch in make(data, num_workers=1):
        assert batch.tf.feat_dict[stype.numerical].device.type == "meta"
        assert batch.tf.feat_dict[stype.numerical].shape == (batch.num_nodes, 3)


def test_parts_that_need_gradients_are_the_readers():
    frame = frame_of()
    frame.feat_dict[stype.numerical].requires_grad_()
    for batch in make(make_data(frame), num_workers=1):
        batch.tf.feat_dict[stype.numerical].sum().backward()
    assert frame.feat_dict[stype.numerical].grad.sum() >= N


def test_a_frame_without_columns():
    frame = TensorFrame({}, {}, num_rows=N)
    for batch in make(make_data(frame), num_workers=1):
        assert len(batch.tf) == batch.num_nodes and batch.tf.is_empty


def test_with_a_transform_ahead():
    def numbers(batch):
        return batch.n_id, batch.tf.feat_dict[stype.numerical] + torch.rand(1)

    found = []
    for workers in WORKERS:
        found.append([x.tolist() for _, x in make(num_workers=workers, transform=numbers)])
    assert found[0] == found[1] == found[2]


def test_on_an_accelerator(monkeypatch):
    accelerator = HostAccelerator()
    monkeypatch.setattr("pagraph.engine.engine.accelerator_for", lambda device: accelerator)
    data = make_data()
    loader = make(data, device="cpu", num_workers=2, cache="50%")
    for _ in range(2):
        for batch in loader:
            assert same(batch.tf, data.tf[batch.n_id])
    assert loader.stats.total.reads.fields["tf.numerical"].hit_rate > 0


def test_a_graph_is_given_up_with_its_frames():
    import gc
    import weakref

    data = make_data()
    loader = make(data, num_workers=1)
    list(loader)
    held = weakref.ref(data.tf)
    loader.data = make_data(frame_of(seed=3))
    del data
    list(loader)
    gc.collect()
    assert held() is None
