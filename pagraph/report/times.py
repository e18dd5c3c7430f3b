"""Stage times of measured epochs: stacked bars, a verdict, and a timeline of one epoch's first
batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..stats import read_trace
from ..system.tables import element, row
from ..system.units import percent
from .markup import STAGE_STYLES, Drawing, bar, round_ticks

if TYPE_CHECKING:
    from ..profile import LoadingTimes

__all__ = ["READER", "WORKERS", "Span", "read_spans", "time_bars", "timeline", "verdict"]

READER = ("waiting", "filling", "copying", "computing")
"""The stages of the training loop: with "other" they make up the epoch."""

WORKERS = ("sampling", "gathering")
"""The stages of the loader's threads, while the training loop computes."""

_KEEPS_UP = 0.1


def time_bars(loading: LoadingTimes) -> str:
    """A verdict, the key, and two bars for each epoch: the training loop, and the loader's
    threads."""
    bars = []
    for epoch in loading.epochs:
        reader = {stage: epoch.stages[stage] for stage in READER}
        reader["other"] = max(0.0, epoch.seconds - sum(reader.values()))
        bars.append((f"epoch {epoch.epoch + 1}: training loop", reader))
        bars.append(
            ("loader's threads, added up", {stage: epoch.stages[stage] for stage in WORKERS})
        )
    most = max(sum(seconds.values()) for _, seconds in bars) or 1.0
    rows = []
    for name, seconds in bars:
        drawn = element("td", _stage_bar(seconds, most), class_="bar")
        rows.append(row(escape(name), [f"{sum(seconds.values()):.3f} s"], drawn))
    note = (
        "The threads' bar adds up all threads, so it may be longer than the epoch. The first epoch "
        "also compiles "
        "kernels and fills the cache."
    )
    if step := loading.settings.get("step"):
        note += (
            f" Computing is {step}, a stand-in for your model: with a larger one, the training "
            "loop waits less."
        )
    return (
        element("p", escape(verdict(loading)))
        + _stage_key([*READER, "other", *WORKERS])
        + element("table", element("tbody", "".join(rows)), class_="numbers times")
        + element("p", escape(note), class_="soft")
    )


def _stage_key(stages: Sequence[str]) -> str:
    """Legend of the stages' colours."""
    items = ""
    for stage in stages:
        patch = element("rect", width=14, height=14, rx=3, class_=f"stage-{stage}")
        items += element("li", element("svg", patch, viewBox="0 0 14 14") + stage)
    return element("ul", items, class_="stages")


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
    cure = "a larger cache" if slow == "gathering" else "more sampling threads or a smaller fan-out"
    return f"{text}. Most of the loader's time goes into {slow}: {cure} would help."


def _stage_bar(seconds: Mapping[str, float], most: float) -> str:
    parts, x = [], 0.0
    for stage, value in seconds.items():
        width = 100 * value / most
        title = element("title", f"{stage}: {value:.3f} s")
        parts.append(
            element("rect", title, x=x, y=0, width=width, height=10, class_=f"stage-{stage}")
        )
        x += width
    return bar("".join(parts))


assert set(STAGE_STYLES) == {*READER, *WORKERS, "other"}

_WIDTH, _LANE, _LABEL, _AXIS, _MARGIN = 960.0, 20.0, 22.0, 34.0, 8.0
_NARROW = 0.15  # units of the drawing: thinner spans are left out
_READER = frozenset({"waiting", "computing"})
# From the stages of a trace, those of the loader's statistics, to those that the bars of an epoch
# have.
_STAGES = {
    "sampling": "sampling",
    "fetching": "gathering",
    "filling": "filling",
    "waiting": "waiting",
}
_STAGES |= {"building": "other", "copying": "copying", "computing": "computing"}


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
    """Read the stages in a trace file of ``loader.trace``; everything else in it is ignored.

    Args:
        path: The file.
        copies: Whether batches went to another device: then delivering them is "copying", else
            "other".

    Raises:
        OSError, FormatError: The file cannot be read, or is no trace.
    """
    events = read_trace(path)["traceEvents"]
    names = {
        (e.get("pid"), e.get("tid")): e["args"]["name"]
        for e in events
        if e.get("name") == "thread_name"
    }
    stages = _STAGES | ({"building": "copying"} if copies else {})
    return [
        _span(e, names, stages[e["name"]])
        for e in events
        if e.get("ph") == "X" and e.get("name") in stages
    ]


