"""Stage times of measured epochs: a verdict in words, and the spans of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..stats import read_trace
from ..system.units import percent

if TYPE_CHECKING:
    from ..profile import LoadingTimes

READER = ("waiting", "filling", "copying", "computing")
"""The stages of the training loop. Together with "other" they make up the epoch without kernels."""

WORKERS = ("sampling", "gathering")
"""The stages of the loader's threads, which run while the training loop computes."""

# A training loop that waits for less than this share of an epoch gains little from faster loading.
_KEEPS_UP = 0.1
# The shortest span that is drawn, as a share of the time shown: a sixth of a pixel. A page with
# thousands of thinner spans would take seconds to open.
_NARROWEST = 1 / 6000
# A stage's name in a trace and in the loader's statistics, to its name in a profile.
_STAGES = {
    "sampling": "sampling",
    "fetching": "gathering",
    "filling": "filling",
    "waiting": "waiting",
    "building": "other",
    "copying": "copying",
    "computing": "computing",
    "kernels": "kernels",
}


def epoch_bars(loading: LoadingTimes) -> dict[str, dict[str, float]]:
    """Two bars for each epoch, of seconds by stage: the training loop, and the loader's threads."""
    bars = {}
    for epoch in loading.epochs:
        reader = {stage: epoch.stages[stage] for stage in READER}
        # The clocks of stages and epoch are read one after the other, so that this may be negative.
        reader["other"] = max(0.0, epoch.seconds - sum(reader.values()))
        reader["kernels"] = epoch.stages["kernels"]
        bars[f"epoch {epoch.epoch + 1}: training loop"] = reader
        workers = {stage: epoch.stages[stage] for stage in WORKERS}
        bars[f"epoch {epoch.epoch + 1}: loader's threads"] = workers
    return bars


def verdict(loading: LoadingTimes) -> str:
    """Say whether loading keeps up with computing, from the medians of the epochs."""
    median = loading.medians
    epoch = median["epoch"] or 1.0
    waits = median["waiting"] / epoch
    text = (
        f"An epoch takes {epoch:.3f} s; the training loop waits for batches {percent(waits)} of it"
    )
    if not loading.settings.get("computes"):
        return f"{text} (nothing was computed, so this is loading alone)."
    if waits < _KEEPS_UP:
        return f"{text}: loading keeps up with computing."
    slow = max(WORKERS, key=lambda stage: median[stage])
    cure = "more sampling threads or a smaller fan-out"
    if slow == "gathering":
        cure = "a larger cache"
    return f"{text}. Most of the loader's time goes into {slow}: {cure} would help."


@dataclass(frozen=True)
class Span:
    """One stage of one batch on one thread.

    Attributes:
        lane: The thread's name.
        stage: One of ``pagraph.profile.LOADING_STAGES``, or "other".
        begin, end: Seconds.
        epoch, batch: Number of the epoch, and of the batch in it; -1 where not known.
    """

    lane: str
    stage: str
    begin: float
    end: float
    epoch: int = -1
    batch: int = -1


def read_spans(path: str | Path, *, copies: bool = False) -> list[Span]:
    """Read the stages in a trace file of ``loader.trace``, and ignore everything else.

    Args:
        path: The file.
        copies: Whether batches went to another device. If so, delivering them is "copying", or else
            "other".

    Raises:
        OSError, FormatError: The file cannot be read, or is not a trace.
    """
    events = read_trace(path)["traceEvents"]
    names = {_track(e): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    stages = dict(_STAGES)
    if copies:
        stages["building"] = "copying"
    spans = [e for e in events if e.get("ph") == "X"]
    return [_span(e, names, stages[e["name"]]) for e in spans if e.get("name") in stages]


def _track(event: dict[str, Any]) -> tuple[Any, Any]:
    return event.get("pid"), event.get("tid")


def _span(event: dict[str, Any], names: dict[Any, str], stage: str) -> Span:
    lane = names.get(_track(event), f"thread {event.get('tid')}")
    begin = event["ts"] / 1e6  # a trace counts microseconds
    end = begin + event["dur"] / 1e6
    args = event.get("args", {})
    return Span(lane, stage, begin, end, args.get("epoch", -1), args.get("batch", -1))


@dataclass(frozen=True)
class Timeline:
    """The first batches of an epoch, thread by thread.

    Attributes:
        epoch: Number of the epoch.
        begin, end: Seconds of the first and the last moment shown.
        lanes: Name of each thread to its spans, the training loop's first. Spans inside others come
            after these.
    """

    epoch: int
    begin: float
    end: float
    lanes: dict[str, list[Span]]


def timeline(spans: Sequence[Span], *, batches: int = 10) -> Timeline | None:
    """Choose what to show of the last epoch; None if no batch of it is known.

    The last, as the first one compiles kernels and fills the cache.
    """
    epoch = max((span.epoch for span in spans), default=-1)
    last = [span for span in spans if span.epoch == epoch and 0 <= span.batch < batches]
    first = [span for span in last if span.stage != "filling"]
    if not first:
        return None
    begin = min(span.begin for span in first)
    end = max(span.end for span in first)
    least = (end - begin) * _NARROWEST
    shown = [span for span in spans if min(span.end, end) - max(span.begin, begin) > least]
    readers = {span.lane for span in shown if span.stage in ("waiting", "computing")}
    lanes: dict[str, list[Span]] = {}
    # The longest first, so that spans inside others are drawn on top.
    shown.sort(key=lambda span: (span.lane not in readers, span.lane, span.begin - span.end))
    for span in shown:
        kind = "training loop" if span.lane in readers else "loader's thread"
        lanes.setdefault(f"{kind} ({span.lane})", []).append(span)
    return Timeline(epoch, begin, end, lanes)
