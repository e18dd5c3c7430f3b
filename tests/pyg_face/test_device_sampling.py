"""Batches of PyG's loaders that a device samples, here the CPU: those that the CPU samples."""

import copy
import pickle
import threading
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_accelerator import RecordingAccelerator, memory_of
from stream_races import RaceDetector, Watch
from test_calls import calls_of
from tiers import pairs
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

import pagraph.features.gpu.reachable
import pagraph.sampling.gpu.run
from pagraph.accelerator import HostAccelerator
from pagraph.accelerator.triton_kernels import launch
from pagraph.engine import program
from pagraph.errors import MissingDependencyError
from pagraph.features.gpu.link import Link
from pagraph.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.usefixtures("no_threads_left", "soon"),
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="kernels are compiled here, not interpreted"
    ),
]
N, E = 60, 500


@pytest.fixture
def soon(monkeypatch):
    """Few batches are made kernel by kernel first: each takes the interpreter 0.1 s and more."""
    monkeypatch.setattr(program, "_LEARNED", 2)
    monkeypatch.setattr(program, "_SETTLING", 2)


@pytest.fixture
def device(monkeypatch):
    """Loaders made with ``device="cpu"`` deliver on it."""
    return use(monkeypatch, RecordingAccelerator())


def use(monkeypatch, accelerator):
    monkeypatch.setattr("pagraph.engine.engine.accelerator_for", lambda device: accelerator)
    # What a GPU takes; "auto" measures that the interpreter is slower than a copy.
    link = partial(Link, mode="zero-copy")
    monkeypatch.setattr("pagraph.cache.fields.Link", lambda device, mode: link(device))
    return accelerator


def data_of(dtype=torch.int64, fields=True):
    generator = torch.Generator().manual_seed(3)
    # Hubs, self-loops, parallel edges, and vertices without any.
    edges = torch.randint(0, N - 5, (2, E), generator=generator) * torch.randint(
        0, 2, (2, E), generator=generator
    )
    data = Data(edge_index=edges.to(dtype), num_nodes=N)
    if fields:
        data.x = torch.randn(N, 3, generator=generator)
        data.y = torch.arange(N)
    return data


def made(data, num_neighbors=(3, 2), sampling_device="auto", cls=NeighborLoader, **options):
    defaults = {"batch_size": 8, "shuffle": True, "seed": 5, "device": "cpu"}
    settings = defaults | options
    return cls(data, list(num_neighbors), sampling_device=sampling_device, **settings)


def assert_same(batch, expected):
    assert set(batch.keys()) == set(expected.keys())
    for name, value in expected.to_dict().items():
        if isinstance(value, torch.Tensor):
            assert batch[name].dtype == value.dtype, name
            assert torch.equal(batch[name], value), name
        else:
            assert batch[name] == value, name


def assert_all_same(loader, others, epochs=2, same=assert_same):
    """All batches are kept: none is changed by those after it."""
    found = [batch for _ in range(epochs) for batch in loader]
    expected = [batch for _ in range(epochs) for batch in others]
    for batch, other in zip(found, expected, strict=True):
        same(batch, other)


def made_in_one_launch(loader):
    """How many batches were."""
    return loader._engine.epochs.steps.program._made


@pytest.mark.every
@pytest.mark.parametrize(
    *pairs(
        num_neighbors=[(3, 2), (-1, 2), (4, -1, 1), (20,)],
        replace=[False, True],
        dtype=[torch.int32, torch.int64],
        workers=[0, 2],
    )
)
def test_batches_are_those_of_the_cpu(device, num_neighbors, replace, dtype, workers):
    data = data_of(dtype)
    options = {"replace": replace, "num_workers": workers, "cache": 0.3}
    there = made(data, num_neighbors, **options)
    assert there.sampling_placement.startswith("device")
    assert_all_same(there, made(data, num_neighbors, "cpu", **options))
    assert made_in_one_launch(there) >= 6 or -1 in num_neighbors
    there.close()