def _span(event: dict[str, Any], names: dict[Any, str], stage: str) -> Span:
    lane = names.get((event.get("pid"), event.get("tid")), f"thread {event.get('tid')}")
    begin, args = event["ts"] / 1e6, event.get("args", {})
    end = begin + event["dur"] / 1e6
    return Span(lane, stage, begin, end, args.get("epoch", -1), args.get("batch", -1))


def timeline(spans: Sequence[Span], *, batches: int = 10) -> str:
    """Draw the last epoch's first batches, a lane for each thread; empty text where there are none.

    In the first epoch kernels are compiled and the cache is filled.
    """
    epoch = max((span.epoch for span in spans), default=-1)
    first = [
        span
        for span in spans
        if span.epoch == epoch and 0 <= span.batch < batches and span.stage != "filling"
    ]
    if not first:
        return ""
    begin, end = min(span.begin for span in first), max(span.end for span in first)
    shown = [span for span in spans if span.end > begin and span.begin < end]
    # The training loop's lane comes first.
    readers = {span.lane for span in shown if span.stage in _READER}
    lanes = sorted({span.lane for span in shown}, key=lambda lane: (lane not in readers, lane))
    height = len(lanes) * (_LANE + _LABEL) + _AXIS + _MARGIN
    label = f"What {len(lanes)} threads do during {end - begin:.3f} seconds of epoch {epoch}"
    drawing = Drawing(_WIDTH, height, label=label, class_="timeline")
    _axis(drawing, end - begin, height - _AXIS)
    scale = (_WIDTH - 2 * _MARGIN) / (end - begin or 1.0)
    for place, lane in enumerate(lanes):
        top = _MARGIN + place * (_LANE + _LABEL)
        name = f"training loop ({lane})" if lane in readers else f"loader's thread {lane}"
        drawing.text(_MARGIN, top + _LABEL - 5, name)
        drawing.add(
            "rect",
            x=_MARGIN,
            y=top + _LABEL,
            width=_WIDTH - 2 * _MARGIN,
            height=_LANE,
            class_="lane",
        )
        for span in sorted((s for s in shown if s.lane == lane), key=lambda s: s.begin - s.end):
            _rect(drawing, span, begin, end, scale, top + _LABEL)
    return str(drawing)


def _rect(drawing: Drawing, span: Span, begin: float, end: float, scale: float, top: float) -> None:
    left, right = max(span.begin, begin), min(span.end, end)
    if (right - left) * scale < _NARROW:
        return
    batch = "" if span.batch < 0 else f", batch {span.batch}"
    title = element(
        "title", escape(f"{span.stage}{batch}: {(span.end - span.begin) * 1000:.2f} ms")
    )
    x, width = _MARGIN + (left - begin) * scale, (right - left) * scale
    drawing.add(
        "rect", title, x=x, y=top, width=width, height=_LANE, class_=f"span stage-{span.stage}"
    )
    if span.batch >= 0 and width > 9 + 7 * len(str(span.batch)) and span.stage != "waiting":
        drawing.text(
            x + width / 2, top + _LANE - 6, str(span.batch), text_anchor="middle", class_="on-span"
        )


def _axis(drawing: Drawing, seconds: float, top: float) -> None:
    scale = (_WIDTH - 2 * _MARGIN) / (seconds or 1.0)
    for tick in round_ticks(seconds * 1000, most=9):
        x = _MARGIN + tick / 1000 * scale
        drawing.add("line", x1=x, x2=x, y1=_MARGIN, y2=top + 4, class_="grid")
        anchor = "start" if tick == 0 else "end" if x > _WIDTH - 40 else "middle"
        drawing.text(x, top + 19, f"{tick:g} ms", text_anchor=anchor)
