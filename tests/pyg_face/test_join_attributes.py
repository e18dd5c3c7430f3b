"""Every batch is what PyG's own filter makes of the same subgraph, whatever the data holds; the
data stays as it is."""

import copy
import io
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joined_batches import (
    assert_same,
    assert_same_value,
    assert_unchanged,
    edges_of,
    expected_of,
    hetero_of,
    recording,
    snapshot_of,
)
from tiers import examples
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pagraph.pyg import NeighborLoader

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.uint8,
]
DTYPES += [torch.complex64]


def check_epoch(loader):
    """Compare every batch; return them."""
    before = snapshot_of(loader.data)
    batches = list(loader)
    for batch in batches:
        assert_same(batch, expected_of(loader, batch))
    assert_unchanged(loader.data, before)
    return batches


def values_of(num_rows, dtype, trailing, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 100, (num_rows, *trailing), generator=generator)
    return values % 2 == 1 if dtype == torch.bool else values.to(dtype)


@st.composite
def attribute_sets(draw):
    """A ``Data`` with any mixture of attributes."""
    num_nodes = draw(st.integers(1, 12))
    num_edges = draw(st.one_of(st.just(num_nodes), st.integers(0, 30)))
    data = Data()
    if draw(st.booleans()):
        data.num_nodes = num_nodes
    else:
        data.x = values_of(num_nodes, torch.float32, (2,), 1)
    data.edge_index = edges_of(num_nodes, num_edges, draw(st.integers(0, 3)))
    tensor = st.tuples(
        st.sampled_from(DTYPES), st.sampled_from([(), (1,), (3,), (2, 2), (0,)]), st.integers(0, 9)
    )
    for name in draw(st.sets(st.sampled_from(["x", "y", "feat", "train_mask", "node_type"]))):
        data[name] = values_of(num_nodes, *draw(tensor))
    for name in draw(st.sets(st.sampled_from(["edge_attr", "edge_weight", "w"]))):
        data[name] = values_of(num_edges, *draw(tensor))
    if draw(st.booleans()):
        data.n_id = torch.arange(num_nodes) + 100
    if draw(st.booleans()):
        data.e_id = torch.arange(num_edges) + 200
    if draw(st.booleans()):
        # Rows along the last dimension.
        data.mesh_index = values_of(3, torch.int64, (num_nodes,), 5)
    if draw(st.booleans()):
        data.table = values_of(num_nodes, torch.float32, (3,), 6).numpy()
    for name in draw(
        st.sets(
            st.sampled_from(["batch", "input_id", "batch_size", "num_sampled_nodes", "seed_time"])
        )
    ):
        data[name] = values_of(num_nodes, torch.int64, (), 7)
    extra = {
        "name": "graph",
        "scalar": torch.tensor(3.0),
        "words": ["a"] * 77,
        "far": torch.arange(99),
        "many": 5,
    }
    for name in draw(st.sets(st.sampled_from(sorted(extra)))):
        data[name] = extra[name]
    return data


@pytest.mark.many
@given(attribute_sets(), st.booleans(), st.sampled_from([0, 2]))
@settings(max_examples=examples(60))
def test_any_mixture_of_attributes(data, disjoint, prefetch):
    loader = recording(
        data, torch.arange(data.num_nodes), disjoint=disjoint, prefetch=prefetch, cache=None
    )
    batches = check_epoch(loader)
    assert sum(batch.batch_size for batch in batches) == data.num_nodes


@pytest.mark.parametrize("prefetch", [0, 2])
def test_hetero(prefetch):
    data = hetero_of()
    data["paper"].num_nodes = 30
    data["author"].name = ["x"] * 3
    data.whole = torch.tensor([1, 2])  # of the whole graph
    batches = check_epoch(recording(data, ("paper", torch.arange(30)), prefetch=prefetch))
    assert batches[0]["venue"].x.shape == (0, 2)
    assert batches[0]["paper"].num_nodes == len(batches[0]["paper"].n_id)
    assert batches[0].whole is data.whole


