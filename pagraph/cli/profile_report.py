"""Terminal report of ``pagraph profile``: hit rates, hits by hop, stage times, the recommendation."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ..profile import LOADING_STAGES
from ..report.times import WORKERS, verdict
from ..report.words import answer, best_caption, best_of, cache_argument, hop_name
from ..system.units import bytes_text, percent
from .terminal import number_table, print_whole

if TYPE_CHECKING:
    from pathlib import Path

    from ..profile import CurveRecord, HitRateCurve, Recommendation
    from ..profile.loading import LoadingTimes
    from ..train.options import TrainOptions

__all__ = ["print_profile", "train_command"]


def print_profile(
    curve: HitRateCurve,
    recommendation: Recommendation,
    loading: LoadingTimes | None,
    *,
    title: str,
    command: str | None = None,
    console: Console | None = None,
) -> None:
    """Print a profile; the table of rates fits into 80 columns with the default policies.

    Args:
        curve: Hit rates.
        recommendation: The policy and budget that they recommend.
        loading: Times of real epochs, if they were measured.
        title: Name of the graph.
        command: Shell command that trains with the recommended cache.
        console: Where to print. Default: standard output.
    """
    console = console or Console(highlight=False, markup=False)
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    console.print(
        f"{title}: {curve.num_nodes:,} vertices; an epoch has {curve.batches:,} batches and reads "
        f"{curve.reads:,.0f} rows",
        soft_wrap=True,
    )
    print_whole(console, _rates(curve, best))
    console.print(_hops(curve, best))
    if loading is not None:
        console.print(_times(loading))
        console.print(verdict(loading), soft_wrap=True)
        if step := loading.settings.get("step"):
            console.print(f"Computing is {step}, a stand-in for your model.", soft_wrap=True)
    console.print()
    for sentence in answer(curve, recommendation):
        console.print(sentence)
    console.print(_smallest(recommendation))
    share = cache_argument(recommendation.budget_rows, curve.num_nodes)
    console.print(f'To set: cache="{share}", cache_policy="{recommendation.policy}"', soft_wrap=True)
    if command is not None:
        console.print(f"To train: {command}", soft_wrap=True)


def train_command(
    folder: Path, split: str, options: TrainOptions, curve: HitRateCurve, recommendation: Recommendation
) -> str:
    """Shell command that trains as was profiled, with the recommended cache."""
    fanout = ",".join(map(str, options.fanout))
    words = ["pagraph", "train", str(folder), f"--fanout={fanout}", f"--batch-size={options.batch_size}"]
    words += [f"--split={split}"] if split else []
    words += [f"--cache={cache_argument(recommendation.budget_rows, curve.num_nodes)}"]
    return shlex.join([*words, f"--cache-policy={recommendation.policy}"])


def _rates(curve: HitRateCurve, best: CurveRecord) -> Table:
    caption = f"* {best_caption(curve)}, > the recommended budget"
    columns = ["budget", "rows", *(["bytes"] if curve.row_bytes else []), *curve.policies]
    table = number_table("hit rate, %", columns, caption)
    for records in curve.with_budget(best.budget_rows):
        first = records[0]
        chosen = first.budget_rows == best.budget_rows
        best_ones = best_of(curve, records)
        cells = [f"{'> ' if chosen else ''}{percent(first.budget_fraction)}", f"{first.budget_rows:,}"]
        if first.budget_bytes is not None:
            cells.append(bytes_text(first.budget_bytes))
        cells += [f"{100 * r.hit_rate:.1f}" + ("*" if r.policy in best_ones else " ") for r in records]
        table.add_row(*cells, style="bold" if chosen else None)
    return table


def _hops(curve: HitRateCurve, best: CurveRecord) -> Table:
    title = f"rows and hits by hop: {best.policy}, {percent(best.budget_fraction)}"
    table = Table(title=title, title_justify="left")
    for name in ("found by", "rows an epoch", "hit rate", "rows fetched"):
        table.add_column(name, justify="left" if name == "found by" else "right")
    for hop, (rows, rate) in enumerate(zip(curve.rows_by_hop, best.hit_rate_by_hop, strict=True)):
        table.add_row(hop_name(hop), f"{rows:,.0f}", percent(rate if rows else None), f"{rows * (1 - rate):,.0f}")
    table.add_row("all", f"{curve.reads:,.0f}", percent(best.hit_rate), f"{curve.reads * (1 - best.hit_rate):,.0f}")
    return table


def _times(loading: LoadingTimes) -> Table:
    title = f"where the time goes, with the recommended cache: {len(loading.epochs)} epochs, seconds each"
    table = Table(title=title, title_justify="left")
    for name in ("stage", "first", "median", "share", "what happens in it"):
        table.add_column(name, justify="left" if name in ("stage", "what happens in it") else "right")
    medians, first = loading.medians, loading.epochs[0]
    for stage, words in LOADING_STAGES.items():
        # Shares of the epoch: what threads do at the same time has none.
        share = "" if stage in WORKERS else percent(medians[stage] / (medians["epoch"] or 1.0))
        table.add_row(stage, f"{first.stages[stage]:.3f}", f"{medians[stage]:.3f}", share, words)
    table.add_row("epoch", f"{first.seconds:.3f}", f"{medians['epoch']:.3f}", "", "wall time")
    return table


def _smallest(recommendation: Recommendation) -> str:
    found = {share: choice for share, choice in recommendation.smallest_for.items() if choice is not None}
    parts = [f"{percent(choice.budget_fraction)} of the vertices for {share:.0%}" for share, choice in found.items()]
    return f"To save a given share of all that can be saved takes {', '.join(parts)}." if parts else ""
