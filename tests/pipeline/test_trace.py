"""Timelines of the core loader: the file's format, whose spans are where, what ends and bounds a
trace."""

import gzip
import json
import os
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter, defaultdict

import pytest
import torch
from fresh_processes import HANGING
from timelines import checked, counters, nanoseconds, spans, stages_by_batch

from pagraph import Graph, Loader, NeighborSampler, _compiling
from pagraph.accelerator import HostAccelerator
from pagraph.cache import fields
from pagraph.errors import FormatError, PipelineError
from pagraph.profile import merge_traces
from pagraph.stats import Tracer, read_trace
from pagraph.stats.trace import EpochTrace, Tracing

pytestmark = pytest.mark.usefixtures("no_threads_left")

STAGES = {
    *("ticket", "preparing", "sampling", "fetching", "reading feat", "reading label"),
    *("building", "waiting", "computing"),
}


def make_graph(n=200, m=2000):
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(n, (2, m), generator=generator)
    return Graph.from_coo(
        ends[0], ends[1], n, ndata={"feat": torch.randn(n, 8), "label": torch.arange(n) % 7}
    )


def make_loader(graph=None, **options):
    defaults = dict(
        fields=["feat"], labels=["label"], batch_size=16, shuffle=True, num_workers=2, seed=1
    )
    return Loader(
        graph or make_graph(), torch.arange(100), NeighborSampler([4, 3]), **(defaults | options)
    )


def names_in(folder):
    return sorted(os.listdir(folder))


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 0), (1, 1), (3, 2)])
def test_every_batch_has_its_stages_once_and_nothing_overlaps(tmp_path, workers, prefetch):
    loader = make_loader(num_workers=workers, prefetch=prefetch)
    with loader.trace(tmp_path / "t.json"):
        for _ in range(2):
            for _ in loader:
                time.sleep(0.001)
    events = checked(tmp_path / "t.json")
    for epoch in range(2):
        stages = stages_by_batch(events, epoch)
        assert sorted(stages) == list(range(7))
        for found in stages.values():
            assert set(found) == STAGES
            assert set(found.values()) == {1}
    assert len(spans(events, "shuffling")) == 2
    assert all(span["dur"] >= 1000 for span in spans(events, "computing"))


def test_spans_hold_what_the_statistics_count(tmp_path):
    loader = make_loader()
    with loader.trace(tmp_path / "first.json"):
        list(loader)  # loads the kernels
    with loader.trace(tmp_path / "t.json"):
        batches = list(loader)
    events = checked(tmp_path / "t.json")
    stats = loader.stats.epochs[1]
    preparing = sorted(spans(events, "preparing"), key=lambda span: span["args"]["batch"])
    assert [span["args"]["input_nodes"] for span in preparing] == [
        len(batch.input_nodes) for batch in batches
    ]
    assert [span["args"]["seeds"] for span in preparing] == [16] * 6 + [4]
    assert sum(span["args"]["edges"] for span in preparing) == stats.counts["edges"]
    rows = sum(span["args"]["rows"] for span in spans(events, "reading feat"))
    assert rows == stats.reads.fields["feat"].asked
    for stage in ("sampling", "fetching", "waiting"):
        seconds = sum(span["dur"] for span in spans(events, stage)) / 1e6
        assert seconds == pytest.approx(stats.seconds[stage], abs=1e-6)
    last = counters(events, "loader bytes read")[-1]
    assert last == stats.reads.total.nbytes


def test_loads_of_kernels_are_inside_the_stages_that_wait_for_them(tmp_path, monkeypatch):
    sample = NeighborSampler.sample

    def loading(*args, **kwargs):
        with _compiling.loading():
            return sample(*args, **kwargs)

    monkeypatch.setattr(NeighborSampler, "sample", loading)
    loader, before = make_loader(num_workers=1), list(_compiling.watchers)
    with loader.trace(tmp_path / "t.json"):
        list(loader)
    list(loader)  # is traced no more
    assert _compiling.watchers == before
    events = checked(tmp_path / "t.json")
    inside = set()
    for span in spans(events, "sampling"):
        begin, end = nanoseconds(span)
        for load in spans(events, "kernels"):
            first, last = nanoseconds(load)
            if load["tid"] == span["tid"] and begin <= first <= last <= end:
                assert load["args"] == span["args"]
                inside.add(span["args"]["batch"])
    assert inside == set(range(7))


