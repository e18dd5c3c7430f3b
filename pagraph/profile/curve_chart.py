"""The hit rates of all policies over the budget, as a drawing for the page."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

from .colors import policy_styles
from .svg import Drawing, element, round_ticks
from .words import bytes_text, percent

if TYPE_CHECKING:
    from .curve import CurveRecord, HitRateCurve
    from .recommendation import Recommendation

__all__ = ["curve_chart", "curve_key", "policy_css"]

_WIDTH, _HEIGHT = 480.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 12.0, 30.0, 46.0


def curve_chart(curve: HitRateCurve, recommendation: Recommendation) -> str:
    """The chart; the page's script moves its line to the budget that is pointed at.

    The line's places and what the key shows there are in the attribute ``data-points``, as JSON.
    """
    policies = curve.policies
    label = f"Hit rate over budget for {', '.join(policies)}; {recommendation.policy} is recommended."
    points = json.dumps(_points(curve, policies))
    drawing = Drawing(_WIDTH, _HEIGHT, label=label, class_="chart", id="curves", data_points=points)
    _axes(drawing, curve)
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    x, y = _x(curve, best.budget_fraction), _y(best.hit_rate)
    drawing.add("line", id="pointer", class_="pointer", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM)
    # The recommended policy is drawn last, on top; then those named first.
    for policy in sorted(reversed(policies), key=lambda policy: policy == best.policy):
        chosen = " chosen" if policy == best.policy else ""
        drawing.add("path", _title(policy), d=_path(curve, policy), class_=f"line {_class(policies, policy)}{chosen}")
    drawing.add("circle", _title("recommended"), cx=x, cy=y, r=6, class_="recommended")
    place, anchor = (x + 10, "start") if x < _WIDTH * 0.6 else (x - 10, "end")
    words = f"recommended: {percent(best.budget_fraction)}"
    drawing.text(place, _HEIGHT - _BOTTOM - 8, words, text_anchor=anchor, class_="strong halo")
    return str(drawing)


def curve_key(curve: HitRateCurve, recommendation: Recommendation) -> str:
    """The key beside the chart: each policy's line, name and hit rate at one budget, the best first."""
    policies = curve.policies
    records = [curve.at(policy, recommendation.budget_rows) for policy in policies]
    rows = "".join(
        element(
            "li",
            _swatch(_class(policies, record.policy) + (" chosen" if record.policy == recommendation.policy else ""))
            + element("span", escape(record.policy), class_="name")
            + element("b", percent(record.hit_rate), class_="value", data_policy=record.policy),
            class_="best" if record.policy == recommendation.policy else None,
        )
        for record in sorted(records, key=lambda record: record.hit_rate, reverse=True)
    )
    heading = element("p", escape(_budget_words(records[0])), id="budget", class_="key-budget")
    return heading + element("ul", rows, class_="key")


def policy_css(curve: HitRateCurve) -> tuple[str, str]:
    """Style rules of the policies' lines on a light ground, and those that a dark ground changes."""
    policies = curve.policies
    light, dark = [], []
    for policy, style in policy_styles(policies).items():
        name = _class(policies, policy)
        dash = f"stroke-dasharray:{' '.join(f'{d:g}' for d in style.dash)};" if style.dash else ""
        light.append(f".{name}{{stroke:{style.light};{dash}}}")
        dark.append(f".{name}{{stroke:{style.dark}}}")
    return "".join(light), "".join(dark)


def _class(policies: list[str], policy: str) -> str:
    return f"policy-{policies.index(policy)}"


def _swatch(name: str) -> str:
    line = element("line", x1=0, x2=34, y1=6, y2=6, class_=f"line {name}")
    return element("svg", line, viewBox="0 0 34 12", class_="swatch", aria_hidden="true")


def _title(words: str) -> str:
    return element("title", escape(words))


def _most(curve: HitRateCurve) -> float:
    return max(record.budget_fraction for record in [*curve.records, *curve.grid]) or 1.0


def _x(curve: HitRateCurve, fraction: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * fraction / _most(curve)


def _y(rate: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - rate)


def _path(curve: HitRateCurve, policy: str) -> str:
    """From no cache, which never hits, through every budget."""
    records = curve.whole(policy)
    places = [(_x(curve, 0.0), _y(0.0)), *((_x(curve, r.budget_fraction), _y(r.hit_rate)) for r in records)]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _axes(drawing: Drawing, curve: HitRateCurve) -> None:
    bottom = _HEIGHT - _BOTTOM
    for rate in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        drawing.add("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=_y(rate), y2=_y(rate), class_="grid")
        drawing.text(_LEFT - 6, _y(rate) + 4, f"{rate:.0%}", text_anchor="end")
    for fraction in round_ticks(_most(curve)):
        x = _x(curve, fraction)
        drawing.add("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="tick")
        drawing.text(x, bottom + 18, f"{fraction * 100:g}%", text_anchor="end" if x > _WIDTH - 24 else "middle")
    drawing.text(4.0, 14.0, "hit rate: share of the rows that the cache serves")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    drawing.text(middle, _HEIGHT - 8, "budget: share of the vertices that the cache holds", text_anchor="middle")


def _points(curve: HitRateCurve, policies: list[str]) -> list[dict[str, Any]]:
    """For each budget: where it is, what the key's heading says, and every policy's hit rate."""
    return [
        {
            "x": round(_x(curve, records[0].budget_fraction), 1),
            "words": _budget_words(records[0]),
            "rates": {record.policy: percent(record.hit_rate) for record in records},
        }
        for records in zip(*map(curve.whole, policies), strict=True)
    ]


def _budget_words(record: CurveRecord) -> str:
    words = f"Hit rate with {percent(record.budget_fraction)} of the vertices, {record.budget_rows:,} rows"
    return words if record.budget_bytes is None else f"{words}, {bytes_text(record.budget_bytes)}"