@pytest.mark.compilers
@settings(max_examples=8)
@given(
    edges=st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))
        )
    ),
    fanouts=st.lists(st.sampled_from([0, 1, 2, 7]), max_size=3),
    replace=st.booleans(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    cache=st.sampled_from([0, 0.3, 1.0]),
    prefetch=st.integers(0, 2),
    room=st.sampled_from([-0.6, 0.0, 0.02]),
    data=st.data(),
)
def test_any_graph(edges, fanouts, replace, dtype, cache, prefetch, room, data):
    """Isolated vertices, self-loops and parallel edges; some batches do not fit what was learned."""
    n, ends = edges
    edge_index = torch.tensor(ends, dtype=dtype).reshape(-1, 2).T.contiguous()
    whole = Data(edge_index=edge_index, x=torch.randn(n, 3), y=torch.arange(n), num_nodes=n)
    ids = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=12))
    options = {"input_nodes": torch.tensor(ids), "batch_size": 3, "replace": replace}
    with pytest.MonkeyPatch.context() as patch:
        use(patch, HostAccelerator())
        patch.setattr(program, "_LEAST_MARGIN", room)
        patch.setattr(program, "_SIGMAS", 0)
        there = made(whole, fanouts, cache=cache, prefetch=prefetch, **options)
        assert_all_same(there, made(whole, fanouts, "cpu", **options), epochs=4)
        there.close()


@pytest.mark.every
@pytest.mark.parametrize("num_neighbors", [(3, 2), (-1, 2), ()])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_cpu_samples_is_one_launch_too(device, num_neighbors, workers):
    data = data_of()
    data.number = torch.tensor(3.5)
    options = {"num_workers": workers, "cache": 0.3}
    loader = made(data, num_neighbors, "cpu", **options)
    assert_all_same(loader, made(data, num_neighbors, "cpu", **(options | {"device": None})), 3)
    assert made_in_one_launch(loader) >= 14
    assert loader.sampling_placement.startswith("host; batches are one launch")
    loader.close()


class Skipping(RecordingAccelerator):
    """Leaves recorded work out, once it is told to."""

    skips = False

    def recorded(self, work):
        return lambda: None if self.skips else work()


@pytest.mark.compilers
@pytest.mark.parametrize(("sampling_device", "most"), [("auto", 129), ("cpu", 141)])
def test_a_batch_makes_few_calls_and_launches_nothing_by_itself(monkeypatch, sampling_device, most):
    """See ``benchmarks/gpu_host.py``."""
    device = use(monkeypatch, Skipping())
    loader = made(
        data_of(), (4, 3, 2), sampling_device, prefetch=0, cache=0.3, cache_policy="degree"
    )
    for _ in range(4):
        list(loader)
    device.skips = True
    reading = iter(loader)
    next(reading)
    before = made_in_one_launch(loader)
    counts = calls_of(lambda: next(reading))
    assert made_in_one_launch(loader) == before + 1
    assert counts["triton_kernels.py:launch"] == 0
    assert counts.total() <= most, counts.most_common()


@pytest.mark.parametrize("options", [{"disjoint": True}, {"subgraph_type": "induced"}])
def test_what_is_sampled_otherwise_is_made_kernel_by_kernel(device, options):
    data = data_of()
    data.edge_attr = torch.rand(E)
    loader = made(data, **options)
    assert_all_same(loader, made(data, **(options | {"device": None})), epochs=3)
    assert not made_in_one_launch(loader)


def test_without_fields(device):
    data = data_of(fields=False)
    there = made(data)
    assert_all_same(there, made(data, sampling_device="cpu"))
    assert made_in_one_launch(there) >= 10


