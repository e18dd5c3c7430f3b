"""Batches of one recorded launch: the CPU's bits, whatever overflows, changes or is dropped on the
way."""

import gc
import os
import sys

import numpy as np
import pytest
import torch
from device_batches import assert_equal, assert_same, assert_same_typed, graphs, typed_graphs
from fresh_processes import HANGING
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from recording_accelerator import RecordingAccelerator
from stream_races import RaceDetector, RacingEvent, RacingStream, Watch
from test_calls import calls_of

from pagraph import FormatError, Graph, Loader, NeighborSampler, PipelineError
from pagraph.accelerator import Event, HostAccelerator
from pagraph.accelerator.triton_kernels import launch
from pagraph.cache import plan
from pagraph.engine import envelope, program, recording
from pagraph.features.gpu import reachable
from pagraph.sampling.gpu import run
from pagraph.stats.stats import EpochRecorder
from pagraph.system.units import bytes_text

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.usefixtures("no_threads_left", "soon"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled, not interpreted"),
]


@pytest.fixture
def soon(monkeypatch):
    """Few batches are made kernel by kernel first: each takes the interpreter 0.1 s and more."""
    monkeypatch.setattr(program, "_LEARNED", 2)
    monkeypatch.setattr(program, "_SETTLING", 2)


def make_graph(n=60, m=500, seed=0):
    rng = np.random.default_rng(seed)
    graph = Graph.from_coo(rng.integers(0, n, m), rng.integers(0, n, m), n)
    graph.ndata["x"] = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))
    graph.ndata["y"] = torch.arange(n) % 7
    return graph


def make_loader(graph, device="cpu", fanouts=(3, 2), **options):
    place = {"device": device, "cache": 0}
    if device != "cpu":
        place |= {"sampling_device": device, "transfer": "zero-copy", "cache": 0.3}
        place["cache_policy"] = "degree"
    defaults = {"fields": ["x"], "labels": ["y"], "batch_size": 8, "shuffle": True, "seed": 5}
    seeds = options.pop("seeds", torch.arange(0, graph.num_nodes, 2))
    sampler = NeighborSampler(list(fanouts), prob=options.pop("prob", None))
    return Loader(graph, seeds, sampler, **(defaults | place | options))


def made_of(loader):
    """The program, and how many batches it has made."""
    made = loader._engine.epochs.steps.program
    return made, made._made


def assert_all_same(batches, expected):
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert_same(batch, other)
        for rows, others in ((batch.features, other.features), (batch.labels, other.labels)):
            assert list(rows) == list(others)
            for name in rows:
                assert_equal(rows[name], others[name])


def read(loader, epochs):
    return [batch for _ in range(epochs) for batch in loader]


@pytest.mark.compilers
@settings(max_examples=6)
@given(
    graph=graphs(),
    fanouts=st.lists(st.sampled_from([1, 2, 7]), min_size=1, max_size=3),
    replace=st.booleans(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    cache=st.sampled_from([0, 0.3, 1.0]),
    prefetch=st.integers(0, 2),
    room=st.sampled_from([-0.6, 0.0, 0.02]),
    data=st.data(),
)
def test_equals_the_cpu(graph, fanouts, replace, dtype, cache, prefetch, room, data):
    """All batches are kept: none is changed by those after it. Some do not fit."""
    n = graph.num_nodes
    graph.ndata["x"] = torch.randn(n, 3)
    graph.ndata["y"] = torch.arange(n)
    ids = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=12))
    options = {
        "seeds": torch.tensor(ids, dtype=dtype),
        "fanouts": fanouts,
        "batch_size": 3,
        "prefetch": prefetch,
    }
    expected = read(make_loader(graph, **options), 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "_LEAST_MARGIN", room)
        patch.setattr(program, "_SIGMAS", 0)
        loader = make_loader(graph, HostAccelerator(), **(options | {"cache": cache}))
        assert_all_same(read(loader, 4), expected)
        made, number = made_of(loader)
        # Where the first batches are whole, those of the third epoch are the program's.
        # Those of many that did not fit are not counted any more.
        overflows = loader.stats.total.counts.get("overflows", 0)
        assert number or len(ids) < 3 or made.reason or overflows
    loader.close()


def fields_of_all_kinds(n):
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(n, 700, generator=generator)
    return {
        "half": torch.randn(n, 5, generator=generator).half(),
        "flags": torch.rand(n, 3, generator=generator) < 0.5,
        "bytes": torch.randint(0, 255, (n, 7), dtype=torch.uint8, generator=generator),
        "square": torch.randn(n, 2, 3, dtype=torch.float64, generator=generator),
        "wide": wide,
        "part": wide[:, 3:20],
        "number": torch.arange(n, dtype=torch.int16),
    }


