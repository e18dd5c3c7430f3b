"""Loaders made again from their attributes, as Lightning does it; with any values of those
attributes."""

import inspect
import pickle

import numpy as np
import pytest
import torch
from cases import bits, dgl, make_graph, ours

from pagraph.dgl import DataLoader

pytestmark = pytest.mark.usefixtures("no_threads_left")

NeighborSampler = dgl.dataloading.NeighborSampler
SAME = [
    *(
        "graph",
        "indices",
        "graph_sampler",
        "device",
        "use_ddp",
        "ddp_seed",
        "shuffle",
        "drop_last",
        "use_uva",
    ),
    *(
        "use_prefetch_thread",
        "use_alternate_streams",
        "pin_prefetcher",
        "gpu_cache",
        "batch_size",
        "num_workers",
    ),
    *("lookahead", "memory", "batch_dependency"),
    *(
        "cache",
        "cache_policy",
        "cache_dtype",
        "prefetch",
        "seed",
        "other_storages",
        "cpu_affinity_enabled",
    ),
    "worker_init_fn",
    *("persistent_workers", "prefetch_factor", "timeout", "generator", "pin_memory"),
]


def attributes(loader):
    """The arguments that Lightning collects: each attribute named like one of them that is not its
    default."""
    parameters = dict(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
    parameters |= inspect.signature(type(loader).__init__).parameters
    public = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    public["multiprocessing_context"] = loader.multiprocessing_context
    arguments = {
        n: public[n] for n, p in parameters.items() if n in public and p.default is not public[n]
    }
    return arguments | {"dataset": loader.dataset}


def again(loader, **changes):
    """As for iterable datasets, which take no samplers."""
    return type(loader)(**attributes(loader) | {"sampler": None, "batch_sampler": None} | changes)


def initialise(worker):
    """A ``worker_init_fn``."""


OPTIONS = {
    "plain": {},
    "batches": {"batch_size": 7, "drop_last": True, "shuffle": True},
    "workers": {
        "num_workers": 2,
        "persistent_workers": True,
        "prefetch_factor": 3,
        "worker_init_fn": initialise,
    },
    "ours": {
        "cache": 0.5,
        "cache_policy": "degree",
        "cache_dtype": "bf16",
        "prefetch": 1,
        "batch_size": 16,
    },
    "other": {
        "timeout": 3,
        "generator": torch.Generator(),
        "device": "cpu",
        "ddp_seed": 5,
        "cache": 0,
    },
    "flags": {
        "use_alternate_streams": True,
        "pin_prefetcher": False,
        "gpu_cache": {"node": {"feat": 0}},
    },
}


@pytest.mark.every
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("seed", [None, 3])
def test_a_loader_made_again_is_equal(options, seed):
    sampler = NeighborSampler([2, 2], prefetch_node_feats=["feat"])
    loader = ours(make_graph(), torch.arange(15), sampler, seed=seed, **options)
    clones = [again(loader), again(again(loader)), again(loader, sampler=loader.sampler)]
    expected = two_epochs(loader)
    for clone in clones:
        assert type(clone) is DataLoader and len(clone) == len(loader)
        for name in SAME:
            assert getattr(clone, name) is getattr(loader, name) or getattr(clone, name) == getattr(
                loader, name
            ), name
        assert len(pickle.loads(pickle.dumps(clone))) == len(loader)
        assert two_epochs(clone) == expected


def two_epochs(loader):
    """With the global generators, and the loader's own, at their beginnings."""
    np.random.seed(0), torch.manual_seed(0)
    if loader.generator is not None:
        loader.generator.manual_seed(0)
    return [bits(batch) for _ in range(2) for batch in loader]


def test_seeds_of_types_and_datasets():
    ends = torch.tensor([0, 1]), torch.tensor([1, 2])
    graph = dgl.heterograph(
        {("a", "x", "b"): ends, ("b", "y", "a"): ends}, num_nodes_dict={"a": 3, "b": 5}
    )
    loader = ours(graph, {"b": torch.arange(5), "a": [0, 2]}, NeighborSampler([2]), batch_size=3)
    seeds = [{name: ids.tolist() for name, ids in batch[1].items()} for batch in again(loader)]
    assert seeds == [{"b": [0, 1, 2]}, {"a": [0], "b": [3, 4]}, {"a": [2]}]

    class Batches:
        device = torch.device("cpu")

        def __len__(self):
            return 2

        def __getitem__(self, i):
            return torch.arange(i, i + 2)

    clone = again(ours(make_graph(), Batches(), NeighborSampler([2])))
    assert [batch[1].tolist() for batch in clone] == [[0, 1], [1, 2]]


def test_changed_arguments_count():
    loader = ours(make_graph(), torch.arange(10), NeighborSampler([2]), batch_size=4, seed=1)
    assert [b[1].tolist() for b in again(loader, indices=torch.arange(5))] == [[0, 1, 2, 3], [4]]
    shuffled = sum([b[1].tolist() for b in again(loader, shuffle=True)], [])
    assert shuffled != sorted(shuffled) == list(range(10))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"dataset": [1, 2]},
            TypeError,
            "dataset must be the dataset of a pagraph.dgl.DataLoader, got list",
        ),
        ({"dataset": None}, TypeError, "got NoneType"),
        ({"sampler": [1]}, ValueError, "sampler is not supported"),
        ({"collate_fn": list}, TypeError, "unexpected keyword argument"),
    ],
)
def test_what_cannot_be_made_again(changes, error, message):
    loader = ours(make_graph(), torch.arange(10), NeighborSampler([2]))
    with pytest.raises(error, match=message):
        again(loader, **changes)


def test_arguments_that_torch_and_dgl_take_as_none():
    loader = ours(
        make_graph(),
        torch.arange(10),
        NeighborSampler([2]),
        batch_size=4,
        sampler=None,
        batch_sampler=None,
    )
    assert [b[1].tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_worker_init_fn_that_is_set_later_is_called():
    loader, seen = (
        ours(make_graph(), torch.arange(10), NeighborSampler([2]), batch_size=2, num_workers=2),
        [],
    )
    loader.worker_init_fn = seen.append
    list(loader)
    assert sorted(seen) == [0, 1]
