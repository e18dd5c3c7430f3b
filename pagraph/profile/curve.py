"""Hit-rate curves by policy and budget, and the recommendation of a policy and cache size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any


@dataclass(frozen=True)
class CurveRecord:
    """One policy with one budget.

    Rates are rows served by the cache / rows asked for, in [0, 1]; 0.0 where nothing was asked for.

    Attributes:
        policy: Name of the policy.
        budget_fraction: Vertices that the cache may hold / all vertices.
        budget_rows: Vertices that the cache may hold.
        budget_bytes: Bytes of these vertices' rows and of the tables from vertex to place, to give
            a loader as ``cache``. None where no field is named.
        hit_rate: Hit rate of the input nodes, over all measured epochs.
        hit_rate_by_epoch: The same by measured epoch.
        hit_rate_by_hop: The same by the hop that found them; hop 0 are the seeds.
        hit_rate_by_field: Hit rate of each field: input fields are read for all input nodes, labels
            for the seeds.
        bytes_moved: Bytes an epoch that the cache does not serve; None where no field is named.
        predicted_hit_rate: Hit rate expected without having seen the measured epochs. None: not
            known, as always for the oracle.
        oracle_hit_rate: Hit rate of the oracle's cache of this budget, which holds for each epoch
            what that epoch reads most. No static cache does better. Rows of several widths are
            chosen by the bytes they save, and caches that save less may then hit more.
        share_of_oracle: What the cache serves / what the oracle's serves, in bytes where rows have
            several widths, or else in rows.
        oracle_bytes_moved: ``bytes_moved`` with the oracle's cache.
    """

    policy: str
    budget_fraction: float
    budget_rows: int
    budget_bytes: int | None
    hit_rate: float
    hit_rate_by_epoch: list[float]
    hit_rate_by_hop: list[float]
    hit_rate_by_field: dict[str, float]
    bytes_moved: int | None
    predicted_hit_rate: float | None
    oracle_hit_rate: float
    share_of_oracle: float
    oracle_bytes_moved: int | None = None


@dataclass(frozen=True, repr=False)
class HitRateCurve:
    """Hit rates by policy and budget, from one pass of counting over the measured epochs.

    Attributes:
        records: One for every policy and budget, in the order asked for: all budgets of a policy,
            then those of the next.
        grid: The same for 1, 2, ... 100 % of the vertices, so that knees and charts do not depend
            on ``records``.
        num_nodes: Vertices of the graph, of all types.
        batches: Mini-batches an epoch.
        reads: Rows of input nodes an epoch asks for (the mean of the measured epochs).
        rows_by_hop: The same by the hop that found them; hop 0 are the seeds.
        row_bytes: Field to the bytes of one row.
        bytes_read: Bytes an epoch asks for, moved without a cache. None where no field is named.
        settings: Sampler, batch size, seeds, epochs, seed.
        seconds: Wall time of "ranking" (all policies), "counting" (sampling the measured epochs)
            and "summing" (all policies and budgets); "kernels" were loaded meanwhile.
        ranking_seconds: Policy to the wall time of its ranking, with the epochs that it samples.
        left_out: Default policies that the given memory was too small for, to the bytes that they
            need.
    """

    records: list[CurveRecord]
    num_nodes: int
    batches: int
    reads: float
    rows_by_hop: list[float]
    row_bytes: dict[str, int] = field(default_factory=dict)
    bytes_read: int | None = None
    grid: list[CurveRecord] = field(default_factory=list, compare=False)
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    ranking_seconds: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[CurveRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def policies(self) -> list[str]:
        """Names of the policies, in order."""
        return list(dict.fromkeys(record.policy for record in self.records))

    @property
    def usable(self) -> list[str]:
        """Policies that training can use: all but the oracle and the ideal, which know too much."""
        hindsight = ("oracle", "ideal")
        return [name for name in self.policies if name.partition(":")[0] not in hindsight]

    @property
    def has_widths(self) -> bool:
        """Whether vertex types have rows of different widths."""
        # A cache that hits less may then save more bytes. See `FieldSizes.key` for the "/".
        return any("/" in key for key in self.row_bytes)

    @property
    def of_links(self) -> bool:
        """Whether batches start from edges. Hop 0 are then their ends and those of negatives."""
        return bool(self.settings.get("of_links"))

    @property
    def few_batches(self) -> bool:
        """Whether ``auto`` ranked by a few batches, as in a loader with the given memory."""
        return bool(self.settings.get("few_batches"))

    @property
    def unit(self) -> str:
        """What policies save: "bytes" if rows of several types differ in width, else "rows"."""
        return "bytes" if self.has_widths else "rows"

    def served(self, record: CurveRecord) -> float:
        """The share of the :attr:`unit` that the cache serves."""
        return self.saved_share(record) if self.has_widths else record.hit_rate

    def oracle_served(self, record: CurveRecord) -> float:
        """The share of the :attr:`unit` that the oracle's cache of this budget serves."""
        if not self.has_widths or record.oracle_bytes_moved is None or not self.bytes_read:
            return record.oracle_hit_rate
        return 1 - record.oracle_bytes_moved / self.bytes_read

    def of(self, policy: str) -> list[CurveRecord]:
        """Records of a policy in the order of the budgets; ValueError if it was not measured."""
        found = [record for record in self.records if record.policy == policy]
        if not found:
            raise ValueError(f"policy must be one of {self.policies}, got {policy!r}")
        return found

    def whole(self, policy: str) -> list[CurveRecord]:
        """The records of a policy with all budgets, those of the grid included, sorted by rows.

        Raises as :meth:`of`.
        """
        asked = self.of(policy)
        by_rows = {record.budget_rows: record for record in self.grid if record.policy == policy}
        # Where a budget asked for buys the same number of rows as one of the grid, it is kept.
        by_rows |= {record.budget_rows: record for record in asked}
        return [by_rows[rows] for rows in sorted(by_rows)]

    def at(self, policy: str, budget_rows: int) -> CurveRecord:
        """The record of a policy with ``budget_rows``; ValueError if that was not measured."""
        for record in self.whole(policy):
            if record.budget_rows == budget_rows:
                return record
        raise ValueError(f"budget_rows must be the rows of a measured budget, got {budget_rows}")

    def with_budget(self, budget_rows: int) -> list[list[CurveRecord]]:
        """The records of all policies for each budget asked for, and for ``budget_rows``.

        If ``budget_rows`` was not asked for, it follows the last smaller budget.
        """
        rows = [[*records] for records in zip(*map(self.of, self.policies), strict=True)]
        asked = [records[0].budget_rows for records in rows]
        if budget_rows not in asked:
            place = max((i for i, size in enumerate(asked, 1) if size < budget_rows), default=0)
            rows.insert(place, [self.at(policy, budget_rows) for policy in self.policies])
        return rows

    def saved_share(self, record: CurveRecord) -> float:
        """The share of the bytes that the cache serves, or of the rows if bytes are not known."""
        if record.bytes_moved is None or not self.bytes_read:
            return record.hit_rate
        return 1 - record.bytes_moved / self.bytes_read

    def to_dict(self) -> dict[str, list[Any]]:
        """The records as columns of equal length, for ``pandas.DataFrame``.

        Each epoch, hop and field has a column: ``hit_rate_epoch_0``, ``hit_rate_hop_0``,
        ``hit_rate_field_feat``.
        """
        rows = []
        for record in self.records:
            row = asdict(record)
            for part in ("epoch", "hop", "field"):
                rates = row.pop(f"hit_rate_by_{part}")
                pairs = rates.items() if isinstance(rates, dict) else enumerate(rates)
                row |= {f"hit_rate_{part}_{key}": rate for key, rate in pairs}
            rows.append(row)
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}

    def to_json(self) -> dict[str, Any]:
        """The curve without its grid, for ``json.dumps``; the records are the list ``curve``."""
        values = asdict(replace(self, grid=[]))
        del values["grid"]
        return {"curve": values.pop("records"), **values}

    def __repr__(self) -> str:
        budgets = len({record.budget_rows for record in self.records})
        return (
            f"HitRateCurve({', '.join(self.policies)}; "
            f"{budgets} budgets of {self.num_nodes:,} vertices, "
            f"{self.batches:,} batches and {self.reads:,.0f} reads an epoch)"
        )