@pytest.mark.compilers
@pytest.mark.parametrize("cache", [0, 0.4])
def test_fields_of_all_kinds(cache):
    graph = make_graph()
    for name, rows in fields_of_all_kinds(60).items():
        graph.ndata[name] = rows
    names = [*fields_of_all_kinds(1), "x"]
    options = {"fields": names, "fanouts": [3], "prefetch": 0}
    expected = read(make_loader(graph, **options), 3)
    loader = make_loader(graph, HostAccelerator(), **(options | {"cache": cache}))
    assert_all_same(read(loader, 3), expected)
    made, number = made_of(loader)
    assert made.reason == "" and number >= 4
    assert loader.sampling_placement.startswith("device; batches are one launch, each in ")


@pytest.mark.compilers
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_rows_of_a_complete_cache_are_widened(dtype):
    graph = make_graph()
    options = {"cache_dtype": dtype, "prefetch": 0, "transfer": "auto"}
    expected = read(make_loader(graph, HostAccelerator(), cache=1.0, **options), 1)
    loader = make_loader(graph, HostAccelerator(), cache=1.0, **options)
    batches = read(loader, 2)
    assert_all_same(batches[:4], expected)
    assert made_of(loader)[1] >= 3
    for batch in batches:
        close = 0.05 if dtype == "int8" else 1e-2
        rows = graph.ndata["x"][batch.input_nodes]
        assert torch.allclose(batch.features["x"], rows, atol=close)


def test_counts_are_those_of_kernel_by_kernel(monkeypatch):
    graph = make_graph()

    def figures():
        loader = make_loader(graph, HostAccelerator(), prefetch=0, fanouts=[3])
        read(loader, 3)
        total = loader.stats.total
        reads = {
            name: (f.rows, f.nbytes, f.cacheable, f.asked_by_hop, f.hits_by_hop)
            for name, f in total.reads.fields.items()
        }
        counts = {name: count for name, count in total.counts.items() if name != "overflows"}
        return made_of(loader)[1], (reads, counts, total.batches)

    made, ours = figures()
    assert made >= 6
    monkeypatch.setattr(program, "_LEARNED", 1000)
    made, expected = figures()
    assert made == 0 and ours == expected


def test_nothing_is_one_launch_while_the_first_epoch_is_counted():
    """A launch counts no vertices, and the cache is filled by what the first epoch has read."""
    loader = make_loader(make_graph(), HostAccelerator(), prefetch=0, cache_policy="adaptive")
    read(loader, 1)
    assert made_of(loader)[1] == 0
    read(loader, 2)
    assert made_of(loader)[1] > 0


def test_batches_that_do_not_fit_are_counted_and_learned_from(monkeypatch):
    graph = make_graph()
    monkeypatch.setattr(program, "_LEAST_MARGIN", -0.5)
    monkeypatch.setattr(program, "_SIGMAS", 0)
    monkeypatch.setattr(program, "_OFTEN", 1)
    expected = read(make_loader(graph), 5)
    loader = make_loader(graph, HostAccelerator())
    assert_all_same(read(loader, 5), expected)
    overflows = loader.stats.total.counts["overflows"]
    assert 2 <= overflows < 20 - 2
    assert loader.stats.total.batches == 20


@pytest.mark.compilers
@pytest.mark.parametrize("prefetch", [0, 2])
def test_fields_that_are_replaced_or_written_are_read_again(prefetch):
    graph = make_graph()
    loader = make_loader(graph, HostAccelerator(), prefetch=prefetch, cache=0)
    read(loader, 3)
    made, before = made_of(loader)
    kept = []
    for number in range(2):
        for batch in loader:
            assert torch.equal(batch.features["x"], graph.ndata["x"][batch.input_nodes])
            assert torch.equal(batch.labels["y"], graph.ndata["y"][batch.output_nodes])
            kept.append((batch, batch.features["x"].clone()))
            if number:
                graph.ndata["x"].add_(1)
            else:
                graph.ndata["x"] = graph.ndata["x"] * 2
    assert made_of(loader)[1] > before
    assert all(torch.equal(batch.features["x"], rows) for batch, rows in kept)