@pytest.mark.compilers
@pytest.mark.parametrize("negatives", [None, "binary", NegativeSampling("triplet", 2)])
@pytest.mark.parametrize("workers", [0, 2])
def test_links(device, negatives, workers):
    data = data_of()
    options = {"cls": LinkNeighborLoader, "neg_sampling": negatives, "num_workers": workers}
    if negatives is None:  # all edges
        options["batch_size"] = 64
    else:
        options["edge_label_index"] = data.edge_index[:, :80]
    there = made(data, **options)
    assert there.sampling_placement.startswith("device")
    assert_all_same(there, made(data, sampling_device="cpu", **options), epochs=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_handed_over_in_the_readers_thread(device, workers, monkeypatch):
    """Those of one launch are in memory that is the reader's own."""
    monkeypatch.setattr(program, "_LEARNED", 1000)
    for batch in made(data_of(), num_workers=workers):
        handed = device.handed_in(threading.current_thread().name)
        tensors = [value for value in batch.to_dict().values() if isinstance(value, torch.Tensor)]
        assert {memory_of(tensor) for tensor in tensors if tensor.numel()} <= handed


def hetero(dtype=torch.int64):
    generator = torch.Generator().manual_seed(4)
    counts = {"a": 40, "b": 25, "c": 3}
    data = HeteroData()
    for name, count in counts.items():
        data[name].x = torch.randn(count, 2, generator=generator)
    data["a"].y = torch.arange(40)
    for src, relation, dst, count in TYPED:
        ends = [torch.randint(counts[name], (count,), generator=generator) for name in (src, dst)]
        data[src, relation, dst].edge_index = torch.stack(ends).to(dtype)
    return data


TYPED = [("a", "to", "a", 150), ("b", "of", "a", 120), ("a", "in", "b", 120), ("c", "on", "b", 9)]


def assert_same_typed(batch, expected):
    assert batch.node_types == expected.node_types and batch.edge_types == expected.edge_types
    for store, other in zip(batch.stores, expected.stores, strict=True):
        assert_same(store, other)


@pytest.mark.compilers
@pytest.mark.parametrize(
    *pairs(
        num_neighbors=[(3, 2), (-1, 2), {("a", "to", "a"): [2, 2]}],
        dtype=[torch.int32, torch.int64],
        workers=[0, 2],
    )
)
def test_several_types(device, num_neighbors, dtype, workers):
    data = hetero(dtype)
    options = {"input_nodes": ("a", torch.arange(0, 40, 2)), "num_workers": workers, "cache": 0.3}
    if isinstance(num_neighbors, dict):
        num_neighbors = {edge_type: [2, 1] for edge_type in data.edge_types} | num_neighbors
    loaders = []
    for where in (device, "cpu"):
        settings = {"batch_size": 8, "shuffle": True, "seed": 5, "device": "cpu", **options}
        loaders.append(NeighborLoader(data, num_neighbors, sampling_device=where, **settings))
    assert loaders[0].sampling_placement.startswith("device; batches are")
    auto = NeighborLoader(data, num_neighbors, sampling_device="auto", **settings)
    assert auto.sampling_placement.startswith(
        "host: sampling_device must name a device to sample several types"
    )
    assert_all_same(*loaders, epochs=3, same=assert_same_typed)
    assert made_in_one_launch(loaders[0]) >= 3 or num_neighbors == (-1, 2)
    loaders[0].close()


@pytest.mark.every
@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"time_attr": "time"}], ids=str)
def test_one_type_that_has_a_name(device, options):
    data = HeteroData()
    data["a"].x = torch.randn(40, 2)
    data["a"].time = torch.arange(40) % 7
    # The same each time: how many batches fit what was learned depends on the graph.
    generator = torch.Generator().manual_seed(1)
    data["a", "to", "a"].edge_index = torch.randint(0, 40, (2, 200), generator=generator)
    options = {"input_nodes": ("a", None), "prefetch": 0, **options}
    there = made(data, sampling_device=device, **options)
    others = made(data, sampling_device="cpu", **options)
    assert_all_same(there, others, epochs=3, same=assert_same_typed)
    assert made_in_one_launch(there) >= 5
    there.close()


TIMED = [
    {"disjoint": True},
    {"disjoint": True, "replace": True},
    {"time_attr": "time"},
    {"time_attr": "time", "temporal_strategy": "last"},
    {"time_attr": "time", "time_window": 4, "share_trees": True},
]


def timed(data):
    """Times of all vertices, and what a loader needs of them beside the attribute's name."""
    for store in data.node_stores:
        store.time = torch.arange(store.num_nodes) % 9
    return data


