"""One budget over fields that are read in different roles, of vertices and of edges; what they are
expected to save."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.cache import FieldSet
from pagraph.cache.choice import Role
from pagraph.features import on_disk
from pagraph.graph.mapped import map_npy
from pagraph.ranking import Ranking
from pagraph.system import Budget
from pagraph.system.budget import SLOT_BYTES
from pagraph.system.buffers import BufferPool

EDGES = ("v", "to", "v")
COUNTS = {"v": 100, EDGES: 300}
TABLES = {t: SLOT_BYTES * n for t, n in COUNTS.items()}


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """Makes memory-mapped rows of float64."""
    folder = tmp_path_factory.mktemp("fields")

    def make(name, rows, width):
        np.save(folder / f"{name}.npy", np.random.default_rng(len(name)).random((rows, width)))
        tensor = map_npy(folder / f"{name}.npy")
        if not on_disk(tensor):
            pytest.skip("needs temporary files on a disk")
        return tensor

    return make


@pytest.fixture(scope="module")
def sources(mapped):
    """Rows of 32, 8 and 16 bytes."""
    return {
        "feat": mapped("feat", 100, 4),
        "label": mapped("label", 100, 1),
        "weight": mapped("weight", 300, 2),
    }


def make(sources, budget, reads, *, seeds=None, roles=None, row_types=None, share=None):
    """A filled set.

    Args:
        sources: Field to tensor.
        budget: As a loader's ``cache``.
        reads: Type to the reads an epoch of its rows, or to a ranking.
        seeds: Type to how often its rows are seeds.
        roles: Field to role, if it is not an input.
        row_types: Field to row type, if it is not "v".
        share: See ``FieldSet``.
    """
    pool, asked = BufferPool(4), []

    def rank(types):
        asked.append(list(types))
        given = {t: reads[t] for t in types if t in reads}
        return {t: r if isinstance(r, Ranking) else Ranking.of_reads(r) for t, r in given.items()}

    fields = FieldSet(
        {},
        device=torch.device("cpu"),
        budget=Budget.parse(budget),
        rank=rank,
        pool_of=lambda key: pool,
        num_nodes=COUNTS,
        outputs=lambda t: (seeds or {}).get(t),
        share=share,
    )
    for key, tensor in sources.items():
        row_type = (row_types or {}).get(key, EDGES if key == "weight" else "v")
        fields.add_source(
            key,
            lambda tensor=tensor: tensor,
            row_type=row_type,
            role=(roles or {}).get(key, Role.INPUT),
        )
    fields.prepare()
    fields.asked = asked
    return fields


def parts(fields):
    return {part.key: part for plan in fields.plans for part in plan}


def rows(fields):
    return {key: part.rows for key, part in parts(fields).items()}


def hits(fields, key, ids):
    before = fields.counters
    fields.read(key, ids)
    return (fields.counters - before).fields[key].hits


def descending(n, factor=1.0):
    return torch.arange(n, 0, -1, dtype=torch.float64) * factor


def test_labels_are_cached_as_far_as_seeds_reach(sources):
    few = torch.zeros(100)
    few[:10] = 1
    two = {k: sources[k] for k in ("feat", "label")}
    fields = make(
        two,
        TABLES["v"] + 32 * 90 + 8 * 10,
        {"v": descending(100, 0.099)},
        seeds={"v": few},
        roles={"label": Role.OUTPUT},
    )
    assert rows(fields) == {"feat": 90, "label": 10}
    label = parts(fields)["label"]
    assert (label.expected_reads, label.expected_hits, label.expected_bytes_saved) == (10, 10, 80)
    feat = parts(fields)["feat"]
    assert feat.expected_reads == pytest.approx(0.099 * 5050)
    assert feat.expected_hits == pytest.approx(0.099 * (5050 - 55))
    assert sum(plan.nbytes for plan in fields.plans) == fields.plans[0].budget_bytes


def test_a_field_in_both_roles_has_the_reads_of_both(sources):
    seeds = torch.zeros(100)
    seeds[90:] = 7
    reads = descending(100) / 100
    fields = make(
        {"feat": sources["feat"]},
        "50%",
        {"v": reads},
        seeds={"v": seeds},
        roles={"feat": Role.INPUT | Role.OUTPUT},
    )
    part = parts(fields)["feat"]
    assert part.expected_reads == pytest.approx(50.5 + 70) and part.expected_hits == pytest.approx(
        float(reads[:50].sum())
    )


def test_roles_of_one_field_are_put_together(sources):
    fields = make({}, "50%", {"v": descending(100)}, seeds={"v": torch.ones(100)})
    for role in (Role.INPUT, Role.OUTPUT):
        fields.add_source("feat", lambda: sources["feat"], row_type="v", role=role)
    fields.prepare()
    assert parts(fields)["feat"].expected_reads == 5050 + 100


@pytest.mark.parametrize("per_epoch", [False, None])
def test_where_reads_are_not_known_all_fields_have_the_same_vertices(sources, per_epoch):
    scores = None if per_epoch is None else descending(100)
    ranking = Ranking(torch.arange(100).flip(0), scores, per_epoch=False)
    two = {k: sources[k] for k in ("feat", "label")}
    seeds = torch.arange(100) % 2
    fields = make(
        two, TABLES["v"] + 40 * 30, {"v": ranking}, seeds={"v": seeds}, roles={"label": Role.OUTPUT}
    )
    assert rows(fields) == {"feat": 30, "label": 30}
    feat, label = parts(fields)["feat"], parts(fields)["label"]
    assert feat.expected_hit_rate is None and feat.expected_bytes_saved is None
    assert (label.expected_reads, label.expected_hits) == (50, 15)  # seeds are known all the same
    assert hits(fields, "feat", torch.arange(70, 100)) == 30


@pytest.mark.parametrize("role", [Role.INPUT, Role.INPUT | Role.OUTPUT])
def test_of_a_ranking_that_leaves_vertices_out_the_hits_are_known_and_the_rate_is_not(
    sources, role
):
    ranking = Ranking(torch.arange(50, 90), descending(40), per_epoch=True)
    fields = make(
        {"feat": sources["feat"]},
        0.1,
        {"v": ranking},
        seeds={"v": torch.ones(100)},
        roles={"feat": role},
    )
    (part,) = parts(fields).values()
    assert part.rows == 10 and part.expected_hits == sum(range(31, 41)) + (
        10 if Role.OUTPUT in role else 0
    )
    assert part.expected_reads is None and part.expected_hit_rate is None
    assert part.expected_bytes_saved == 32 * part.expected_hits


def test_edges_share_the_budget_with_vertices(sources):
    reads = {"v": descending(100), EDGES: descending(300, 0.25)}
    spent = TABLES["v"] + TABLES[EDGES] + 32 * 60 + 8 * 60 + 16 * 137
    fields = make(sources, spent, reads)
    assert fields.asked == [["v", EDGES]]
    # vertices down to 41 reads an epoch, edges down to 41 (place 136: 164 * 0.25)
    assert rows(fields) == {"feat": 60, "label": 60, "weight": 137}
    plan = fields.plans[1]
    assert plan.node_type == EDGES and plan.num_nodes == 300 and plan.table_bytes == TABLES[EDGES]
    assert hits(fields, "weight", torch.arange(300)) == 137
    assert torch.equal(fields.read("weight", torch.arange(300)).tensor, sources["weight"])
    assert parts(fields)["weight"].expected_hit_rate == pytest.approx(
        sum(range(164, 301)) / sum(range(1, 301))
    )


def test_a_table_of_edges_that_does_not_pay_is_not_paid(sources):
    reads = {"v": descending(100), EDGES: descending(300, 0.01)}
    fields = make(sources, TABLES["v"] + TABLES[EDGES] + 40 * 50, reads)
    assert set(rows(fields)) == {"feat", "label"} and len(fields.plans) == 1
    assert rows(fields)["feat"] >= 50 + TABLES[EDGES] // 40
    assert hits(fields, "weight", torch.arange(300)) == 0


def test_edges_are_not_ranked_where_no_row_fits(sources):
    fields = make(sources, TABLES["v"] + 40 * 10, {"v": descending(100)})
    assert fields.asked == [["v"]] and rows(fields) == {"feat": 10, "label": 10}


def test_edges_that_nobody_ranks_are_not_cached(sources):
    fields = make(sources, 10**6, {"v": descending(100)})
    assert rows(fields) == {"feat": 100, "label": 100}
    for _ in range(30):
        assert hits(fields, "weight", torch.arange(300)) == 0
    assert len(fields.asked) == 1


def test_labels_of_seed_edges_need_no_ranking(sources):
    seeds = torch.zeros(300)
    seeds[200:250] = 1
    roles = {"weight": Role.OUTPUT}
    fields = make(
        {"weight": sources["weight"]},
        TABLES[EDGES] + 16 * 50,
        {},
        seeds={EDGES: seeds},
        roles=roles,
    )
    assert fields.asked == [] and rows(fields) == {"weight": 50}
    assert hits(fields, "weight", torch.arange(200, 250)) == 50
    assert parts(fields)["weight"].expected_hit_rate == 1.0


def test_reads_and_scores_of_another_kind_give_the_same_share_of_each(sources):
    reads = {"v": Ranking(torch.arange(100), descending(100, 1000)), EDGES: descending(300, 0.001)}
    fields = make(sources, "20%", reads)
    assert rows(fields) == {"feat": 20, "label": 20, "weight": 60}


def test_a_late_field_of_edges_gets_what_is_left(sources):
    reads = {"v": descending(100), EDGES: descending(300)}
    first = {k: sources[k] for k in ("feat", "label")}
    fields = make(first, TABLES["v"] + 40 * 100 + TABLES[EDGES] + 16 * 25 + 15, reads)
    fields.add_source("weight", lambda: sources["weight"], row_type=EDGES)
    for _ in range(20):
        fields.read("weight", torch.arange(300))
    assert rows(fields) == {"feat": 100, "label": 100, "weight": 25}
    assert parts(fields)["weight"].expected_hits == sum(range(276, 301))
    assert sum(plan.nbytes for plan in fields.plans) <= fields.plans[0].budget_bytes


@settings(max_examples=examples(40))
@given(
    budget=st.one_of(st.integers(0, 12000), st.sampled_from(["1%", "33%", "100%"])),
    seed=st.integers(0, 1000),
    role=st.sampled_from([Role.INPUT, Role.OUTPUT, Role.INPUT | Role.OUTPUT]),
)
def test_expectations_are_what_an_epoch_of_these_reads_sees(sources, budget, seed, role):
    rng = np.random.default_rng(seed)
    reads = {
        "v": torch.from_numpy(rng.integers(0, 9, 100)),
        EDGES: torch.from_numpy(rng.integers(0, 5, 300)),
    }
    seeds = {"v": torch.from_numpy(rng.integers(0, 2, 100)), EDGES: torch.zeros(300)}
    fields = make(
        sources,
        budget,
        {t: r.double() for t, r in reads.items()},
        seeds=seeds,
        roles={"label": role},
    )
    assert sum(plan.nbytes for plan in fields.plans) <= fields.plans[0].budget_bytes
    epoch = {"feat": reads["v"], "weight": reads[EDGES]}
    epoch["label"] = sum(
        r for r, of in ((reads["v"], Role.INPUT), (seeds["v"], Role.OUTPUT)) if of in role
    )
    for key, part in parts(fields).items():
        ids = torch.repeat_interleave(torch.arange(len(epoch[key])), epoch[key])
        assert part.expected_reads == len(ids) and part.expected_hits == hits(fields, key, ids)
        assert part.expected_bytes_saved == part.expected_hits * sources[key][0].numel() * 8