_BENDS = 0.1  # least height of a knee above the straight line, as a share of all bytes
_SMALL = 0.1  # share of the vertices in a small cache
_SHARES = (0.90, 0.95, 0.99)
_TIE = 0.002  # a fifth of a point, which another epoch's noise may change
# Which of equally good policies is recommended: the default, then the cheapest.
_OF_EQUALS = ("auto", "degree", "adaptive", "random", "vip", "presample")


@dataclass(frozen=True)
class BudgetChoice:
    """A budget and the recommended policy's hit rate with it; attributes as in ``CurveRecord``."""

    budget_rows: int
    budget_fraction: float
    budget_bytes: int | None
    hit_rate: float


@dataclass(frozen=True)
class Recommendation:
    """A policy and cache size for training.

    Attributes:
        policy: The policy to use.
        budget_rows, budget_fraction, budget_bytes, hit_rate: The recommended cache, as in
            ``CurveRecord``: the knee. If the curve hardly bends, no cache is worth its memory, and
            these are those of the small one.
        small: A small cache: the smallest measured budget of at least a tenth of the vertices, or
            else the largest.
        knee: The budget at which the policy's curve is furthest above the straight line from no
            cache to the largest budget. Rows beyond it save less than the average row.
        bend: The knee's distance from that line, in [0, 1]. Near 0 all rows save equally much.
        smallest_for: Share (0.90, 0.95, 0.99) of what the oracle saves with the largest budget, to
            the smallest budget that saves this much, or None. It is a share of the reads, or of the
            bytes where rows have several widths.
        reason: The recommendation in words.
    """

    policy: str
    budget_rows: int
    budget_fraction: float
    budget_bytes: int | None
    hit_rate: float
    small: BudgetChoice
    knee: BudgetChoice
    bend: float
    smallest_for: dict[float, BudgetChoice | None]
    reason: str

    @property
    def worth_it(self) -> bool:
        """Whether the curve bends. If it is nearly straight, a cache of 10% saves about 10%."""
        return self.bend >= _BENDS

    def to_json(self) -> dict[str, Any]:
        """The recommendation for ``json.dumps``; keys of ``smallest_for`` are "0.90" and so on."""
        values = asdict(self) | {"worth_it": self.worth_it}
        values["smallest_for"] = {
            f"{share:.2f}": choice for share, choice in values["smallest_for"].items()
        }
        return values


