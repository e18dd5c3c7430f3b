import gzip
import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph import Graph, Loader, NeighborSampler
from pagraph.accelerator import Event, HostAccelerator, Stream
from pagraph.accelerator.accelerator import _HostStream
from pagraph.stats.stats import DeviceTimes
from pagraph.stats.trace import EpochTrace, Tracer, Tracing


class Place(Event):
    """An event that happens when it is told to, at a second of its own."""

    def __init__(self, second: float, happened: bool = True) -> None:
        self.second, self.happened, self.waits = second, happened, 0

    @property
    def has_happened(self) -> bool:
        return self.happened

    def wait(self) -> None:
        self.waits += 1
        self.happened = True

    def seconds_since(self, earlier: Event) -> float:
        assert self.happened and earlier.has_happened
        return self.second - earlier.second


class ClockedAccelerator(HostAccelerator):
    """Its stream "clock" is at second 0."""

    def stream(self, name: str) -> Stream:
        return Clock(self, name) if name == "clock" else super().stream(name)


class Clock(_HostStream):
    def record(self) -> Event:
        return Place(0.0)


def times() -> DeviceTimes:
    return DeviceTimes(HostAccelerator(), EpochTrace(Tracing(), 0))


def test_adds_what_has_happened_and_waits_for_nothing():
    t = times()
    late = Place(9.0, happened=False)
    t.add("reading", Place(1.0), late)
    t.add("reading", Place(2.0), Place(2.5))
    t.add("sampling", Place(0.0), Place(0.25))
    assert t.seconds() == {"reading": 0.5, "sampling": 0.25}
    assert late.waits == 0
    late.happened = True
    t.add("sampling", Place(5.0), Place(5.0))
    assert t.seconds() == {"reading": 8.0, "sampling": 0.25}


def test_settling_waits_for_the_rest():
    t = times()
    pending = [Place(float(i), happened=False) for i in range(4)]
    for end in pending:
        t.add("waiting", Place(end.second - 1), end)
    assert t.seconds() == {}
    t.settle()
    assert t.seconds() == {"waiting": 4.0}
    t.settle()
    assert [end.waits for end in pending] == [1, 1, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 40)), max_size=40))
def test_time_that_several_threads_take_at_once_counts_once(spans):
    t = times()
    for begin, length in spans:
        t.add("reading", Place(begin), Place(begin + length))
    seconds = {second for begin, length in spans for second in range(begin, begin + length)}
    assert t.seconds() == ({"reading": len(seconds)} if spans else {})


def test_spans_of_a_track_do_not_cross(tmp_path):
    tracing = Tracing()
    t = DeviceTimes(ClockedAccelerator(), EpochTrace(tracing, 0))
    with Tracer(tmp_path / "t.json") as tracer:
        tracing.tracer = tracer
        for begin, end in [(2, 5), (0, 3), (4, 9), (1, 8), (90, 92), (89, 91)]:
            t.add("reading", Place(begin), Place(end))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == "reading")
    assert sum(end - begin for begin, end in spans) == pytest.approx(12e6)
    assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairwise(spans))


def test_spans_are_told_to_the_trace_by_the_hosts_clock(tmp_path):
    tracing = Tracing()
    t = DeviceTimes(HostAccelerator(), EpochTrace(tracing, 0))
    stream = HostAccelerator().stream("reading")
    with Tracer(tmp_path / "t.json.gz") as tracer:
        tracing.tracer = tracer
        begin = stream.record()
        end = stream.record()
        t.add("reading", begin, end)
        t.settle()
    events = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    (track,) = [
        e["args"]["name"]
        for e in events
        if e["name"] == "thread_name" and "on cpu" in e["args"]["name"]
    ]
    (span,) = [e for e in events if e["name"] == "reading" and e["ph"] == "X"]
    assert track == "reading on cpu"
    assert span["dur"] == pytest.approx(end.seconds_since(begin) * 1e6, abs=1)


def small_loader(**options):
    graph = Graph.from_coo(
        torch.randint(0, 60, (400,)),
        torch.randint(0, 60, (400,)),
        num_nodes=60,
        ndata={"x": torch.randn(60, 5)},
    )
    return Loader(
        graph,
        torch.arange(60),
        NeighborSampler([3, 2]),
        fields=["x"],
        batch_size=16,
        seed=1,
        **options,
    )


def test_a_loader_on_a_device_tells_its_stages():
    loader = small_loader(device=HostAccelerator())
    for _ in loader:
        pass
    (epoch,) = loader.stats.epochs
    assert set(epoch.device_seconds) == {"copying", "reading", "waiting"}
    assert all(seconds > 0 for seconds in epoch.device_seconds.values())
    assert loader.stats.total.device_seconds == epoch.device_seconds
    assert "waiting on device s" in str(loader.stats)


def test_a_loader_on_the_cpu_has_no_device():
    loader = small_loader()
    for _ in loader:
        pass
    assert loader.stats.total.device_seconds == {}
    assert "device" not in str(loader.stats)


def test_a_timeline_has_tracks_of_the_device(tmp_path):
    loader = small_loader(device=HostAccelerator())
    with loader.trace(tmp_path / "t.json"):
        for _ in loader:
            pass
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"copying on cpu", "reading on cpu", "waiting on cpu"} <= tracks


def test_a_device_that_fails_has_a_trace_all_the_same(tmp_path):
    def fail():
        raise RuntimeError("the device has failed")

    tracings = [Tracing(), Tracing()]
    with (
        pytest.raises(RuntimeError, match="the device has failed"),
        Tracer(tmp_path / "t.json") as tracer,
    ):
        for tracing in tracings:
            tracing.start(tracer, "loader")
            tracing.before_stop = fail
    assert [tracing.tracer for tracing in tracings] == [None, None]
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
