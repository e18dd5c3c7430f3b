"""Sentences and tables of a profile, for the terminal and the page, and a glossary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..profile import LOADING_STAGES
from ..system.tables import BEST, Table
from ..system.units import bytes_text, in_mebibytes, percent
from .times import WORKERS

if TYPE_CHECKING:
    from ..profile import BudgetChoice, CurveRecord, HitRateCurve, LoadingTimes, Recommendation

_POLICY_WORDS = {
    "auto": "counts reads in sampled epochs, and adds computed probabilities where the counts are "
    "low; the default of the loaders",
    "adaptive": "starts as degree and, after the first epoch, takes the vertices that this read "
    "most",
    "presample": "counts reads in sampled epochs (three, or K with presample:K) before training "
    "begins",
    "vip": "computes each vertex's probability of being read from the graph and the fan-out, "
    "without sampling",
    "degree": "takes the vertices that most edges lead from, whatever the training vertices and "
    "the fan-out are",
    "random": "takes random vertices: what a cache saves without a policy",
    "oracle": "knows the epoch that it is measured on: the limit of every cache of that size; for "
    "comparison only",
    "ideal": "ranks by the mean of many other epochs: the limit of a ranking that does not know "
    "the future; for comparison only",
}

GLOSSARY = {
    "Feature row": "The numbers that describe one vertex. Training on a batch needs the rows of "
    "all its vertices.",
    "Batch": "The training vertices of one step, together with the neighbours that were drawn for "
    "them.",
    "Epoch": "One pass over all training vertices, batch by batch.",
    "Hop, fan-out": "The training vertices of a batch are hop 0. Hop 1 are neighbours drawn for "
    "them, hop 2 neighbours of those, and so on. The fan-out is the number drawn for each vertex.",
    "Cache": "Rows kept where the model computes, such as in a GPU's memory. They are chosen "
    "before training and need not be fetched again.",
    "Budget": "How much the cache may hold: a share of all vertices, a number of rows, or bytes.",
    "Hit rate": "The share of the rows asked for that the cache serves. The others, the misses, "
    "are fetched from main memory or the disk.",
    "Policy": "The rule that chooses which vertices the cache holds.",
    "Knee": "The budget at which a curve bends: rows beyond it save less than the average row "
    "does.",
}
"""Terms and their meanings; each uses only earlier ones."""


def cache_argument(rows: int, num_nodes: int) -> str:
    """Value of ``cache=`` for a number of rows: the shortest per cent that buys them.

    Example:
        >>> cache_argument(1433, 4096), cache_argument(1434, 4096)
        ('35%', '35.01%')
    """
    exact = 100 * rows / num_nodes if num_nodes else 0.0
    texts = [f"{exact:.{digits}f}" for digits in range(13)]
    for text in texts:
        # A budget rounds like this, 1e-6 included. The text must buy exactly these rows.
        if math.floor(float(text) / 100 * num_nodes + 1e-6) == rows:
            return f"{text}%"
    return f"{texts[-1]}%"


def recommended_cache(curve: HitRateCurve, recommendation: Recommendation) -> str:
    """Value of ``cache=`` that a profile recommends; "0" if a cache is not worth it."""
    if not recommendation.worth_it:
        return "0"
    return cache_argument(recommendation.budget_rows, curve.num_nodes)


def settings_words(curve: HitRateCurve, recommendation: Recommendation) -> str:
    """Arguments of a loader with the recommended cache."""
    policy = f', cache_policy="{recommendation.policy}"' if recommendation.worth_it else ""
    return f'cache="{recommended_cache(curve, recommendation)}"{policy}'


def hop_name(curve: HitRateCurve, hop: int) -> str:
    """Name of a hop in tables and charts."""
    if hop:
        return f"hop {hop}"
    return "ends of links" if curve.of_links else "training vertices"


def policy_words(policy: str) -> str:
    """One sentence about a policy."""
    return _POLICY_WORDS.get(policy.partition(":")[0], "a policy of your own")


def best_of(curve: HitRateCurve, records: Iterable[CurveRecord]) -> set[str]:
    """Find the usable policies that save most, ties as printed included."""
    usable = [record for record in records if record.policy in curve.usable]
    # Per cents are printed with one digit. Rates that look equal are marked alike.
    rates = {r.policy: round(curve.served(r), 3) for r in usable}
    return {policy for policy, rate in rates.items() if rate == max(rates.values())}


def answer(curve: HitRateCurve, recommendation: Recommendation) -> list[str]:
    """Say in a few sentences what a small cache saves, whether one is worth it, and what to set."""
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    small = curve.at(recommendation.policy, recommendation.small.budget_rows)
    sentences = [
        f"A cache of {percent(small.budget_fraction)} of the vertices serves "
        f"{percent(curve.served(small))} of the {curve.unit} that training reads.",
        _advice(curve, recommendation, best),
        _saving(curve, best, advised=recommendation.worth_it),
    ]
    if curve.oracle_served(best):
        sentences.append(
            f"A cache of this size that knew in advance what will be read would serve "
            f"{percent(curve.oracle_served(best))}."
        )
    if recommendation.worth_it:
        sentences.append(_beyond(curve, best))
    sentences += [_others(curve, best), _memory(curve)]
    if curve.has_widths:
        sentences.append(
            "Vertex types have rows of different widths, so bytes are counted here: policies spend "
            "a budget where it saves most of them."
        )
    return [sentence for sentence in sentences if sentence]


def _advice(curve: HitRateCurve, recommendation: Recommendation, best: CurveRecord) -> str:
    nbytes = "" if best.budget_bytes is None else f", {bytes_text(best.budget_bytes)}"
    if recommendation.worth_it:
        return (
            f"Give the cache {percent(best.budget_fraction)} of the vertices ({best.budget_rows:,} "
            f"rows{nbytes}) and let the policy {best.policy} choose them: it then serves "
            f"{percent(curve.served(best))}."
        )
    return (
        "That is not worth it: the curve hardly bends, so a cache saves little more than its share "
        "of the rows. No cache is advised, unless the memory is free anyway."
    )


def _saving(curve: HitRateCurve, best: CurveRecord, *, advised: bool) -> str:
    missed = curve.reads * (1 - best.hit_rate)
    if best.bytes_moved is None:
        have = "still have" if advised else "would still have"
        return (
            f"An epoch reads {curve.reads:,.0f} rows; {missed:,.0f} of them {have} to be fetched."
        )
    fetches = "An epoch then fetches" if advised else "With the small one, an epoch would fetch"
    if not curve.bytes_read:
        return f"{fetches} {bytes_text(best.bytes_moved)}."
    moved = bytes_text(best.bytes_moved)
    less = percent(1 - best.bytes_moved / curve.bytes_read)
    return f"{fetches} {moved} instead of {bytes_text(curve.bytes_read)}, {less} less."


def _beyond(curve: HitRateCurve, best: CurveRecord) -> str:
    """Gain of a budget of about twice the size."""
    larger = [r for r in curve.whole(best.policy) if r.budget_rows >= max(1, 2 * best.budget_rows)]
    if not larger:
        return ""
    more = larger[0]
    rate = curve.served(more)
    return (
        f"More pays less: a cache of {percent(more.budget_fraction)} of the vertices would serve "
        f"{percent(rate)}, {100 * (rate - curve.served(best)):.1f} points more."
    )


def _memory(curve: HitRateCurve) -> str:
    """What the curve leaves out because memory is short."""
    parts = []
    if curve.few_batches and "auto" in curve.policies:
        parts.append("auto ranks by a few batches, as a loader with this memory does")
    if curve.left_out:
        needed = in_mebibytes(max(curve.left_out.values()))
        parts.append(f"{' and '.join(curve.left_out)} are left out and need --memory {needed}")
    return f"Because memory is short, {'; '.join(parts)}." if parts else ""


def _others(curve: HitRateCurve, best: CurveRecord) -> str:
    """Hit rates of the other policies, and why a better one is not recommended."""
    others = [
        curve.at(policy, best.budget_rows) for policy in curve.usable if policy != best.policy
    ]
    if not others:
        return ""
    others.sort(key=curve.served, reverse=True)
    text = (
        "Other policies at this budget: "
        f"{', '.join(f'{r.policy} {percent(curve.served(r))}' for r in others)}."
    )
    first = curve.served(others[0])
    own = curve.served(best)
    if percent(first) != percent(own) and first > own:
        text += (
            f" Over all budgets {best.policy} saves more, or is at most 0.2 points behind and the "
            "default, or takes less to compute."
        )
    return text


def rate_table(curve: HitRateCurve, recommendation: Recommendation) -> Table:
    """Hit rates by budget and policy, with marks for the best policies and the advised budget."""
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
            # The space aligns the digits of a column.
            mark = BEST if record.policy in best else " "
            cells.append(f"{100 * curve.served(record):.1f}{mark}")
        rows.append(cells)
    best_words = "the best policy that can be used"
    if curve.has_widths:
        best_words = "the policy that saves most bytes"
    budget_words = "a small cache, though none is advised"
    if recommendation.worth_it:
        budget_words = "the advised budget"
    caption = f"{BEST} {best_words}, > {budget_words}"
    return Table(rows, f"hit rate in {curve.unit}, %", caption=caption, bold=advised)


def hop_table(curve: HitRateCurve, best: CurveRecord) -> Table:
    """Rows that an epoch reads, by the hop that found them, and their hit rates."""
    rows = [["found by", "rows an epoch", "hit rate", "rows fetched"]]
    hops = zip(curve.rows_by_hop, best.hit_rate_by_hop, strict=True)
    for hop, (reads, rate) in enumerate(hops):
        # A hop that reads nothing has no hit rate.
        shown = percent(rate) if reads else "-"
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
        # Threads work while the training loop computes, so their seconds are no share of the epoch.
        share = ""
        if stage not in (*WORKERS, "kernels"):
            share = percent(medians[stage] / (medians["epoch"] or 1.0))
        rows.append([stage, f"{first.stages[stage]:.3f}", f"{medians[stage]:.3f}", share, words])
    rows.append(["epoch", f"{first.seconds:.3f}", f"{medians['epoch']:.3f}", "", "without kernels"])
    cache = "with the recommended cache"
    if loading.settings.get("cache") == "0":
        cache = "without a cache, as advised"
    title = f"where the time goes, {cache}: {len(loading.epochs)} epochs, seconds each"
    return Table(rows, title, left=(0, 4), has_total=True)


def choice_table(curve: HitRateCurve, recommendation: Recommendation) -> Table:
    """Budgets by aim: a small cache, the knee, or a share of the best possible."""
    knee = "the knee, hardly a bend"
    if recommendation.worth_it:
        knee = "recommended: the knee"
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
    """All rates of one policy, by budget."""
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
