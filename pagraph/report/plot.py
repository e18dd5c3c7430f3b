"""Matplotlib chart of a profile: hit rates over the budget, and hits by hop."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MissingDependencyError, how_to_install
from ..profile import recommend
from ..system.atomic import new_file
from ..system.units import bytes_text, percent, short_count
from .markup import policy_styles
from .words import hop_name

if TYPE_CHECKING:
    from ..profile import CurveRecord, HitRateCurve, Recommendation

__all__ = [
    "INK",
    "PLOT_FORMATS",
    "RULE",
    "SOFT",
    "check_plot",
    "lighten",
    "save_figure",
    "save_plot",
]

PLOT_FORMATS = (".png", ".svg")
"""Endings of the files that can be drawn."""

INK, SOFT, RULE, _MARK, _HIT, _MISS = (
    "#1c2430",
    "#566072",
    "#d9dee6",
    "#0a7a4b",
    "#0072b2",
    "#c9d4e0",
)


def check_plot(path: str | os.PathLike[str], formats: Sequence[str] = PLOT_FORMATS) -> None:
    """Check that a plot can be drawn to a file, before the long work.

    Raises:
        ValueError: The file's ending is not one of ``formats``.
        MissingDependencyError: matplotlib is not installed.
    """
    if Path(path).suffix.lower() not in formats:
        raise ValueError(f"plot must end in {' or '.join(formats)}, got {os.fspath(path)!r}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != "matplotlib":
            # Matplotlib is there and something it needs is not: its own message is the better one.
            raise
        raise MissingDependencyError(
            f"a plot needs matplotlib, which is not installed: {how_to_install('plot')}"
        ) from None


def save_plot(
    curve: HitRateCurve,
    path: str | os.PathLike[str],
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
        ValueError, MissingDependencyError: As :func:`check_plot`; a curve without a policy that
            training can use.
        OSError: The file cannot be written.
    """
    check_plot(path)
    recommendation = recommendation or recommend(curve)
    save_figure(path, lambda: _figure(curve, recommendation, title))


def save_figure(path: str | os.PathLike[str], draw: Callable[[], Any], **style: Any) -> None:
    """Draw a figure into a file, the same bytes each time; ``style`` is more of the style, by
    matplotlib's names."""
    from matplotlib import rc_context

    suffix = Path(path).suffix.lower()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
    plain = {"font.size": 11, "text.color": INK, "axes.edgecolor": SOFT, "svg.hashsalt": "pagraph"}
    with rc_context({**plain, **style}):
        figure = draw()
        with new_file(path) as file:
            figure.savefig(file, format=suffix[1:], dpi=150, metadata=metadata)


def lighten(axes: Any) -> None:
    """Leave out the frame's upper and right side, and draw the others lightly."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=SOFT, labelcolor=INK)


def _figure(curve: HitRateCurve, recommendation: Recommendation, title: str) -> Any:
    from matplotlib.figure import Figure

    best = curve.at(recommendation.policy, recommendation.budget_rows)
    figure = Figure(figsize=(14.0, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[4, 3])
    figure.suptitle(
        f"What a cache saves on {title}" if title else "What a cache saves", weight="bold"
    )
    _draw_curves(left, curve, best, advised=recommendation.worth_it)
    _draw_hops(right, curve, best)
    for axes in (left, right):
        lighten(axes)
    return figure


def _draw_curves(axes: Any, curve: HitRateCurve, best: CurveRecord, *, advised: bool) -> None:
    mark = _MARK if advised else SOFT
    for zorder, (policy, style) in enumerate(
        reversed(policy_styles(curve.policies).items()), start=3
    ):
        records = curve.whole(policy)
        x = [0.0, *(100 * record.budget_fraction for record in records)]
        y = [0.0, *(100 * curve.served(record) for record in records)]
        here = curve.at(policy, best.budget_rows)
        width, place = (3.2, 50) if policy == best.policy else (1.8, zorder)
        dashes = (0, [d / 1.8 for d in style.dash]) if style.dash else "solid"
        label = f"{percent(curve.served(here))}  {policy}"
        axes.plot(x, y, color=style.light, lw=width, ls=dashes, label=label, zorder=place)
    axes.axvline(100 * best.budget_fraction, color=SOFT, lw=1, ls=":", zorder=1)
    axes.plot(
        100 * best.budget_fraction,
        100 * curve.served(best),
        "o",
        ms=9,
        color=mark,
        mec="white",
        mew=1.5,
        zorder=99,
    )
    widest = max(record.budget_fraction for record in curve.whole(best.policy)) or 1.0
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: -float(labels[i].partition("%")[0]))
    axes.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        title=f"with {_budget(best)}",
        loc="upper left",
        # Outside: with few budgets or many policies there is no free corner.
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0.0,
        frameon=False,
        alignment="left",
        handlelength=3,
    )
    axes.set(
        xlim=(0, 101 * widest),
        ylim=(0, 101),
        xlabel="vertices in the cache, % of all",
        ylabel=f"hit rate: {curve.unit} served by the cache, %",
    )
    axes.set_title(
        "Hit rate by budget" if advised else "Hit rate by budget: no cache is advised", loc="left"
    )
    axes.grid(color=RULE, lw=0.7)
    axes.set_axisbelow(True)


def _budget(record: CurveRecord) -> str:
    words = percent(record.budget_fraction)
    return words if record.budget_bytes is None else f"{words}, {bytes_text(record.budget_bytes)}"


def _draw_hops(axes: Any, curve: HitRateCurve, best: CurveRecord) -> None:
    names = [hop_name(curve, hop) for hop in range(len(curve.rows_by_hop))]
    hits = [rows * rate for rows, rate in zip(curve.rows_by_hop, best.hit_rate_by_hop, strict=True)]
    misses = [rows - hit for rows, hit in zip(curve.rows_by_hop, hits, strict=True)]
    axes.barh(names, hits, color=_HIT, height=0.6, label="from the cache")
    axes.barh(names, misses, left=hits, color=_MISS, height=0.6, label="fetched")
    most = max(curve.rows_by_hop, default=0.0) or 1.0
    for place, (rows, rate) in enumerate(zip(curve.rows_by_hop, best.hit_rate_by_hop, strict=True)):
        axes.text(rows + 0.015 * most, place, percent(rate) if rows else "-", va="center")
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.16 * most), xlabel="rows read in an epoch")
    axes.xaxis.set_major_formatter(lambda value, _: short_count(value))
    axes.set_title(f"Hits by hop with {best.policy}, {percent(best.budget_fraction)}", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
