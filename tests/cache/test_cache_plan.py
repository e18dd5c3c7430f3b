"""What a plan says."""

from dataclasses import replace

import pytest
import torch

from pagraph.cache import CachePlan, FieldPlan
from pagraph.cache.plan import CachePlans
from pagraph.system.units import bytes_text

CPU = torch.device("cpu")


def test_a_plan_adds_up_its_parts():
    parts = (FieldPlan("feat", 10, 5120, "disk"), FieldPlan("label", 7, 56, "host"))
    plan = CachePlan(CPU, 100, 6000, 400, parts)
    assert (plan.rows, plan.nbytes) == (10, 5576)
    assert list(plan) == list(parts)
    assert repr(plan) == (
        "CachePlan(10 of 100 vertices on cpu, 5.445 KiB of 5.859 KiB; "
        "'feat': 10 rows, 5 KiB, others on disk; 'label': 7 rows, 56 B, others on host)"
    )


def test_an_empty_plan():
    plan = CachePlan(CPU, 100, 0, 0, ())
    assert (plan.rows, plan.nbytes, list(plan)) == (0, 0, [])
    assert plan.expected_hit_rate is None and plan.expected_bytes_saved is None
    assert repr(plan) == "CachePlan(0 of 100 vertices on cpu, 0 B of 0 B; no field)"
    assert str(plan) == "cache on cpu: 0 B of 0 B; nothing is cached"
    assert str(CachePlans([plan, plan])) == str(plan) and str(CachePlans()) == "cache: no field"


def test_a_plan_of_one_of_several_types_names_it():
    plan = CachePlan(CPU, 100, 6000, 400, (FieldPlan("user/feat", 1, 5, "disk"),), "user")
    assert repr(plan).startswith(
        "CachePlan(1 of 100 'user' vertices on cpu, 405 B of 5.859 KiB; 'user/feat': 1 rows"
    )
    edges = replace(plan, node_type=("user", "buys", "item"))
    assert repr(edges).startswith("CachePlan(1 of 100 'user-buys-item' edges on cpu")


def test_what_is_expected_follows_from_reads_and_hits():
    part = FieldPlan(
        "feat", 10, 640, "disk", row_bytes=128, expected_reads=80.0, expected_hits=60.0
    )
    assert part.expected_hit_rate == 0.75 and part.expected_bytes_saved == 60 * 128
    nothing = replace(part, expected_reads=0.0, expected_hits=0.0)
    assert nothing.expected_hit_rate == 0.0 and nothing.expected_bytes_saved == 0.0
    unknown = FieldPlan("feat", 10, 640, "disk", row_bytes=128)
    assert unknown.expected_hit_rate is None and unknown.expected_bytes_saved is None


def test_a_plan_sums_what_its_fields_are_expected_to_save():
    feat = FieldPlan("feat", 10, 640, "disk", 64, 80.0, 60.0)
    label = FieldPlan("label", 5, 40, "disk", 8, 20.0, 5.0)
    plan = CachePlan(CPU, 100, 2000, 400, (feat, label))
    assert plan.expected_hit_rate == 0.65 and plan.expected_bytes_saved == 60 * 64 + 5 * 8
    with_unknown = replace(plan, fields=(feat, FieldPlan("label", 5, 40, "disk", 8)))
    assert with_unknown.expected_hit_rate is None and with_unknown.expected_bytes_saved is None


def test_numbers_by_flat_names():
    feat = FieldPlan("feat", 10, 640, "disk", 64, 80.0, 60.0)
    plan = CachePlan(CPU, 100, 2000, 400, (feat,))
    assert (
        CachePlans([plan]).to_dict()
        == plan.to_dict()
        == {
            "budget_bytes": 2000,
            "table_bytes": 400,
            "nbytes": 1040,
            "expected_hit_rate": 0.75,
            "expected_bytes_saved": 3840.0,
            "field/feat/rows": 10,
            "field/feat/nbytes": 640,
            "field/feat/expected_reads": 80.0,
            "field/feat/expected_hits": 60.0,
            "field/feat/expected_hit_rate": 0.75,
            "field/feat/expected_bytes_saved": 3840.0,
        }
    )
    both = CachePlans([plan, replace(plan, fields=(FieldPlan("w", 5, 40, "host"),))]).to_dict()
    assert "expected_hit_rate" not in both and both["field/w/rows"] == 5 and both["nbytes"] == 1480
    assert CachePlans().to_dict() == {"budget_bytes": 0, "table_bytes": 0, "nbytes": 0}


def test_a_plan_is_a_table_in_a_notebook():
    plan = CachePlan(CPU, 100, 2000, 400, (FieldPlan("<b>", 10, 640, "disk"),))
    for shown in (plan, CachePlans([plan])):
        assert "&lt;b&gt;" in shown._repr_html_() and "<b>" not in shown._repr_html_()
    assert "cache: no field" in CachePlans()._repr_html_()


def test_a_plan_prints_as_a_table():
    fields = (
        FieldPlan("user/feat", 10, 5120, "disk", 512, 80.0, 60.0),
        FieldPlan("user/age", 7, 56, "host", 8),
    )
    edges = (FieldPlan("edge:w", 30, 120, "disk", 4, 50.0, 50.0),)
    plans = CachePlans(
        [
            CachePlan(CPU, 100, 6000, 400, fields, "user"),
            CachePlan(CPU, 0, 6000, 0, (), "item"),
            CachePlan(CPU, 300, 6000, 200, edges, ("user", "buys", "item")),
        ]
    )
    assert str(plans) == "\n".join(
        [
            "cache on cpu: 5.758 KiB of 5.859 KiB",
            "field      rows  of all      bytes  hit rate  saved an epoch  others on",
            "user/feat    10  10.0 %      5 KiB    75.0 %          30 KiB  disk",
            "user/age      7   7.0 %       56 B         ?               ?  host",
            "edge:w       30  10.0 %      120 B   100.0 %           200 B  disk",
            "tables                       600 B",
            "total                    5.758 KiB         ?               ?",
        ]
    )
    known = str(CachePlans([replace(plans[0], fields=fields[:1])]))
    assert (
        known.splitlines()[0]
        == "cache on cpu: 5.391 KiB of 5.859 KiB; hit rates and bytes saved are estimates"
    )
    assert known.splitlines()[-1].split() == ["total", "5.391", "KiB", "75.0", "%", "30", "KiB"]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5 TiB"),
        (2**60, "1.049e+06 TiB"),
    ],
)
def test_sizes_for_people(nbytes, text):
    assert bytes_text(nbytes) == text