@pytest.mark.every
@pytest.mark.parametrize("options", TIMED, ids=str)
def test_trees_and_times(device, options):
    data = timed(data_of())
    options = {"num_workers": 2, "cache": 0.3, **options}
    if "time_attr" in options:
        options["input_time"] = (torch.arange(N) * 7) % 11
    there = made(data, sampling_device=device, **options)
    assert there.sampling_placement.startswith("device")
    auto = made(data, **options)
    assert auto.sampling_placement.startswith(
        "host: sampling_device must name a device to sample trees"
    )
    assert_all_same(there, made(data, sampling_device="cpu", **options), epochs=2)
    assert made_in_one_launch(there) >= 6
    there.close()


@pytest.mark.every
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.float64, torch.int16])
def test_times_of_the_seeds_in_any_dtype(device, dtype):
    """They are copied beside the seeds, as they are; of a byte or two kernel by kernel."""
    data = timed(data_of())
    data.time = data.time.to(dtype)
    options = {"time_attr": "time", "input_time": ((torch.arange(N) * 7) % 11).to(dtype)}
    there = made(data, sampling_device=device, **options)
    assert_all_same(there, made(data, sampling_device="cpu", **options))
    assert dtype == torch.int16 or made_in_one_launch(there) >= 6
    there.close()


@pytest.mark.compilers
@pytest.mark.parametrize("options", TIMED, ids=str)
def test_trees_and_times_of_several_types(device, options):
    data = timed(hetero())
    options = {"input_nodes": ("a", torch.arange(0, 40, 2)), "num_workers": 2, **options}
    there = made(data, sampling_device=device, **options)
    others = made(data, sampling_device="cpu", **options)
    assert_all_same(there, others, epochs=4, same=assert_same_typed)
    assert made_in_one_launch(there) >= 2
    there.close()


@pytest.mark.every
@pytest.mark.parametrize(
    ("options", "negatives"),
    [
        (TIMED[0], "binary"),
        (TIMED[1], None),
        (TIMED[2], NegativeSampling("triplet", 2)),
        (TIMED[3], "binary"),
        (TIMED[4], NegativeSampling("triplet", 1)),
    ],
    ids=str,
)
def test_links_in_trees_and_times(device, options, negatives):
    data = timed(data_of())
    options = {"cls": LinkNeighborLoader, "neg_sampling": negatives, "batch_size": 20, **options}
    options["edge_label_index"] = data.edge_index[:, :50]
    if "time_attr" in options:
        options["edge_label_time"] = torch.arange(50) % 11
    there = made(data, sampling_device=device, **options)
    others = made(data, sampling_device="cpu", **options)
    assert_all_same(there, others, epochs=1)


@pytest.mark.compilers
def test_times_that_are_written_to(device):
    """What was recorded draws by the old ones: it is recorded again."""
    data = timed(data_of())
    options = {"time_attr": "time", "prefetch": 0}
    there = made(data, sampling_device=device, **options)
    others = made(data, sampling_device="cpu", **options)
    for epoch in range(4):
        before = made_in_one_launch(there)
        for number, (batch, other) in enumerate(zip(there, others, strict=True)):
            assert_same(batch, other)
            if number == 1 and epoch % 2 == 0:
                data.time.copy_(torch.arange(N).flip(0) % (5 + epoch))
        assert made_in_one_launch(there) > before or epoch == 0
    there.close()


@pytest.mark.compilers
def test_links_between_types(device):
    data = hetero()
    options = {"edge_label_index": (("b", "of", "a"), None), "cls": LinkNeighborLoader}
    options["neg_sampling"] = NegativeSampling("triplet", 2)
    there = made(data, sampling_device=device, **options)
    for batch, other in zip(there, made(data, sampling_device="cpu", **options), strict=True):
        assert_same_typed(batch, other)


def with_attribute(name):
    data = data_of()
    data[name] = torch.rand(E)
    return data