@pytest.mark.compilers
@pytest.mark.parametrize("prefetch", [0, 2])
def test_weights_that_are_written_or_replaced(prefetch):
    """What was recorded draws by the old ones: it is recorded again."""
    graph = make_graph()
    graph.edata["w"] = torch.arange(graph.num_edges) % 5
    options = {"prob": "w", "prefetch": prefetch}
    loader = make_loader(graph, HostAccelerator(), **options)
    others = make_loader(graph, **options)
    kept = []
    for number in range(6):
        before = made_of(loader)[1]
        kept += [(read(loader, 1), read(others, 1))]
        # Batches begun ahead are not made so right after a change.
        assert number in (0, 3, 5) or made_of(loader)[1] > before
        if number == 2:
            graph.edata["w"].mul_(torch.arange(graph.num_edges) % 2)
        elif number == 4:
            graph.edata["w"] = torch.rand(graph.num_edges)
    for batches, expected in kept:
        assert_all_same(batches, expected)
    loader.close()


@pytest.mark.compilers
@settings(max_examples=4)
@given(graph=typed_graphs(), keys=st.integers(0, 9), prob=st.sampled_from([None, "w"]))
def test_several_types_equal_the_cpu(graph, keys, prob):
    # What has no rows is read kernel by kernel.
    assume(not graph.is_homogeneous and all(graph.num_nodes_by_type.values()))
    for name in graph.node_types:
        graph.node_fields(name)["x"] = torch.randn(graph.num_nodes_of(name), 3)
    for etype in graph.edge_types:
        edges = graph.adjacency("in", etype).num_edges
        graph.edge_fields(etype)["w"] = torch.arange(edges) % 4
    seeded = graph.node_types[-1]
    ids = torch.arange(12) % graph.num_nodes_of(seeded)
    options = {"seeds": {seeded: ids}, "batch_size": 4, "seed": keys, "prob": prob}
    options |= {"fields": {name: ["x"] for name in graph.node_types}, "labels": []}
    loader = make_loader(graph, HostAccelerator(), **options)
    others = read(make_loader(graph, **options), 4)
    for batch, expected in zip(read(loader, 4), others, strict=True):
        assert_same_typed(batch, expected)
        for name, rows in expected.features.items():
            assert_equal(batch.features[name]["x"], rows["x"])
    # Some may not fit; of a type that no batch has nothing is known.
    is_known = [all(map(len, batch.input_nodes.values())) for batch in others]
    assert made_of(loader)[1] or not all(is_known)
    loader.close()


@pytest.mark.compilers
def test_a_cache_that_shrinks_does_not_wait_for_batches_on_their_way(monkeypatch):
    graph = make_graph()
    expected = read(make_loader(graph), 4)
    loader = make_loader(graph, HostAccelerator(), cache=0.6)
    batches = read(loader, 3)
    made, _ = made_of(loader)
    recorded = made._recording
    reading = iter(loader)
    batches.append(next(reading))
    monkeypatch.setattr(plan, "_PATIENCE_SECONDS", HANGING)  # with who reads the old rows
    assert loader.shrink_cache()
    batches += reading
    assert_all_same(batches, expected)
    assert made._recording is recorded
    loader.invalidate_cache()
    assert_all_same(read(loader, 1), read(make_loader(graph), 5)[-4:])


@pytest.mark.compilers
@pytest.mark.parametrize("there", [True, False])
def test_cached_rows_stay_until_the_device_is_told_to_read_them(monkeypatch, there):
    """A thread whose batch does not fit may give them up in between."""
    device, forgotten = HostAccelerator(), []
    place = {} if there else {"sampling_device": "cpu", "num_workers": 0}
    loader = make_loader(make_graph(), device, prefetch=0, cache=0.5, **place)
    read(loader, 3)
    tell = recording.Recording.tell

    def forget_and_tell(*arguments):
        gc.collect()
        before = device._used
        loader.invalidate_cache()
        gc.collect()
        forgotten.append(before - device._used)
        tell(*arguments)

    monkeypatch.setattr(recording.Recording, "tell", forget_and_tell)
    reading = iter(loader)
    next(reading)
    assert forgotten == [0]
    reading.close()


