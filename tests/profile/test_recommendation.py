"""What curves of known shape speak for."""

import dataclasses
import json

import pytest

from pagraph.profile import CurveRecord, HitRateCurve, recommend


def curve(num_nodes=1000, **rates):
    """A curve from policy to ``{rows: hit rate}``; the first one's oracle is the policy ``oracle``,
    or 1.0."""
    best = rates.get("oracle", {})
    records = [
        CurveRecord(
            policy.replace("_", ":"),
            rows / num_nodes,
            rows,
            rows * 8 + 4000,
            hit_rate=rate,
            hit_rate_by_epoch=[rate],
            hit_rate_by_hop=[rate],
            hit_rate_by_field={},
            bytes_moved=None,
            predicted_hit_rate=None,
            oracle_hit_rate=best.get(rows, 1.0),
            share_of_oracle=rate / best.get(rows, 1.0),
        )
        for policy, of in rates.items()
        for rows, rate in of.items()
    ]
    return HitRateCurve(records, num_nodes, batches=1, reads=100.0, rows_by_hop=[100.0])


def test_the_knee_is_where_the_curve_bends():
    found = recommend(curve(degree={1000: 1.0, 100: 0.5, 200: 0.9, 500: 0.95}))
    assert (found.policy, found.budget_rows, found.budget_fraction, found.budget_bytes) == (
        "degree",
        200,
        0.2,
        5600,
    )
    assert (found.knee.budget_rows, found.knee.hit_rate, found.hit_rate) == (200, 0.9, 0.9)


def test_the_smallest_budget_for_a_share_of_the_best_possible():
    rates = {100: 0.5, 200: 0.9, 500: 0.95, 1000: 1.0}
    found = recommend(curve(degree=rates)).smallest_for
    assert {share: choice.budget_rows for share, choice in found.items()} == {
        0.9: 200,
        0.95: 500,
        0.99: 1000,
    }
    # Without a budget for all vertices, what the oracle reaches with the largest one is the best
    # possible.
    found = recommend(
        curve(degree={100: 0.36, 200: 0.38}, oracle={100: 0.38, 200: 0.4})
    ).smallest_for
    assert (found[0.9].budget_rows, found[0.95].budget_rows, found[0.99]) == (100, 200, None)


def test_the_policy_that_hits_most_on_average():
    found = recommend(
        curve(degree={100: 0.3, 1000: 1.0}, vip={100: 0.5, 1000: 1.0}, oracle={100: 0.6, 1000: 1.0})
    )
    assert (found.policy, found.budget_rows) == ("vip", 100)
    assert (
        "vip serves 50.0% of all reads from 10.0% of the vertices, 83% of what the best"
        in found.reason
    )
    assert "The next policy with this budget, degree, serves 30.0%." in found.reason


def test_of_equal_policies_the_default_or_else_the_cheapest():
    rates = {100: 0.5, 1000: 1.0}
    for policies in (("auto", "presample_3", "vip", "degree"), ("degree", "auto")):
        assert recommend(curve(**{policy: rates for policy in policies})).policy == "auto"
    assert recommend(curve(presample_3=rates, vip=rates, degree=rates)).policy == "degree"
    assert recommend(curve(mine=rates, presample_3=rates)).policy == "presample:3"
    assert recommend(curve(auto={100: 0.499, 1000: 1.0}, degree=rates)).policy == "auto"
    assert recommend(curve(auto={100: 0.49, 1000: 1.0}, degree=rates)).policy == "degree"


def test_a_cache_is_worth_it_where_the_curve_bends():
    bent = recommend(curve(auto={50: 0.3, 100: 0.4, 200: 0.9, 1000: 1.0}))
    assert bent.worth_it and (bent.budget_rows, bent.small.budget_rows, bent.small.hit_rate) == (
        200,
        100,
        0.4,
    )
    straight = recommend(curve(auto={50: 0.06, 100: 0.12, 580: 0.67, 1000: 1.0}))
    assert not straight.worth_it and straight.knee.budget_rows == 580
    assert (straight.budget_rows, straight.hit_rate) == (
        100,
        0.12,
    ) and straight.small.budget_rows == 100
    assert "A cache is not worth it" in straight.reason and straight.reason.startswith(
        "auto serves 12.0% of all reads"
    )
    assert recommend(curve(auto={10: 0.1, 50: 0.2})).small.budget_rows == 50  # none of a tenth
    # A tenth, rounded down to whole rows.
    assert recommend(curve(auto={99: 0.1, 110: 0.2})).small.budget_rows == 99


def test_what_only_analysis_can_use_is_not_recommended():
    rates = {100: 0.5, 1000: 1.0}
    both = curve(degree={100: 0.1, 1000: 1.0}, oracle=rates, ideal_4=rates)
    assert recommend(both).policy == "degree"
    with pytest.raises(
        ValueError, match=r"curve must have a policy that training can use, got \['oracle'\]"
    ):
        recommend(curve(oracle=rates))


@pytest.mark.parametrize(
    "rates", [{0: 0.0}, {10: 0.2}, {0: 0.0, 500: 0.0, 1000: 0.0}, {500: 0.5, 1000: 1.0}]
)
def test_curves_without_a_bend(rates):
    found = recommend(curve(degree=rates))
    assert (
        found.budget_rows in rates and found.hit_rate == rates[found.budget_rows] and found.reason
    )