@pytest.mark.compilers
@pytest.mark.parametrize(
    *pairs(
        options=[
            {},
            {"weight_attr": "w"},
            {"weight_attr": "w", "disjoint": True, "replace": True},
            {"time_attr": "t"},
        ],
        cls=[NeighborLoader, LinkNeighborLoader],
        workers=[0, 2],
    ),
    ids=str,
)
def test_attributes_of_edges(device, options, cls, workers):
    """Weights and times of edges among them, which draw; written to in between."""
    data = with_attribute("w")
    data.t = torch.arange(E) % 11
    data.edge_attr = torch.rand(E, 2)
    options = {"num_workers": workers, "cls": cls, "batch_size": 24, **options}
    if cls is LinkNeighborLoader:
        options |= {"neg_sampling": "binary", "edge_label_index": data.edge_index[:, :N]}
    if "time_attr" in options:
        given = "input_time" if cls is NeighborLoader else "edge_label_time"
        options[given] = torch.arange(N) % 13
    there = made(data, sampling_device=device, **options)
    assert there.sampling_placement == "device"
    assert made(data, **options).sampling_placement.startswith("host: ")
    others = made(data, sampling_device="cpu", **options)
    assert_all_same(there, others, epochs=1)
    data.w.mul_(torch.arange(E) % 3)
    data.edge_attr = data.edge_attr + 1
    assert_all_same(there, others, epochs=1)
    there.close()


@pytest.mark.compilers
def test_attributes_of_edges_of_several_types(device):
    data = hetero()
    for number, store in enumerate(data.edge_stores[:3]):
        store.w = torch.rand(store.num_edges)
        if number:
            store.edge_attr = torch.rand(store.num_edges, 2)
    data.edge_stores[3].w = torch.ones(9)
    options = {"input_nodes": ("a", None), "weight_attr": "w", "num_workers": 2}
    there = made(data, sampling_device=device, **options)
    others = made(data, sampling_device="cpu", **options)
    assert_all_same(there, others, epochs=1, same=assert_same_typed)
    there.close()


def data_with_gradients():
    """Which PyG selects, as it does what is on a device."""
    data = data_of()
    data.z = torch.ones(N, 2, requires_grad=True)
    return data


def edges_with_gradients():
    data = data_of()
    data.edge_attr = torch.ones(E, requires_grad=True)
    return data


REASONS = [
    (data_with_gradients, {}, "only attributes of vertices and edges, in CPU tensors"),
    (edges_with_gradients, {}, "only attributes of vertices and edges, in CPU tensors"),
    (data_of, {"subgraph_type": "induced"}, "directional samples, got 'induced'"),
    (data_of, {"subgraph_type": "bidirectional"}, "directional samples, got 'bidirectional'"),
    (data_of, {"shapes": "fixed"}, "shapes='sampled', got 'fixed'"),
    (data_of, {"batch_dependency": 2}, "batch_dependency must be 1"),
    (data_of, {"num_neighbors": (129,)}, "fanouts must be at most 128"),
]


@pytest.mark.parametrize(("make", "options", "reason"), REASONS)
def test_what_only_the_cpu_samples(device, make, options, reason):
    data = make()
    with pytest.raises(ValueError, match=reason):
        made(data, sampling_device=device, **options)
    if "num_neighbors" not in options:
        loader = made(data, **options)
        assert loader.sampling_placement.startswith("host: ")
        assert next(iter(loader)) is not None


def test_a_sampler_of_the_users_own(device):
    class Own(NeighborSampler):
        pass

    data = data_of()
    for sampler in (Own(data, [3]), NeighborSampler(data, [3])):
        loader = made(data, (3,), neighbor_sampler=sampler)
        expected = "device" if type(sampler) is NeighborSampler else "host"
        assert loader.sampling_placement.startswith(expected)


def test_devices_that_are_none_of_the_batches(device):
    data = data_of()
    with pytest.raises(ValueError, match="sampling_device must be 'cpu' or the batches' device"):
        made(data, sampling_device=HostAccelerator())
    with pytest.raises(ValueError, match="sampling_device must be 'cpu' or the batches' device"):
        NeighborLoader(data, [2], sampling_device=device)
    assert NeighborLoader(data, [2]).sampling_placement == "host"


def test_without_kernels(monkeypatch):
    class Plain(HostAccelerator):
        runs_kernels = False

    device = use(monkeypatch, Plain())
    data = data_of()
    with pytest.raises(MissingDependencyError, match="Triton"):
        made(data, sampling_device=device)
    assert "Triton" in made(data).sampling_placement