@pytest.mark.compilers
@pytest.mark.parametrize("there", [True, False])
def test_what_is_kept_of_a_batch_stays(there):
    """Sliced, detached, by its memory alone, or in the graph of a step that is not over yet."""
    graph, device = make_graph(), LazyAccelerator()
    place = {} if there else {"sampling_device": "cpu", "num_workers": 2}
    loader = make_loader(graph, device, prefetch=1, **place)
    read(loader, 2)
    device.is_lazy = True
    kept, losses = [], []
    weight = torch.ones(6, requires_grad=True)
    for batch in loader:
        rows = batch.features["x"]
        parts = [rows[1:], rows[:, 2], rows.detach(), batch.input_nodes[:3], batch.labels["y"][-1]]
        parts += [block.indices for block in batch.blocks]
        kept.append((parts, [part.clone() for part in parts]))
        losses.append(((rows * weight).sum(), rows.sum(0)))
        del batch, rows
    gc.collect()
    read(loader, 1)
    for parts, copies in kept:
        assert all(torch.equal(part, copy) for part, copy in zip(parts, copies, strict=True))
    for loss, expected in losses:
        weight.grad = None
        loss.backward()
        assert torch.equal(weight.grad, expected)
    loader.close()


class LaterEvent(Event):
    def __init__(self, device, place):
        self.device, self.place, self.seconds = device, place, 0.0

    @property
    def has_happened(self):
        return self.place <= self.device.done

    def wait(self):
        self.device.run(self.place)

    def seconds_since(self, earlier):
        return 0.0


class LazyAccelerator(HostAccelerator):
    """Does recorded work when an event after it is waited for; memory is not what it was before."""

    def __init__(self):
        super().__init__()
        self.later, self.done, self.is_lazy = [], 0, False

    def empty(self, shape, dtype):
        tensor = super().empty(shape, dtype)
        tensor.view(-1).view(torch.uint8).fill_(255)
        return tensor

    def recorded(self, work):
        return lambda: self.later.append(work) if self.is_lazy else work()

    def synchronize(self):
        self.run(len(self.later))

    def run(self, place):
        while self.done < place:
            work, self.later[self.done] = self.later[self.done], None
            work()
            self.done += 1

    def stream(self, name):
        stream = super().stream(name)
        now = type(stream).record
        stream.record = lambda: LaterEvent(self, len(self.later)) if self.is_lazy else now(stream)
        return stream


@pytest.mark.every
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_device_that_is_late_reads_what_its_batch_was_given(prefetch):
    graph, device = make_graph(), LazyAccelerator()
    expected = read(make_loader(graph), 4)
    loader = make_loader(graph, device, prefetch=prefetch)
    batches = read(loader, 2)
    device.is_lazy = True
    for _ in range(2):
        reading = iter(loader)
        for number, batch in enumerate(reading):
            assert len(device.later) - device.done == min(prefetch, 3 - number)
            batches.append(batch)
    assert_all_same(batches, expected)
    assert made_of(loader)[1] >= 8


@pytest.mark.every
@pytest.mark.parametrize("end", ["close", "drop", "error"])
def test_batches_that_nobody_wants_are_waited_for_before_their_memory_goes(end):
    graph, device = make_graph(), LazyAccelerator()
    loader = make_loader(graph, device, prefetch=2)
    read(loader, 2)
    device.is_lazy = True
    expected = read(make_loader(graph), 4)[-4:]
    reading = iter(loader)
    next(reading)
    assert len(device.later) > device.done
    if end == "close":
        reading.close()
    elif end == "error":
        with pytest.raises(ZeroDivisionError):
            for _ in reading:
                _ = 1 // 0
    del reading
    gc.collect()
    assert len(device.later) == device.done
    assert_all_same(read(loader, 1), expected)


@pytest.mark.every
@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_stream_that_fails_in_the_middle_of_a_batch(at, monkeypatch):
    graph, device = make_graph(), HostAccelerator()
    loader = make_loader(graph, device, prefetch=1)
    read(loader, 3)
    stream = device.stream("reading")
    record, calls = stream.record, []

    def fails():
        calls.append(None)
        if len(calls) == at:
            raise RuntimeError("no event")
        return record()

    monkeypatch.setattr(stream, "record", fails)
    with pytest.raises(RuntimeError, match="no event"):
        read(loader, 1)
    monkeypatch.undo()
    expected = read(make_loader(graph), 6)[-8:]
    loader.set_epoch(4)
    assert_all_same(read(loader, 2), expected)


def test_work_that_ends_in_its_middle_leaves_no_vertex_known(monkeypatch):
    graph = make_graph()
    loader = make_loader(graph, HostAccelerator(), prefetch=0)
    read(loader, 3)
    launches = []

    def fails(*arguments, **constants):
        launches.append(None)
        if len(launches) == 4:
            raise KeyboardInterrupt
        launch(*arguments, **constants)

    monkeypatch.setattr(run, "launch", fails)
    with pytest.raises(KeyboardInterrupt):
        read(loader, 1)
    monkeypatch.undo()
    loader.set_epoch(4)  # other batches: the same one would enter the same vertices again
    assert_all_same(read(loader, 1), read(make_loader(graph), 5)[-4:])


