"""``use_ddp=True`` of the core's and PyG's loaders: processes share the seeds of each epoch."""

import importlib.util
import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from fresh_processes import HANGING, forked_python

from pagraph import Graph, Loader, NeighborSampler

SCRIPT = Path(__file__).with_name("ddp_loaders.py")
NUM_NODES = 103
HAS_PYG = importlib.util.find_spec("torch_geometric") is not None
FACES = ["core", "pyg", "pyg links"] if HAS_PYG else ["core"]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    world = request.param
    processes = [
        subprocess.Popen([forked_python(), SCRIPT, folder, str(rank), str(world), *FACES])
        for rank in range(world)
    ]
    try:
        assert [process.wait(timeout=HANGING) for process in processes] == [0] * world
    finally:
        for process in processes:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def flat(batches):
    return [seed for batch in batches for seed in batch]


@pytest.mark.parametrize("face", FACES)
class TestShares:
    """Of 103 seeds."""

    @pytest.mark.many
    def test_all_seeds_are_there_in_as_many_batches_on_each(self, ranks, face):
        share = -(-NUM_NODES // len(ranks))
        for epoch in range(2):
            parts = [found[face]["epochs"][epoch] for found in ranks]
            assert {len(flat(part)) for part in parts} == {share}
            assert {len(part) for part in parts} == {ranks[0][face]["batches"]}
            counts = Counter(flat([flat(part) for part in parts]))
            assert sorted(counts) == list(range(NUM_NODES))
            assert sum(counts.values()) - NUM_NODES == share * len(ranks) - NUM_NODES

    @pytest.mark.processes
    def test_they_are_divided_again_in_each_epoch(self, ranks, face):
        first, second = (set(flat(ranks[0][face]["epochs"][epoch])) for epoch in range(2))
        assert first != second

    def test_what_does_not_divide_is_left_out_with_drop_last(self, ranks, face):
        parts = [flat(found[face]["whole"]) for found in ranks]
        size = NUM_NODES // len(ranks) // 10 * 10
        assert [len(part) for part in parts] == [size] * len(ranks)
        assert len(set(flat(parts))) == size * len(ranks)

    def test_one_order_for_all_without_a_seed(self, ranks, face):
        seeds = flat([flat(found[face]["unseeded"]) for found in ranks])
        assert sorted(set(seeds)) == list(range(NUM_NODES))

    def test_one_state_serves_all_ranks(self, ranks, face):
        for found in ranks:
            assert found[face]["state"] == ranks[0][face]["state"]
            assert found[face]["resumed"] == found[face]["rest"]


@pytest.mark.skipif(not HAS_PYG, reason="needs torch_geometric")
def test_samplers_of_the_users_own(ranks):
    for found in ranks:
        assert found["sampler"] == -(-NUM_NODES // len(ranks))
        assert found["refused"].startswith("sampler must be torch's, or a DistributedSampler, for")


def test_seeds_that_nobody_divided_are_one_warning(ranks):
    for found in ranks:
        [said] = found["warned"]
        assert said.startswith(
            f"each of {len(ranks)} processes reads all seeds of its loader: use_ddp"
        )


def test_a_process_group_must_be_there():
    graph = Graph.from_coo([0], [1])
    with pytest.raises(ValueError, match="use_ddp=True needs torch.distributed.init_process_group"):
        Loader(graph, torch.arange(2), NeighborSampler([1]), use_ddp=True)
