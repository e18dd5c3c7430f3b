"""Charts of a profile by matplotlib: rates by budget, hits by hop, stages, and a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..options.names import PLOT_FORMATS
from ..profile import recommend
from ..system.checks import StrPath
from ..system.units import bytes_text, percent, short_count
from .style import (
    GROUND,
    HIT,
    MARK,
    MISS,
    RULE,
    SOFT,
    STAGE_COLORS,
    add_tooltip,
    check_plot,
    lighten,
    policy_styles,
    save_figure,
)
from .times import Timeline, epoch_bars
from .words import hop_name

if TYPE_CHECKING:
    from ..profile import CurveRecord, HitRateCurve, LoadingTimes, Recommendation

# Inches. A page scales charts, and their text with them, to its width. Bars with long names are as
# wide as a phone. The curves are wider, and the style sheet enlarges their text on a phone. A
# timeline may be scrolled.
_CURVES_WIDTH = 6.2
_BARS_WIDTH = 4.8
_TIMELINE_WIDTH = 10.0
_NARROW_LEGEND: dict[str, Any] = {"columnspacing": 1.0, "handlelength": 1.2, "handletextpad": 0.5}


def save_plot(
    curve: HitRateCurve,
    path: StrPath,
    *,
    recommendation: Recommendation | None = None,
    title: str = "",
) -> None:
    """Draw a profile into a file, which appears whole or not at all.

    Args:
        curve: Hit rates.
        path: Path that ends in ``.png`` or ``.svg``.
        recommendation: Default: that of :func:`pagraph.profile.recommend`.
        title: Name of the graph.

    Raises:
        ValueError: The path has another ending, or the curve has no policy that training can use.
        MissingDependencyError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    check_plot(path, PLOT_FORMATS)
    recommendation = recommendation or recommend(curve)
    save_figure(path, lambda: profile_figure(curve, recommendation, title))


def profile_figure(curve: HitRateCurve, recommendation: Recommendation, title: str) -> Any:
    """Hit rates and hops side by side, with titles and a legend, for a file."""
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    figure = _new_figure(14.0, 5.2)
    left, right = figure.subplots(1, 2, width_ratios=[4, 3])
    words = f"What a cache saves on {title}" if title else "What a cache saves"
    figure.suptitle(words, weight="bold")
    _draw_rates(left, curve, best, advised=recommendation.worth_it)
    _add_rate_legend(left, curve, best)
    heading = "Hit rate by budget"
    if not recommendation.worth_it:
        heading += ": no cache is advised"
    left.set_title(heading, loc="left")
    _draw_hops(right, curve, best)
    right.set_title(f"Hits by hop with {best.policy}, {percent(best.budget_fraction)}", loc="left")
    return figure


def rate_figure(curve: HitRateCurve, recommendation: Recommendation) -> Any:
    """Hit rates alone, for a page that has its own legend."""
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    figure = _new_figure(_CURVES_WIDTH, 4.4)
    _draw_rates(figure.subplots(), curve, best, advised=recommendation.worth_it)
    return figure


def hop_figure(curve: HitRateCurve, best: CurveRecord) -> Any:
    """Hits by hop alone."""
    figure = _new_figure(_BARS_WIDTH, 1.2 + 0.4 * len(curve.rows_by_hop))
    _draw_hops(figure.subplots(), curve, best)
    return figure


def _new_figure(width: float, height: float) -> Any:
    # Not pyplot, which keeps figures and may look for a display.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _draw_rates(axes: Any, curve: HitRateCurve, best: CurveRecord, *, advised: bool) -> None:
    budget = 100 * best.budget_fraction
    rate = 100 * curve.served(best)
    # Policies named first are drawn on top of others, and the recommended one on top of all.
    styles = reversed(policy_styles(curve.policies).items())
    for zorder, (policy, style) in enumerate(styles, start=3):
        records = curve.whole(policy)
        # Curves start at no cache, which never hits.
        x = [0.0, *(100 * record.budget_fraction for record in records)]
        y = [0.0, *(100 * curve.served(record) for record in records)]
        (line,) = axes.plot(x, y, color=style.color, lw=1.8, label=policy, zorder=zorder)
        if style.dash:
            # Matplotlib measures dashes in line widths.
            line.set_linestyle((0, [length / 1.8 for length in style.dash]))
        if policy == best.policy:
            line.set(linewidth=3.2, zorder=50)
        add_tooltip(line, policy)
    color = MARK if advised else SOFT
    words = "recommended" if advised else "a small cache, not advised"
    axes.axvline(budget, color=SOFT, lw=1, ls=":", zorder=1, gid="pointer")
    (mark,) = axes.plot(budget, rate, "o", ms=9, color=color, mec=GROUND, mew=1.5, zorder=99)
    add_tooltip(mark, words)
    widest = max(record.budget_fraction for record in curve.whole(best.policy)) or 1.0
    # Where the text has room: to the right of the line, unless the budget is large.
    side = "left" if best.budget_fraction < 0.6 * widest else "right"
    axes.annotate(
        f"{words}: {percent(best.budget_fraction)}",
        (budget, 0),
        xytext=({"left": 8, "right": -8}[side], 8),
        textcoords="offset points",
        ha=side,
        weight="bold",
        zorder=100,
    )
    axes.set(
        xlim=(0, 101 * widest),
        ylim=(0, 101),
        xlabel="vertices in the cache, % of all",
        ylabel=f"hit rate: {curve.unit} served by the cache, %",
    )
    axes.grid(color=RULE, lw=0.7)
    axes.set_axisbelow(True)
    lighten(axes)