@pytest.mark.every
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("where", ["tell", "made", "wait", "record"])
def test_interrupts_lose_no_lane_and_no_memory_that_is_written(where, there):
    graph, device = make_graph(), LazyAccelerator()
    place = {} if there else {"sampling_device": "cpu", "num_workers": 0}
    loader = make_loader(graph, device, prefetch=0, **place)
    read(loader, 3)
    device.is_lazy = True
    spent, calls = EpochRecorder.spent, []

    def interrupting(function, at=1):
        def interrupts(*arguments):
            calls.append(None)
            if len(calls) == at:
                raise KeyboardInterrupt
            return function(*arguments)

        return interrupts

    def spends(recorder, stage, begin):
        spent(recorder, stage, begin)
        if len(device.later) > device.done:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        if where == "tell":
            patch.setattr(recording.Recording, "tell", interrupting(recording.Recording.tell))
        elif where == "made":
            patch.setattr(EpochRecorder, "spent", spends)
        elif where == "wait":
            patch.setattr(LaterEvent, "wait", interrupting(LaterEvent.wait))
        else:
            patch.setattr(LaterEvent, "__init__", interrupting(LaterEvent.__init__, at=2))
        with pytest.raises(KeyboardInterrupt) as kept:
            next(iter(loader))
    if where == "made":  # The traceback has what was lost.
        del kept
        gc.collect()
    assert len(device.later) == device.done
    loader.set_epoch(3)
    _, before = made_of(loader)
    assert_all_same(read(loader, 1), read(make_loader(graph), 4)[-4:])
    assert made_of(loader)[1] == before + 4


@pytest.mark.attack
@pytest.mark.parametrize(("there", "step"), [(True, 4), (False, 1)])
def test_interrupts_anywhere_lose_no_lane(there, step):
    """Where Python looks for signals: as a call of C ends, and as a function begins. Where the device
    samples, most cost a recording."""

    class Undisturbed(LazyAccelerator):
        def run(self, place):
            seen = sys.getprofile()
            sys.setprofile(None)
            super().run(place)
            sys.setprofile(seen)

    graph, device = make_graph(), Undisturbed()
    place = {} if there else {"sampling_device": "cpu", "num_workers": 0}
    loader = make_loader(graph, device, prefetch=0, **place)
    read(loader, 3)
    device.is_lazy = True
    files = program.__file__, recording.__file__
    made, _ = made_of(loader)

    def interrupted(at):
        passed = 0

        def seen(frame, event, argument):
            nonlocal passed
            code = frame.f_code
            if code.co_name == "__del__":  # of what is over; errors in there go nowhere
                return
            if code.co_filename in files and event in ("call", "c_return"):
                passed += 1
                if passed == at:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        loader.set_epoch(3)  # Of others some batches do not fit.
        reading = iter(loader)
        try:
            sys.setprofile(seen)
            next(reading)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
            reading.close()
        return passed == at

    gc.freeze()  # hundreds of collections need not pass over what other tests have left
    at = 1
    while interrupted(at):
        gc.collect()
        assert len(device.later) == device.done
        if made._recording is None:
            next(iter(loader))
        assert len(made._recording.free) == made._lanes
        at += step
    assert at > 50
    device.is_lazy = False
    loader.set_epoch(3)
    assert_all_same(read(loader, 1), read(make_loader(graph), 4)[-4:])


@pytest.mark.compilers
@pytest.mark.parametrize("there", [True, False])
def test_a_launch_without_memory_is_made_kernel_by_kernel(there):
    """A CUDA graph takes memory when it is launched first; the driver's error is a plain one."""
    graph, device = make_graph(), LazyAccelerator()
    place = {} if there else {"sampling_device": "cpu", "num_workers": 0}
    loader = make_loader(graph, device, prefetch=0, **place)
    read(loader, 3)
    made, before = made_of(loader)
    (lane,) = made._recording.free

    def fails():
        lane.replay = replay
        raise RuntimeError("CUDA error: out of memory")

    replay, lane.replay = lane.replay, fails
    assert_all_same(read(loader, 1), read(make_loader(graph), 4)[-4:])
    assert lane.replay is replay and made_of(loader)[1] == before + 3


