"""The report of a profile as one HTML page that needs no network: the answer first, all numbers last."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from .. import __version__
from .curve_chart import curve_chart, curve_key
from .hop_table import hop_table
from .number_table import number_table
from .page_style import SCRIPT, style_sheet
from .recommendation import recommend
from .svg import element
from .time_bars import time_bars
from .timeline import Span, timeline
from .words import GLOSSARY, answer, bytes_text, cache_argument, has_widths, percent, policy_words

if TYPE_CHECKING:
    from .curve import HitRateCurve
    from .loading import LoadingTimes
    from .recommendation import BudgetChoice, Recommendation

__all__ = ["html_page"]


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
    """One self-contained page; whatever the names in it are, they are shown as text.

    Args:
        curve: What was measured.
        title: What the graph is called.
        recommendation: Default: that of :func:`pagraph.profile.recommend`.
        loading: Where the time of real epochs went.
        spans: Of a trace of such epochs, see :func:`pagraph.profile.timeline.read_spans`.
        command: How to train with the recommended cache, for a shell.
        facts: More about the run, shown under "how this was measured".

    Raises:
        ValueError: The curve has no policy that training can use.
    """
    recommendation = recommendation or recommend(curve)
    sections = [
        _answer(curve, recommendation, title, command),
        _curves(curve, recommendation),
        _hops(curve, recommendation),
        _times(loading, spans),
        _numbers(curve, recommendation),
        _glossary(curve),
        _facts(curve, facts or {}),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Cache profile of {escape(title)}</title><style>{style_sheet(curve)}</style>"
    )
    body = "\n".join(filter(None, sections))
    body = f"<body>\n{body}\n<script>{SCRIPT}</script></body>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n{body}</html>\n'


def _section(heading: str, *parts: str) -> str:
    return element("section", element("h2", escape(heading)) + "\n".join(parts))


def _paragraph(words: str, **attributes: Any) -> str:
    return element("p", escape(words), **attributes)


def _answer(curve: HitRateCurve, recommendation: Recommendation, title: str, command: str | None) -> str:
    share, policy = cache_argument(recommendation.budget_rows, curve.num_nodes), recommendation.policy
    code = f'loader = DataLoader(graph, seeds, sampler, ..., cache="{share}", cache_policy="{policy}")'
    return "\n".join(
        [
            element("h1", f"What a cache saves on {escape(title)}"),
            _paragraph(_intro(curve), class_="soft"),
            element("div", "".join(map(_paragraph, answer(curve, recommendation))), class_="answer"),
            _code(code),
            _code(command) if command is not None else "",
            element("h2", "How much cache for how much"),
            _choices(curve, recommendation),
        ]
    )


def _intro(curve: HitRateCurve) -> str:
    return (
        "Training a graph neural network reads the feature rows of the same vertices again and again. A cache keeps "
        f"some of them where the model computes, so that they need not be fetched. This page says which, how many and "
        f"what that brings, measured on {curve.batches:,} batches an epoch that read {curve.reads:,.0f} rows of "
        f"{curve.num_nodes:,} vertices."
    )


def _code(line: str) -> str:
    return element("div", element("pre", escape(line)) + '<button type="button">copy</button>', class_="code")


def _choices(curve: HitRateCurve, recommendation: Recommendation) -> str:
    choices: list[tuple[str, BudgetChoice | None]] = [("recommended: the knee", recommendation.knee)]
    choices += [(f"{share:.0%} of the best possible", choice) for share, choice in recommendation.smallest_for.items()]
    body = "".join(
        element(
            "tr", element("th", words, scope="row") + "".join(element("td", cell) for cell in _choice_cells(choice))
        )
        for words, choice in choices
    )
    head = element("tr", "".join(element("th", words) for words in ("aim", "budget", "rows", "bytes", "hit rate")))
    note = (
        f"The smallest budgets, with the policy {recommendation.policy}, to one per cent of the vertices. The best "
        "possible is a cache that holds all vertices."
    )
    if has_widths(curve):
        note += " Shares are of the bytes, which budgets are spent for; the hit rate counts rows."
    table = element("table", element("thead", head) + element("tbody", body), class_="numbers choices")
    return element("div", table, class_="scroll") + _paragraph(note, class_="soft")


def _choice_cells(choice: BudgetChoice | None) -> list[str]:
    if choice is None:
        return ["none measured", "", "", ""]
    nbytes = "-" if choice.budget_bytes is None else bytes_text(choice.budget_bytes)
    return [percent(choice.budget_fraction), f"{choice.budget_rows:,}", nbytes, percent(choice.hit_rate)]


def _curves(curve: HitRateCurve, recommendation: Recommendation) -> str:
    words = (
        "Each line is a policy: a rule that chooses which vertices the cache holds. Higher is better. Point at the "
        "chart to read the numbers at another budget."
    )
    if "oracle" in curve.policies:
        words += " The dashed line of the oracle is the limit for any cache."
    chart = element("div", curve_chart(curve, recommendation))
    key = element("div", curve_key(curve, recommendation))
    return _section(
        "How much of the reading the cache serves",
        _paragraph(words),
        element("figure", element("div", chart + key, class_="side")),
    )


def _hops(curve: HitRateCurve, recommendation: Recommendation) -> str:
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    words = (
        "A batch begins with training vertices, then neighbours are drawn for them, hop by hop. The bars show how many "
        "rows each hop adds and, in colour, how many of them the recommended cache serves. Training vertices are read "
        "once an epoch each; popular neighbours are read in batch after batch, and pay most."
    )
    return _section("Whose rows the cache serves", _paragraph(words), hop_table(curve, best))


def _times(loading: LoadingTimes | None, spans: Sequence[Span]) -> str:
    if loading is None and not spans:
        return ""
    parts = [] if loading is None else [time_bars(loading)]
    drawing = timeline(spans)
    if drawing:
        words = (
            "The first batches of the last epoch, thread by thread; the number on a span is its batch. The first lane "
            "is the training loop: where it waits, loading is too slow. Gaps are idle time."
        )
        parts += [_paragraph(words), element("div", drawing, class_="scroll")]
    return _section("Where the time of an epoch goes", *parts)


def _numbers(curve: HitRateCurve, recommendation: Recommendation) -> str:
    return _section("All numbers", number_table(curve, recommendation))


def _glossary(curve: HitRateCurve) -> str:
    terms = [*GLOSSARY, *((f"Policy {policy}", _sentence(policy_words(policy))) for policy in curve.policies)]
    return _section("What the words mean", _list(terms))


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."


def _list(pairs: Iterable[tuple[str, Any]], **attributes: Any) -> str:
    items = "".join(element("dt", escape(term)) + element("dd", escape(str(words))) for term, words in pairs)
    return element("dl", items, **attributes)


def _facts(curve: HitRateCurve, facts: Mapping[str, Any]) -> str:
    import torch

    seconds = ", ".join(f"{name} {value:.2f} s" for name, value in curve.seconds.items())
    shown = {
        **facts,
        "vertices": f"{curve.num_nodes:,}",
        **{name.replace("_", " "): _plain(value) for name, value in curve.settings.items()},
        "bytes of a row": _plain(curve.row_bytes) if curve.row_bytes else "",
        "time taken": seconds,
        "machine": f"{platform.machine()}, {platform.system()}",
        "versions": f"pagraph {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }
    pairs = [(name, value) for name, value in shown.items() if value not in ("", None)]
    words = (
        "The mini-batches of whole epochs were sampled just as a loader samples them, and each read of a vertex was "
        "counted; a policy's hit rate is the share of these reads that go to the vertices it ranks first. Only the "
        "oracle has seen the epochs it is measured on."
    )
    return _section("How this was measured", _paragraph(words), _list(pairs, class_="facts"))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return str(value)
