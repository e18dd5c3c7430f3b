"""A profile as a self-contained HTML page, made from the template ``page.html``."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import MissingDependencyError, how_to_install
from ..profile import recommend
from ..system.tables import page_template
from ..system.units import bytes_text, percent
from .plot import hop_figure, rate_figure, stage_figure, timeline_figure
from .style import color_rules, color_variable, policy_styles, require_matplotlib, svg_figure
from .times import Span, timeline, verdict
from .words import (
    GLOSSARY,
    answer,
    choice_table,
    hop_name,
    hop_table,
    policy_table,
    policy_words,
    rate_table,
    settings_words,
    stage_table,
)

if TYPE_CHECKING:
    from ..profile import CurveRecord, HitRateCurve, LoadingTimes, Recommendation

_POINTS_AN_INCH = 72  # coordinates of matplotlib's SVG files are in points


def html_page(
    curve: HitRateCurve,
    *,
    title: str = "a graph",
    recommendation: Recommendation | None = None,
    loading: LoadingTimes | None = None,
    spans: Sequence[Span] = (),
    facts: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> str:
    """Format a profile as one page that needs no network: the answer first, all numbers last.

    Names are escaped. Without matplotlib the page has tables only, and says how to get charts.

    Args:
        curve: Hit rates.
        title: Name of the graph.
        recommendation: Default: that of :func:`pagraph.profile.recommend`, which raises ValueError
            if it finds none.
        loading: Times of real epochs.
        spans: Spans of a trace of these epochs, see :func:`pagraph.report.times.read_spans`.
        facts: More about the run, for the section "how this was measured".
        command: Shell command that trains with the recommended cache.
    """
    recommendation = recommendation or recommend(curve)
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    light, dark = color_rules()
    words = ""
    stages = ""
    if loading is not None:
        words = verdict(loading)
        stages = stage_table(loading).html
    page = page_template("pagraph.report").render(
        title=title,
        curve=curve,
        advice=recommendation,
        best=best,
        percent=percent,
        light=light,
        dark=dark,
        answer=answer(curve, recommendation),
        settings=settings_words(curve, recommendation),
        command=command,
        seeds=hop_name(curve, 0),
        choices=choice_table(curve, recommendation).html,
        rates=rate_table(curve, recommendation).html,
        hops=hop_table(curve, best).html,
        details={policy: policy_table(curve.of(policy)).html for policy in curve.policies},
        key=_key(curve, recommendation),
        heading=_budget_words(curve, best),
        glossary=_glossary(curve),
        facts=_facts(curve, facts or {}),
        loading=loading,
        verdict=words,
        stages=stages,
        charts=_charts(curve, recommendation, loading, spans),
        install=how_to_install("plot"),
    )
    return f"{page}\n"


def _charts(
    curve: HitRateCurve,
    recommendation: Recommendation,
    loading: LoadingTimes | None,
    spans: Sequence[Span],
) -> dict[str, Any]:
    """Charts as SVG by name, and data of the page's script; empty without matplotlib."""
    try:
        require_matplotlib()
    except MissingDependencyError:
        return {}
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    figure, rates = svg_figure(lambda: rate_figure(curve, recommendation))
    (axes,) = figure.axes
    charts: dict[str, Any] = {"rates": rates, "points": _points(curve, best, axes)}
    _, charts["hops"] = svg_figure(lambda: hop_figure(curve, best))
    if loading is not None:
        _, charts["stages"] = svg_figure(lambda: stage_figure(loading))
    shown = timeline(spans)
    if shown is not None:
        _, charts["timeline"] = svg_figure(lambda: timeline_figure(shown))
        charts["lanes"] = len(shown.lanes)
    return charts


def _points(curve: HitRateCurve, best: CurveRecord, axes: Any) -> list[dict[str, Any]]:
    """What the script shows for each budget: its place, words, and every policy's hit rate.

    ``x`` is the budget's place in the SVG, ``dx`` its distance from the recommended one.
    """

    def place(record: CurveRecord) -> float:
        pixels, _ = axes.transData.transform((100 * record.budget_fraction, 0))
        return float(pixels / axes.figure.dpi * _POINTS_AN_INCH)

    points = []
    for records in zip(*map(curve.whole, curve.policies), strict=True):
        x = place(records[0])
        rates = {record.policy: percent(curve.served(record)) for record in records}
        words = _budget_words(curve, records[0])
        dx = round(x - place(best), 1)
        points.append({"x": round(x, 1), "dx": dx, "words": words, "rates": rates})
    return points


def _budget_words(curve: HitRateCurve, record: CurveRecord) -> str:
    budget = percent(record.budget_fraction)
    words = f"Hit rate in {curve.unit} with {budget} of the vertices, {record.budget_rows:,} rows"
    if record.budget_bytes is None:
        return words
    return f"{words}, {bytes_text(record.budget_bytes)}"


def _key(curve: HitRateCurve, recommendation: Recommendation) -> list[dict[str, Any]]:
    """Legend of the hit rates: each policy's line, and its rate at the budget, best first."""
    records = [curve.at(policy, recommendation.budget_rows) for policy in curve.policies]
    records.sort(key=curve.served, reverse=True)
    styles = policy_styles(curve.policies)
    key = []
    for record in records:
        style = styles[record.policy]
        line = {"color": color_variable(style.color), "dash": " ".join(map(str, style.dash))}
        key.append({"policy": record.policy, "rate": percent(curve.served(record)), **line})
    return key


def _glossary(curve: HitRateCurve) -> dict[str, str]:
    terms = dict(GLOSSARY)
    for policy in curve.policies:
        words = policy_words(policy)
        terms[f"Policy {policy}"] = f"{words[:1].upper()}{words[1:]}."
    return terms


def _facts(curve: HitRateCurve, facts: Mapping[str, Any]) -> dict[str, str]:
    import torch

    python = platform.python_version()
    shown = {
        **facts,
        "vertices": f"{curve.num_nodes:,}",
        **{name.replace("_", " "): value for name, value in curve.settings.items()},
        "bytes of a row": curve.row_bytes,
        "time taken": [f"{name} {seconds:.2f} s" for name, seconds in curve.seconds.items()],
        "machine": [platform.machine(), platform.system()],
        "versions": [f"pagraph {__version__}", f"torch {torch.__version__}", f"Python {python}"],
    }
    texts = {name: _plain(value) for name, value in shown.items() if value is not None}
    return {name: text for name, text in texts.items() if text}


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return str(value)