@pytest.mark.parametrize("there", [True, False])
def test_memory_of_a_batch_is_known_to_the_stream_that_reads_it(monkeypatch, there):
    graph, device = make_graph(), RecordingAccelerator()
    place = {} if there else {"sampling_device": "cpu", "num_workers": 0}
    loader = make_loader(graph, device, prefetch=1, **place)
    expected = read(make_loader(graph), 4)
    batches = read(loader, 3)
    mine, owned = device.stream("mine"), []
    monkeypatch.setattr(mine, "owns", lambda tensor: owned.append(tensor.data_ptr()))
    reading = iter(loader)
    batches.append(next(reading))
    assert not owned
    with mine.use():
        batches += [next(reading), next(reading)]
    # The first of the two was begun for the other stream, the second for this one; what the CPU has
    # sampled is for no stream when it is sent.
    begun_for_others = batches[-2:-1] if there else batches[-2:]
    assert owned == [batch.input_nodes.data_ptr() for batch in begun_for_others]
    batches += reading
    assert_all_same(batches, expected)


@pytest.fixture
def detector(monkeypatch):
    device = RaceDetector()

    def launch_and_tell(kernel, programs, *arguments, **constants):
        if programs > 0:
            device.launched(kernel, arguments, constants)
        launch(kernel, programs, *arguments, **constants)

    for module in (reachable, run):
        monkeypatch.setattr(module, "launch", launch_and_tell)
    return device


@pytest.mark.every
@pytest.mark.parametrize("waits", ["for both", "not for the user", "not for the device"])
def test_there_are_no_races(monkeypatch, waits, detector):
    device = detector
    loader = make_loader(make_graph(), device, prefetch=2)
    read(loader, 2)
    # Threads that made batches before handed their buffers on by queues, which it does not know.
    device.races.clear()
    if waits == "not for the user":
        monkeypatch.setattr(RacingStream, "wait_for", lambda stream, event: None)
    elif waits == "not for the device":
        monkeypatch.setattr(RacingEvent, "wait", lambda event: None)
    with Watch(device):
        for batch in loader:
            batch.features["x"].sum()
            batch.features["x"].add_(1)
            del batch
    assert made_of(loader)[1] >= 4
    assert (device.races == []) is (waits == "for both")


@pytest.mark.compilers
@pytest.mark.parametrize("shapes", ["sampled", "fixed"])
def test_rows_that_are_read_again_are_in_order(detector, shapes):
    graph = make_graph()
    loader = make_loader(graph, detector, shapes=shapes, prefetch=2)
    with Watch(detector):
        read(loader, 3)
        detector.races.clear()
        batches = iter(loader)
        next(batches)
        graph.ndata["x"] += 1
        for batch in batches:
            batch.features["x"].sum()
            del batch
    assert made_of(loader)[1] >= 4
    assert detector.races == []


@pytest.mark.parametrize("place", [{}, {"sampling_device": "cpu", "num_workers": 2}])
def test_a_child_process_is_told(place):
    loader = make_loader(make_graph(), HostAccelerator(), prefetch=1, **place)
    read(loader, 2)
    reading = iter(loader)
    next(reading)
    child = os.fork()
    if not child:
        try:
            next(reading)
        except PipelineError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(reading)) == 3


def test_a_graph_that_is_damaged_is_told_as_by_the_cpu():
    graph = make_graph()
    loader = make_loader(graph, HostAccelerator(), prefetch=0, sampling_budget=0)
    read(loader, 2)
    graph.csc.indices[::2] = 1000
    with pytest.raises(FormatError):
        read(make_loader(graph), 1)
    with pytest.raises(FormatError):
        read(loader, 1)


@pytest.mark.compilers
@pytest.mark.parametrize("there", [True, False])
def test_two_loaders_of_one_graph(there):
    """As for training and validation: one table of vertices, one stream, batches in turn."""
    graph, device = make_graph(), LazyAccelerator()
    place = {} if there else {"sampling_device": "cpu"}
    seeds = torch.arange(1, 60, 2)
    pairs = []
    for options in ({}, {"seeds": seeds, "fanouts": [4], "shuffle": False, "batch_size": 5}):
        mine = make_loader(graph, device, prefetch=1, **place, **options)
        pairs.append((mine, make_loader(graph, **options)))
    for loader, other in pairs:
        assert_all_same(read(loader, 2), read(other, 2))
    device.is_lazy = True
    made = [made_of(loader)[1] for loader, _ in pairs]
    (first, expected_first), (second, expected_second) = pairs
    found = list(zip(first, second, strict=False))
    assert_all_same([batch for batch, _ in found], read(expected_first, 1)[: len(found)])
    assert_all_same([batch for _, batch in found], read(expected_second, 1)[: len(found)])
    for (loader, _), before in zip(pairs, made, strict=True):
        assert made_of(loader)[1] >= before + len(found)
        loader.close()


