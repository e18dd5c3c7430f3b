"""Which hop's rows the cache serves, as a table with bars for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .svg import element
from .words import percent

if TYPE_CHECKING:
    from .curve import CurveRecord, HitRateCurve

__all__ = ["hop_name", "hop_table"]


def hop_name(hop: int) -> str:
    """What a hop is called where people read it."""
    return "training vertices" if hop == 0 else f"hop {hop}"


def hop_table(curve: HitRateCurve, record: CurveRecord) -> str:
    """A row for each hop: rows read in an epoch, hit rate, and a bar whose full part are the hits."""
    head = "".join(element("th", words) for words in ("found by", "rows an epoch", "hit rate"))
    head += element("th", "hits and misses", class_="bar")
    most = max(curve.rows_by_hop, default=0)
    body = "".join(
        element(
            "tr",
            element("th", hop_name(hop), scope="row")
            + element("td", f"{rows:,.0f}")
            + element("td", percent(rate) if rows else "-")
            + element("td", _bar(rows / most if most else 0.0, rate), class_="bar"),
        )
        for hop, (rows, rate) in enumerate(zip(curve.rows_by_hop, record.hit_rate_by_hop, strict=True))
    )
    return element("table", element("thead", element("tr", head)) + element("tbody", body), class_="numbers hops")


def _bar(share: float, rate: float) -> str:
    """The rows of a hop against those of the largest, hits in colour."""
    width = 100 * share
    title = element("title", f"{rate:.1%} hits, {1 - rate:.1%} misses")
    whole = element("rect", x=0, y=0, width=width, height=10, class_="miss")
    hits = element("rect", x=0, y=0, width=width * rate, height=10, class_="hit")
    return element("svg", title + whole + hits, viewBox="0 0 100 10", preserveAspectRatio="none", class_="bar")
