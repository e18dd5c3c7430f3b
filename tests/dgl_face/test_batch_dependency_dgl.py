"""batch_dependency: of DGL's LABOR sampler, and as an argument of the loader."""

import pickle

import numpy as np
import pytest
import torch
from cases import bits, collect, dgl, make_graph, ours, theirs

import pagraph.dgl
from pagraph.dgl.workload import native_sampler

pytestmark = pytest.mark.usefixtures("no_threads_left")

NeighborSampler, LaborSampler = dgl.dataloading.NeighborSampler, dgl.dataloading.LaborSampler
DEGREE = 20


def star(centres=200):
    src = torch.arange(centres, centres * (1 + DEGREE))
    return dgl.graph((src, torch.arange(centres).repeat_interleave(DEGREE)))


def alike(make, sampler, apart=1, epoch=40, **options):
    """Share of a batch's edges that are in the batch ``apart`` places later, every batch having the
    same seeds."""
    dgl.seed(2)
    loader = make(star(), torch.arange(200).repeat(epoch), sampler, batch_size=200, **options)
    taken = np.zeros((epoch, 200 * DEGREE), dtype=bool)
    for row, (_, _, (block,)) in zip(taken, collect(loader), strict=True):
        row[block.edata[dgl.EID].numpy()] = True
    return (taken[apart:] & taken[:-apart]).sum() / taken[apart:].sum()


def dgls_formula(apart, period, chance):
    """What DGL's numbers give: two normal ones, of the group and of the next, mixed by an angle
    that grows.

    A step of the angle by ``pi / (2 * period)`` brings ``exp(-z * z / 2) / (4 * period)`` sources
    under the quantile ``z`` (the rate at which such a process crosses a level: Rice, 1944); summed
    over few steps.
    """
    z = torch.special.ndtri(torch.tensor(chance, dtype=torch.float64)).item()
    return 1 - apart * np.exp(-z * z / 2) / (4 * period) / chance


def test_labor_is_ours_and_changes_less_than_dgls():
    """At a small chance: ours renews one in ``period``, and all that it takes away is what it draws
    anew."""
    period, chance = 16, 2 / DEGREE
    sampler = LaborSampler([2], batch_dependency=period)
    assert native_sampler(star(), sampler).batch_dependency == period
    mine = alike(ours, sampler, seed=1)
    assert mine == pytest.approx(1 - (1 - chance) / period, abs=0.01)
    dgls = alike(theirs, LaborSampler([2], batch_dependency=period))
    assert dgls == pytest.approx(dgls_formula(1, period, chance), abs=0.01)
    assert dgls < mine


def test_the_loaders_argument_is_the_samplers():
    graph = make_graph()
    options = {"batch_size": 30, "seed": 1, "shuffle": True}
    mine = ours(graph, torch.arange(200), LaborSampler([3, 2], batch_dependency=5), **options)
    expected = [bits(batch) for batch in mine]
    for sampler in (LaborSampler([3, 2]), LaborSampler([3, 2], batch_dependency=5)):
        loader = ours(
            graph, torch.arange(200), sampler, batch_dependency=5, num_workers=3, **options
        )
        assert [bits(batch) for batch in loader] == expected


def test_uniform_neighbours_and_those_of_edges_share():
    assert alike(ours, NeighborSampler([2]), seed=1) == pytest.approx(2 / DEGREE, abs=0.01)
    expected = 1 - (1 - 2 / DEGREE) / 8
    assert alike(ours, NeighborSampler([2]), seed=1, batch_dependency=8) == pytest.approx(
        expected, abs=0.01
    )
    around = dgl.dataloading.as_edge_prediction_sampler(NeighborSampler([2]))
    ids = torch.arange(200 * DEGREE).repeat(6)
    for period in (1, 8):
        loader = ours(star(), ids, around, batch_size=200 * DEGREE, seed=1, batch_dependency=period)
        first, second = [set(blocks[0].edata[dgl.EID].tolist()) for _, _, blocks in loader][:2]
        kept = 1 - 1 / period + 2 / DEGREE / period
        assert len(first & second) / len(first) == pytest.approx(kept, abs=0.06)


def test_of_0_is_dgls_own_whose_draws_never_change():
    assert native_sampler(star(), LaborSampler([2], batch_dependency=0)) is None
    assert alike(ours, LaborSampler([2], batch_dependency=0), epoch=5) == 1.0


def test_pickled_it_repeats_its_epoch():
    graph = make_graph()
    loader = ours(
        graph, torch.arange(200), NeighborSampler([3]), batch_size=30, seed=1, batch_dependency=5
    )
    expected = [bits(batch) for batch in loader]
    loader.set_epoch(0)
    reader = iter(loader)
    next(reader), next(reader)
    again = pickle.loads(pickle.dumps(loader))
    reader.close()
    assert [bits(batch) for batch in again] == expected  # a copy begins its epoch anew


@pytest.mark.parametrize(
    ("sampler", "value", "error", "message"),
    [
        (NeighborSampler([2]), 0, ValueError, "batch_dependency must be at least 1, got 0"),
        (NeighborSampler([2]), -1, ValueError, "batch_dependency must be at least 1, got -1"),
        (NeighborSampler([2]), 2.0, TypeError, "batch_dependency must be an integer, got 2.0"),
        (
            pagraph.dgl.LayerSampler([2]),
            2,
            ValueError,
            "must be 1 except for neighbour and LABOR samplers, got 2 for",
        ),
        (
            LaborSampler([2], batch_dependency=0),
            2,
            ValueError,
            "got 2 for one with its own code",
        ),
        (
            LaborSampler([2], batch_dependency=4),
            2,
            ValueError,
            "must be the sampler's own, 4, or 1; got 2",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_once(sampler, value, error, message):
    with pytest.raises(error, match=message):
        ours(star(), torch.arange(10), sampler, batch_dependency=value)


def test_a_dataset_of_whole_batches_cannot_share():
    class Batches(torch.utils.data.Dataset):
        device = torch.device("cpu")

        def __len__(self):
            return 2

        def __getitem__(self, place):
            return torch.arange(2)

    with pytest.raises(ValueError, match="got 2 for one with its own code"):
        ours(star(), Batches(), NeighborSampler([2]), batch_dependency=2)