def test_several_threads_read_at_once():
    graph = make_graph()
    loader = make_loader(graph, HostAccelerator(), prefetch=1)
    read(loader, 2)
    expected = read(make_loader(graph), 4)[-8:]
    one, other = iter(loader), iter(loader)
    batches = [(next(one), next(other)) for _ in range(4)]
    assert_all_same([b for b, _ in batches] + [b for _, b in batches], expected)


class Skipping(HostAccelerator):
    """Leaves recorded work out, once it is told to."""

    skips = False

    def recorded(self, work):
        return lambda: None if self.skips else work()


@pytest.mark.compilers
def test_a_batch_makes_few_calls_and_launches_nothing_by_itself():
    """Calls that its replay makes under Triton's interpreter are left out; see
    ``benchmarks/gpu_host.py``."""
    device = Skipping()
    graph = make_graph()
    loader = make_loader(graph, device, fanouts=[4, 3, 2], prefetch=0, cache_policy="degree")
    read(loader, 4)
    device.skips = True
    reading = iter(loader)
    next(reading)
    counts = calls_of(lambda: next(reading))
    assert made_of(loader)[1] >= 4 and counts["program.py:begin"] == 1
    assert counts["triton_kernels.py:launch"] == 0
    assert counts.total() <= 86, counts.most_common()


def test_batches_without_fields():
    options = {"fields": [], "labels": [], "prefetch": 0}
    graph = make_graph()
    loader = make_loader(graph, HostAccelerator(), **options)
    assert_all_same(read(loader, 3), read(make_loader(graph, **options), 3))
    assert made_of(loader)[1] >= 4


@pytest.mark.compilers
@settings(max_examples=6)
@given(
    graph=graphs(),
    fanouts=st.lists(st.sampled_from([1, 2, 7]), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    label=st.sampled_from([torch.int64, torch.int16, torch.float32, torch.float64]),
    cache=st.sampled_from([0, 0.3, 1.0]),
    prefetch=st.integers(0, 2),
    margin=st.sampled_from([-2.0, 3.5]),
    data=st.data(),
)
def test_fixed_shapes_equal_the_cpu(graph, fanouts, dtype, label, cache, prefetch, margin, data):
    """The sizes, the padding and its values as well; some batches do not fit the first size."""
    n = graph.num_nodes
    graph.ndata["x"] = torch.randn(n, 3)
    graph.ndata["y"] = torch.arange(n).to(label)
    graph.ndata["z"] = torch.randn(n, 2, 2).to(torch.float16)
    ids = data.draw(st.lists(st.integers(0, n - 1), min_size=3, max_size=12))
    options = {
        "seeds": torch.tensor(ids, dtype=dtype),
        "fanouts": fanouts,
        "batch_size": 3,
        "prefetch": prefetch,
        "shapes": "fixed",
        "fields": ["x", "z"],
        "labels": ["y", "z"],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelope, "_MARGIN", margin)
        expected = read(make_loader(graph, **options), 4)
        loader = make_loader(graph, HostAccelerator(), **(options | {"cache": cache}))
        found = read(loader, 4)
    for batch in [*found, *expected]:  # NaN equals nothing
        for name, rows in batch.labels.items():
            batch.labels[name] = torch.where(rows != rows, -200, rows)
    assert_all_same(found, expected)
    for batch, other in zip(found, expected, strict=True):
        assert batch.shape_number == other.shape_number
        assert_equal(batch.seed_mask, other.seed_mask)
    made, number = made_of(loader)
    assert number or made.reason
    loader.close()


@pytest.mark.compilers
def test_fixed_shapes_are_one_launch():
    graph = make_graph()
    options = {"shapes": "fixed", "prefetch": 0}
    loader = make_loader(graph, HostAccelerator(), **options)
    assert_all_same(read(loader, 3), read(make_loader(graph, **options), 3))
    made, number = made_of(loader)
    assert number >= 6 and made.reason == ""
    loader.close()


@pytest.mark.compilers
def test_a_field_written_meanwhile_is_padded_again():
    graph = make_graph()
    device = HostAccelerator()
    loader = make_loader(graph, device, shapes="fixed", prefetch=2)
    read(loader, 3)
    batches = iter(loader)
    next(batches)
    graph.ndata["x"] += 1
    graph.ndata["y"] += 1
    batch = next(batches)
    real = batch.input_nodes >= 0
    assert torch.equal(batch.features["x"][real], graph.ndata["x"][batch.input_nodes[real]])
    assert not batch.features["x"][~real].any()
    seeds = batch.output_nodes[batch.seed_mask]
    assert torch.equal(batch.labels["y"][batch.seed_mask], graph.ndata["y"][seeds])
    assert (batch.labels["y"][~batch.seed_mask] == -100).all()
    batches.close()


class Unrecording(HostAccelerator):
    """Records the sampler's two runs, and no more."""

    recordings = 0

    def recorded(self, work):
        self.recordings += 1
        if self.recordings > 2:
            raise RuntimeError("CUDA error: out of memory")
        return super().recorded(work)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"transfer": "staging"}, "a field is not read by kernels alone"),
        ({"fanouts": [1] * 8}, "a recorded kernel counts the hits of at most 7 hops"),
        ({"fanouts": [-1]}, "sampling is not recorded"),
    ],
)
def test_what_is_made_kernel_by_kernel_and_why(options, reason):
    loader = make_loader(make_graph(), HostAccelerator(), prefetch=0, **options)
    iter(loader)
    assert f"; batches are made kernel by kernel: {reason}" in loader.sampling_placement


