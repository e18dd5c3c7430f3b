"""Naming the next epoch: reproduced exactly, counted on from, consistent with saved states."""

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler

pytestmark = pytest.mark.usefixtures("no_threads_left")


def make_loader(**options):
    rng = np.random.default_rng(0)
    graph = Graph.from_coo(rng.integers(0, 50, 400), rng.integers(0, 50, 400), 50)
    return Loader(graph, torch.arange(30), NeighborSampler([3]), batch_size=4, **options)


def bits(batch):
    (block,) = batch.blocks
    return batch.output_nodes.tolist(), batch.input_nodes.tolist(), block.indices.tolist()


def epoch_of(loader):
    return [bits(batch) for batch in loader]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_named_epoch_is_reproduced_exactly(shuffle, prefetch):
    options = dict(seed=1, shuffle=shuffle)
    whole = make_loader(**options)
    epochs = [epoch_of(whole) for _ in range(5)]
    loader = make_loader(prefetch=prefetch, **options)
    loader.set_epoch(3)
    assert epoch_of(loader) == epochs[3] and epoch_of(loader) == epochs[4]  # counts on
    for epoch in (np.int64(1), 0, 0):  # backwards, and twice the same
        loader.set_epoch(epoch)
        loader.set_epoch(epoch)
        assert epoch_of(loader) == epochs[epoch]
    for _ in loader:
        loader.set_epoch(4)  # the running pass goes on as it is
        break
    assert epoch_of(loader) == epochs[4]
    assert [stats.epoch for stats in loader.stats.epochs] == [3, 4, 1, 0, 0, 1, 4]


def test_a_running_pass_is_not_disturbed():
    loader = make_loader(seed=1, shuffle=True)
    expected = [epoch_of(loader) for _ in range(2)]
    loader.set_epoch(0)
    got = []
    for batch in loader:
        got.append(bits(batch))
        loader.set_epoch(1)
    assert got == expected[0] and epoch_of(loader) == expected[1]


def test_saved_states_know_the_named_epoch():
    loader = make_loader(seed=1, shuffle=True)
    loader.set_epoch(5)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"], state["key"]) == (5, 0, None)
    expected = epoch_of(loader)
    resumed = make_loader(seed=1, shuffle=True)
    resumed.load_state_dict(state)
    assert epoch_of(resumed) == expected
    loader.set_epoch(2)  # after a finished pass
    assert loader.state_dict()["epoch"] == 2 and loader.state_dict()["batch"] == 0


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_naming_the_epoch_one_resumes_keeps_the_place(seed, shuffle):
    """``load_state_dict``, then ``for epoch in range(begun, ...): loader.set_epoch(epoch)``."""
    loader = make_loader(seed=seed, shuffle=shuffle)
    loader.set_epoch(2)
    batches = iter(loader)
    next(batches), next(batches), next(batches)
    state = loader.state_dict()
    rest = [bits(batch) for batch in batches]
    resumed = make_loader(seed=seed, shuffle=shuffle)
    resumed.load_state_dict(state)
    resumed.set_epoch(2)
    assert resumed.state_dict()["batch"] == 3 and epoch_of(resumed) == rest
    resumed.load_state_dict(state)
    resumed.set_epoch(3)  # another: from its beginning
    assert resumed.state_dict()["batch"] == 0 and len(epoch_of(resumed)) == 8


def test_without_a_seed_only_the_number_changes():
    def run(epochs):
        np.random.seed(0), torch.manual_seed(0)
        loader = make_loader(shuffle=True)
        result = []
        for epoch in epochs:
            loader.set_epoch(epoch)
            result.append(epoch_of(loader))
        return result, [stats.epoch for stats in loader.stats.epochs]

    assert run([0, 1]) == (run([7, 3])[0], [0, 1]) and run([7, 3])[1] == [7, 3]
    loader = make_loader(shuffle=True)
    loader.set_epoch(4)
    fresh = make_loader(shuffle=True)
    # No pass has been planned: there is no order to be saved.
    fresh.load_state_dict(loader.state_dict())
    assert fresh.state_dict()["epoch"] == 4 and len(epoch_of(fresh)) == 8


@pytest.mark.parametrize(
    ("epoch", "error", "message"),
    [
        (-1, ValueError, "epoch must be at least 0, got -1"),
        (1.0, TypeError, "epoch must be an integer, got 1.0"),
        (True, TypeError, "got True"),
        ("1", TypeError, "got '1'"),
        (None, TypeError, "got None"),
    ],
)
def test_numbers_that_no_epoch_has(epoch, error, message):
    loader = make_loader(seed=1)
    first = epoch_of(loader)
    loader.set_epoch(0)
    with pytest.raises(error, match=message):
        loader.set_epoch(epoch)
    assert epoch_of(loader) == first
