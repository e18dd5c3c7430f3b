"""HitRateCurve: what caches of several sizes would have served, by policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["CurveRecord", "HitRateCurve"]


@dataclass(frozen=True)
class CurveRecord:
    """One policy with one budget.

    Rates are rows served by the cache / rows asked for, in [0, 1]; 0.0 where nothing was asked for.

    Attributes:
        policy: Name of the policy.
        budget_fraction: Vertices that the cache may hold / all vertices.
        budget_rows: Vertices that the cache may hold.
        budget_bytes: Bytes of these vertices' rows of all fields and of the tables from vertex to place: what to give a
            loader as ``cache``. None where no field is named.
        hit_rate: Of the input nodes, over all measured epochs.
        hit_rate_by_epoch: The same by measured epoch.
        hit_rate_by_hop: Of the input nodes that each hop found; hop 0 are the seeds.
        hit_rate_by_field: Of each field: input fields are read for all input nodes, labels for the seeds.
        bytes_moved: Bytes an epoch that the cache does not serve, all fields together; None where no field is named.
        predicted_hit_rate: What an expectation of reads that has not seen the measured epochs says. None: not known;
            of the oracle, which chooses by what it cannot expect, it never is.
        oracle_hit_rate: Of a cache of this budget whose vertices are chosen anew for every epoch by what that very
            epoch reads: no static cache does better. (Rows of several widths are chosen by the bytes they save.)
        share_of_oracle: ``hit_rate / oracle_hit_rate``.
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


@dataclass(frozen=True, repr=False)
class HitRateCurve:
    """Hit rates by policy and budget, from one pass of counting over the measured epochs.

    Attributes:
        records: One for every policy and budget: policies in the order asked for, each with its budgets in that order.
        grid: The same for 1, 2, ... 100 % of the vertices, whatever was asked for: where curves bend, and what is
            drawn, must not depend on that.
        num_nodes: Vertices of the graph, of all types.
        batches: Mini-batches an epoch.
        reads: Rows of input nodes an epoch asks for (the mean of the measured epochs).
        rows_by_hop: The same by the hop that found them; hop 0 are the seeds.
        row_bytes: Field to the bytes of one row.
        bytes_read: Bytes an epoch asks for, all fields together: what is moved without a cache. None where no field is
            named.
        settings: What was measured: sampler, batch size, seeds, epochs, seed.
        seconds: Wall time of "ranking" (all policies), "counting" (sampling the measured epochs) and "summing" (all
            policies and budgets).
        ranking_seconds: Policy to the wall time of its ranking; policies that rank by sampled epochs sample in it.
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

    def __iter__(self) -> Iterator[CurveRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def policies(self) -> list[str]:
        """Names of the policies, in order."""
        return list(dict.fromkeys(record.policy for record in self.records))

    def of(self, policy: str) -> list[CurveRecord]:
        """The records of one policy, in the order of the budgets.

        Raises:
            ValueError: It was not measured.
        """
        found = [record for record in self.records if record.policy == policy]
        if not found:
            raise ValueError(f"policy must be one of {self.policies}, got {policy!r}")
        return found

    def whole(self, policy: str) -> list[CurveRecord]:
        """The records of one policy with all budgets that are known, the grid's too, from the smallest to the largest.

        Raises:
            ValueError: It was not measured.
        """
        known = [*(record for record in self.grid if record.policy == policy), *self.of(policy)]
        by_rows = {record.budget_rows: record for record in known}  # what was asked for replaces the grid's
        return [by_rows[rows] for rows in sorted(by_rows)]

    def at(self, policy: str, budget_rows: int) -> CurveRecord:
        """What is known of one policy with a cache of so many rows.

        Raises:
            ValueError: The policy, or a budget of so many rows, was not measured.
        """
        for record in self.whole(policy):
            if record.budget_rows == budget_rows:
                return record
        raise ValueError(f"budget_rows must be those of a measured budget, got {budget_rows}")

    def with_budget(self, budget_rows: int) -> list[list[CurveRecord]]:
        """For each budget asked for, and one more, the records of all policies; the one more in the order of rows."""
        rows = [[*records] for records in zip(*map(self.of, self.policies), strict=True)]
        if all(records[0].budget_rows != budget_rows for records in rows):
            smaller = [place for place, records in enumerate(rows) if records[0].budget_rows < budget_rows]
            rows.insert(max(smaller, default=-1) + 1, [self.at(policy, budget_rows) for policy in self.policies])
        return rows

    def to_dict(self) -> dict[str, list[Any]]:
        """The records as columns of one length: ``pandas.DataFrame(curve.to_dict())`` takes them.

        What a record holds by epoch, hop and field becomes one column each: ``hit_rate_epoch_0``, ``hit_rate_hop_0``,
        ``hit_rate_field_feat``.
        """
        rows = [_flat(record) for record in self.records]
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}

    def to_json(self) -> dict[str, Any]:
        """All of it as what ``json.dumps`` takes; the records are the list ``curve``."""
        return {
            "curve": [asdict(record) for record in self.records],
            "num_nodes": self.num_nodes,
            "batches": self.batches,
            "reads": self.reads,
            "rows_by_hop": self.rows_by_hop,
            "row_bytes": self.row_bytes,
            "bytes_read": self.bytes_read,
            "settings": self.settings,
            "seconds": self.seconds,
            "ranking_seconds": self.ranking_seconds,
        }

    def __repr__(self) -> str:
        budgets = len({record.budget_rows for record in self.records})
        return (
            f"HitRateCurve({', '.join(self.policies)}; {budgets} budgets of {self.num_nodes:,} vertices, "
            f"{self.batches:,} batches and {self.reads:,.0f} reads an epoch)"
        )


def _flat(record: CurveRecord) -> dict[str, Any]:
    values = asdict(record)
    parts: dict[str, Mapping[Any, float] | Sequence[float]] = {
        part: values.pop(f"hit_rate_by_{part}") for part in ("epoch", "hop", "field")
    }
    for part, rates in parts.items():
        pairs = rates.items() if isinstance(rates, Mapping) else enumerate(rates)
        values |= {f"hit_rate_{part}_{key}": rate for key, rate in pairs}
    return values
