"""The first batches of an epoch on a time axis: a lane for each thread, from a trace that a loader wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ..pipeline import read_trace
from .svg import Drawing, element, round_ticks

__all__ = ["Span", "read_spans", "timeline"]

_WIDTH, _LANE, _LABEL, _AXIS, _MARGIN = 960.0, 20.0, 22.0, 34.0, 8.0
_NARROW = 0.15  # units of the drawing: thinner spans are left out
_READER = frozenset({"waiting", "computing"})
# A trace has the stages of the loader's statistics; people get the words that the bars of an epoch have.
_STAGES = {
    **{name: name for name in ("sampling", "filling", "waiting", "copying", "computing")},
    "fetching": "gathering",
    "building": "other",
}


@dataclass(frozen=True)
class Span:
    """One stage of one batch on one thread.

    Attributes:
        lane: The thread's name.
        stage: See ``pagraph.profile.loading.LOADING_STAGES``, or "other".
        begin: Seconds.
        end: Seconds.
        epoch: Number of the epoch; -1 where it is not known.
        batch: Number of the batch in its epoch; -1 where it is not known.
    """

    lane: str
    stage: str
    begin: float
    end: float
    epoch: int = -1
    batch: int = -1


def read_spans(path: str | Path, *, copies: bool = False) -> list[Span]:
    """The stages in a trace file of ``loader.trace``; everything else in it is passed over.

    Args:
        path: The file.
        copies: Whether batches went to another device: then delivering them is "copying", else "other".

    Raises:
        OSError: The file cannot be read.
        FormatError: It is no trace.
    """
    events = read_trace(path)["traceEvents"]
    names = {(e.get("pid"), e.get("tid")): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    stages = _STAGES | ({"building": "copying"} if copies else {})
    return [_span(e, names, stages[e["name"]]) for e in events if e.get("ph") == "X" and e.get("name") in stages]


def _span(event: dict[str, Any], names: dict[Any, str], stage: str) -> Span:
    lane = names.get((event.get("pid"), event.get("tid")), f"thread {event.get('tid')}")
    begin, args = event["ts"] / 1e6, event.get("args", {})
    end = begin + event["dur"] / 1e6
    return Span(lane, stage, begin, end, args.get("epoch", -1), args.get("batch", -1))


def timeline(spans: Sequence[Span], *, batches: int = 10) -> str:
    """The last epoch's first batches as a drawing; empty text where there is nothing to show.

    The last epoch, because in the first one kernels are compiled and the cache is filled.
    """
    epoch = max((span.epoch for span in spans), default=-1)
    first = [span for span in spans if span.epoch == epoch and 0 <= span.batch < batches and span.stage != "filling"]
    if not first:
        return ""
    begin, end = min(span.begin for span in first), max(span.end for span in first)
    shown = [span for span in spans if span.end > begin and span.begin < end]
    lanes = sorted({span.lane for span in shown}, key=lambda lane: _lane_order(lane, shown))
    height = len(lanes) * (_LANE + _LABEL) + _AXIS + _MARGIN
    label = f"What {len(lanes)} threads do during {end - begin:.3f} seconds of epoch {epoch}"
    drawing = Drawing(_WIDTH, height, label=label, class_="timeline")
    _axis(drawing, end - begin, height - _AXIS)
    scale = (_WIDTH - 2 * _MARGIN) / (end - begin or 1.0)
    for row, lane in enumerate(lanes):
        top = _MARGIN + row * (_LANE + _LABEL)
        reads = _reads(lane, shown)
        drawing.text(_MARGIN, top + _LABEL - 5, f"training loop ({lane})" if reads else f"loader's thread {lane}")
        drawing.add("rect", x=_MARGIN, y=top + _LABEL, width=_WIDTH - 2 * _MARGIN, height=_LANE, class_="lane")
        for span in sorted((s for s in shown if s.lane == lane), key=lambda s: s.begin - s.end):
            _rect(drawing, span, begin, end, scale, top + _LABEL)
    return str(drawing)


def _lane_order(lane: str, spans: Sequence[Span]) -> tuple[bool, str]:
    """The training loop first, then the loader's threads by name."""
    return not _reads(lane, spans), lane


def _reads(lane: str, spans: Sequence[Span]) -> bool:
    """Whether this thread is the one that the batches are for."""
    return any(span.lane == lane and span.stage in _READER for span in spans)


def _rect(drawing: Drawing, span: Span, begin: float, end: float, scale: float, top: float) -> None:
    left, right = max(span.begin, begin), min(span.end, end)
    if (right - left) * scale < _NARROW:
        return
    batch = "" if span.batch < 0 else f", batch {span.batch}"
    title = element("title", escape(f"{span.stage}{batch}: {(span.end - span.begin) * 1000:.2f} ms"))
    x, width = _MARGIN + (left - begin) * scale, (right - left) * scale
    drawing.add("rect", title, x=x, y=top, width=width, height=_LANE, class_=f"span stage-{span.stage}")
    if span.batch >= 0 and width > 9 + 7 * len(str(span.batch)) and span.stage != "waiting":
        drawing.text(x + width / 2, top + _LANE - 6, str(span.batch), text_anchor="middle", class_="on-span")


def _axis(drawing: Drawing, seconds: float, top: float) -> None:
    scale = (_WIDTH - 2 * _MARGIN) / (seconds or 1.0)
    for tick in round_ticks(seconds * 1000, most=9):
        x = _MARGIN + tick / 1000 * scale
        drawing.add("line", x1=x, x2=x, y1=_MARGIN, y2=top + 4, class_="grid")
        anchor = "start" if tick == 0 else "end" if x > _WIDTH - 40 else "middle"
        drawing.text(x, top + 19, f"{tick:g} ms", text_anchor=anchor)
