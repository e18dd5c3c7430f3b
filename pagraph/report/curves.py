"""Hit-rate chart, hits by hop, and the tables of all hit rates, for the page."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

from ..system.tables import element, row, table
from ..system.units import bytes_text, percent
from .markup import Drawing, bar, policy_styles, round_ticks
from .words import best_caption, best_of, hop_name, marked_budget

if TYPE_CHECKING:
    from ..profile import CurveRecord, HitRateCurve, Recommendation

__all__ = ["curve_chart", "curve_key", "hop_table", "number_table", "policy_css"]

_WIDTH, _HEIGHT = 480.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 12.0, 30.0, 46.0


def curve_chart(curve: HitRateCurve, recommendation: Recommendation) -> str:
    """Hit rates over the budget; ``data-points`` tells the page's script, in JSON, what to show for
    each budget."""
    policies = curve.policies
    advice = (
        f"{recommendation.policy} is recommended"
        if recommendation.worth_it
        else "no cache is advised"
    )
    label = f"Hit rate in {curve.unit} over budget for {', '.join(policies)}; {advice}."
    marked = "recommended" if recommendation.worth_it else "a small cache, not advised"
    mark = "recommended" if recommendation.worth_it else "small"
    points = json.dumps(_points(curve, policies))
    drawing = Drawing(_WIDTH, _HEIGHT, label=label, class_="chart", id="curves", data_points=points)
    _axes(drawing, curve)
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    x, y = _x(curve, best.budget_fraction), _y(curve.served(best))
    drawing.add("line", id="pointer", class_="pointer", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM)
    # The recommended policy is drawn last, on top; then those named first.
    for policy in sorted(reversed(policies), key=lambda policy: policy == best.policy):
        chosen = " chosen" if policy == best.policy else ""
        drawing.add(
            "path",
            element("title", escape(policy)),
            d=_path(curve, policy),
            class_=f"line {_class(policies, policy)}{chosen}",
        )
    drawing.add("circle", element("title", marked), cx=x, cy=y, r=6, class_=mark)
    place, anchor = (x + 10, "start") if x < _WIDTH * 0.6 else (x - 10, "end")
    words = f"{marked}: {percent(best.budget_fraction)}"
    drawing.text(place, _HEIGHT - _BOTTOM - 8, words, text_anchor=anchor, class_="strong halo")
    return str(drawing)


def curve_key(curve: HitRateCurve, recommendation: Recommendation) -> str:
    """Legend of the chart: each policy's line, name and hit rate at one budget, the best first."""
    policies = curve.policies
    records = [curve.at(policy, recommendation.budget_rows) for policy in policies]
    rows = ""
    for record in sorted(records, key=curve.served, reverse=True):
        is_best = record.policy == recommendation.policy
        class_ = f"line {_class(policies, record.policy)}{' chosen' * is_best}"
        line = element("line", x1=0, x2=34, y1=6, y2=6, class_=class_)
        swatch = element("svg", line, viewBox="0 0 34 12", class_="swatch", aria_hidden="true")
        name = element("span", escape(record.policy), class_="name")
        value = element(
            "b", percent(curve.served(record)), class_="value", data_policy=record.policy
        )
        rows += element("li", swatch + name + value, class_="best" if is_best else None)
    heading = element(
        "p", escape(_budget_words(curve, records[0])), id="budget", class_="key-budget"
    )
    return heading + element("ul", rows, class_="key")


def policy_css(curve: HitRateCurve) -> tuple[str, str]:
    """CSS rules of the policies' lines on a light ground, and those that a dark ground changes."""
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


def _most(curve: HitRateCurve) -> float:
    return max(record.budget_fraction for record in [*curve.records, *curve.grid]) or 1.0