def test_a_type_that_nobody_reaches_and_one_without_attributes():
    data = hetero_of()
    data["empty"].num_nodes = 4
    data["paper", "in", "empty"].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    for batch in check_epoch(recording(data, ("venue", None), batch_size=2)):
        assert batch["paper"].x.shape == (0, 4)
        assert batch["empty"].num_nodes == 0
        assert batch["author", "writes", "paper"].edge_index.shape == (2, 0)


def test_stored_num_nodes_is_rewritten_and_an_absent_one_stays_absent():
    data = Data(x=torch.arange(9), edge_index=edges_of(9, 20))
    (batch, *_) = check_epoch(recording(data))
    assert "num_nodes" not in batch.to_dict()
    data.num_nodes = 9
    (batch, *_) = check_epoch(recording(data))
    assert batch.to_dict()["num_nodes"] == len(batch.n_id)


def test_as_many_vertices_as_edges():
    data = Data(num_nodes=10, edge_index=edges_of(10, 10))
    data.w, data.edge_w, data.edge_attr = torch.arange(10), torch.arange(10), torch.arange(10)
    for batch in check_epoch(recording(data)):
        assert torch.equal(batch.w, batch.n_id)
        assert torch.equal(batch.edge_w, batch.e_id) and torch.equal(batch.edge_attr, batch.e_id)


def test_everything_else_is_passed_by_reference():
    data = Data(x=torch.arange(9), edge_index=edges_of(9, 20))
    data.far, data.scalar, data.words, data.info = (
        torch.arange(50),
        torch.tensor(1),
        ["a", "b"],
        {"a": 1},
    )
    for batch in check_epoch(recording(data)):
        assert all(batch[name] is data[name] for name in ("far", "scalar", "words", "info"))


def test_a_list_with_an_entry_a_vertex_is_refused_as_in_pyg():
    data = Data(x=torch.arange(5), edge_index=edges_of(5, 9), words=list("abcde"))
    for prefetch in (0, 2):
        with pytest.raises(ValueError, match="invalid feature tensor type"):
            next(iter(NeighborLoader(data, [2], batch_size=2, prefetch=prefetch)))


@pytest.mark.every
@pytest.mark.parametrize(
    "dtype", ["<f4", "<f8", "<f2", "<i8", "<i4", "<u1", "?", "<c8", ">f4", ">i8"]
)
@pytest.mark.parametrize("layout", ["plain", "read-only", "reversed", "columns", "fortran"])
def test_arrays_are_delivered_as_tensors(dtype, layout):
    array = (np.arange(40).reshape(10, 4) % 7).astype(dtype)
    if layout == "read-only":
        array.flags.writeable = False
    elif layout == "reversed":
        array = array[::-1]
    elif layout == "columns":
        array = array[:, ::2]
    elif layout == "fortran":
        array = np.asfortranarray(array)
    data = Data(edge_index=edges_of(10, 30), feat=array, edge_table=np.arange(30.0), num_nodes=10)
    if array.dtype.byteorder == ">":
        with pytest.raises(ValueError, match="byte order"):
            next(iter(recording(data)))
        return
    for batch in check_epoch(recording(data)):
        assert type(batch.feat) is Tensor and type(batch.edge_table) is Tensor


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_mapped_files_are_cached_in_memory(tmp_path, mode):
    rows = np.random.default_rng(0).random((400, 8), dtype=np.float32)
    np.save(tmp_path / "x.npy", rows)
    x = np.load(tmp_path / "x.npy", mmap_mode=mode)
    data = Data(x=x, edge_index=edges_of(400, 2000), num_nodes=400)
    loader = recording(data, batch_size=40, cache="1 MB", cache_policy="degree")
    for _ in range(2):
        check_epoch(loader)
    stats = loader._engine.fields.counters.fields["x"]
    assert 0 < stats.hits <= stats.asked and set(stats.rows) == {"disk", "cache"}, stats
    assert loader.data.x is x and np.array_equal(x, rows)


def test_features_along_another_dimension():
    data = Data(x=torch.arange(8), edge_index=edges_of(8, 20), face=torch.arange(24).view(3, 8))
    data.some_index = torch.arange(16).view(2, 8)
    for batch in check_epoch(recording(data)):
        assert torch.equal(batch.face, data.face[:, batch.n_id])


