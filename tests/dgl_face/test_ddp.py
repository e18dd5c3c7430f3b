"""Distributed training with real processes (gloo): what each rank gets, and that none waits for
another for ever."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from cases import dgl, make_graph, ours
from ddp_ranks import LENGTHS, WORLDS
from fresh_processes import HANGING, forked_python

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).with_name("ddp_ranks.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What all ranks of all numbers of processes saw."""
    folder = tmp_path_factory.mktemp("ranks")
    # No pool of threads, which a fork would lose.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [forked_python(), str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request, folder):
    """What every rank saw, in order of rank."""
    return [
        json.loads((folder / f"{rank}of{request.param}.json").read_text())
        for rank in range(request.param)
    ]


def flat(batches):
    return [i for batch in batches for i in batch]


@pytest.mark.parametrize("length", LENGTHS)
def test_ranks_cover_the_indices_in_equally_many_batches(ranks, length):
    world = len(ranks)
    lengths, batches = zip(*[rank["slices"][f"{length} False"] for rank in ranks], strict=True)
    each = -(-length // world)
    assert set(lengths) == {-(-each // 2)} == {len(part) for part in batches}
    padded = [i % length for i in range(each * world)]
    assert [flat(part) for part in batches] == [
        padded[r * each : (r + 1) * each] for r in range(world)
    ]
    lengths, batches = zip(*[rank["slices"][f"{length} True"] for rank in ranks], strict=True)
    assert set(lengths) == {length // world // 2} == {len(part) for part in batches}
    seen = flat(flat(batches))
    assert len(set(seen)) == len(seen) and set(seen) <= set(range(length))


@pytest.mark.parametrize("shape", ["plain", "typed"])
def test_slices_are_dgls_where_the_length_divides(ranks, shape):
    for rank in ranks:
        assert rank["slices"][f"ours {shape}"] == rank["slices"][f"dgl {shape}"]


def test_shuffled_ranks_cover_the_indices_together_in_every_epoch(ranks):
    epochs = [[flat(rank["shuffled"][epoch]) for rank in ranks] for epoch in range(3)]
    for parts in epochs:
        assert {len(part) for part in parts} == {-(-21 // len(ranks))}
        assert set(flat(parts)) == set(range(21))
    for rank in range(len(ranks)):
        assert len({tuple(parts[rank]) for parts in epochs}) == 3
        if len(ranks) > 1:  # other seeds, not only another order of the same
            assert len({frozenset(parts[rank]) for parts in epochs}) == 3


def test_ranks_sample_other_neighbours_from_the_same_generators(ranks):
    seen = [json.dumps(rank["neighbours"]) for rank in ranks]
    assert len(set(seen)) == len(seen)


def test_a_state_from_the_middle_resumes_on_every_rank(ranks):
    assert all(rank["resumed"] == [True, True] for rank in ranks)


def test_a_model_trains_with_uneven_ends(ranks):
    steps = {rank["trained"][0] for rank in ranks}
    each = -(-37 // len(ranks))
    assert steps == {-(-each // 4)}
    weights = [torch.cat([torch.tensor(w) for w in rank["trained"][1]]) for rank in ranks]
    assert all(torch.equal(w, weights[0]) for w in weights) and weights[0].isfinite().all()


@pytest.fixture
def one_process(tmp_path):
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def make_loader(**options):
    options = dict(batch_size=4, shuffle=True, use_ddp=True) | options
    return ours(make_graph(), torch.arange(20), dgl.dataloading.NeighborSampler([2]), **options)


def outputs(loader):
    return [batch[1].tolist() for batch in loader]


@pytest.mark.usefixtures("one_process")
def test_ddp_seed_orders_the_indices_unless_there_is_a_seed():
    first = outputs(make_loader())
    assert first == outputs(make_loader(ddp_seed=0)) != outputs(make_loader(ddp_seed=1))
    assert (
        outputs(make_loader(ddp_seed=0, seed=7))
        == outputs(make_loader(ddp_seed=1, seed=7))
        != first
    )
    assert outputs(make_loader(seed=7)) == outputs(make_loader(seed=7, use_ddp=False))
    state = make_loader(ddp_seed=1).state_dict()
    with pytest.raises(
        ValueError, match=r"state\['shuffle_seed'\] must be 2 for this loader, got 1"
    ):
        make_loader(ddp_seed=2).load_state_dict(state)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("ddp_seed", "error", "message"),
    [
        ("x", TypeError, "ddp_seed must be an integer or None, got 'x'"),
        (-1, ValueError, "ddp_seed must be in .*-1"),
    ],
)
def test_bad_ddp_seeds(ddp_seed, error, message):
    with pytest.raises(error, match=message):
        make_loader(ddp_seed=ddp_seed)
    assert len(make_loader(ddp_seed=ddp_seed, use_ddp=False)) == 5  # ignored, as by DGL


@pytest.mark.usefixtures("one_process")
def test_a_dataset_of_whole_batches_is_the_users_to_share():
    class Batches:
        device = torch.device("cpu")

        def __len__(self):
            return 3

        def __getitem__(self, i):
            return torch.arange(i, i + 2)

    loader = ours(make_graph(), Batches(), dgl.dataloading.NeighborSampler([2]), use_ddp=True)
    assert outputs(loader) == [[0, 1], [1, 2], [2, 3]]
