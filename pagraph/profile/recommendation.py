"""Recommendation: which policy, and how large a cache, a hit-rate curve speaks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from .curve import CurveRecord, HitRateCurve

__all__ = ["BENDS", "BudgetChoice", "Recommendation", "is_usable", "recommend", "saved_share"]

BENDS = 0.2
"""How far above the straight line a knee must be to be called one."""
SHARES = (0.90, 0.95, 0.99)
_TIE = 0.002  # a fifth of a point: what the noise of another epoch may change
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
        bend: How far that is, in [0, 1]: near 0 every row saves as much as any other, and the knee says little.
        smallest_for: Share of the best possible (0.90, 0.95, 0.99) to the smallest budget that saves it; None where
            none does. The best possible is what the oracle saves with the largest budget: as that is all vertices,
            0.90 means that nine reads of ten are served (nine bytes of ten, where rows have several widths).
        reason: The same in words.
    """

    policy: str
    budget_rows: int
    budget_fraction: float
    budget_bytes: int | None
    hit_rate: float
    knee: BudgetChoice
    bend: float
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

    It saves the share of the bytes that the cache serves: the hit rate, where all rows have one width. All of it goes
    by the curve's grid, whatever budgets were asked for.

    Instead of the best policy a cheaper one, if with no budget it saves more than a fifth of a point less. The knee is
    that of kneedle (Satopaa et al., ICDCS workshops 2011) without smoothing.

    Raises:
        ValueError: The curve has no policy that training can use.
    """
    usable = [policy for policy in curve.policies if is_usable(policy)]
    if not usable:
        raise ValueError(f"curve must have a policy that training can use, got {curve.policies}")
    policy = _best(curve, usable)
    records = _known(curve, policy)
    knee, bend = _knee(curve, records)
    most = max(record.oracle_hit_rate for record in (curve.grid or curve.records))
    smallest = {
        share: next((_choice(r) for r in records if saved_share(curve, r) >= share * most - 1e-12), None)
        for share in SHARES
    }
    return Recommendation(
        policy,
        knee.budget_rows,
        knee.budget_fraction,
        knee.budget_bytes,
        knee.hit_rate,
        knee=_choice(knee),
        bend=bend,
        smallest_for=smallest,
        reason=_reason(curve, policy, knee, bend, records),
    )


def _best(curve: HitRateCurve, usable: Sequence[str]) -> str:
    saved = {policy: [saved_share(curve, record) for record in _known(curve, policy)] for policy in usable}
    best = max(usable, key=lambda policy: fmean(saved[policy]))
    close = [p for p in usable if all(a >= b - _TIE for a, b in zip(saved[p], saved[best], strict=True))]
    return min(close, key=_cost)


def _known(curve: HitRateCurve, policy: str) -> list[CurveRecord]:
    """The grid's records, or those asked for where there is no grid, in the order of their budgets."""
    found = [record for record in curve.grid if record.policy == policy] or curve.of(policy)
    return sorted(found, key=lambda record: (record.budget_rows, record.hit_rate))


def saved_share(curve: HitRateCurve, record: CurveRecord) -> float:
    """The share of the bytes that the cache serves, of the rows where bytes are not known.

    Bytes are what policies spend a budget for: where rows are of different widths, one that hits less may move less.
    """
    if record.bytes_moved is None or not curve.bytes_read:
        return record.hit_rate
    return 1 - record.bytes_moved / curve.bytes_read


def _cost(policy: str) -> int:
    name = policy.partition(":")[0]
    return _CHEAPEST_FIRST.index(name) if name in _CHEAPEST_FIRST else len(_CHEAPEST_FIRST)


def _knee(curve: HitRateCurve, records: Sequence[CurveRecord]) -> tuple[CurveRecord, float]:
    """Of records in the order of their budgets, the one furthest above the line from nothing to the last; how far."""
    last = records[-1]
    slope = saved_share(curve, last) / last.budget_rows if last.budget_rows else 0.0
    above = [saved_share(curve, record) - slope * record.budget_rows for record in records]
    best = max(range(len(records)), key=above.__getitem__)
    return records[best], max(0.0, above[best])


def _choice(record: CurveRecord) -> BudgetChoice:
    return BudgetChoice(record.budget_rows, record.budget_fraction, record.budget_bytes, record.hit_rate)


def _reason(curve: HitRateCurve, policy: str, knee: CurveRecord, bend: float, records: Sequence[CurveRecord]) -> str:
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
    if bend < BENDS:
        text += " But the curve hardly bends: rows differ little in what they save."
    others = [p for p in curve.policies if is_usable(p) and p != policy]
    rates = [(curve.at(p, knee.budget_rows).hit_rate, p) for p in others]
    if rates:
        rate, other = max(rates)
        text += f" The next policy with this budget, {other}, serves {rate:.1%}."
    return text