@pytest.mark.every
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", ["auto", 0])
def test_attributes_that_are_replaced_written_or_added(device, workers, cache):
    data = data_of()
    loaders = []
    for where in ("auto", "cpu"):
        options = {"num_workers": workers, "cache": cache}
        loaders.append(made(copy.copy(data), sampling_device=where, **options))
    batches = [iter(loader) for loader in loaders]
    changes = [
        lambda data: setattr(data, "x", data.x + 1),
        lambda data: data.y.add_(1),
        lambda data: setattr(data, "edge_attr", torch.arange(E)),
        lambda data: delattr(data, "edge_attr"),
    ]
    for _ in range(4):
        for first, second in zip(*batches, strict=True):
            assert_same(first, second)
        batches = [iter(loader) for loader in loaders]
        for change in changes:
            for loader in loaders:
                change(loader.data)
            first, second = (next(those) for those in batches)
            assert_same(first, second)
        # What may be cached is first read for a while, the longer the more often it changes.
        assert made_in_one_launch(loaders[0]) or cache
    for loader in loaders:
        loader.close()


@pytest.mark.compilers
def test_attributes_that_come_and_go(device):
    data = data_of()
    loaders = [made(copy.copy(data), sampling_device=where) for where in ("auto", "cpu")]
    assert_all_same(*loaders)
    assert made_in_one_launch(loaders[0])
    for loader in loaders:
        loader.data.z = torch.arange(N) * 2
        loader.data.x = loader.data.x + 1
    before = made_in_one_launch(loaders[0])
    # The new one is counted first, for the cache.
    assert_all_same(*loaders, epochs=4)
    assert made_in_one_launch(loaders[0]) >= before + 16
    for loader in loaders:
        del loader.data.y
    before = made_in_one_launch(loaders[0])
    assert_all_same(*loaders, epochs=4)
    assert made_in_one_launch(loaders[0]) >= before + 16


@pytest.mark.compilers
def test_transforms(device):
    data = data_of()
    seen = []

    def of_batch(batch):
        batch.z = batch.x * 2
        return batch

    def of_output(output):
        seen.append(output.node.numel())
        return output

    assert_all_same(made(data, transform=of_batch), made(data, (3, 2), "cpu", transform=of_batch))
    loader = made(data, transform_sampler_output=of_output)
    assert_all_same(loader, made(data, sampling_device="cpu"), epochs=1)
    assert len(seen) == len(loader)


@pytest.mark.compilers
def test_a_transform_that_fails(device):
    data = data_of()
    loaders = [made(data, sampling_device=where) for where in ("auto", "cpu")]
    assert_all_same(*loaders)
    before = made_in_one_launch(loaders[0])

    def fails(batch):
        if 7 in batch.input_id:
            raise ArithmeticError("seven")
        return batch

    counts = []
    found = []
    for loader in loaders:
        loader.transform = fails
        batches = []
        reading = iter(loader)
        for _ in range(len(loader)):
            try:
                batches.append(next(reading))
            except ArithmeticError:
                batches.append(None)
        assert batches.count(None) == 1
        counts.append(loader.stats.total.counts["seeds"])
        found.append(batches)
    assert counts[0] == counts[1] < 3 * N
    for batch, other in zip(*found, strict=True):
        assert batch is other or assert_same(batch, other) is None
    assert made_in_one_launch(loaders[0]) == before + len(loaders[0])


@pytest.mark.compilers
def test_inputs_are_a_part_of_the_vertices_and_may_be_wrong(device):
    data = data_of()
    inputs = torch.arange(0, N, 2).flip(0)
    loaders = []
    for where in ("auto", "cpu"):
        options = {"input_nodes": inputs.clone(), "input_id": torch.arange(100, 130)}
        loaders.append(made(data, sampling_device=where, shuffle=False, **options))
    assert_all_same(*loaders, epochs=3)
    assert made_in_one_launch(loaders[0]) >= 6
    for loader in loaders:
        loader.input_data.node[9] = N
        reading = iter(loader)
        next(reading)
        with pytest.raises(IndexError, match=f"got {N}"):
            next(reading)
        loader.input_data.node[9] = 0
    assert_all_same(*loaders)


