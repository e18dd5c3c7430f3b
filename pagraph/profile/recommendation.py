"""Recommendation: which policy, and how large a cache, a hit-rate curve speaks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from .curve import CurveRecord, HitRateCurve

__all__ = ["BudgetChoice", "Recommendation", "is_usable", "recommend"]

SHARES = (0.90, 0.95, 0.99)
_TIE = 0.001  # a tenth of a point is below what another epoch's noise changes
_CHEAPEST_FIRST = ("degree", "adaptive", "random", "vip", "presample", "auto")


@dataclass(frozen=True)
class BudgetChoice:
    """A budget and what the recommended policy makes of it; attributes as in ``CurveRecord``."""

    budget_rows: int
    budget_fraction: float
    budget_bytes: int | None
    hit_rate: float


@dataclass(frozen=True)
class Recommendation:
    """What a curve speaks for.

    Attributes:
        policy: The policy to use.
        budget_rows: Vertices the cache should hold: those of the knee.
        budget_fraction: The same as a share of all vertices.
        budget_bytes: The same in bytes, tables included; None where no field is named.
        hit_rate: What the policy reaches with it.
        knee: Where the policy's curve bends: the budget at which it is furthest above the straight line from no cache
            to the largest budget; rows beyond it save less than the average row. The same budget as above.
        smallest_for: Share of the best possible (0.90, 0.95, 0.99) to the smallest measured budget that reaches it;
            None where none does. The best possible is the oracle's hit rate with the largest measured budget: if that
            is all vertices, 0.90 means that nine reads of ten are served.
        reason: The same in words.
    """

    policy: str
    budget_rows: int
    budget_fraction: float
    budget_bytes: int | None
    hit_rate: float
    knee: BudgetChoice
    smallest_for: dict[float, BudgetChoice | None]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """As what ``json.dumps`` takes; the keys of ``smallest_for`` are "0.90", "0.95" and "0.99"."""
        values = asdict(self)
        values["smallest_for"] = {f"{share:.2f}": choice for share, choice in values["smallest_for"].items()}
        return values


def is_usable(policy: str) -> bool:
    """Whether training can use a policy: the oracle and the ideal are for analysis, they know what will be read."""
    return policy.partition(":")[0] not in ("oracle", "ideal")


def recommend(curve: HitRateCurve) -> Recommendation:
    """The policy that saves most on average over the budgets, and the budget at the knee of its curve.

    It saves the share of the bytes that the cache serves: the hit rate, where all rows have one width.

    Of policies that are within a tenth of a point of the best, the one that is cheapest to compute. The knee is that of
    kneedle (Satopaa et al., ICDCS workshops 2011) without smoothing.

    Raises:
        ValueError: The curve has no policy that training can use.
    """
    usable = [policy for policy in curve.policies if is_usable(policy)]
    if not usable:
        raise ValueError(f"curve must have a policy that training can use, got {curve.policies}")
    policy = _best(curve, usable)
    records = sorted(curve.of(policy), key=lambda record: (record.budget_rows, record.hit_rate))
    knee = _knee(records)
    most = max(record.oracle_hit_rate for record in curve)
    smallest = {
        share: next((_choice(r) for r in records if r.hit_rate >= share * most - 1e-12), None) for share in SHARES
    }
    return Recommendation(
        policy,
        knee.budget_rows,
        knee.budget_fraction,
        knee.budget_bytes,
        knee.hit_rate,
        knee=_choice(knee),
        smallest_for=smallest,
        reason=_reason(curve, policy, knee, records),
    )


def _best(curve: HitRateCurve, usable: Sequence[str]) -> str:
    means = {policy: fmean(_saved(curve, record) for record in curve.of(policy)) for policy in usable}
    close = [policy for policy in usable if means[policy] >= max(means.values()) - _TIE]
    return min(close, key=_cost)


def _saved(curve: HitRateCurve, record: CurveRecord) -> float:
    """The share of the bytes that the cache serves, of the rows where bytes are not known.

    Bytes are what policies spend a budget for: where rows are of different widths, one that hits less may move less.
    """
    if record.bytes_moved is None or not curve.bytes_read:
        return record.hit_rate
    return 1 - record.bytes_moved / curve.bytes_read


def _cost(policy: str) -> int:
    name = policy.partition(":")[0]
    return _CHEAPEST_FIRST.index(name) if name in _CHEAPEST_FIRST else len(_CHEAPEST_FIRST)


def _knee(records: Sequence[CurveRecord]) -> CurveRecord:
    """Of records in the order of their budgets, the one furthest above the line from nothing to the last."""
    last = records[-1]
    slope = last.hit_rate / last.budget_rows if last.budget_rows else 0.0
    return max(records, key=lambda record: record.hit_rate - slope * record.budget_rows)


def _choice(record: CurveRecord) -> BudgetChoice:
    return BudgetChoice(record.budget_rows, record.budget_fraction, record.budget_bytes, record.hit_rate)


def _reason(curve: HitRateCurve, policy: str, knee: CurveRecord, records: Sequence[CurveRecord]) -> str:
    text = (
        f"{policy} serves {knee.hit_rate:.1%} of all reads from {knee.budget_fraction:.1%} of the vertices, "
        f"{knee.share_of_oracle:.0%} of what the best choice of vertices would."
    )
    last = records[-1]
    if last.budget_rows > knee.budget_rows:
        before = knee.hit_rate / max(1, knee.budget_rows)
        after = (last.hit_rate - knee.hit_rate) / (last.budget_rows - knee.budget_rows)
        if before > after:
            ratio = f"{after / before:.0%}" if after >= 0.005 * before else "less than 1%"
            text += f" A row beyond these saves {ratio} of what one of them does on average."
    others = [p for p in curve.policies if is_usable(p) and p != policy]
    rates = [(r.hit_rate, p) for p in others for r in curve.of(p) if r.budget_rows == knee.budget_rows]
    if rates:
        rate, other = max(rates)
        text += f" The next policy with this budget, {other}, serves {rate:.1%}."
    return text
