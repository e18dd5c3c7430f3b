"""What a plan says."""

import pytest
import torch

from pagraph.cache import CachePlan, FieldPlan
from pagraph.cache.plan import _size

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
    assert repr(plan) == "CachePlan(0 of 100 vertices on cpu, 0 B of 0 B; no field)"


def test_a_plan_of_one_of_several_types_names_it():
    plan = CachePlan(CPU, 100, 6000, 400, (FieldPlan("user/feat", 1, 5, "disk"),), "user")
    assert repr(plan).startswith("CachePlan(1 of 100 'user' vertices on cpu, 405 B of 5.859 KiB; 'user/feat': 1 rows")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 << 29, "1.5 GiB"), (5 << 40, "5 TiB"), (2**60, "1.049e+06 TiB")],
)
def test_sizes_for_people(nbytes, text):
    assert _size(nbytes) == text