def test_a_data_class_that_says_which_dimension():
    class Sideways(Data):
        def __cat_dim__(self, key, value, *args, **kwargs):
            return 1 if key == "signal" else super().__cat_dim__(key, value, *args, **kwargs)

    data = Sideways(x=torch.arange(8), edge_index=edges_of(8, 20), signal=torch.randn(3, 8, 2))
    for batch in check_epoch(recording(data)):
        assert type(batch) is Sideways and batch.signal.shape == (3, len(batch.n_id), 2)


def test_sparse_attributes():
    data = Data(x=torch.arange(8.0), edge_index=edges_of(8, 20))
    data.bag = torch.eye(8).to_sparse()
    for batch in check_epoch(recording(data)):
        assert batch.bag.is_sparse and batch.bag.shape == (len(batch.n_id), 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(80.0).view(20, 4)[::2],
        lambda: torch.arange(80.0).view(4, 20).t()[:10],
        lambda: torch.tensor([[1.0, 2.0]]).expand(10, 2),
        lambda: torch.randn(10, 2, dtype=torch.complex64).conj(),
        lambda: torch.randn(10, 2, dtype=torch.complex64).conj().imag,
        lambda: torch.nn.Parameter(torch.arange(20.0).view(10, 2), requires_grad=False),
    ],
    ids=["strided", "transposed", "expanded", "conjugate", "negative", "parameter"],
)
def test_unusual_tensors(make):
    data = Data(x=make(), edge_index=edges_of(10, 30))
    for batch in check_epoch(recording(data)):
        assert type(batch.x) is Tensor and not batch.x.is_conj()


def test_tensor_frames():
    frame = pytest.importorskip("torch_frame")
    tf = frame.TensorFrame({frame.numerical: torch.randn(10, 2)}, {frame.numerical: ["a", "b"]})
    data = Data(tf=tf, edge_index=edges_of(10, 30))
    for batch in NeighborLoader(data, [2], batch_size=4):
        assert torch.equal(
            batch.tf.feat_dict[frame.numerical], tf.feat_dict[frame.numerical][batch.n_id]
        )


@pytest.mark.parametrize("prefetch", [0, 3])
def test_gradients_flow_into_attributes(prefetch):
    x = torch.nn.Parameter(torch.randn(12, 3))
    w = torch.randn(40, requires_grad=True)
    data = Data(x=x, y=torch.arange(12), edge_index=edges_of(12, 40), edge_weight=w)
    loader = recording(data, prefetch=prefetch)
    optimiser = torch.optim.SGD([x, w], lr=0.5)
    for batch in loader:  # each step changes what the next batch must hold
        assert_same(batch, expected_of(loader, batch))
        assert torch.equal(batch.x, x[batch.n_id])
        optimiser.zero_grad()
        (batch.x.sum() + batch.edge_weight.sum()).backward()
        assert torch.equal(x.grad[:, 0], torch.bincount(batch.n_id, minlength=12).float())
        assert torch.equal(w.grad, torch.bincount(batch.e_id, minlength=40).float())
        optimiser.step()
    with torch.no_grad():
        assert not any(batch.x.requires_grad for batch in loader)


def test_gradients_that_are_wanted_in_the_middle_of_an_epoch():
    data = Data(x=torch.randn(12, 3), edge_index=edges_of(12, 40))
    batches = iter(recording(data, batch_size=2))
    assert not next(batches).x.requires_grad
    data.x.requires_grad_()
    assert next(batches).x.grad_fn is not None
    data.x.requires_grad_(False)
    assert not next(batches).x.requires_grad


def test_tensors_of_inference_mode_are_never_stale():
    with torch.inference_mode():
        data = Data(x=torch.zeros(12, 3), edge_index=edges_of(12, 40), edge_attr=torch.zeros(40))
    loader = recording(data, batch_size=2)
    for number, batch in enumerate(loader):
        assert_same(batch, expected_of(loader, batch))
        assert batch.x.eq(number).all() and batch.edge_attr.eq(number).all()
        with torch.inference_mode():
            data.x += 1
            data.edge_attr += 1