def test_a_read_that_is_told_late_encloses_the_kernels_that_it_loaded(tmp_path, monkeypatch):
    read_counted, tell = fields.read_counted, Tracing.read

    def loading(*args, **kwargs):
        with _compiling.loading():
            time.sleep(0.01)
        return read_counted(*args, **kwargs)

    def late(*args, **kwargs):
        time.sleep(0.005)
        return tell(*args, **kwargs)

    monkeypatch.setattr(fields, "read_counted", loading)
    monkeypatch.setattr(Tracing, "read", late)
    loader = make_loader(prefetch=0)
    with loader.trace(tmp_path / "t.json"):
        list(loader)
    assert spans(checked(tmp_path / "t.json"), "kernels")


def test_tracks(tmp_path, monkeypatch):
    """Work is in its thread's track, waiting and computing in the reader's, epochs in one of their
    own."""
    sample, worked = NeighborSampler.sample, set()

    def telling(*args, **kwargs):
        worked.add(threading.current_thread().name)
        return sample(*args, **kwargs)

    monkeypatch.setattr(NeighborSampler, "sample", telling)
    loader = make_loader(num_workers=2)
    with loader.trace(tmp_path / "t.json"):
        for _ in range(3):
            list(loader)
        while not worked >= {"pagraph-0", "pagraph-1"}:  # on a busy machine others may be faster
            list(loader)
    events = checked(tmp_path / "t.json")
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == sorted(
        ["epochs of loader", "pagraph-0", "pagraph-1", threading.current_thread().name]
    )
    where = defaultdict(set)
    for span in spans(events):
        where[span["name"]].add(names[span["tid"]])
    assert where["sampling"] & {"pagraph-0", "pagraph-1"}  # a reader that would wait works too
    assert where["computing"] == where["waiting"] == {threading.current_thread().name}
    assert where["epoch 0"] == where["epoch 2"] == {"epochs of loader"}
    assert names[threading.get_native_id()] == threading.current_thread().name
    assert {event["pid"] for event in events} == {os.getpid()}


def test_the_queue_is_counted(tmp_path, monkeypatch):
    count, two_wait = EpochTrace.depth, threading.Event()

    def depth(self, waiting, working):
        count(self, waiting, working)
        if waiting >= 2:
            two_wait.set()

    monkeypatch.setattr(EpochTrace, "depth", depth)
    loader = make_loader(num_workers=2, prefetch=2)
    with loader.trace(tmp_path / "t.json"):
        for _ in loader:
            assert two_wait.wait(HANGING)
    depths = counters(checked(tmp_path / "t.json"), "loader batches")
    assert all(depth["waiting"] + depth["in work"] <= 4 for depth in depths)
    assert max(depth["waiting"] for depth in depths) >= 2
    assert depths[-1] == {"waiting": 0, "in work": 0}


def test_no_queue_without_threads(tmp_path):
    loader = make_loader(prefetch=0)
    with loader.trace(tmp_path / "t.json"):
        list(loader)
    assert not counters(checked(tmp_path / "t.json"), "loader batches")


def test_a_broken_off_epoch_ends_where_it_was_left(tmp_path):
    loader = make_loader(prefetch=3)
    with loader.trace(tmp_path / "t.json") as tracer:
        for number, _ in enumerate(loader):
            if number == 2:
                break
        left = time.perf_counter_ns()
        tracer.add_to_stream("marks", "left", left, left + 1)
    events = checked(tmp_path / "t.json")
    (epoch,) = spans(events, "epoch 0")
    assert epoch["args"] == {"loader": "loader", "epoch": 0, "batches": 3}
    last = spans(events, "computing")[-1]
    assert last["args"]["batch"] == 2
    (mark,) = spans(events, "left")
    for span in (epoch, last):
        assert nanoseconds(span)[1] <= nanoseconds(mark)[0]
    assert counters(events, "loader batches")[-1] == {"waiting": 0, "in work": 0}


