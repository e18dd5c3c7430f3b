import gzip
import json
import xml.etree.ElementTree as ElementTree

import pytest

from pagraph import FormatError
from pagraph.report.times import Span, read_spans, timeline


def rects(drawing):
    return [r for r in ElementTree.fromstring(drawing).iter("rect") if "span" in r.get("class")]


def test_shows_the_last_epoch_by_thread(spans):
    drawing = ElementTree.fromstring(timeline(spans))
    words = [t.text for t in drawing.iter("text")]
    lanes = [word for word in words if "thread" in word.lower()]
    assert lanes == [
        "training loop (MainThread)",
        "loader's thread worker-0",
        "loader's thread worker-1",
    ]
    assert "during 0.400 seconds of epoch 1" in drawing.get("aria-label")
    assert len(rects(timeline(spans))) == 16


def test_spans_of_a_lane_do_not_overlap_and_stay_inside(spans):
    drawing = ElementTree.fromstring(timeline(spans))
    width = float(drawing.get("viewBox").split()[2])
    lanes = {}
    for rect in rects(timeline(spans)):
        begin = float(rect.get("x"))
        lanes.setdefault(rect.get("y"), []).append((begin, begin + float(rect.get("width"))))
    assert len(lanes) == 3
    for places in lanes.values():
        places.sort()
        assert places[0][0] >= 0 and places[-1][1] <= width
        assert all(
            end <= begin + 0.02 for (_, end), (begin, _) in zip(places, places[1:], strict=False)
        )


def test_shows_only_the_first_batches(spans):
    assert "during 0.200 seconds" in timeline(spans, batches=2)
    assert len(rects(timeline(spans, batches=2))) == 8


def test_waiting_for_no_batch_does_not_stretch_it(spans):
    late = Span("MainThread", "waiting", 1.5, 2.5, 1, -1)
    assert "during 0.200 seconds" in timeline([*spans, late], batches=2)


def test_nothing_to_show():
    assert timeline([]) == ""
    assert timeline([Span("main", "filling", 0.0, 1.0, 0, 0)]) == ""


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