def tensors_in(value, found):
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, dict):
        for part in value.values():
            tensors_in(part, found)
    elif isinstance(value, list | tuple):
        for part in value:
            tensors_in(part, found)
    elif isinstance(value, Data | HeteroData):
        tensors_in(value.to_dict(), found)
    elif hasattr(value, "__dict__"):
        tensors_in(vars(value), found)
    return found


@pytest.mark.parametrize("kind", ["homogeneous", "hetero"])
def test_nothing_of_ours_is_seen(kind):
    if kind == "hetero":
        data, nodes = hetero_of(), ("paper", None)
    else:
        data, nodes = (
            Data(x=torch.randn(30, 2), edge_index=edges_of(30, 99), edge_attr=torch.arange(99)),
            None,
        )
    seen = []

    def look(value):
        seen.extend(tensors_in(value, []))
        return value

    for batch in NeighborLoader(
        data, [3, 2], nodes, transform=look, transform_sampler_output=look, batch_size=7
    ):
        look(batch)
    for batch in NeighborLoader(data, [3, 2], nodes, batch_size=7):
        look(batch)
    assert len(seen) > 20 and all(type(tensor) is Tensor for tensor in seen)


@pytest.mark.parametrize("kind", ["homogeneous", "hetero"])
def test_batches_are_pickled_copied_moved_and_shared(kind):
    if kind == "hetero":
        data, nodes = hetero_of(), ("paper", None)
    else:
        data, nodes = (
            Data(x=torch.randn(30, 2), edge_index=edges_of(30, 99), edge_attr=torch.arange(99)),
            None,
        )
    for batch in recording(data, nodes, batch_size=7):
        kept = batch.clone()
        assert_same(copy.deepcopy(batch), kept)
        assert_same(pickle.loads(pickle.dumps(batch)), kept)
        file = io.BytesIO()
        torch.save(batch, file)
        file.seek(0)
        assert_same(torch.load(file, weights_only=False), kept)
        assert_same(batch.to("cpu"), kept)
        assert_same(batch.contiguous(), kept)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            assert_same(batch.share_memory_(), kept)
        assert all(x.is_shared() for x in tensors_in(batch, []) if x.numel())


def test_a_held_batch_is_never_overwritten():
    data = Data(x=torch.randn(60, 4), edge_index=edges_of(60, 400), edge_attr=torch.arange(400))
    loader = recording(data, batch_size=6)
    held = []
    for _ in range(4):
        for number, batch in enumerate(loader):
            whole = [
                batch.x,
                batch.edge_index,
                batch.n_id,
                batch.e_id,
                batch.edge_attr,
                batch.input_id,
            ]
            views = [
                batch.x[1:, :1],
                batch.edge_index[0],
                batch.n_id[:2],
                batch.x.numpy(),
                batch.edge_index[1].numpy(),
            ]
            kept = [views, whole, [*views, *whole]][number % 3]
            held += [(tensor, torch.as_tensor(tensor).clone()) for tensor in kept]
            del batch, whole, views, kept
    assert len(held) > 200
    for tensor, was in held:
        assert_same_value("held", torch.as_tensor(tensor), was)


def test_a_transform_may_keep_and_write_what_it_gets():
    data = Data(x=torch.ones(40, 4), edge_index=edges_of(40, 300))

    def double(batch):
        batch.x *= 2
        batch.edge_index += 1
        return batch

    for _ in range(2):
        batches = list(NeighborLoader(data, [3, 2], batch_size=5, transform=double))
        assert all(batch.x.eq(2).all() for batch in batches)
    assert data.x.eq(1).all()


