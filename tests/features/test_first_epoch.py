"""What is counted of a loader's first epoch."""

import numpy as np
import pytest
import torch

from pagraph.cache import FieldSet
from pagraph.features import on_disk
from pagraph.graph.graph import NODE_TYPE
from pagraph.graph.mapped import map_npy
from pagraph.ranking import Ranking
from pagraph.ranking.workload import FirstEpoch
from pagraph.system import Budget
from pagraph.system.buffers import BufferPool

N = 100


@pytest.fixture
def make(tmp_path):
    """Makes a field set with a first epoch of so many hops, and gives its counters."""
    np.save(tmp_path / "feat.npy", np.arange(N, dtype=np.float32))
    tensor = map_npy(tmp_path / "feat.npy")
    if not on_disk(tensor):
        pytest.skip("needs temporary files on a disk")

    def made(num_hops, repeats=None):
        seen = []
        first_epoch = FirstEpoch(
            {NODE_TYPE: N},
            num_hops=num_hops,
            batches=2,
            repeats=repeats,
            rank=lambda counts: (
                seen.append(counts)
                or (lambda types: dict.fromkeys(types, Ranking(torch.arange(N))))
            ),
        )
        pool = BufferPool(4)
        fields = FieldSet(
            {"feat": lambda: tensor},
            device=torch.device("cpu"),
            budget=Budget.parse("10%"),
            rank=lambda types: dict.fromkeys(types, Ranking(torch.arange(N))),
            pool_of=lambda key: pool,
            num_nodes=N,
            first_epoch=first_epoch,
        )

        def counts():
            fields.prepare()
            (found,) = seen
            return found

        return fields, counts

    return made


@pytest.mark.parametrize("bad", [N, N + 5, -1])
@pytest.mark.parametrize("hops", [0, 1])
def test_a_read_that_fails_is_not_counted(make, hops, bad):
    fields, counts = make(hops)
    with pytest.raises(IndexError, match="ids must be in"):
        fields.read("feat", torch.tensor([1, bad]), [1, 2] if hops else None)
    fields.read("feat", torch.tensor([3, 4]), [1, 2] if hops else None)
    found = counts()
    assert found.batches == 1
    assert found.by_hop(NODE_TYPE).nonzero().tolist() == (
        [[3, 0], [4, 1]] if hops else [[3, 0], [4, 0]]
    )


def test_reads_of_output_nodes_are_not_those_of_input_nodes(make):
    fields, counts = make(2)
    for seeds in ([3, 4], [5, 6]):
        fields.read("feat", torch.tensor([*seeds, 7, 8, 9]), [2, 4, 5])
        fields.read("feat", torch.tensor(seeds), [2])
    found = counts()
    assert found.batches == 2
    assert found.reads(NODE_TYPE).nonzero().flatten().tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert found.by_hop(NODE_TYPE).sum(0).tolist() == [4, 4, 2]


def test_without_hops_all_reads_count(make):
    fields, counts = make(0)
    fields.read("feat", torch.tensor([1, 1, 2], dtype=torch.int32))
    assert counts().reads(NODE_TYPE)[:4].tolist() == [0, 2, 1, 0]


@pytest.mark.parametrize(("repeats", "nbytes"), [(None, 4), (1, 1), (63, 1), (64, 2)])
def test_counters_are_as_small_as_two_epochs_allow(make, repeats, nbytes):
    fields, counts = make(1, repeats)
    for _ in range(70):
        fields.read("feat", torch.tensor([1] * (repeats or 1)), [0, repeats or 1])
    found = counts()
    assert found.nbytes == 2 * N * nbytes
    assert found.batches == 4 and found.reads(NODE_TYPE)[1] == 4 * (repeats or 1)