@pytest.mark.every
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("shapes", ["sampled", "fixed"])
def test_the_plan_says_what_batches_take(there, shapes):
    if shapes == "fixed" and not there:
        pytest.skip("what the CPU samples is padded there")
    device = HostAccelerator()
    where = {} if there else {"sampling_device": "cpu", "num_workers": 1}
    loader = make_loader(make_graph(), device, shapes=shapes, **where)
    assert loader.cache_plan.batches_bytes == 0
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    expected = loader.cache_plan.batches_bytes
    batches.close()
    read(loader, 3)
    made, number = made_of(loader)
    assert number
    taken = loader.cache_plan.batches_bytes
    lanes = 1 + loader._engine.epochs.options.prefetch + loader._engine.epochs.options.threads
    assert taken == (lanes + 1) * made._recording.nbytes
    # Before anything is recorded, ids count as many bytes as they can have.
    assert 0 < expected < 2 * taken or not there
    assert f"besides {bytes_text(taken)} of batches" in str(loader.cache_plan)
    assert loader.cache_plan.to_dict()["batches_bytes"] == taken
    loader.close()


def test_a_cache_leaves_room_for_batches_on_their_way(monkeypatch):
    graph = make_graph(n=4000, m=8000)
    graph.ndata["x"] = torch.randn(4000, 100)

    def planned():
        device = HostAccelerator(memory=3 << 20)
        loader = make_loader(graph, device, cache="auto", batch_size=64, prefetch=0)
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        batches.close()
        loader.close()
        return loader.cache_plan

    beside_them = planned()
    assert beside_them.rows > 0
    taken = beside_them.batches_bytes
    monkeypatch.setattr(program.DeviceProgram, "batches_bytes", 0)
    alone = planned()
    assert 0 < taken == alone.budget_bytes - beside_them.budget_bytes


class Full(HostAccelerator):
    """Has no memory left, it says, until it is told otherwise."""

    is_full = True

    def free_bytes(self):
        free, total = super().free_bytes()
        return (100 if self.is_full else free), total


def test_batches_for_which_there_is_no_room_are_made_kernel_by_kernel_until_there_is():
    graph = make_graph()
    device = Full()
    loader = make_loader(graph, device, cache=0)
    with pytest.warns(RuntimeWarning, match=r"4 batches in flight take .* more than is free"):
        batches = read(loader, 3)
    assert made_of(loader)[1] == 0
    device.is_full = False
    batches += read(loader, 2)
    assert made_of(loader)[1] > 0
    assert_all_same(batches, read(make_loader(graph), 5))
    loader.close()


def test_what_cannot_be_recorded_is_made_kernel_by_kernel():
    graph = make_graph()
    loader = make_loader(graph, Unrecording())
    with pytest.warns(RuntimeWarning, match="are made kernel by kernel, .* could not be recorded"):
        batches = read(loader, 3)
    assert_all_same(batches, read(make_loader(graph), 3))
    assert made_of(loader)[1] == 0
    assert "they could not be recorded (CUDA error: out of memory)" in loader.sampling_placement