def _x(curve: HitRateCurve, fraction: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * fraction / _most(curve)


def _y(rate: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - rate)


def _path(curve: HitRateCurve, policy: str) -> str:
    """Path data from no cache, which never hits, through every budget."""
    records = curve.whole(policy)
    places = [
        (_x(curve, 0.0), _y(0.0)),
        *((_x(curve, r.budget_fraction), _y(curve.served(r))) for r in records),
    ]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _axes(drawing: Drawing, curve: HitRateCurve) -> None:
    bottom = _HEIGHT - _BOTTOM
    for rate in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        drawing.add("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=_y(rate), y2=_y(rate), class_="grid")
        drawing.text(_LEFT - 6, _y(rate) + 4, f"{rate:.0%}", text_anchor="end")
    for fraction in round_ticks(_most(curve)):
        x = _x(curve, fraction)
        drawing.add("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="tick")
        drawing.text(
            x,
            bottom + 18,
            f"{fraction * 100:g}%",
            text_anchor="end" if x > _WIDTH - 24 else "middle",
        )
    drawing.text(4.0, 14.0, f"hit rate: share of the {curve.unit} that the cache serves")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    drawing.text(
        middle,
        _HEIGHT - 8,
        "budget: share of the vertices that the cache holds",
        text_anchor="middle",
    )


def _points(curve: HitRateCurve, policies: list[str]) -> list[dict[str, Any]]:
    """For each budget its place, the key's heading, and every policy's hit rate."""
    return [
        {
            "x": round(_x(curve, records[0].budget_fraction), 1),
            "words": _budget_words(curve, records[0]),
            "rates": {record.policy: percent(curve.served(record)) for record in records},
        }
        for records in zip(*map(curve.whole, policies), strict=True)
    ]


def _budget_words(curve: HitRateCurve, record: CurveRecord) -> str:
    words = (
        f"Hit rate in {curve.unit} with {percent(record.budget_fraction)} of the vertices, "
        f"{record.budget_rows:,} rows"
    )
    return words if record.budget_bytes is None else f"{words}, {bytes_text(record.budget_bytes)}"


def hop_table(curve: HitRateCurve, record: CurveRecord) -> str:
    """A row for each hop: rows read in an epoch, hit rate, and a bar whose coloured part are the
    hits."""
    head = _headers(["found by", "rows an epoch", "hit rate"])
    head.append(element("th", "hits and misses", class_="bar"))
    most = max(curve.rows_by_hop, default=0)
    rows = []
    for hop, (reads, rate) in enumerate(
        zip(curve.rows_by_hop, record.hit_rate_by_hop, strict=True)
    ):
        width = 100 * (reads / most if most else 0.0)
        title = element("title", f"{rate:.1%} hits, {1 - rate:.1%} misses")
        whole = element("rect", x=0, y=0, width=width, height=10, class_="miss")
        hits = element("rect", x=0, y=0, width=width * rate, height=10, class_="hit")
        cell = element("td", bar(title + whole + hits), class_="bar")
        rows.append(
            row(hop_name(curve, hop), [f"{reads:,.0f}", percent(rate if reads else None)], cell)
        )
    return table(head, rows, class_="numbers hops")


def number_table(curve: HitRateCurve, recommendation: Recommendation) -> str:
    """Hit rates by budget and policy, then what else is known of each policy, folded away."""
    markup = element("div", _rates(curve, recommendation), class_="scroll")
    for policy in curve.policies:
        summary = element("summary", f"{escape(policy)}: prediction, epochs, hops, fields, bytes")
        markup += element(
            "details", summary + element("div", _policy_table(curve.of(policy)), class_="scroll")
        )
    return markup


def _rates(curve: HitRateCurve, recommendation: Recommendation) -> str:
    head = ["budget", "rows", *(["bytes"] if curve.row_bytes else []), *map(escape, curve.policies)]
    rows = []
    for records in curve.with_budget(recommendation.budget_rows):
        first, best = records[0], best_of(curve, records)
        cells = [f"{first.budget_rows:,}"]
        cells += [bytes_text(first.budget_bytes)] if first.budget_bytes is not None else []
        rates = [
            element("td", percent(curve.served(r)), class_="best" if r.policy in best else None)
            for r in records
        ]
        chosen = "chosen" if first.budget_rows == recommendation.budget_rows else None
        rows.append(row(percent(first.budget_fraction), cells, *rates, class_=chosen))
    words = (
        f"Hit rate in {curve.unit}; {best_caption(curve)} is bold; shaded: "
        f"{marked_budget(recommendation)}"
    )
    caption = element("caption", words)
    return table(_headers(head), rows, caption=caption, class_="numbers")


def _policy_table(records: list[CurveRecord]) -> str:
    first = records[0]
    names = ["budget", "hit rate", "predicted", "of the oracle's"]
    names += [f"epoch {i + 1}" for i in range(len(first.hit_rate_by_epoch))]
    names += [f"hop {i}" for i in range(len(first.hit_rate_by_hop))]
    names += [f"field {escape(name)}" for name in first.hit_rate_by_field]
    names += ["fetched an epoch"] if first.bytes_moved is not None else []
    rows = []
    for record in records:
        rates = [
            record.budget_fraction,
            record.hit_rate,
            record.predicted_hit_rate,
            record.share_of_oracle,
        ]
        rates += [
            *record.hit_rate_by_epoch,
            *record.hit_rate_by_hop,
            *record.hit_rate_by_field.values(),
        ]
        moved = [bytes_text(record.bytes_moved)] if record.bytes_moved is not None else []
        rows.append(
            element("tr", "".join(element("td", cell) for cell in [*map(percent, rates), *moved]))
        )
    return table(_headers(names), rows, class_="numbers")


def _headers(names: list[str]) -> list[str]:
    return [element("th", name) for name in names]
