"""Where the time of measured epochs went, as stacked bars for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from .colors import STAGE_STYLES
from .svg import element
from .words import percent

if TYPE_CHECKING:
    from .loading import EpochTimes, LoadingTimes

__all__ = ["READER", "WORKERS", "stage_key", "time_bars", "verdict"]

READER = ("waiting", "filling", "copying", "computing")
"""The stages of the training loop: with "other" they make up the epoch."""

WORKERS = ("sampling", "gathering")
"""The stages of the loader's threads, while the training loop computes."""

_KEEPS_UP = 0.1


def time_bars(loading: LoadingTimes) -> str:
    """A verdict, the key, and two bars for each epoch: the training loop, and the loader's threads."""
    bars = [bar for epoch in loading.epochs for bar in _bars_of(epoch)]
    most = max(sum(seconds.values()) for _, seconds in bars) or 1.0
    body = "".join(
        element(
            "tr",
            element("th", escape(name), scope="row")
            + element("td", f"{sum(seconds.values()):.3f} s")
            + element("td", _bar(seconds, most), class_="bar"),
        )
        for name, seconds in bars
    )
    note = (
        "The threads' bar adds up all threads, so it may be longer than the epoch. The first epoch also compiles "
        "kernels and fills the cache."
    )
    if step := loading.settings.get("step"):
        note += f" Computing is {step}, a stand-in for your model: with a larger one, the training loop waits less."
    return (
        element("p", escape(verdict(loading)))
        + stage_key([*READER, "other", *WORKERS])
        + element("table", element("tbody", body), class_="numbers times")
        + element("p", escape(note), class_="soft")
    )


def stage_key(stages: Sequence[str]) -> str:
    """What the colours mean."""
    items = "".join(
        element(
            "li",
            element("svg", element("rect", width=14, height=14, rx=3, class_=f"stage-{s}"), viewBox="0 0 14 14") + s,
        )
        for s in stages
    )
    return element("ul", items, class_="stages")


def verdict(loading: LoadingTimes) -> str:
    """Whether loading keeps up with computing, in words, from the medians of the epochs."""
    median = loading.medians
    epoch = median["epoch"] or 1.0
    waits = median["waiting"] / epoch
    text = f"An epoch takes {epoch:.3f} s; the training loop waits for batches {percent(waits)} of it"
    if not loading.settings.get("computes"):
        return f"{text} (nothing was computed, so this is loading alone)."
    if waits < _KEEPS_UP:
        return f"{text}: loading keeps up with computing."
    slow = max(WORKERS, key=lambda stage: median[stage])
    cures = {
        "sampling": "more sampling threads or a smaller fan-out would help",
        "gathering": "a larger cache would help",
    }
    return f"{text}. Most of the loader's time goes into {slow}: {cures[slow]}."


def _other_seconds(epoch: EpochTimes) -> float:
    """What the stages of the training loop leave of the epoch."""
    return max(0.0, epoch.seconds - sum(epoch.stages[stage] for stage in READER))


def _bars_of(epoch: EpochTimes) -> list[tuple[str, dict[str, float]]]:
    reader = {stage: epoch.stages[stage] for stage in READER} | {"other": _other_seconds(epoch)}
    workers = {stage: epoch.stages[stage] for stage in WORKERS}
    return [(f"epoch {epoch.epoch + 1}: training loop", reader), ("loader's threads, added up", workers)]


def _bar(seconds: Mapping[str, float], most: float) -> str:
    parts, x = [], 0.0
    for stage, value in seconds.items():
        width = 100 * value / most
        title = element("title", f"{stage}: {value:.3f} s")
        parts.append(element("rect", title, x=x, y=0, width=width, height=10, class_=f"stage-{stage}"))
        x += width
    return element("svg", "".join(parts), viewBox="0 0 100 10", preserveAspectRatio="none", class_="bar")


assert set(STAGE_STYLES) == {*READER, *WORKERS, "other"}
