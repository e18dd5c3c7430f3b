"""Plots of partitions, by matplotlib: vertices of each part, or replication of each method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..options.names import PARTITION_PLOT_FORMATS
from ..report.style import INK, RULE, SOFT, check_plot, lighten, save_figure
from ..system.checks import StrPath
from ..system.units import short_count
from .report import PartitionReport, PartReport

# Colours of Okabe and Ito, safe for colour-blind readers; hops fade with distance.
_TRAIN = "#0072b2"
_EVALUATED = "#00795a"
_HOPS = ("#d55e00", "#f0a35e", "#f7cfa6", "#fbe6d0")
_MOST_HOPS = len(_HOPS)  # with more, the last colour stands for all remaining hops
# Most parts with gaps between bars; narrower gaps of a pixel or two would look uneven.
_SPACED = 40
# Most parts with numbers below and above each bar; more would overlap.
_NUMBERED = 16


def save_plot(report: PartitionReport, path: StrPath, *, title: str = "") -> None:
    """Plot the vertices of each part: training vertices, and those that each hop adds.

    Written atomically.

    Raises:
        ValueError: ``path`` does not end in ``.png``, ``.svg`` or ``.pdf``.
        MissingDependencyError: matplotlib is not installed.
    """
    _save(path, lambda: _parts_figure(report, title))


def save_comparison_plot(
    reports: Sequence[PartitionReport], path: StrPath, *, title: str = ""
) -> None:
    """Plot the replication factors of methods with the same number of parts; raises as
    :func:`save_plot`."""
    _save(path, lambda: _comparison_figure(reports, title))


def _save(path: StrPath, draw: Any) -> None:
    check_plot(path, PARTITION_PLOT_FORMATS)
    save_figure(path, draw)


def _parts_figure(report: PartitionReport, title: str) -> Any:
    from matplotlib.figure import Figure

    # Grows with the number of parts, up to the width of a page.
    inches = min(14.0, 7.0 + 0.18 * report.num_parts)
    figure = Figure(figsize=(inches, 5.2), layout="constrained")
    axes = figure.subplots()
    places = range(report.num_parts)
    width = 0.72 if report.num_parts <= _SPACED else 1.0
    below = [0] * report.num_parts
    for layer in _layers([report]):
        values = [layer.count(part) for part in report.parts]
        look: dict[str, Any] = {"color": layer.color, "label": layer.label, "zorder": 3}
        axes.bar(places, values, width, bottom=below, **look)
        below = [low + value for low, value in zip(below, values, strict=True)]
    # The smallest possible size of equal parts.
    even = report.covered / report.num_parts
    dashes = (0, (5, 3))
    axes.axhline(even, color=INK, lw=1.2, ls=dashes, label="all, if nothing were copied", zorder=4)
    if report.num_parts <= _NUMBERED:
        for place, value in enumerate(below):
            axes.text(place, value, _total(value), ha="center", va="bottom", fontsize=10)
    axes.set(
        xlabel="part",
        ylabel="vertices",
        ylim=(0, 1.06 * max(*below, even)),
        xlim=(-0.6, report.num_parts - 0.4),
    )
    # Every n-th part, so that at most _NUMBERED have a tick.
    axes.set_xticks(places[:: -(-report.num_parts // _NUMBERED)])
    axes.yaxis.set_major_formatter(lambda value, _: short_count(value))
    axes.set_title(
        f"replication factor {report.replication_factor:.2f}, largest part "
        f"{report.vertex_balance:.2f} times the mean",
        loc="left",
        color=SOFT,
        fontsize=11,
    )
    _finish(figure, axes, title, f"{report.shape_text} by {report.method}", grid="y", step=-1)
    return figure


def _comparison_figure(reports: Sequence[PartitionReport], title: str) -> Any:
    from matplotlib.figure import Figure

    order = sorted(reports, key=lambda report: report.replication_factor)
    figure = Figure(figsize=(10.0, 1.9 + 0.55 * len(order)), layout="constrained")
    axes = figure.subplots()
    names = [report.method for report in order]
    begins = [0.0] * len(order)
    for layer in _layers(order):
        values = [sum(map(layer.count, report.parts)) / report.num_nodes for report in order]
        look: dict[str, Any] = {"color": layer.color, "label": layer.label, "zorder": 3}
        axes.barh(names, values, 0.66, left=begins, **look)
        begins = [begin + value for begin, value in zip(begins, values, strict=True)]
    most = max(begins)
    # A white box behind the text hides the grid; its z-order is below the bars, if they overlap.
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    for place, report in enumerate(order):
        end = begins[place] + 0.012 * most
        axes.text(end, place, _beside(report), va="center", bbox=ground, zorder=2)
    axes.invert_yaxis()  # so that the best method is at the top
    axes.set(
        xlim=(0, 1.32 * most),  # room for the text next to the longest bar
        xlabel="replication factor: vertices of all parts / vertices of the graph",
    )
    _finish(figure, axes, title, f"{order[0].shape_text} by method", grid="x", step=1)
    return figure


def _beside(report: PartitionReport) -> str:
    words = f"{report.replication_factor:.2f}"
    if report.lost:
        words += f", {report.lost:.0%} of neighbours lost"
    if report.caches is not None:
        words += f", hit rate {report.caches.hit_rate:.0%}"
    return words


class _Layer(NamedTuple):
    """Segments of all bars; ``count`` is the number of vertices of a part in its segment."""

    label: str
    color: str
    count: Callable[[PartReport], int]


def _layers(reports: Sequence[PartitionReport]) -> list[_Layer]:
    layers = [_Layer("training vertices", _TRAIN, lambda part: part.train)]
    if any(part.evaluated for report in reports for part in report.parts):
        layers.append(_Layer("validation and test", _EVALUATED, lambda part: part.evaluated))
    hops = max(report.hops for report in reports)
    shown = hops if hops <= _MOST_HOPS else _MOST_HOPS - 1
    for hop in range(shown):
        found = partial(_found, hop, hop + 1)
        layers.append(_Layer(f"found by hop {hop + 1}", _HOPS[hop], found))
    if shown < hops:
        found = partial(_found, shown, hops)
        layers.append(_Layer(f"found by hops {shown + 1} to {hops}", _HOPS[shown], found))
    return layers


def _found(first: int, end: int, part: PartReport) -> int:
    """Vertices that hops ``first`` to ``end`` of a part found, which may have fewer hops."""
    return sum(part.halo[first:end])


def _finish(figure: Any, axes: Any, name: str, rest: str, *, grid: str, step: int) -> None:
    """Set title, grid and legend; ``step`` -1 reverses the legend, since the last layer is on
    top."""
    title = f"{name}: {rest}" if name else rest
    figure.suptitle(title, weight="bold")
    axes.grid(axis=grid, color=RULE, lw=0.7)
    lighten(axes)
    axes.set_axisbelow(True)
    handles, labels = axes.get_legend_handles_labels()
    # Outside the axes, as bars leave no free corner.
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
    axes.legend(handles[::step], labels[::step], frameon=False, **place)


def _total(count: int) -> str:
    """The text of a count above a bar."""
    # Three digits for large counts; longer texts of adjacent bars would touch.
    return f"{count:,}" if count < 10_000 else short_count(float(f"{count:.3g}"))
