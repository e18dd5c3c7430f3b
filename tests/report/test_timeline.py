import gzip
import itertools
import json
import xml.etree.ElementTree as ElementTree

import pytest

from pagraph import FormatError
from pagraph.report.times import Span, read_spans, timeline


def test_shows_the_last_epoch_by_thread(spans):
    shown = timeline(spans)
    assert list(shown.lanes) == [
        "training loop (MainThread)",
        "loader's thread (worker-0)",
        "loader's thread (worker-1)",
    ]
    assert (shown.epoch, shown.end - shown.begin) == (1, pytest.approx(0.4))
    assert sum(map(len, shown.lanes.values())) == 16


def test_shows_only_the_first_batches(spans):
    shown = timeline(spans, batches=2)
    assert shown.end - shown.begin == pytest.approx(0.2)
    assert sum(map(len, shown.lanes.values())) == 8


def test_waiting_for_no_batch_does_not_stretch_it(spans):
    late = Span("MainThread", "waiting", 1.5, 2.5, 1, -1)
    shown = timeline([*spans, late], batches=2)
    assert shown.end - shown.begin == pytest.approx(0.2)


def test_nothing_to_show():
    assert timeline([]) is None
    assert timeline([Span("main", "filling", 0.0, 1.0, 0, 0)]) is None


def bars_by_lane(spans):
    """Begin and end of each bar of the drawing, in milliseconds, by lane."""
    pytest.importorskip("matplotlib")
    from pagraph.report.plot import timeline_figure

    (axes,) = timeline_figure(timeline(spans)).axes
    lanes = {}
    for bar in axes.patches:
        lanes.setdefault(bar.get_y(), []).append((bar.get_x(), bar.get_x() + bar.get_width()))
    return lanes, axes.get_xlim()


def test_spans_of_a_lane_do_not_overlap_and_stay_inside(spans):
    # A wait that began before the first batch is cut.
    early = Span("MainThread", "waiting", 0.9, 1.01, 1, -1)
    lanes, (left, right) = bars_by_lane([*spans, early])
    assert len(lanes) == 3
    assert all(
        left <= begin <= end <= right + 1e-6 for bars in lanes.values() for begin, end in bars
    )
    for bars in bars_by_lane(spans)[0].values():
        bars.sort()
        assert all(end <= begin + 0.02 for (_, end), (begin, _) in itertools.pairwise(bars))


def test_spans_say_what_they_are_where_one_points(spans):
    pytest.importorskip("matplotlib")
    from pagraph.report.plot import timeline_figure
    from pagraph.report.style import svg_figure

    _, drawing = svg_figure(lambda: timeline_figure(timeline(spans)))
    titles = [t.text for t in ElementTree.fromstring(drawing).iter("title")]
    assert len(titles) == 16
    assert titles.count("gathering, batch 3: 40.00 ms") == 1


@pytest.mark.parametrize("compress", [False, True])
def test_reads_a_trace(tmp_path, compress):
    events = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "args": {"name": "pagraph-0"}},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "pagraph"}},
        {
            "ph": "X",
            "name": "sampling",
            "pid": 1,
            "tid": 7,
            "ts": 5e6,
            "dur": 250.0,
            "args": {"epoch": 0, "batch": 3},
        },
        {"ph": "X", "name": "fetching", "pid": 1, "tid": 9, "ts": 6e6, "dur": 500.0},
        {"ph": "X", "name": "building", "pid": 1, "tid": 9, "ts": 7e6, "dur": 50.0},
        {
            "ph": "X",
            "name": "reading feat",
            "pid": 1,
            "tid": 9,
            "ts": 6e6,
            "dur": 400.0,
            "args": {},
        },
        {"ph": "C", "name": "batches", "pid": 1, "tid": 0, "ts": 6e6, "args": {"waiting": 1}},
    ]
    text = json.dumps({"traceEvents": events}).encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text) if compress else text)
    sampling, gathering, building = read_spans(path)
    assert (sampling.lane, sampling.stage, sampling.epoch, sampling.batch) == (
        "pagraph-0",
        "sampling",
        0,
        3,
    )
    assert sampling.end - sampling.begin == pytest.approx(250e-6)
    assert (gathering.lane, gathering.stage, gathering.batch) == ("thread 9", "gathering", -1)
    assert (building.stage, read_spans(path, copies=True)[2].stage) == ("other", "copying")


def test_refuses_what_is_no_trace(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"curve": []}')
    with pytest.raises(FormatError, match="must be a trace"):
        read_spans(path)