def test_an_exception_in_the_loop_still_writes_what_there_is(tmp_path):
    loader = make_loader(prefetch=0)
    batches = iter(loader)  # goes on living
    with pytest.raises(ZeroDivisionError), loader.trace(tmp_path / "t.json"):
        for number, _ in enumerate(batches):
            if number == 3:
                raise ZeroDivisionError
    events = checked(tmp_path / "t.json")
    stages = stages_by_batch(events)
    assert all(set(stages[batch]) >= STAGES for batch in range(4))
    assert spans(events, "epoch 0")[0]["args"]["unfinished"] is True


def test_an_exception_in_a_stage(tmp_path):
    graph = make_graph()

    class Failing(NeighborSampler):
        def sample(self, graph, seeds, key, **options):
            if 48 in seeds:
                raise ZeroDivisionError
            return super().sample(graph, seeds, key, **options)

    loader = Loader(graph, torch.arange(100), Failing([2]), batch_size=16, num_workers=2)
    with pytest.raises(ZeroDivisionError), loader.trace(tmp_path / "t.json"):
        list(loader)
    stages = stages_by_batch(checked(tmp_path / "t.json"))
    assert stages[3]["sampling"] == 1 and stages[3]["building"] == stages[3]["computing"] == 0


def test_a_resumed_epoch_goes_on_with_its_numbers(tmp_path):
    loader = make_loader()
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    del batches
    resumed = make_loader()
    resumed.load_state_dict(state)
    with resumed.trace(tmp_path / "t.json"):
        list(resumed)
    assert sorted(stages_by_batch(checked(tmp_path / "t.json"))) == [2, 3, 4, 5, 6]


def test_begun_and_stopped_in_the_middle_of_an_epoch(tmp_path):
    loader = make_loader(prefetch=1, num_workers=1)
    batches = iter(loader)
    next(batches)
    trace = loader.trace(tmp_path / "t.json")
    next(batches), next(batches)
    trace.stop()
    trace.stop()
    list(batches)
    events = checked(tmp_path / "t.json")
    assert {span["args"]["batch"] for span in spans(events, "waiting")} == {1, 2}
    assert len(spans(events, "epoch 0")) == 1
    with loader.trace(tmp_path / "second.json"):
        list(loader)
    assert sorted(stages_by_batch(checked(tmp_path / "second.json"), 1)) == list(range(7))


def test_two_epochs_at_once_have_tracks_of_their_own(tmp_path):
    loader = make_loader(prefetch=0)
    with loader.trace(tmp_path / "t.json"):
        for _ in zip(loader, loader, strict=True):
            time.sleep(0.001)
    events = checked(tmp_path / "t.json")
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"epochs of loader", "epochs of loader (2)"} <= names
    assert (
        sorted(stages_by_batch(events, 0)) == sorted(stages_by_batch(events, 1)) == list(range(7))
    )


def test_several_loaders_in_one_file(tmp_path):
    graph = make_graph()
    train, val = make_loader(graph), make_loader(graph)
    with train.trace(tmp_path / "t.json", label="train") as tracer:
        assert val.trace(tracer, label="val") is tracer
        list(train), list(val)
    events = checked(tmp_path / "t.json")
    labels = Counter(span["args"]["loader"] for span in spans(events, "sampling"))
    assert labels == {"train": 7, "val": 7}
    assert counters(events, "val batches")


def test_a_stream_is_a_track(tmp_path):
    with Tracer(tmp_path / "t.json") as tracer:
        begin = time.perf_counter_ns()
        tracer.add_to_stream("copies of cuda:0", "copying", begin, begin + 1234)
    events = checked(tmp_path / "t.json")
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ["copies of cuda:0"]
    assert [span["dur"] for span in spans(events, "copying")] == [1.234]