def test_is_json():
    found = recommend(curve(degree={100: 0.5, 200: 0.6}))
    read = json.loads(json.dumps(found.to_json()))
    assert read["smallest_for"] == {"0.90": None, "0.95": None, "0.99": None}
    assert read["knee"] == {
        "budget_rows": 100,
        "budget_fraction": 0.1,
        "budget_bytes": 4800,
        "hit_rate": 0.5,
    }
    assert (
        read["policy"] == "degree"
        and read["reason"] == found.reason
        and read["worth_it"] is found.worth_it
    )


def test_of_rows_of_several_widths_the_bytes_decide():
    many_narrow, few_wide = {100: 0.4, 200: 0.6, 1000: 1.0}, {100: 0.3, 200: 0.5, 1000: 1.0}
    measured = curve(degree=many_narrow, vip=few_wide, oracle=few_wide)
    moved = {"degree": [90, 80, 0], "vip": [70, 40, 0], "oracle": [70, 40, 0]}
    records = [
        dataclasses.replace(record, bytes_moved=nbytes)
        for policy, by_budget in moved.items()
        for record, nbytes in zip(measured.of(policy), by_budget, strict=True)
    ]
    assert recommend(measured).policy == "degree"
    assert recommend(dataclasses.replace(measured, records=records, bytes_read=100)).policy == "vip"


def test_what_is_served_is_counted_in_what_policies_save():
    measured = curve(degree={100: 0.4}, oracle={100: 0.5})
    assert (
        measured.unit,
        measured.served(measured.records[0]),
        measured.oracle_served(measured.records[0]),
    ) == (
        "rows",
        0.4,
        0.5,
    )
    records = [
        dataclasses.replace(record, bytes_moved=90, oracle_bytes_moved=70) for record in measured
    ]
    widths = {"paper/feat": 8, "author/feat": 64}
    typed = dataclasses.replace(measured, records=records, row_bytes=widths, bytes_read=100)
    assert typed.unit == "bytes"
    assert typed.served(records[0]) == pytest.approx(0.1) and typed.oracle_served(
        records[0]
    ) == pytest.approx(0.3)
    assert "degree serves 10.0% of all bytes" in recommend(typed).reason


def with_grid(measured, **rates):
    """The same curve that also knows every per cent, from policy to a function of the share."""
    shares = [percent / 100 for percent in range(1, 101)]
    grid = curve(
        **{
            policy: {round(1000 * share): of(share) for share in shares}
            for policy, of in rates.items()
        }
    )
    return dataclasses.replace(measured, grid=grid.records)


def test_what_is_asked_for_changes_nothing():
    few = curve(degree={50: 0.22, 100: 0.32, 200: 0.45})
    whole = curve(degree={250: 0.5, 1000: 1.0})
    found = [recommend(with_grid(asked, degree=lambda share: share**0.5)) for asked in (few, whole)]
    assert found[0] == found[1]
    # Sqrt(x) - x is greatest at 1/4.
    assert found[0].budget_rows == 250 and found[0].bend == pytest.approx(0.25)
    # Squares, rounded up.
    assert [c.budget_rows for c in found[0].smallest_for.values()] == [810, 910, 990]


def test_the_default_policy_must_be_close_with_every_budget():
    asked = {1000: 1.0}
    measured = curve(degree=asked, auto=asked)
    near = with_grid(
        measured, auto=lambda s: s**0.5 - (0.0019 if s < 1 else 0), degree=lambda s: s**0.5
    )
    assert recommend(near).policy == "auto"
    # As good on average to a tenth of a point, but not where it counts.
    dip = with_grid(
        measured, auto=lambda s: s**0.5 - (0.05 if s == 0.1 else 0), degree=lambda s: s**0.5
    )
    assert recommend(dip).policy == "degree"


def test_a_straight_line_does_not_bend():
    assert recommend(curve(random={100: 0.1, 500: 0.5, 1000: 1.0})).bend == pytest.approx(0)
    assert recommend(curve(degree={100: 0.9, 1000: 1.0})).bend == pytest.approx(0.8)


def test_of_rows_of_several_widths_the_knee_is_of_bytes():
    measured = curve(degree={100: 0.8, 500: 0.9, 1000: 1.0})  # many reads of narrow rows first
    records = [
        dataclasses.replace(r, bytes_moved=b)
        for r, b in zip(measured.records, (85, 20, 0), strict=True)
    ]
    assert recommend(measured).budget_rows == 100
    assert (
        recommend(dataclasses.replace(measured, records=records, bytes_read=100)).budget_rows == 500
    )


def test_whole_curves_and_single_budgets():
    asked = with_grid(curve(degree={50: 0.1, 105: 0.4, 200: 0.5}), degree=lambda share: share)
    rows = [record.budget_rows for record in asked.whole("degree")]
    assert rows == sorted({*range(10, 1001, 10), 105})
    assert asked.at("degree", 200).hit_rate == 0.5 and asked.at("degree", 210).hit_rate == 0.21
    with pytest.raises(
        ValueError, match="budget_rows must be the rows of a measured budget, got 7"
    ):
        asked.at("degree", 7)
    shown = [[r.budget_rows for r in records] for records in asked.with_budget(150)]
    assert shown == [[50], [105], [150], [200]]
    assert [[r.budget_rows for r in records] for records in asked.with_budget(200)] == [
        [50],
        [105],
        [200],
    ]


def test_the_reason_says_where_there_is_no_knee():
    words = "the curve hardly bends"
    assert words in recommend(curve(degree={100: 0.12, 500: 0.55, 1000: 1.0})).reason
    assert words not in recommend(curve(degree={100: 0.5, 500: 0.9, 1000: 1.0})).reason
