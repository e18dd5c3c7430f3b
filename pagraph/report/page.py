"""A profile as one self-contained HTML page."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..profile import recommend
from ..system.tables import element, row, table
from ..system.units import bytes_text, percent
from .curves import curve_chart, curve_key, hop_table, number_table, policy_css
from .markup import STAGE_STYLES
from .times import Span, time_bars, timeline
from .words import GLOSSARY, answer, hop_name, policy_words, settings_words

if TYPE_CHECKING:
    from ..profile import BudgetChoice, HitRateCurve, LoadingTimes, Recommendation

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
    """Format a profile as one page that needs no network: the answer first, all numbers last; names
    are escaped.

    Args:
        curve: Hit rates.
        title: Name of the graph.
        recommendation: Default: that of :func:`pagraph.profile.recommend`, which raises ValueError
            if there is none.
        loading: Times of real epochs.
        spans: Spans of a trace of such epochs, see :func:`pagraph.report.times.read_spans`.
        facts: More about the run, shown under "how this was measured".
        command: Shell command that trains with the recommended cache.
    """
    recommendation = recommendation or recommend(curve)
    sections = [
        _answer(curve, recommendation, title, command),
        _curves(curve, recommendation),
        _hops(curve, recommendation),
        _times(loading, spans),
        _section("All numbers", number_table(curve, recommendation)),
        _glossary(curve),
        _facts(curve, facts or {}),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Cache profile of {escape(title)}</title><style>{_style_sheet(curve)}</style>"
    )
    body = "\n".join(filter(None, sections))
    body = f"<body>\n{body}\n<script>{_SCRIPT}</script></body>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n{body}</html>\n'


def _section(heading: str, *parts: str) -> str:
    return element("section", element("h2", escape(heading)) + "\n".join(parts))


def _paragraph(words: str, **attributes: Any) -> str:
    return element("p", escape(words), **attributes)


def _answer(
    curve: HitRateCurve, recommendation: Recommendation, title: str, command: str | None
) -> str:
    code = (
        f"loader = DataLoader(graph, seeds, sampler, ..., {settings_words(curve, recommendation)})"
    )
    intro = (
        "Training a graph neural network reads the feature rows of the same vertices again and "
        "again. A cache keeps "
        "some of them where the model computes, so that they need not be fetched. This page says "
        "which, how many and "
        f"what that brings, measured on {curve.batches:,} batches an epoch that read "
        f"{curve.reads:,.0f} rows of "
        f"{curve.num_nodes:,} vertices."
    )
    box = "answer" if recommendation.worth_it else "answer none"
    return "\n".join(
        [
            element("h1", f"What a cache saves on {escape(title)}"),
            _paragraph(intro, class_="soft"),
            element("div", "".join(map(_paragraph, answer(curve, recommendation))), class_=box),
            _code(code),
            _code(command) if command is not None else "",
            element("h2", "How much cache for how much"),
            _choices(curve, recommendation),
        ]
    )


def _code(line: str) -> str:
    return element(
        "div", element("pre", escape(line)) + '<button type="button">copy</button>', class_="code"
    )


def _choices(curve: HitRateCurve, recommendation: Recommendation) -> str:
    aim = "recommended: the knee" if recommendation.worth_it else "the knee, which hardly is one"
    choices: list[tuple[str, BudgetChoice | None]] = [
        ("a small cache", recommendation.small),
        (aim, recommendation.knee),
    ]
    choices += [
        (f"{share:.0%} of the best possible", choice)
        for share, choice in recommendation.smallest_for.items()
    ]
    head = [element("th", words) for words in ("aim", "budget", "rows", "bytes", "hit rate")]
    rows = []
    for words, choice in choices:
        cells = ["none measured", "", "", ""]
        if choice is not None:
            nbytes = "-" if choice.budget_bytes is None else bytes_text(choice.budget_bytes)
            rate = curve.served(curve.at(recommendation.policy, choice.budget_rows))
            cells = [
                percent(choice.budget_fraction),
                f"{choice.budget_rows:,}",
                nbytes,
                percent(rate),
            ]
        rows.append(row(words, cells))
    note = (
        f"The smallest budgets, with the policy {recommendation.policy}, to one per cent of the "
        "vertices. The best "
        "possible is a cache that holds all vertices."
    )
    if curve.has_widths:
        note += " Shares and hit rates are of the bytes, which budgets are spent for."
    choices_table = table(head, rows, class_="numbers choices")
    return element("div", choices_table, class_="scroll") + _paragraph(note, class_="soft")


def _curves(curve: HitRateCurve, recommendation: Recommendation) -> str:
    words = (
        "Each line is a policy: a rule that chooses which vertices the cache holds. Higher is "
        "better. Point at the "
        "chart to read the numbers at another budget."
    )
    if "oracle" in curve.policies:
        words += " The dashed line of the oracle is the limit for any cache."
    chart = element("div", curve_chart(curve, recommendation))
    key = element("div", curve_key(curve, recommendation))
    figure = element("figure", element("div", chart + key, class_="side"))
    return _section("How much of the reading the cache serves", _paragraph(words), figure)


def _hops(curve: HitRateCurve, recommendation: Recommendation) -> str:
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    words = (
        f"A batch begins with {hop_name(curve, 0)}, then neighbours are drawn for them, hop by "
        "hop. The bars show how "
        "many rows each hop adds and, in colour, how many of them a cache of "
        f"{percent(best.budget_fraction)} of the "
        "vertices serves. Popular neighbours are read in batch after batch, and pay most."
    )
    return _section("Whose rows the cache serves", _paragraph(words), hop_table(curve, best))


def _times(loading: LoadingTimes | None, spans: Sequence[Span]) -> str:
    if loading is None and not spans:
        return ""
    parts = [] if loading is None else [time_bars(loading)]
    drawing = timeline(spans)
    if drawing:
        words = (
            "The first batches of the last epoch, thread by thread; the number on a span is its "
            "batch. The first lane "
            "is the training loop: where it waits, loading is too slow. Gaps are idle time."
        )
        parts += [_paragraph(words), element("div", drawing, class_="scroll")]
    return _section("Where the time of an epoch goes", *parts)


def _glossary(curve: HitRateCurve) -> str:
    policies = {policy: policy_words(policy) for policy in curve.policies}
    terms = [
        (f"Policy {policy}", f"{words[:1].upper()}{words[1:]}.")
        for policy, words in policies.items()
    ]
    return _section("What the words mean", _list([*GLOSSARY.items(), *terms]))


def _list(pairs: Iterable[tuple[str, Any]], **attributes: Any) -> str:
    items = "".join(
        element("dt", escape(term)) + element("dd", escape(str(words))) for term, words in pairs
    )
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
        "versions": f"pagraph {__version__}, torch {torch.__version__}, Python "
        f"{platform.python_version()}",
    }
    pairs = [(name, value) for name, value in shown.items() if value not in ("", None)]
    words = (
        "The mini-batches of whole epochs were sampled just as a loader samples them, and each "
        "read of a vertex was "
        "counted; a policy's hit rate is the share of these reads that go to the vertices it ranks "
        "first. Only the "
        "oracle has seen the epochs it is measured on."
    )
    return _section("How this was measured", _paragraph(words), _list(pairs, class_="facts"))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return str(value)


_COMMON = """
:root{--ink:#1c2430;--soft:#566072;--ground:#fff;--panel:#f4f6f9;--rule:#d9dee6;--hit:#0072b2;--miss:#c9d4e0;--mark:#0a7a4b}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem 1rem 4rem;max-width:62rem;background:var(--ground);color:var(--ink);
 font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.6rem;line-height:1.2;margin:.4rem 0 .2rem}