def test_transforms_are_called_once_a_batch_in_order_in_the_readers_thread():
    data = Data(x=torch.arange(40), edge_index=edges_of(40, 300))
    calls = []

    def first(output):
        calls.append(("first", output.metadata[0][0].item(), threading.current_thread()))
        return output

    def second(batch):
        calls.append(("second", batch.input_id[0].item(), threading.current_thread()))
        return batch.input_id, "anything"

    loader = NeighborLoader(
        data, [3], batch_size=10, transform=second, transform_sampler_output=first
    )
    assert [word for _, word in loader] == ["anything"] * 4
    here = threading.current_thread()
    assert calls == [(name, at, here) for at in (0, 10, 20, 30) for name in ("first", "second")]


def test_a_transform_of_the_samplers_output_is_joined_as_it_returns():
    data = Data(
        x=torch.arange(40),
        y=torch.arange(40) * 2,
        edge_index=edges_of(40, 300),
        edge_attr=torch.arange(300),
    )

    def same(output):
        return output

    def halved(output):
        output.row, output.col, output.edge = (
            x[::2] for x in (output.row, output.col, output.edge)
        )
        return output

    def swapped(output):
        output.row, output.col = output.col, output.row
        return output

    def written(output):
        output.node += 1
        output.node %= 40
        return output

    def shorter(output):
        output.node, keep = output.node[:5].clone(), (output.row < 5) & (output.col < 5)
        output.row, output.col, output.edge = (
            x[keep] for x in (output.row, output.col, output.edge)
        )
        return output

    for transform in (same, halved, swapped, written, shorter):
        loader = recording(data, batch_size=10, transform_sampler_output=transform)
        for batch in loader:
            output = transform(
                copy.deepcopy(loader.node_sampler.outputs[tuple(batch.input_id.tolist())])
            )
            assert torch.equal(batch.x, output.node) and torch.equal(batch.y, output.node * 2), (
                transform
            )
            assert torch.equal(batch.edge_index, torch.stack([output.row, output.col])), transform
            assert torch.equal(batch.edge_attr, output.edge), transform


@pytest.mark.parametrize("filter_per_worker", [True, False, None])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_where_batches_are_filtered_does_not_matter(filter_per_worker, num_workers):
    data = Data(x=torch.randn(60, 4), edge_index=edges_of(60, 400), edge_attr=torch.arange(400))
    settings_ = {"batch_size": 8, "seed": 3, "shuffle": True}
    plain = NeighborLoader(data, [3, 2], **settings_)
    loader = NeighborLoader(
        data, [3, 2], filter_per_worker=filter_per_worker, num_workers=num_workers, **settings_
    )
    assert loader.filter_per_worker in (True, False)
    for batch, other in zip(loader, plain, strict=True):
        assert_same(batch, other)
    loader.filter_per_worker = not loader.filter_per_worker  # as ZipLoader does
    for batch, other in zip(loader, plain, strict=True):
        assert_same(batch, other)


def test_batches_arrive_on_the_device():
    data = Data(
        x=torch.randn(60, 4),
        edge_index=edges_of(60, 400),
        edge_attr=torch.arange(400),
        far=torch.arange(5),
    )
    for device in ("cpu", torch.device("cpu")):
        for batch in recording(data, device=device):
            assert all(tensor.device.type == "cpu" for tensor in tensors_in(batch, []))
            assert batch.far is data.far


@pytest.mark.gpu
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_arrive_on_a_cuda_device():
    data = Data(
        x=torch.randn(60, 4),
        edge_index=edges_of(60, 400),
        edge_attr=torch.arange(400),
        far=torch.arange(5),
    )
    loader = recording(data, device="cuda")
    for batch in loader:
        assert all(tensor.is_cuda for tensor in tensors_in(batch, []))
        assert_same(batch.cpu(), expected_of(loader, batch))


@pytest.mark.gpu
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_batches_and_data_on_cuda():
    data = Data(x=torch.randn(60, 4), edge_index=edges_of(60, 400), edge_attr=torch.arange(400))
    for batch in NeighborLoader(data, [3, 2], batch_size=8, pin_memory=True):
        assert batch.x.is_pinned() and batch.edge_index.is_pinned()
    for batch in NeighborLoader(data.cuda(), [3, 2], batch_size=8):
        assert batch.x.is_cuda and batch.edge_index.is_cuda and not batch.n_id.is_cuda
