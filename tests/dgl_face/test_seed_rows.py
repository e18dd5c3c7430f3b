"""Indices of more than one dimension, which samplers of a user's own take: a row is a seed."""

import math

import numpy as np
import pytest
import torch
from cases import collect, dgl, make_graph, ours, theirs

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Rows(dgl.dataloading.Sampler):
    """Hands its seeds through; SEAL's sampler takes them as (number, source, destination)."""

    def sample(self, g, indices):
        return indices


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shape", [(10, 3), (10, 1), (7, 2, 2), (0, 3)])
def test_rows_are_batched_and_shuffled_as_by_dgl(shape, workers):
    rows = torch.arange(math.prod(shape)).view(shape)
    options = {"batch_size": 4, "shuffle": True}
    np.random.seed(5)
    mine = list(ours(make_graph(), rows, Rows(), num_workers=workers, **options))
    np.random.seed(5)
    expected = collect(theirs(make_graph(), rows, Rows(), **options))
    assert [batch.tolist() for batch in mine] == [batch.tolist() for batch in expected]
    assert all(batch.dim() == rows.dim() for batch in mine)


def test_rows_of_several_types():
    rows = {"user": torch.arange(6).view(3, 2), "item": torch.arange(8).view(4, 2)}
    mine = list(ours(make_graph(), rows, Rows(), batch_size=5))
    assert [{k: v.tolist() for k, v in batch.items()} for batch in mine] == [
        {"user": [[0, 1], [2, 3], [4, 5]], "item": [[0, 1], [2, 3]]},
        {"item": [[4, 5], [6, 7]]},
    ]
    with pytest.raises(
        ValueError, match=r"rows of one shape for all types, got shapes \[\(3, 2\), \(4,\)\]"
    ):
        ours(make_graph(), rows | {"item": torch.arange(4)}, Rows())


def test_a_number_has_no_rows():
    with pytest.raises(ValueError, match="seeds must have at least one dimension"):
        ours(make_graph(), torch.tensor(3), Rows())