def test_reads_of_an_accelerator_are_told_with_their_hits_in_the_thread_that_asked_for_them(
    tmp_path,
):
    loader = make_loader(device=HostAccelerator(), cache="30%", transfer="staging")
    with loader.trace(tmp_path / "t.json"):
        list(loader)
    events = [
        e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"
    ]
    feat, stats = spans(events, "reading feat"), loader.stats.epochs[0].reads.fields["feat"]
    assert sorted(span["args"]["batch"] for span in feat) == list(range(7))
    assert sum(span["args"]["rows"] for span in feat) == stats.asked
    assert sum(span["args"]["hits"] for span in feat) == stats.hits > 0
    fetching = {span["args"]["batch"]: span for span in spans(events, "fetching")}
    for span in feat:
        around = fetching[span["args"]["batch"]]
        assert span["tid"] == around["tid"]
        assert (
            around["ts"] <= span["ts"] and span["ts"] + span["dur"] <= around["ts"] + around["dur"]
        )


def test_the_same_batches_with_a_trace(tmp_path):
    def nodes(loader):
        return [batch.input_nodes.tolist() for batch in loader]

    expected = nodes(make_loader())
    loader = make_loader()
    with loader.trace(tmp_path / "t.json"):
        assert nodes(loader) == expected


def test_compressed(tmp_path):
    loader = make_loader()
    with loader.trace(tmp_path / "t.json.gz"):
        list(loader)
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["droppedEvents"] == 0
    assert sorted(stages_by_batch(checked(tmp_path / "t.json.gz"))) == list(range(7))


def test_bounded(tmp_path):
    loader = make_loader()
    with Tracer(tmp_path / "t.json", max_events=20) as tracer:
        loader.trace(tracer)
        list(loader)
    events = checked(tmp_path / "t.json")
    assert len(spans(events)) <= 20 + 1  # and the epoch
    assert read_trace(tmp_path / "t.json")["droppedEvents"] > 50
    with pytest.raises(ValueError, match="max_events must be at least 1, got 0"):
        Tracer(tmp_path / "t.json", max_events=0)


class TestEnd:
    def test_written_when_the_loader_goes(self, tmp_path):
        loader = make_loader()
        loader.trace(tmp_path / "t.json")
        list(loader)
        assert names_in(tmp_path) == []
        del loader
        assert sorted(stages_by_batch(checked(tmp_path / "t.json"))) == list(range(7))

    @pytest.mark.processes
    @pytest.mark.parametrize("end", ["", "1 / 0"])
    def test_written_at_exit(self, tmp_path, end):
        script = f"""
            import torch
            from pagraph import Graph, Loader, NeighborSampler, _compiling
            graph = Graph.from_coo([0, 1, 2], [1, 2, 3])
            loader = Loader(graph, torch.arange(4), NeighborSampler([2]), num_workers=1)
            loader.trace({str(tmp_path / "t.json")!r})
            batches = iter(loader)
            next(batches)
            {end}
        """
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            stderr=subprocess.DEVNULL,
            timeout=HANGING,
        )
        assert 0 in stages_by_batch(checked(tmp_path / "t.json"))
        assert names_in(tmp_path) == ["t.json"]

    def test_not_by_a_forked_process(self, tmp_path):
        loader = make_loader(prefetch=0)
        trace = loader.trace(tmp_path / "t.json")
        list(loader)
        child = os.fork()
        if child == 0:
            trace.stop()
            os._exit(0 if names_in(tmp_path) == [] else 1)
        assert os.waitpid(child, 0)[1] == 0
        trace.stop()
        assert names_in(tmp_path) == ["t.json"]

    def test_a_stopped_trace_takes_no_loader(self, tmp_path):
        loader = make_loader()
        trace = loader.trace(tmp_path / "t.json")
        trace.stop()
        with pytest.raises(PipelineError, match="must not have been stopped"):
            loader.trace(trace)
        list(loader)

    def test_the_old_file_stays_until_the_new_one_is_there(self, tmp_path):
        path = tmp_path / "t.json"
        path.write_text("old")
        loader = make_loader()
        with loader.trace(path):
            list(loader)
            assert path.read_text() == "old"
        checked(path)