def recommend(curve: HitRateCurve) -> Recommendation:
    """Choose the policy that saves most on average over the budgets, and the knee of its curve.

    Policies are compared on the curve's grid by the share of the bytes that the cache serves. The
    default policy, or else a cheaper one, replaces the best if it saves at most a fifth of a point
    less with every budget. The knee is found by kneedle (Satopaa et al., ICDCS workshops 2011)
    without smoothing.

    Raises:
        ValueError: The curve has no policy that training can use.
    """
    if not curve.usable:
        raise ValueError(f"curve must have a policy that training can use, got {curve.policies}")
    policy = _best(curve)
    records = _known(curve, policy)
    knee, bend = _knee(curve, records)
    most = max(curve.oracle_served(record) for record in (curve.grid or curve.records))
    smallest: dict[float, BudgetChoice | None] = dict.fromkeys(_SHARES)
    for share in _SHARES:
        for record in records:
            # The oracle itself reaches `most`, up to the last bit of the division.
            if curve.saved_share(record) >= share * most - 1e-12:
                smallest[share] = _choice(record)
                break
    # Rounded: a tenth of the vertices is seldom a whole number, and 0.0999 is accepted, too.
    small = next((r for r in records if round(r.budget_fraction, 2) >= _SMALL), records[-1])
    bends = bend >= _BENDS
    chosen = knee if bends else small
    reason = _reason(curve, chosen, records, bends=bends)
    return Recommendation(
        policy,
        **asdict(_choice(chosen)),
        small=_choice(small),
        knee=_choice(knee),
        bend=bend,
        smallest_for=smallest,
        reason=reason,
    )


def _best(curve: HitRateCurve) -> str:
    saved = {}
    for policy in curve.usable:
        saved[policy] = [curve.saved_share(record) for record in _known(curve, policy)]
    best = max(saved, key=lambda policy: fmean(saved[policy]))
    close = []
    for policy, shares in saved.items():
        if all(own >= most - _TIE for own, most in zip(shares, saved[best], strict=True)):
            close.append(policy)
    # A user's functions come last, as their cost is not known.
    place = {policy: place for place, policy in enumerate(_OF_EQUALS)}
    return min(close, key=lambda policy: place.get(policy.partition(":")[0], len(place)))


def _known(curve: HitRateCurve, policy: str) -> list[CurveRecord]:
    """The records of the grid, or if there is no grid those asked for, sorted by budget."""
    found = [record for record in curve.grid if record.policy == policy] or curve.of(policy)
    return sorted(found, key=lambda record: (record.budget_rows, record.hit_rate))


def _knee(curve: HitRateCurve, records: Sequence[CurveRecord]) -> tuple[CurveRecord, float]:
    """The record furthest above the straight line from no cache to the last, and its distance."""
    # Kneedle: the maximum of y(x) - x * y(last) / x(last), where y is the share that is saved.
    last = records[-1]
    slope = curve.saved_share(last) / last.budget_rows if last.budget_rows else 0.0
    above = [curve.saved_share(record) - slope * record.budget_rows for record in records]
    best = max(range(len(records)), key=above.__getitem__)
    return records[best], max(0.0, above[best])


def _choice(record: CurveRecord) -> BudgetChoice:
    return BudgetChoice(
        record.budget_rows, record.budget_fraction, record.budget_bytes, record.hit_rate
    )


def _reason(
    curve: HitRateCurve, best: CurveRecord, records: Sequence[CurveRecord], *, bends: bool
) -> str:
    what = "bytes" if curve.has_widths else "reads"
    text = (
        f"{best.policy} serves {curve.served(best):.1%} of all {what} from "
        f"{best.budget_fraction:.1%} of the vertices, "
        f"{best.share_of_oracle:.0%} of what the best choice of vertices would."
    )
    last = records[-1]
    if not bends:
        text += (
            " A cache is not worth it: the curve hardly bends, rows differ little in what they "
            "save."
        )
    elif last.budget_rows > best.budget_rows:
        before = curve.served(best) / max(1, best.budget_rows)
        after = (curve.served(last) - curve.served(best)) / (last.budget_rows - best.budget_rows)
        # "0%" would say that they save nothing.
        ratio = f"{after / before:.0%}" if after >= 0.005 * before else "less than 1%"
        text += f" A row beyond these saves {ratio} of what one of them does on average."
    rates = []
    for policy in curve.usable:
        if policy != best.policy:
            rates.append((curve.served(curve.at(policy, best.budget_rows)), policy))
    if rates:
        rate, other = max(rates)
        text += f" The next policy with this budget, {other}, serves {rate:.1%}."
    return text