def _add_rate_legend(axes: Any, curve: HitRateCurve, best: CurveRecord) -> None:
    """Name the policies with their hit rates at the recommended budget, the best first."""
    lines = {line.get_label(): line for line in axes.lines}
    records = [curve.at(policy, best.budget_rows) for policy in curve.policies]
    records.sort(key=curve.served, reverse=True)
    title = f"with {percent(best.budget_fraction)}"
    if best.budget_bytes is not None:
        title += f", {bytes_text(best.budget_bytes)}"
    axes.legend(
        [lines[record.policy] for record in records],
        [f"{percent(curve.served(record))}  {record.policy}" for record in records],
        title=title,
        loc="upper left",
        # Outside, as with few budgets or many policies no corner is free.
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0.0,
        frameon=False,
        alignment="left",
        handlelength=3,
    )


def _draw_hops(axes: Any, curve: HitRateCurve, best: CurveRecord) -> None:
    names = [hop_name(curve, hop) for hop in range(len(curve.rows_by_hop))]
    hits = [rows * rate for rows, rate in zip(curve.rows_by_hop, best.hit_rate_by_hop, strict=True)]
    misses = [rows - hit for rows, hit in zip(curve.rows_by_hop, hits, strict=True)]
    axes.barh(names, hits, color=HIT, height=0.6, label="from the cache")
    axes.barh(names, misses, left=hits, color=MISS, height=0.6, label="fetched")
    most = max(curve.rows_by_hop, default=0.0) or 1.0
    for place, (rows, rate) in enumerate(zip(curve.rows_by_hop, best.hit_rate_by_hop, strict=True)):
        shown = percent(rate) if rows else "-"
        axes.text(rows + 0.015 * most, place, shown, va="center")
    axes.invert_yaxis()  # the seeds on top
    axes.set(xlim=(0, 1.16 * most), xlabel="rows read in an epoch")
    axes.xaxis.set_major_formatter(lambda value, _: short_count(value))
    lighten(axes)
    axes.figure.legend(loc="outside lower center", ncols=2, frameon=False)


def stage_figure(loading: LoadingTimes) -> Any:
    """Seconds by stage, two bars for each epoch."""
    bars = epoch_bars(loading)
    figure = _new_figure(_BARS_WIDTH, 1.8 + 0.28 * len(bars))
    axes = figure.subplots()
    named: set[str] = set()
    for place, seconds_by_stage in enumerate(bars.values()):
        end = 0.0
        for stage, seconds in seconds_by_stage.items():
            # Labels that begin with an underscore stay out of the legend.
            label = f"_{stage}" if stage in named else stage
            color = STAGE_COLORS[stage]
            (bar,) = axes.barh(place, seconds, 0.7, end, color=color, label=label)
            add_tooltip(bar, f"{stage}: {seconds:.3f} s")
            end += seconds
            named.add(stage)
    axes.set(xlabel="seconds", yticks=range(len(bars)), yticklabels=list(bars))
    axes.invert_yaxis()  # the first epoch on top
    lighten(axes)
    # Three columns: with four the legend is wider than the bars, and cut off.
    figure.legend(loc="outside lower center", ncols=3, frameon=False, **_NARROW_LEGEND)
    return figure


def timeline_figure(shown: Timeline) -> Any:
    """Lanes of threads, with a bar for each stage of each batch."""
    from matplotlib.patches import Patch

    figure = _new_figure(_TIMELINE_WIDTH, 1.0 + 0.55 * len(shown.lanes))
    axes = figure.subplots()
    length = 1000 * (shown.end - shown.begin) or 1.0
    # About the time that a digit covers on the page. Numbers wider than their span are left out.
    digit = 0.01 * length
    for place, (name, spans) in enumerate(shown.lanes.items()):
        axes.text(0, place - 0.38, name, va="bottom", fontsize=10)
        for span in spans:
            begin = 1000 * (max(span.begin, shown.begin) - shown.begin)
            width = 1000 * (min(span.end, shown.end) - shown.begin) - begin
            color = STAGE_COLORS[span.stage]
            (bar,) = axes.barh(place, width, 0.6, begin, color=color, ec=GROUND, lw=0.5)
            batch = "" if span.batch < 0 else f", batch {span.batch}"
            add_tooltip(bar, f"{span.stage}{batch}: {1000 * (span.end - span.begin):.2f} ms")
            number = str(span.batch)
            if batch and span.stage != "waiting" and width > digit * (1 + len(number)):
                middle = begin + width / 2
                axes.text(middle, place, number, color=GROUND, ha="center", va="center", fontsize=9)
    axes.set(
        xlim=(0, length),
        ylim=(len(shown.lanes) - 0.6, -0.8),
        xlabel=f"milliseconds since batch 0 of epoch {shown.epoch + 1}",
        yticks=[],
    )
    axes.grid(axis="x", color=RULE, lw=0.7)
    axes.set_axisbelow(True)
    lighten(axes)
    axes.spines["left"].set_visible(False)
    stages = dict.fromkeys(span.stage for spans in shown.lanes.values() for span in spans)
    handles = [Patch(color=STAGE_COLORS[stage]) for stage in stages]
    figure.legend(
        handles,
        list(stages),
        loc="outside lower center",
        ncols=min(len(stages), 5),
        frameon=False,
        **_NARROW_LEGEND,
    )
    return figure