@pytest.mark.compilers
def test_a_transform_of_the_samples_that_comes_later(device):
    data = data_of()
    loader = made(data)
    other = made(data, sampling_device="cpu")
    assert_all_same(loader, other)
    seen = []
    loader.transform_sampler_output = lambda output: seen.append(output) or output
    assert_all_same(loader, other)
    assert len(seen) == 16


def test_requests(device):
    data = data_of()
    loaders = [made(data, sampling_device=where) for where in ("auto", "cpu")]
    for key in range(2):
        seeds = torch.tensor([4, 4, 59])
        assert_same(*(loader.batch(seeds, key=key) for loader in loaders))
    assert_same(*(loader([3, 1]) for loader in loaders))


def test_a_closed_loader_samples_on_the_cpu(device):
    data = data_of()
    loader = made(data)
    next(iter(loader))
    loader.close()
    assert loader.sampling_placement == "host: the loader was closed"
    assert_all_same(loader, made(data, sampling_device="cpu"), epochs=0)
    assert next(iter(loader)) is not None


@pytest.mark.compilers
def test_pickled_loaders_sample_there_too(device):
    loader = made(data_of())
    again = pickle.loads(pickle.dumps(loader))
    assert again.sampling_placement.startswith("device")
    assert_all_same(again, loader, epochs=1)


@pytest.fixture
def detector(monkeypatch):
    device = use(monkeypatch, RaceDetector())

    def launch_and_tell(kernel, programs, *arguments, **constants):
        if programs > 0:
            device.launched(kernel, arguments, constants)
        launch(kernel, programs, *arguments, **constants)

    for module in (pagraph.features.gpu.reachable, pagraph.sampling.gpu.run):
        monkeypatch.setattr(module, "launch", launch_and_tell)
    return device


@pytest.mark.compilers
@pytest.mark.parametrize(("cls", "workers"), [(NeighborLoader, 2), (LinkNeighborLoader, 0)])
def test_there_are_no_races(detector, cls, workers):
    device = detector
    data = data_of()
    options = {"num_workers": workers, "cache": 0.3}
    if cls is LinkNeighborLoader:
        options["edge_label_index"] = data.edge_index[:, :64]
    loader = made(data, (4, -1, 3), cls=cls, **options)
    assert loader.sampling_placement.startswith("device")
    for _ in range(3):
        for batch in loader:
            with Watch(device):
                total = batch.x.sum() + batch.y.sum() + batch.edge_index.sum()
                total = total + batch.n_id.sum() + batch.e_id.sum() + batch.input_id.sum()
            del batch, total
    loader.close()
    assert device.races == []


@pytest.mark.compilers
@pytest.mark.parametrize(
    ("cls", "options"), [(NeighborLoader, TIMED[2]), (LinkNeighborLoader, TIMED[0])], ids=str
)
def test_there_are_no_races_in_trees(detector, cls, options):
    data = timed(data_of())
    options = {"num_workers": 2, "cache": 0.3, **options}
    if cls is LinkNeighborLoader:
        options["edge_label_index"] = data.edge_index[:, :48]
    # With -1 no run is recorded, which threads hand to each other unseen by the detector.
    loader = made(data, (4, -1), sampling_device=detector, cls=cls, **options)
    for _ in range(2):
        for batch in loader:
            with Watch(detector):
                total = batch.x.sum() + batch.batch.sum() + batch.edge_index.sum()
                total = total + batch.n_id.sum() + batch.e_id.sum()
            del batch, total
    loader.close()
    assert detector.races == []


@pytest.mark.compilers
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_there_before_a_function_that_comes_later_gets_them(detector, workers):
    loader = made(data_of(fields=False), (4, -1, 3), num_workers=workers)
    reading = iter(loader)
    next(reading)
    seen = []

    def look(output):
        with Watch(detector):
            seen.append(output.node.sum() + output.row.sum() + output.edge.sum())
        output.edge = None
        return output

    loader.transform_sampler_output = look
    for batch in reading:
        with Watch(detector):
            batch.n_id.sum()
        del batch
    loader.close()
    assert seen
    assert detector.races == []
