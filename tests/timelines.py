"""Reading traces in tests, with the rules of their format."""

from collections import Counter, defaultdict

from pagraph.stats import read_trace


def nanoseconds(event):
    """Begin and end, exactly: the file has three digits behind the point."""
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event.get("dur", 0) * 1000)


def checked(path):
    """The events of a trace, after seeing that it is one."""
    trace = read_trace(path)
    assert trace["baseTimeNanoseconds"] % 7_889_238_000_000_000 == 0
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} <= {"M", "X", "C"}
    assert all(isinstance(event["pid"], int) for event in events)
    timed = [event for event in events if event["ph"] != "M"]
    assert [nanoseconds(e)[0] for e in timed] == sorted(nanoseconds(e)[0] for e in timed)
    assert all(event["ts"] > 0 and event.get("dur", 0) >= 0 for event in timed)
    named = {e["tid"] for e in events if e["name"] == "thread_name"}
    tracks = defaultdict(list)
    for event in timed:
        if event["ph"] == "X":
            tracks[event["tid"]].append(event)
        else:
            assert all(value >= 0 for value in event["args"].values()), event
    assert set(tracks) <= named
    for spans in tracks.values():
        open_ends = []
        for span in spans:  # begin first, so a span comes after those around it
            begin, end = nanoseconds(span)
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], f"overlaps in part: {span}"
            open_ends.append(end)
    return events


def spans(events, name=None):
    return [
        event for event in events if event["ph"] == "X" and (name is None or event["name"] == name)
    ]


def stages_by_batch(events, epoch=0):
    """How often each batch went through each stage, but for the filling of caches, which is of no
    batch, and the loading of kernels, which any test before may have done."""
    stages = defaultdict(Counter)
    for span in spans(events):
        of_epoch = "batch" in span["args"] and span["args"]["epoch"] == epoch
        if of_epoch and span["name"] not in ("filling", "kernels"):
            stages[span["args"]["batch"]][span["name"]] += 1
    return stages


def counters(events, name):
    return [event["args"] for event in events if event["ph"] == "C" and event["name"] == name]
