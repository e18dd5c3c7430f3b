import gzip
import json

import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.accelerator import Event, HostAccelerator
from pagraph.pipeline.device_times import DeviceTimes
from pagraph.pipeline.trace import Tracer
from pagraph.pipeline.tracing import EpochTrace, Tracing


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
    assert t.seconds() == {"reading": 8.5, "sampling": 0.25}


def test_settling_waits_for_the_rest():
    t = times()
    pending = [Place(float(i), happened=False) for i in range(4)]
    for end in pending:
        t.add("waiting", Place(0.0), end)
    assert t.seconds() == {}
    t.settle()
    assert t.seconds() == {"waiting": 6.0}
    t.settle()
    assert [end.waits for end in pending] == [1, 1, 1, 1]


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
    (track,) = [e["args"]["name"] for e in events if e["name"] == "thread_name" and "on cpu" in e["args"]["name"]]
    (span,) = [e for e in events if e["name"] == "reading" and e["ph"] == "X"]
    assert track == "reading on cpu"
    assert span["dur"] == pytest.approx(end.seconds_since(begin) * 1e6, abs=1)


def small_loader(**options):
    graph = Graph.from_coo(
        torch.randint(0, 60, (400,)), torch.randint(0, 60, (400,)), num_nodes=60, ndata={"x": torch.randn(60, 5)}
    )
    return Loader(graph, torch.arange(60), NeighborSampler([3, 2]), fields=["x"], batch_size=16, seed=1, **options)


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
