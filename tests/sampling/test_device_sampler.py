"""Sampling on a device: the CPU's batches bit for bit, where the graph lies, and what is
refused."""

import gc
import threading
import warnings

import numpy as np
import pytest
import torch
from device_batches import assert_drawn_alike, assert_same, assert_same_subgraph, graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import CSC, FormatError, Graph, NeighborSampler
from pagraph.accelerator import HostAccelerator, OutOfMemory, accelerator_for
from pagraph.errors import MissingDependencyError, PipelineError
from pagraph.sampling import LaborSampler, SubgraphSampler
from pagraph.sampling.gpu import run, state
from pagraph.sampling.gpu.sampler import DeviceSampler
from pagraph.system.budget import Budget

pytest.importorskip("triton")
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled here, not interpreted"
)
AUTO = Budget.parse("auto")
kinds = st.sampled_from([(NeighborSampler, assert_same), (SubgraphSampler, assert_same_subgraph)])


def random_graph(n=120, m=1500, seed=0):
    rng = np.random.default_rng(seed)
    return Graph.from_coo(rng.integers(0, n, m), rng.integers(0, n, m), n)


def read_only(tensor, folder):
    """The same numbers in a file's pages that cannot be written, which is what cannot be pinned on
    the CPU."""
    tensor.numpy().tofile(folder / "array")
    array = np.memmap(folder / "array", dtype=tensor.numpy().dtype, mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that the array is not writable
        return torch.from_numpy(array)


@pytest.mark.compilers
@interpreted
@settings(max_examples=examples(80))
@given(
    graph=graphs(),
    kind=kinds,
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 3, 7, 16, 33]), min_size=1, max_size=3),
    replace=st.booleans(),
    edge_dir=st.sampled_from(["in", "out"]),
    keys=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    size_first=st.sampled_from([0, 50, 1 << 22]),
    budget=st.sampled_from([None, AUTO]),
    data=st.data(),
)
def test_equals_the_cpu(
    graph, kind, fanouts, replace, edge_dir, keys, dtype, size_first, budget, data
):
    sampler_of, same = kind
    sampler = sampler_of(fanouts, replace=replace, edge_dir=edge_dir)
    batches = []
    for key in keys:
        # Repeated ones too.
        seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=12))
        batches.append((torch.tensor(seeds, dtype=dtype), key, {}))
    assert_drawn_alike(graph, sampler, batches, same, budget=budget, size_first=size_first)


@pytest.mark.compilers
@interpreted
@settings(max_examples=examples(40))
@given(
    graph=graphs(),
    kind=kinds,
    fanouts=st.lists(st.sampled_from([1, 2, 7, 16]), min_size=1, max_size=3),
    replace=st.booleans(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    budget=st.sampled_from([None, AUTO]),
    count=st.integers(0, 9),
    data=st.data(),
)
def test_recorded_batches_equal_the_cpus(graph, kind, fanouts, replace, dtype, budget, count, data):
    """Batches of the usual size share buffers: one must not be changed by those after it."""
    sampler_of, same = kind
    sampler = sampler_of(fanouts, replace=replace)
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), budget, (count, dtype))
    batches = []
    for key, number in enumerate([count, count, count + 1, count, count]):
        ids = st.lists(st.integers(0, graph.num_nodes - 1), min_size=number, max_size=number)
        seeds = torch.tensor(data.draw(ids), dtype=dtype)
        batches.append((on_device.sample(seeds, key).batch, sampler.sample(graph, seeds, key)))
    for batch, expected in batches:
        same(batch, expected)


@interpreted
@pytest.mark.parametrize("at", [0, 1])
def test_what_cannot_be_recorded_is_launched_kernel_by_kernel(at):
    class Unrecording(HostAccelerator):
        recordings = 0

        def recorded(self, work):
            work()
            self.recordings += 1
            if self.recordings > at:
                # As cudaGraphInstantiate says it; torch's allocator has another class.
                raise RuntimeError("CUDA error: out of memory")
            return super().recorded(work)

    graph = random_graph()
    sampler = NeighborSampler([3, 2])
    with pytest.warns(RuntimeWarning, match="could not be recorded .CUDA error: out of memory"):
        on_device = DeviceSampler(graph, sampler, Unrecording(), AUTO, (6, torch.int64))
    seeds = torch.arange(6)
    for key in range(2):
        assert_same(on_device.sample(seeds, key).batch, sampler.sample(graph, seeds, key))