class TestBadInput:
    def refuse(self, path, error, message):
        loader = make_loader()
        with pytest.raises(error, match=message):
            loader.trace(path)
        assert len(list(loader)) == 7

    def test_missing_folder(self, tmp_path):
        self.refuse(
            tmp_path / "no" / "t.json",
            FileNotFoundError,
            "trace must be in a folder that exists, got '/.*no/t",
        )
        assert names_in(tmp_path) == []

    def test_folder(self, tmp_path):
        self.refuse(tmp_path, IsADirectoryError, "trace must be a file, got the folder")

    def test_below_a_file(self, tmp_path):
        (tmp_path / "file").touch()
        self.refuse(
            tmp_path / "file" / "t.json",
            NotADirectoryError,
            "trace must be in a folder that exists",
        )

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_no_permission(self, tmp_path):
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        self.refuse(tmp_path / "t.json", PermissionError, "trace must be writable")

    def test_a_place_where_not_even_root_may_write(self):
        if not os.path.isdir("/proc/self"):
            pytest.skip("needs /proc")
        self.refuse("/proc/self/t.json", OSError, "trace must")

    def test_two_traces_of_one_loader(self, tmp_path):
        loader = make_loader()
        with loader.trace(tmp_path / "a.json"):
            with pytest.raises(
                PipelineError, match=r"one trace at a time, this one is traced to .*a\.json"
            ):
                loader.trace(tmp_path / "b.json")
            list(loader)
        assert names_in(tmp_path) == ["a.json"]

    DAMAGED = gzip.compress(b'{"traceEvents": []}', mtime=0)[:10] + b"\xff" * 20

    @pytest.mark.parametrize(
        "content", [b"", b"{", b"[1", b"3", b'{"a": 1}', b"\x1f\x8b\x08\x00rubbish", DAMAGED]
    )
    def test_what_is_no_trace(self, tmp_path, content):
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(FormatError, match="must be a trace"):
            read_trace(tmp_path / "t")

    def test_nothing_to_merge(self, tmp_path):
        with pytest.raises(ValueError, match="paths must be at least one trace, got none"):
            merge_traces(out=tmp_path / "t")


class TestWithTorchProfiler:
    def test_both_lie_on_one_axis(self, tmp_path):
        """The same few milliseconds, seen by both: between two next() of the loop, in the reader's
        thread."""
        loader = make_loader(prefetch=0)
        with (
            loader.trace(tmp_path / "ours.json"),
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler,
        ):
            for _ in loader:
                with torch.profiler.record_function("step"):
                    time.sleep(0.005)
        profiler.export_chrome_trace(str(tmp_path / "theirs.json"))
        merge_traces(
            tmp_path / "ours.json", tmp_path / "theirs.json", out=tmp_path / "both.json.gz"
        )
        events = read_trace(tmp_path / "both.json.gz")["traceEvents"]
        computing = spans(events, "computing")
        steps = [span for span in spans(events, "step") if span["cat"] == "user_annotation"]
        assert len(computing) == len(steps) == 7
        apart = []
        for ours, theirs in zip(computing, steps, strict=True):
            assert (ours["pid"], ours["tid"]) == (theirs["pid"], theirs["tid"])
            assert ours["ts"] - 5000 < theirs["ts"]  # microseconds
            assert theirs["ts"] + theirs["dur"] < ours["ts"] + ours["dur"] + 5000
            apart.append(abs(ours["ts"] - theirs["ts"]))
        assert min(apart) < 5000  # a busy machine may hold the thread up between the two begins

    def test_other_bases_are_shifted(self, tmp_path):
        event = {"ph": "X", "name": "a", "ts": 5.0, "dur": 1.0}
        for name, trace in {
            "new": {
                "baseTimeNanoseconds": 7000,
                "traceEvents": [event, {"ph": "M", "name": "process_name"}],
            },
            "without": {"traceEvents": [event | {"ts": 12.5}]},  # a base: 1970
            "list": [event],
        }.items():
            (tmp_path / name).write_text(json.dumps(trace))
        merge_traces(
            *(tmp_path / name for name in ("new", "without", "list")), out=tmp_path / "out"
        )
        merged = read_trace(tmp_path / "out")
        assert merged["baseTimeNanoseconds"] == 7000
        assert [e.get("ts") for e in merged["traceEvents"]] == [5.0, None, 5.5, -2.0]
