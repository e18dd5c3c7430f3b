"""Tables of a profile, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..profile import LOADING_STAGES
from ..system.tables import BEST, Table
from ..system.units import bytes_text, percent
from .times import WORKERS
from .words import best_caption, best_of, hop_name, marked_budget

if TYPE_CHECKING:
    from ..profile import BudgetChoice, CurveRecord, HitRateCurve, LoadingTimes, Recommendation


def rate_table(curve: HitRateCurve, recommendation: Recommendation) -> Table:
    """Hit rates by budget and policy, with marks of the best policies and the advised budget."""
    nbytes = ["bytes"] if curve.row_bytes else []
    rows = [["budget", "rows", *nbytes, *curve.policies]]
    advised = []
    for place, records in enumerate(curve.with_budget(recommendation.budget_rows)):
        first = records[0]
        budget = percent(first.budget_fraction)
        if first.budget_rows == recommendation.budget_rows:
            advised.append(place)
            budget = f"> {budget}"
        cells = [budget, f"{first.budget_rows:,}"]
        if first.budget_bytes is not None:
            cells.append(bytes_text(first.budget_bytes))
        best = best_of(curve, records)
        for record in records:
            # The space keeps the digits of a column below each other.
            mark = BEST if record.policy in best else " "
            cells.append(f"{100 * curve.served(record):.1f}{mark}")
        rows.append(cells)
    caption = f"{BEST} {best_caption(curve)}, > {marked_budget(recommendation)}"
    return Table(rows, f"hit rate in {curve.unit}, %", caption=caption, bold=advised)


def hop_table(curve: HitRateCurve, best: CurveRecord) -> Table:
    """Rows read in an epoch by the hop that found them, and how many of them hit."""
    rows = [["found by", "rows an epoch", "hit rate", "rows fetched"]]
    hops = zip(curve.rows_by_hop, best.hit_rate_by_hop, strict=True)
    for hop, (reads, rate) in enumerate(hops):
        # A hop that reads nothing has no hit rate.
        shown = percent(rate if reads else None)
        rows.append([hop_name(curve, hop), f"{reads:,.0f}", shown, f"{reads * (1 - rate):,.0f}"])
    fetched = curve.reads * (1 - best.hit_rate)
    rows.append(["all", f"{curve.reads:,.0f}", percent(best.hit_rate), f"{fetched:,.0f}"])
    title = f"rows and hits by hop: {best.policy}, {percent(best.budget_fraction)}"
    return Table(rows, title, left=(0,), has_total=True)


def stage_table(loading: LoadingTimes) -> Table:
    """Seconds of an epoch by stage."""
    rows = [["stage", "first", "median", "share", "what happens in it"]]
    medians = loading.medians
    first = loading.epochs[0]
    for stage, words in LOADING_STAGES.items():
        # Threads work while the training loop computes: their seconds are no share of the epoch.
        share = "" if stage in WORKERS else percent(medians[stage] / (medians["epoch"] or 1.0))
        rows.append([stage, f"{first.stages[stage]:.3f}", f"{medians[stage]:.3f}", share, words])
    rows.append(["epoch", f"{first.seconds:.3f}", f"{medians['epoch']:.3f}", "", "wall time"])
    cache = "with the recommended cache"
    if loading.settings.get("cache") == "0":
        cache = "without a cache, as advised"
    title = f"where the time goes, {cache}: {len(loading.epochs)} epochs, seconds each"
    return Table(rows, title, left=(0, 4), has_total=True)


def choice_table(curve: HitRateCurve, recommendation: Recommendation) -> Table:
    """Budgets by what they are good for."""
    knee = "recommended: the knee" if recommendation.worth_it else "the knee, which hardly is one"
    choices: dict[str, BudgetChoice | None] = {
        "a small cache": recommendation.small,
        knee: recommendation.knee,
    }
    for share, choice in recommendation.smallest_for.items():
        choices[f"{share:.0%} of the best possible"] = choice
    rows = [["aim", "budget", "rows", "bytes", "hit rate"]]
    for aim, choice in choices.items():
        if choice is None:
            rows.append([aim, "none measured", "", "", ""])
            continue
        record = curve.at(recommendation.policy, choice.budget_rows)
        nbytes = "-" if choice.budget_bytes is None else bytes_text(choice.budget_bytes)
        budget = percent(choice.budget_fraction)
        rate = percent(curve.served(record))
        rows.append([aim, budget, f"{choice.budget_rows:,}", nbytes, rate])
    return Table(rows, left=(0,))


def policy_table(records: Sequence[CurveRecord]) -> Table:
    """All that is known of one policy, by budget."""
    head: list[str] = []
    rows = []
    for record in records:
        rates = {
            "budget": record.budget_fraction,
            "hit rate": record.hit_rate,
            "predicted": record.predicted_hit_rate,
            "of the oracle's": record.share_of_oracle,
        }
        rates |= {f"epoch {i}": rate for i, rate in enumerate(record.hit_rate_by_epoch, 1)}
        rates |= {f"hop {i}": rate for i, rate in enumerate(record.hit_rate_by_hop)}
        rates |= {f"field {name}": rate for name, rate in record.hit_rate_by_field.items()}
        cells = {name: percent(rate) for name, rate in rates.items()}
        if record.bytes_moved is not None:
            cells["fetched an epoch"] = bytes_text(record.bytes_moved)
        head = list(cells)
        rows.append(list(cells.values()))
    return Table([head, *rows])