@pytest.mark.every
@interpreted
@pytest.mark.parametrize("fanout", [5, 31, 64, 127, 128])
@pytest.mark.parametrize("replace", [False, True])
def test_vertices_with_more_neighbours_than_are_drawn(fanout, replace):
    rng = np.random.default_rng(fanout)
    graph = Graph.from_coo(rng.integers(0, 400, 4000), rng.integers(0, 12, 4000), 400)
    sampler = NeighborSampler([3, fanout], replace=replace)
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), AUTO)
    for key in range(2):
        seeds = torch.from_numpy(rng.integers(0, 16, 8))
        assert_same(on_device.sample(seeds, key).batch, sampler.sample(graph, seeds, key))


@interpreted
def test_several_programs():
    """More vertices and edges than one program of a kernel serves."""
    graph = random_graph(3000, 30000)
    for fanouts in ([2, 4], [-1], [1, -1, 1]):
        sampler = NeighborSampler(fanouts)
        seeds = torch.arange(0, 3000, 2)
        batch = DeviceSampler(graph, sampler, HostAccelerator(), AUTO).sample(seeds, 3).batch
        assert_same(batch, sampler.sample(graph, seeds, 3))


@pytest.mark.compilers
@interpreted
@pytest.mark.parametrize("name", ["facebook-pages", "soc-slashdot0902"])
def test_a_real_graph(data_folder, name):
    graph = Graph.open(data_folder / name)
    sampler = NeighborSampler([5, -1, 3])
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), AUTO)
    assert on_device.placement == "device"
    seeds = torch.arange(0, graph.num_nodes, graph.num_nodes // 10, dtype=torch.int32)
    assert_same(on_device.sample(seeds, 5).batch, sampler.sample(graph, seeds, 5))


@pytest.mark.compilers
@interpreted
@pytest.mark.parametrize("size_first", [0, 1 << 22])
def test_threads_share_a_sampler(monkeypatch, size_first):
    monkeypatch.setattr(state, "_SIZE_FIRST", size_first)
    graph = random_graph()
    sampler = NeighborSampler([3, 4])
    seeds = torch.arange(20)
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), AUTO, (20, seeds.dtype))
    batches = {}

    def work(keys):
        for key in keys:
            batches[key] = on_device.sample(seeds, key).batch

    threads = [threading.Thread(target=work, args=(range(i, 24, 4),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key in range(24):
        assert_same(batches[key], sampler.sample(graph, seeds, key))


@interpreted
def test_a_fan_out_of_no_edges():
    graph = random_graph()
    sampler = NeighborSampler([3, {graph.edge_types[0]: 0}, 2])
    seeds = torch.arange(10)
    batch = DeviceSampler(graph, sampler, HostAccelerator(), AUTO).sample(seeds, 1).batch
    assert batch.blocks[1].num_edges == 0
    assert_same(batch, sampler.sample(graph, seeds, 1))


@interpreted
@pytest.mark.parametrize("fanouts", [[], [0], [3, 0], [0, 2]])
def test_subgraphs_of_no_edges(fanouts):
    graph = random_graph()
    sampler = SubgraphSampler(fanouts)
    for usual in (None, (10, torch.int64)):
        on_device = DeviceSampler(graph, sampler, HostAccelerator(), AUTO, usual)
        seeds = torch.arange(10)
        batch = on_device.sample(seeds, 1).batch
        assert_same_subgraph(batch, sampler.sample(graph, seeds, 1))


@interpreted
def test_edge_ids_are_placed_once():
    graph = random_graph()
    seeds = torch.arange(10)
    expected = SubgraphSampler([3]).sample(graph, seeds, 1)
    for budget, more in ((AUTO, graph.csc.edge_ids.nbytes), (None, 0)):
        accelerator = HostAccelerator()
        blocks = DeviceSampler(graph, NeighborSampler([3]), accelerator, budget)
        assert blocks.topology.relations[0].edge_ids is None
        before = blocks.nbytes
        samplers = [
            DeviceSampler(graph, SubgraphSampler([3]), accelerator, budget) for _ in range(2)
        ]
        assert [sampler.nbytes - before for sampler in samplers] == [more, more]
        for sampler in samplers:
            assert_same_subgraph(sampler.sample(seeds, 1).batch, expected)
            sampler.close()
        blocks.close()


@interpreted
def test_edge_ids_that_cannot_be_pinned(tmp_path):
    csc = random_graph().csc
    ids = read_only(csc.edge_ids, tmp_path)
    graph = Graph(CSC(csc.indptr, csc.indices, csc.num_src, ids))
    with pytest.raises(ValueError, match="memory of the edges' ids cannot be pinned"):
        DeviceSampler(graph, SubgraphSampler([3]), HostAccelerator(), None)


@pytest.mark.compilers
@interpreted
def test_long_buffers_are_cut(monkeypatch):
    monkeypatch.setattr(run, "_WASTE", 64)
    accelerator, graph = HostAccelerator(), random_graph()
    sampler = NeighborSampler([-1, 64, 10])  # rows are much shorter
    on_device = DeviceSampler(graph, sampler, accelerator, AUTO)
    before, _ = accelerator.free_bytes()
    seeds = torch.arange(50)
    batch = on_device.sample(seeds, 1).batch
    gc.collect()  # the interpreter's own cycles
    held = before - accelerator.free_bytes()[0]
    needed = (
        sum(t.nbytes for b in batch.blocks for t in (b.indptr, b.indices, b.positions))
        + batch.input_nodes.nbytes
    )
    assert held <= 2 * needed + 20 * 64
    assert_same(batch, sampler.sample(graph, seeds, 1))
    del batch
    gc.collect()
    assert accelerator.free_bytes()[0] == before


@interpreted
def test_events_enclose_the_batch():
    on_device = DeviceSampler(random_graph(), NeighborSampler([3]), HostAccelerator(), AUTO)
    sampled = on_device.sample(torch.arange(5))
    assert sampled.ready.has_happened
    assert sampled.ready.seconds_since(sampled.begun) > 0


class TestPlacement:
    graph = random_graph()  # int32: 484 bytes of indptr, 6000 of indices, a table of 480

    @interpreted
    @pytest.mark.parametrize(
        ("budget", "placement", "nbytes"),
        [
            (None, "pinned", 480),
            ("100B", "pinned", 480),
            ("963B", "pinned", 480),
            ("964B", "indptr on the device, indices pinned", 964),
            ("6963B", "indptr on the device, indices pinned", 964),
            ("6964B", "device", 6964),
            ("auto", "device", 6964),
            (1.0, "device", 6964),
            (0.9, "indptr on the device, indices pinned", 964),
            (0.01, "pinned", 480),
        ],
    )
    def test_as_much_as_fits(self, budget, placement, nbytes):
        accelerator = HostAccelerator()
        sampler = NeighborSampler([3, 2])
        on_device = DeviceSampler(self.graph, sampler, accelerator, Budget.parse(budget))
        assert (on_device.placement, on_device.nbytes) == (placement, nbytes)
        seeds = torch.arange(7)
        assert_same(on_device.sample(seeds, 9).batch, sampler.sample(self.graph, seeds, 9))

    @interpreted
    @pytest.mark.parametrize(
        ("memory", "placement"),
        [(14_000, "device"), (13_000, "indptr on the device, indices pinned"), (1_900, "pinned")],
    )
    def test_auto_takes_half_of_what_is_free_at_most(self, memory, placement):
        assert (
            DeviceSampler(self.graph, NeighborSampler([2]), HostAccelerator(memory), AUTO).placement
            == placement
        )

    @interpreted
    def test_where_memory_runs_out_more_is_pinned(self):
        # Uploads are rounded up: what just fits by its bytes does not fit.
        budget = Budget.parse("6964B")
        on_device = DeviceSampler(self.graph, NeighborSampler([2]), HostAccelerator(6_970), budget)
        assert on_device.placement == "indptr on the device, indices pinned"

    @interpreted
    def test_samplers_of_one_graph_share_it_until_the_last_is_closed(self):
        accelerator, sampler = HostAccelerator(), NeighborSampler([3, 2])
        first = DeviceSampler(self.graph, sampler, accelerator, AUTO)
        free = accelerator.free_bytes()
        other = DeviceSampler(self.graph, NeighborSampler([2]), accelerator, Budget.parse("964B"))
        assert accelerator.free_bytes() == free and other.placement == "device"
        elsewhere = DeviceSampler(self.graph, sampler, HostAccelerator(), None)
        reversed_edges = NeighborSampler([2], edge_dir="out")
        turned = DeviceSampler(self.graph, reversed_edges, accelerator, Budget.parse("964B"))
        assert elsewhere.placement == "pinned" and turned.placement != "device"
        turned.close()
        first.close()
        seeds = torch.arange(7)
        expected = NeighborSampler([2]).sample(self.graph, seeds, 9)
        assert_same(other.sample(seeds, 9).batch, expected)
        other.close()
        accelerator.release_memory()
        assert accelerator.free_bytes()[0] == accelerator.free_bytes()[1]
        again = DeviceSampler(self.graph, sampler, accelerator, None)
        assert again.placement == "pinned"

    @interpreted
    def test_no_room_for_the_table(self):
        with pytest.raises(OutOfMemory):
            DeviceSampler(self.graph, NeighborSampler([2]), HostAccelerator(400), AUTO)

    @interpreted
    def test_a_budget_above_the_card(self):
        with pytest.raises(
            ValueError, match=r"sampling_budget must be at most the 5000 bytes .* got 6000"
        ):
            DeviceSampler(
                self.graph, NeighborSampler([2]), HostAccelerator(5_000), Budget.parse(6000)
            )

    @interpreted
    @pytest.mark.parametrize(
        ("names", "needed"),
        [(["indptr"], 964), (["indices"], 6964), (["indptr", "indices"], 6964)],
    )
    def test_memory_that_cannot_be_pinned(self, tmp_path, names, needed):
        csc = self.graph.csc
        arrays = {"indptr": csc.indptr, "indices": csc.indices}
        for name in names:
            (tmp_path / name).mkdir()
            arrays[name] = read_only(arrays[name], tmp_path / name)
        graph, sampler = Graph(CSC(**arrays, num_src=120)), NeighborSampler([2, 2])
        accelerator = HostAccelerator()
        message = (
            rf"sampling_budget must be at least {needed} bytes.* {' and '.join(names)} "
            r"cannot be pinned"
        )
        with pytest.raises(ValueError, match=message):
            DeviceSampler(graph, sampler, accelerator, None)
        on_device = DeviceSampler(graph, sampler, accelerator, Budget.parse(needed))
        seeds = torch.arange(5)
        assert_same(on_device.sample(seeds).batch, sampler.sample(graph, seeds))

    @interpreted
    def test_closing_gives_everything_back(self):
        accelerator = HostAccelerator()
        before = accelerator.free_bytes()
        on_device = DeviceSampler(self.graph, NeighborSampler([2]), accelerator, AUTO)
        assert accelerator.free_bytes() != before
        on_device.close()
        on_device.close()
        assert accelerator.free_bytes() == before
        with pytest.raises(PipelineError, match="close"):
            on_device.sample(torch.arange(3))


class TestDamage:
    """Arrays that lead out of the graph: the CPU's error, and a sampler that goes on."""

    def damaged(self, where):
        graph = random_graph(60, 900)
        indptr, indices = graph.csc.indptr.clone(), graph.csc.indices.clone()
        if where == "indptr falls":
            indptr[21] = indptr[20] - 1
        elif where == "indptr is too large":
            indptr[20] = 10_000
        elif where == "indptr is negative":
            indptr[20] = -7
        elif where == "indices are too large":
            indices[indptr[20] : indptr[22]] = 60
        else:
            indices[indptr[20] : indptr[22]] = -1
        return Graph(CSC(indptr, indices, 60))

    @pytest.mark.every
    @interpreted
    @pytest.mark.parametrize(
        "where",
        [
            "indptr falls",
            "indptr is too large",
            "indptr is negative",
            "indices are too large",
            "indices are negative",
        ],
    )
    @pytest.mark.parametrize("fanouts", [[20], [-1], [3, 20], [3, -1], [-1, -1], [2, 20, 20]])
    @pytest.mark.parametrize("sampler_of", [NeighborSampler, SubgraphSampler])
    def test_the_cpus_error(self, where, fanouts, sampler_of):
        graph, sampler = self.damaged(where), sampler_of(fanouts)
        on_device = DeviceSampler(graph, sampler, HostAccelerator(), None)
        for seeds in ([20], [3, 20, 21], list(range(60))):
            with pytest.raises(FormatError) as expected:
                sampler.sample(graph, torch.tensor(seeds), 4)
            with pytest.raises(FormatError) as error:
                on_device.sample(torch.tensor(seeds), 4)
            assert str(error.value) == str(expected.value)
        assert not on_device.topology.first.any()

    @interpreted
    def test_batches_beside_the_damage(self):
        graph, sampler = self.damaged("indices are too large"), NeighborSampler([4])
        on_device = DeviceSampler(graph, sampler, HostAccelerator(), None)
        with pytest.raises(FormatError):
            on_device.sample(torch.tensor([20]))
        seeds = torch.tensor([1, 2, 3, 50])
        assert_same(on_device.sample(seeds, 2).batch, sampler.sample(graph, seeds, 2))

    @interpreted
    def test_damage_that_only_the_device_has(self):
        graph = random_graph()
        on_device = DeviceSampler(graph, NeighborSampler([4]), HostAccelerator(), AUTO)
        on_device.topology.relations[0].indices.fill_(-1)
        with pytest.raises(FormatError, match="on the device only"):
            on_device.sample(torch.arange(5))

    @interpreted
    @pytest.mark.parametrize("fanouts", [[3, 8], [3, -1]])
    def test_memory_runs_out_in_a_batch(self, fanouts):
        graph, sampler = random_graph(), NeighborSampler(fanouts)
        accelerator = HostAccelerator(60_000)
        on_device = DeviceSampler(graph, sampler, accelerator, None)
        with pytest.raises(OutOfMemory):
            on_device.sample(torch.arange(100).repeat(3))
        gc.collect()  # the interpreter's own cycles hold buffers
        seeds = torch.arange(3)
        assert_same(on_device.sample(seeds).batch, sampler.sample(graph, seeds))


class TestRefusals:
    @pytest.mark.parametrize(
        ("sampler", "message"),
        [
            (LaborSampler([3]), "needs a NeighborSampler, got LaborSampler"),
            (NeighborSampler([3], batch_dependency=2), "batch_dependency must be 1 for .* got 2"),
            (SubgraphSampler([3], batch_dependency=2), "batch_dependency must be 1 for .* got 2"),
            (SubgraphSampler([3], induced=True), "induced must be False"),
            (SubgraphSampler([3], time="year", induced=True), "induced must be False"),
            (NeighborSampler([3, 129]), "fanouts must be at most 128 or -1 .* got 129"),
        ],
    )
    def test_samplers(self, sampler, message):
        with pytest.raises(ValueError, match=message + ".*; use sampling_device='cpu'"):
            DeviceSampler(random_graph(), sampler, HostAccelerator(), None)

    def test_a_subclass_may_pick_otherwise(self):
        class Other(NeighborSampler):
            pass

        with pytest.raises(ValueError, match="got Other"):
            DeviceSampler(random_graph(), Other([3]), HostAccelerator(), None)

    def test_without_kernels(self, monkeypatch):
        monkeypatch.setenv("TRITON_INTERPRET", "0")
        with pytest.raises(MissingDependencyError, match="Triton"):
            DeviceSampler(random_graph(), NeighborSampler([3]), HostAccelerator(), None)

    @interpreted
    @pytest.mark.parametrize("seeds", [[-1], [0, 120]])
    def test_seeds(self, seeds):
        on_device = DeviceSampler(random_graph(), NeighborSampler([3]), HostAccelerator(), None)
        with pytest.raises(IndexError, match=r"seeds must be in \[0, 120\)"):
            on_device.sample(torch.tensor(seeds))

    @interpreted
    def test_more_edges_than_places(self, monkeypatch):
        monkeypatch.setattr(run, "_MOST_PLACES", 200)
        graph, sampler = random_graph(), NeighborSampler([-1])
        on_device = DeviceSampler(graph, sampler, HostAccelerator(), None)
        with pytest.raises(ValueError, match="vertices and edges must be below"):
            on_device.sample(torch.arange(100))
        seeds = torch.arange(3)
        assert_same(on_device.sample(seeds).batch, sampler.sample(graph, seeds))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGpu:
    @pytest.mark.parametrize("budget", [None, "1000000B", "auto"])
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("replace", [False, True])
    def test_equals_the_cpu(self, budget, dtype, replace):
        graph = random_graph(100_000, 2_000_000)
        accelerator = accelerator_for(torch.device("cuda", 0))
        for fanouts in ([15, 10, 5], [1, 128], [-1, 3], [2, -1], [33, 7]):
            sampler = NeighborSampler(fanouts, replace=replace)
            on_device = DeviceSampler(
                graph, sampler, accelerator, Budget.parse(budget), (500, dtype)
            )
            for key in range(5):
                seeds = torch.randint(0, 100_000, (500,), dtype=dtype)
                sampled = on_device.sample(seeds, key)
                accelerator.hand_over([sampled.batch.input_nodes], sampled.ready)
                assert sampled.batch.input_nodes.is_cuda
                assert_same(sampled.batch, sampler.sample(graph, seeds, key))
            on_device.close()

    @pytest.mark.parametrize("usual", [False, True])
    def test_threads(self, usual):
        graph, sampler = random_graph(100_000, 2_000_000), NeighborSampler([10, 10])
        accelerator = accelerator_for(torch.device("cuda", 0))
        seeds, batches = torch.arange(1000), {}
        on_device = DeviceSampler(
            graph, sampler, accelerator, AUTO, (1000, seeds.dtype) if usual else None
        )

        def work(first):
            for key in range(first, 60, 4):
                sampled = on_device.sample(seeds, key)
                accelerator.hand_over([sampled.batch.input_nodes], sampled.ready)
                batches[key] = sampled.batch

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        accelerator.synchronize()
        for key in range(60):
            assert_same(batches[key], sampler.sample(graph, seeds, key))
