"""The core loader's seeds in every form, copies of it, and samplers that are not for it."""

import copy
import pickle

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler

GRAPH = Graph.from_coo(
    np.arange(40) % 13,
    (np.arange(40) * 7) % 20,
    20,
    ndata={"feat": torch.rand(20, 3), "label": torch.arange(20)},
)


def loader(seeds, **options):
    settings = {"fields": ["feat"], "labels": ["label"], "batch_size": 3, "seed": 0} | options
    return Loader(GRAPH, seeds, settings.pop("sampler", NeighborSampler([2, 2])), **settings)


def outputs(of):
    return [batch.output_nodes.tolist() for batch in of]


@pytest.mark.parametrize(
    "seeds",
    [
        [4, 1, 7, 9],
        (4, 1, 7, 9),
        range(4, 8),
        np.array([4, 1, 7, 9]),
        np.array([4, 1, 7, 9], np.int32),
        np.array([4, 1, 7, 9], np.uint8),
        torch.tensor([4, 1, 7, 9]),
        torch.tensor([4, 1, 7, 9], dtype=torch.int32),
        torch.tensor([4, 1, 7, 9], dtype=torch.int16),
    ],
    ids=str,
)
def test_ids_in_every_form(seeds):
    of = loader(seeds)
    assert outputs(of) == [list(map(int, seeds[:3])), [int(seeds[3])]]
    narrow = getattr(seeds, "dtype", None) in (torch.int32, np.dtype(np.int32))
    assert next(iter(of)).output_nodes.dtype == (torch.int32 if narrow else torch.int64)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_masks(kind):
    mask = [v in (2, 3, 11) for v in range(20)]
    assert outputs(loader(kind(mask))) == [[2, 3, 11]]


@pytest.mark.parametrize("seeds", [[], torch.zeros(20, dtype=torch.bool)], ids=["ids", "mask"])
def test_no_seeds_are_said_where_the_loader_is_made(seeds):
    with pytest.warns(RuntimeWarning, match="an epoch has no batches: there are no seeds"):
        of = loader(seeds)
    assert outputs(of) == [] and len(of) == 0


def test_too_few_seeds_for_a_whole_batch():
    text = (
        "an epoch has no batches: the 2 seeds are fewer than batch_size=3, and drop_last leaves "
        "them out"
    )
    with pytest.warns(RuntimeWarning, match=text):
        assert len(loader([1, 2], drop_last=True)) == 0


@pytest.mark.parametrize(
    ("seeds", "error", "text"),
    [
        ([0.5], TypeError, "seeds must hold integers, got float64"),
        (torch.tensor([1.0]), TypeError, "seeds must hold integers, got torch.float32"),
        (["a"], TypeError, "seeds must hold integers"),
        ([[1, 2]], ValueError, r"seeds must be 1-D, got shape \(1, 2\)"),
        (
            torch.ones(3, dtype=torch.bool),
            ValueError,
            r"seeds must have shape \(20,\) as a mask .*, got \(3,\)",
        ),
        ([20], IndexError, r"seeds must be in \[0, 20\), got 20"),
        ([-1], IndexError, r"seeds must be in \[0, 20\), got -1"),
    ],
)
def test_seeds_that_are_none(seeds, error, text):
    with pytest.raises(error, match=text):
        loader(seeds)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda of: pickle.loads(pickle.dumps(of))]
)
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("finished", [0, 1])
@pytest.mark.parametrize("seed", [0, None])
def test_copies_begin_their_epoch_anew(duplicate, prefetch, finished, seed):
    """Whoever looks at a batch, or breaks a loop, takes none from a copy."""
    of = loader(list(range(20)), shuffle=True, prefetch=prefetch, seed=seed)
    for _ in range(finished):
        list(of)
    batches = iter(of)
    begun = [next(batches), next(batches)]
    again = duplicate(of)
    whole = [*begun, *batches]
    assert [content(b) for b in again] == [content(b) for b in whole]
    np.random.seed(1), torch.manual_seed(1)
    after = outputs(again)
    np.random.seed(1), torch.manual_seed(1)
    assert after == outputs(of)  # and the next epoch


def content(batch):
    values = batch.input_nodes, batch.features["feat"], batch.labels["label"]
    return [value.tolist() for value in values]


@pytest.fixture
def as_rank():
    """Makes this process a rank of several that are not there: dividing seeds sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def begin(rank, size):
        torch.distributed.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())

    yield begin
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True}], ids=str)
def test_processes_share_the_seeds(options, as_rank):
    parts = []
    for rank in range(3):
        as_rank(rank, 3)
        of = loader(range(20), use_ddp=True, batch_size=2, **options)
        parts.append(outputs(of))
        assert len(of) == len(parts[-1])
        torch.distributed.destroy_process_group()
    seen = [sum(part, []) for part in parts]
    # 20 seeds of three processes: one comes twice, or two are left out.
    each = 6 if "drop_last" in options else 7
    assert [len(part) for part in seen] == [each] * 3
    assert len(set(sum(seen, []))) == (18 if "drop_last" in options else 20)


def test_processes_that_have_not_begun_cannot_share():
    with pytest.raises(ValueError, match="use_ddp=True needs torch.distributed.init_process_group"):
        loader(range(20), use_ddp=True)
