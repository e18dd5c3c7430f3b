"""Every measured number, as tables for the page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from .svg import element
from .words import best_caption, best_of, bytes_text, percent

if TYPE_CHECKING:
    from .curve import CurveRecord, HitRateCurve
    from .recommendation import Recommendation

__all__ = ["number_table"]


def number_table(curve: HitRateCurve, recommendation: Recommendation) -> str:
    """Hit rates by budget and policy, then what else is known of each policy, folded away."""
    details = "".join(
        element(
            "details",
            element("summary", f"{escape(policy)}: prediction, epochs, hops, fields, bytes")
            + element("div", _policy_table(curve.of(policy)), class_="scroll"),
        )
        for policy in curve.policies
    )
    return element("div", _rates(curve, recommendation), class_="scroll") + details


def _rates(curve: HitRateCurve, recommendation: Recommendation) -> str:
    head = _row("th", ["budget", "rows", *(["bytes"] if curve.row_bytes else []), *map(escape, curve.policies)])
    body = ""
    for records in curve.with_budget(recommendation.budget_rows):
        first = records[0]
        best = best_of(curve, records)
        cells = element("th", percent(first.budget_fraction), scope="row") + element("td", f"{first.budget_rows:,}")
        cells += element("td", bytes_text(first.budget_bytes)) if first.budget_bytes is not None else ""
        for record in records:
            cells += element("td", percent(record.hit_rate), class_="best" if record.policy in best else None)
        chosen = first.budget_rows == recommendation.budget_rows
        body += element("tr", cells, class_="chosen" if chosen else None)
    caption = element("caption", f"Hit rate; {best_caption(curve)} is bold, the recommended budget shaded")
    return element("table", caption + element("thead", head) + element("tbody", body), class_="numbers")


def _policy_table(records: list[CurveRecord]) -> str:
    first = records[0]
    names = ["budget", "hit rate", "predicted", "of the oracle's"]
    names += [f"epoch {i + 1}" for i in range(len(first.hit_rate_by_epoch))]
    names += [f"hop {i}" for i in range(len(first.hit_rate_by_hop))]
    names += [f"field {escape(name)}" for name in first.hit_rate_by_field]
    names += ["fetched an epoch"] if first.bytes_moved is not None else []
    body = ""
    for record in records:
        rates = [record.hit_rate, record.predicted_hit_rate, record.share_of_oracle]
        rates += [*record.hit_rate_by_epoch, *record.hit_rate_by_hop, *record.hit_rate_by_field.values()]
        cells = [percent(record.budget_fraction), *map(percent, rates)]
        cells += [bytes_text(record.bytes_moved)] if record.bytes_moved is not None else []
        body += _row("td", cells)
    return element("table", element("thead", _row("th", names)) + element("tbody", body), class_="numbers")


def _row(tag: str, cells: list[str]) -> str:
    return element("tr", "".join(element(tag, cell) for cell in cells))
