"""A profile's results as sentences, with a glossary for readers new to feature caches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..system.units import bytes_text, in_mebibytes, percent

if TYPE_CHECKING:
    from ..profile import CurveRecord, HitRateCurve, Recommendation

_POLICY_WORDS = {
    "auto": "counts reads in sampled epochs, and helps itself with computed chances where the "
    "counts are thin; the default of the loaders",
    "adaptive": "starts as degree and, after the first epoch, takes the vertices that were really "
    "read",
    "presample": "counts reads in sampled epochs (three, or K with presample:K) before training "
    "begins",
    "vip": "computes each vertex's chance of being read from the graph and the fan-out, without "
    "sampling",
    "degree": "takes the vertices that most edges lead from; looks at neither the training "
    "vertices nor the fan-out",
    "random": "takes any vertices: what a cache saves without a policy",
    "oracle": "has seen the very epoch it is measured on: the limit that no cache of that size can "
    "pass; not for use in training",
    "ideal": "ranks by the mean of many other epochs: the best a ranking can do that does not know "
    "the future; for comparison only",
}

GLOSSARY = {
    "Feature row": "The numbers that describe one vertex. Training on a batch needs the rows of "
    "all its vertices.",
    "Batch": "The training vertices of one step, together with the neighbours that were drawn for "
    "them.",
    "Epoch": "One pass over all training vertices, batch by batch.",
    "Hop, fan-out": "The training vertices of a batch are hop 0. Hop 1 are neighbours drawn for "
    "them, hop 2 neighbours of those, and so on; the fan-out says how many are drawn for each "
    "vertex.",
    "Cache": "Rows kept where the model computes, on a GPU in its own memory. They are chosen "
    "before training and need not be fetched again.",
    "Budget": "How much the cache may hold: a share of all vertices, a number of rows, or bytes.",
    "Hit rate": "The share of the rows asked for that the cache serves. The others, the misses, "
    "are fetched from main memory or the disk.",
    "Policy": "The rule that chooses which vertices the cache holds.",
    "Knee": "The budget at which a curve bends: rows beyond it save less than the average row "
    "does.",
}
"""Terms and their meanings, in the order in which they build on each other."""


def cache_argument(rows: int, num_nodes: int) -> str:
    """Value of ``cache=`` for so many rows: the roundest per cent that buys them.

    Example:
        >>> cache_argument(1433, 4096), cache_argument(1434, 4096)
        ('35%', '35.01%')
    """
    exact = 100 * rows / num_nodes if num_nodes else 0.0
    texts = [f"{exact:.{digits}f}" for digits in range(13)]
    for text in texts:
        # As a budget counts its rows, 1e-6 included: the text must buy exactly these.
        if math.floor(float(text) / 100 * num_nodes + 1e-6) == rows:
            return f"{text}%"
    return f"{texts[-1]}%"


def recommended_cache(curve: HitRateCurve, recommendation: Recommendation) -> str:
    """Value of ``cache=`` that a profile recommends; "0" where a cache is not worth it."""
    return (
        cache_argument(recommendation.budget_rows, curve.num_nodes)
        if recommendation.worth_it
        else "0"
    )


def marked_budget(recommendation: Recommendation) -> str:
    """What the budget is that tables and charts mark."""
    return (
        "the advised budget" if recommendation.worth_it else "a small cache, though none is advised"
    )


def settings_words(curve: HitRateCurve, recommendation: Recommendation) -> str:
    """Arguments of a loader that set what is recommended."""
    policy = f', cache_policy="{recommendation.policy}"' if recommendation.worth_it else ""
    return f'cache="{recommended_cache(curve, recommendation)}"{policy}'


def hop_name(curve: HitRateCurve, hop: int) -> str:
    """Name of a hop for readers."""
    if hop:
        return f"hop {hop}"
    return "ends of links" if curve.of_links else "training vertices"


def policy_words(policy: str) -> str:
    """One sentence about a policy."""
    return _POLICY_WORDS.get(policy.partition(":")[0], "a policy of your own")


def best_caption(curve: HitRateCurve) -> str:
    """Explain the mark of the best policy."""
    return (
        "the policy that saves most bytes"
        if curve.has_widths
        else "the best policy that can be used"
    )


def best_of(curve: HitRateCurve, records: Iterable[CurveRecord]) -> set[str]:
    """Find the usable policies that save most, with all that look the same as shown."""
    usable = [record for record in records if record.policy in curve.usable]
    # Readers see per cents with one digit: what looks the same is marked the same.
    rates = {r.policy: round(curve.served(r), 3) for r in usable}
    return {policy for policy, rate in rates.items() if rate == max(rates.values())}


def answer(curve: HitRateCurve, recommendation: Recommendation) -> list[str]:
    """Summarise in a few sentences what a small cache saves, whether one is worth it, and what to
    set."""
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
        "That is not worth it: the curve hardly bends, rows differ little in what they save, so a "
        "cache saves little more than its share of the rows. No cache is advised: give it memory "
        "only where that is free."
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
    """Gain of the next larger budget of about twice the size."""
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
    """The policies that the memory had no room for."""
    parts = ["auto ranks by a few batches, as a loader with this memory does"] * (
        "auto" in curve.policies
    )
    if curve.left_out:
        needed = in_mebibytes(max(curve.left_out.values()))
        parts.append(f"{' and '.join(curve.left_out)} are left out and need --memory {needed}")
    text = "; ".join(parts)
    return f"For want of memory {text}." if curve.few_batches and text else ""


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