h2{font-size:1.2rem;margin:2.6rem 0 .5rem;padding-top:.9rem;border-top:1px solid var(--rule)}
p{margin:.5rem 0;max-width:46rem}
.soft,figcaption,caption{color:var(--soft);font-size:.92rem}
.answer{background:var(--panel);border-left:5px solid var(--mark);border-radius:6px;padding:.7rem 1.1rem;margin:1rem 0}
.answer.none{border-left-color:var(--soft)}
.answer p:first-child{font-size:1.15rem;font-weight:600}
pre{background:var(--panel);border:1px solid var(--rule);border-radius:6px;padding:.7rem .9rem;margin:.5rem 0;
 overflow-x:auto;font:.88rem/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;user-select:all}
code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.92em}
.code{position:relative}
.code button{position:absolute;top:.45rem;right:.45rem;font:inherit;font-size:.8rem;padding:.15rem .6rem;cursor:pointer;
 color:var(--ink);background:var(--ground);border:1px solid var(--rule);border-radius:5px}
figure{margin:1rem 0}
.side{display:flex;flex-wrap:wrap;gap:.5rem 1.6rem;align-items:center}
.side>div:first-child{flex:2 1 26rem;min-width:0}.side>div:last-child{flex:1 1 14rem}
svg.chart{width:100%;height:auto;max-width:44rem;display:block;touch-action:pan-y}
svg text{fill:var(--ink);font-size:13px;font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif}
.grid{stroke:var(--rule);stroke-width:1}.tick,.pointer{stroke:var(--soft)}.pointer{stroke-dasharray:2 3}
.line{fill:none;stroke-linejoin:round;stroke-width:1.8}.line.chosen{stroke-width:3.4}
.recommended,.small{fill:var(--mark);stroke:var(--ground);stroke-width:2}.small{fill:var(--soft)}
.strong{font-weight:600}.halo{paint-order:stroke;stroke:var(--ground);stroke-width:4px;stroke-linejoin:round}
.key{list-style:none;margin:.3rem 0;padding:0}
.key li{display:flex;gap:.6rem;align-items:center;padding:.12rem 0}
.key .name{flex:1}.key .best .name{font-weight:700}.key .value{font-variant-numeric:tabular-nums}
.key-budget{font-size:.92rem;color:var(--soft);margin:0}
svg.swatch{width:34px;height:12px;flex:none}
.stages{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;list-style:none;padding:0;margin:.4rem 0;font-size:.92rem}
.stages li{display:flex;gap:.4rem;align-items:center}.stages svg{width:14px;height:14px}
.scroll{overflow-x:auto}
svg.timeline{width:100%;min-width:44rem;height:auto;display:block}
.lane{fill:var(--panel)}.span{stroke:var(--ground);stroke-width:.6}.span:hover{stroke:var(--ink);stroke-width:1.5}
.on-span{fill:#fff!important;font-size:11px!important;pointer-events:none}
table{border-collapse:collapse;font-size:.92rem;width:100%}
th,td{padding:.28rem .6rem;text-align:right;border-bottom:1px solid var(--rule);font-variant-numeric:tabular-nums;
 white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}
thead th{color:var(--soft);font-weight:600;border-bottom:2px solid var(--rule);vertical-align:bottom}
caption{text-align:left;padding:.2rem 0}
tbody th{font-weight:400}
td.best{font-weight:700;color:var(--mark)}tr.chosen>*{background:var(--panel)}
.bar{width:45%;padding-right:0;text-align:left!important}svg.bar{width:100%;height:1rem;display:block}
.hit{fill:var(--hit)}.miss{fill:var(--miss)}
dl{margin:.5rem 0}dt{font-weight:600;margin-top:.6rem}dd{margin:0 0 0 1.1rem;max-width:46rem}
dl.facts{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem}dl.facts>*{margin:0}
dl.facts dt{font-weight:400;color:var(--soft)}dl.facts dd{overflow-wrap:anywhere}
details{margin:.6rem 0}summary{cursor:pointer}
@media(max-width:36rem){body{padding:.6rem .8rem 3rem}.bar{width:32%}th,td{padding:.28rem .35rem}
 .hops th,.times th,.choices th{white-space:normal}svg.chart text{font-size:15px}
 .choices{font-size:.84rem}.choices th,.choices td{padding:.28rem .18rem}
 pre{white-space:pre-wrap;overflow-wrap:anywhere}
 dl.facts{grid-template-columns:1fr}dl.facts dd{margin-bottom:.4rem}.code button{position:static;margin-top:.2rem}}
@media print{.code button{display:none}}
"""

_DARK = """
:root{--ink:#e8ecf2;--soft:#a3adbc;--ground:#14181f;--panel:#1e242e;--rule:#333c4a;--hit:#4aa3df;--miss:#3a4655;
 --mark:#3ccf8e}
.on-span{fill:#10141a!important}
"""

_SCRIPT = """
(function(){
 var chart=document.getElementById("curves"),line=document.getElementById("pointer"),
  words=document.getElementById("budget"),points=chart?JSON.parse(chart.dataset.points):[];
 function show(event){
  var box=chart.getBoundingClientRect(),x=(event.clientX-box.left)/box.width*chart.viewBox.baseVal.width,near=points[0];
  points.forEach(function(p){if(Math.abs(p.x-x)<Math.abs(near.x-x))near=p});
  line.setAttribute("x1",near.x);line.setAttribute("x2",near.x);words.textContent=near.words;
  document.querySelectorAll(".key .value").forEach(function(v){v.textContent=near.rates[v.dataset.policy]});
 }
 if(points.length){chart.addEventListener("pointermove",show);chart.addEventListener("pointerdown",show)}
 document.querySelectorAll(".code button").forEach(function(button){
  button.addEventListener("click",function(){
   var code=button.parentNode.querySelector("pre"),range=document.createRange();
   range.selectNodeContents(code);getSelection().removeAllRanges();getSelection().addRange(range);
   var done=function(){button.textContent="copied"};
   if(navigator.clipboard)navigator.clipboard.writeText(code.textContent).then(done,function(){});
   else if(document.execCommand("copy"))done();
  })})
})();
"""
"""Moves the chart's line and the key's numbers to the budget pointed at; copies code. The page can
be read without."""


def _style_sheet(curve: HitRateCurve) -> str:
    """Build the style sheet, with a dark variant for readers who prefer one."""
    policies, dark_policies = policy_css(curve)
    stages = "".join(f".stage-{name}{{fill:{style.light}}}" for name, style in STAGE_STYLES.items())
    dark_stages = "".join(
        f".stage-{name}{{fill:{style.dark}}}" for name, style in STAGE_STYLES.items()
    )
    dark = f"@media(prefers-color-scheme:dark){{{_DARK}{dark_policies}{dark_stages}}}"
    return f"{_COMMON}{policies}{stages}\n{dark}"
