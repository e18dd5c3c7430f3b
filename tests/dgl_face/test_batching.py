"""How indices become batches: lengths, order, shuffling, forms of indices, workers, attributes."""

import copy
import inspect
import pickle
import random
import time

import numpy as np
import pytest
import torch
from cases import bits, collect, dgl, make_graph, ours, theirs

from pagraph.dgl import DataLoader

pytestmark = pytest.mark.usefixtures("no_threads_left")

NeighborSampler = dgl.dataloading.NeighborSampler
COMPARED_ATTRIBUTES = [
    *(
        "graph",
        "graph_sampler",
        "device",
        "use_ddp",
        "ddp_seed",
        "shuffle",
        "drop_last",
        "use_uva",
        "batch_size",
    ),
    *(
        "use_prefetch_thread",
        "pin_prefetcher",
        "use_alternate_streams",
        "num_workers",
        "other_storages",
    ),
    "cpu_affinity_enabled",
]


def outputs(loader):
    return [batch[1].tolist() for batch in loader]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("n", "batch_size"), [(0, 4), (1, 4), (7, 1), (8, 4), (10, 4), (3, 10)])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_length_and_order(n, batch_size, drop_last, prefetch):
    graph, ids = make_graph(), torch.arange(50, 50 + n)
    options = dict(batch_size=batch_size, drop_last=drop_last)
    loader = ours(graph, ids, NeighborSampler([2]), prefetch=prefetch, **options)
    got = outputs(loader)
    assert len(loader) == len(got) == (n // batch_size if drop_last else -(-n // batch_size))
    flat = [i for batch in got for i in batch]
    assert flat == ids.tolist()[: len(got) * batch_size if drop_last else None]
    if n:  # DGL's loader aborts the process on an empty batch
        assert got == [
            b[1].tolist() for b in collect(theirs(graph, ids, NeighborSampler([2]), **options))
        ]


def test_no_seeds_are_said_where_the_loader_is_made():
    graph = make_graph()
    for nothing in (
        torch.empty(0, dtype=torch.int64),
        [],
        {"_N": torch.empty(0, dtype=torch.int64)},
    ):
        with pytest.warns(RuntimeWarning, match="an epoch has no batches: there are no seeds"):
            assert len(ours(graph, nothing, NeighborSampler([2]))) == 0


def test_memory_for_a_graph_in_memory():
    loader = ours(make_graph(), torch.arange(8), NeighborSampler([2]), memory="10MiB")
    with pytest.warns(RuntimeWarning, match="memory=10 MiB has no effect: "):
        next(iter(loader))


def test_shuffle_follows_numpys_generator_as_dgls_does():
    graph, ids = make_graph(), torch.arange(40)

    def epochs(make):
        np.random.seed(3)
        loader = make(graph, ids, NeighborSampler([2]), batch_size=7, shuffle=True)
        return [[b[1].tolist() for b in collect(loader)] for _ in range(3)]

    mine = epochs(ours)
    assert mine == epochs(ours) == epochs(theirs)
    assert mine[0] != mine[1] != mine[2]
    assert all(sorted(i for b in epoch for i in b) == ids.tolist() for epoch in mine)


def test_a_seed_needs_no_global_generator():
    graph, ids = make_graph(), torch.arange(40)

    def epochs(seed, noise):
        np.random.seed(noise)
        torch.manual_seed(noise)
        random.seed(noise)
        before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        loader = ours(graph, ids, NeighborSampler([2, 2]), batch_size=7, shuffle=True, seed=seed)
        result = [[bits(b) for b in loader] for _ in range(2)]
        assert before == (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        return result

    assert epochs(5, 1) == epochs(5, 2)
    assert epochs(5, 1) != epochs(6, 1)


def test_without_a_seed_sampling_follows_torch():
    graph, ids = make_graph(), torch.arange(40)

    def epoch():
        torch.manual_seed(8)
        return [bits(b) for b in ours(graph, ids, NeighborSampler([2, 2]), batch_size=10)]

    assert epoch() == epoch()
    generator = torch.Generator().manual_seed(1)
    loader = ours(graph, ids, NeighborSampler([2, 2]), batch_size=10, generator=generator)
    first, second = [bits(b) for b in loader], [bits(b) for b in loader]
    assert first != second


@pytest.mark.every
@pytest.mark.parametrize("workers", [0, 1, 2, 8])
@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_the_same_bits_for_any_workers_and_depth(workers, prefetch):
    graph, ids = make_graph(), torch.arange(200)
    options = dict(batch_size=13, shuffle=True, seed=1)
    sampler = NeighborSampler([4, 3, 2], prefetch_node_feats=["feat"])
    plain = ours(graph, ids, sampler, prefetch=0, **options)
    expected = [bits(b) for _ in range(2) for b in plain]
    loader = ours(graph, ids, sampler, num_workers=workers, prefetch=prefetch, **options)
    assert [bits(b) for _ in range(2) for b in loader] == expected


def test_restart_break_and_two_live_iterators():
    graph, ids = make_graph(), torch.arange(30)
    loader = ours(graph, ids, NeighborSampler([2]), batch_size=4)
    for _, seen, _ in loader:
        assert seen.tolist() == [0, 1, 2, 3]
        break
    first, second = iter(loader), iter(loader)
    assert first is not second and iter(first) is first
    next(first)
    assert next(second)[1].tolist() == [0, 1, 2, 3]
    assert next(first)[1].tolist() == [4, 5, 6, 7]
    assert len(list(first)) == 6 and len(list(second)) == 7
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(first)


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor, lambda x: x])
def test_indices_of_every_form(form):
    graph = make_graph()
    loader = ours(graph, form(range(5, 25)), NeighborSampler([2]), batch_size=6)
    assert outputs(loader) == [list(range(i, min(i + 6, 25))) for i in range(5, 25, 6)]


def test_arrays_and_lists_are_copied_and_tensors_are_not():
    graph = make_graph()
    array, listed, tensor = np.arange(4), [0, 1, 2, 3], torch.arange(4)
    for ids in (array, listed, {"_N": array}, {"_N": listed}):
        loader = ours(graph, ids, NeighborSampler([2], fused=False), batch_size=4)
        (values,) = ids.values() if isinstance(ids, dict) else [ids]
        values[0] = 99
        seen = next(iter(loader))[1]
        assert (seen["_N"] if isinstance(ids, dict) else seen).tolist() == [0, 1, 2, 3]
        values[0] = 0
    loader = ours(graph, tensor, NeighborSampler([2]), batch_size=4)
    tensor[0] = 99  # as with DGL's loader
    assert outputs(loader) == [[99, 1, 2, 3]]


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(9)[::-1],
        np.arange(18)[::2],
        np.arange(9).astype(">i8"),
        np.ndarray((0,), np.int64),
    ],
    ids=["reversed", "strided", "big-endian", "empty"],
)
def test_arrays_of_any_layout(ids):
    ids.flags.writeable = False
    assert (
        sum(outputs(ours(make_graph(), ids, NeighborSampler([2]), batch_size=4)), [])
        == ids.tolist()
    )


def test_numpys_integers_as_options():
    options = dict(
        num_workers=np.int64(1), prefetch=np.int32(1), batch_size=np.int64(4), seed=np.uint8(3)
    )
    loader = ours(make_graph(), torch.arange(8), NeighborSampler([2]), **options)
    assert outputs(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert type(loader.num_workers) is int and loader.num_workers == 1


@pytest.mark.parametrize("seed", [None, 3])
def test_looking_at_the_dataset_draws_nothing(seed):
    graph, sampler = make_graph(), NeighborSampler([2])

    def epochs(look):
        np.random.seed(0)
        torch.manual_seed(0)
        loader = ours(graph, torch.arange(10), sampler, batch_size=4, shuffle=True, seed=seed)
        if look:
            assert [ids.tolist() for ids in loader.dataset] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        return [[bits(b) for b in loader] for _ in range(2)]

    assert epochs(True) == epochs(False)
    dataset = Batches()
    assert [ids.tolist() for ids in ours(graph, dataset, sampler, shuffle=True).dataset] == [
        [1, 2],
        [3],
        [4, 5, 6],
    ]
    assert dataset.shuffles == 0


@pytest.mark.parametrize("seed", [None, 3])
def test_resuming_leaves_a_shuffled_dataset_alone(seed):
    graph, dataset, sampler = make_graph(), Batches(), NeighborSampler([2, 2])
    loader = ours(graph, dataset, sampler, shuffle=True, seed=seed)
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), outputs(batches)
    assert rest == [[3], [4, 5, 6]] and dataset.shuffles == 1
    resumed = ours(graph, dataset, sampler, shuffle=True, seed=seed)
    resumed.load_state_dict(state)
    assert outputs(resumed) == rest and dataset.shuffles == 1
    assert len(list(resumed)) == 3 and dataset.shuffles == 2  # the next epoch shuffles again
    with pytest.raises(ValueError, match="permutation must be None for a dataset"):
        resumed.load_state_dict({**state, "checksum": None, "permutation": torch.arange(3)})
    of_ids = ours(graph, torch.arange(3), sampler, shuffle=True, seed=seed)
    with pytest.raises(
        ValueError, match=r"state\['num_seeds'\] must be 3 for this loader, got None"
    ):
        of_ids.load_state_dict(state)


def test_int32_graphs_and_wrong_dtypes():
    graph = make_graph(idtype=torch.int32)
    ids = torch.arange(10, dtype=torch.int32)
    for input_nodes, output_nodes, blocks in ours(
        graph, ids, NeighborSampler([2, 2]), batch_size=4
    ):
        assert input_nodes.dtype == output_nodes.dtype == torch.int32
        for block in blocks:
            assert (
                block.idtype
                == block.edata[dgl.EID].dtype
                == block.srcdata[dgl.NID].dtype
                == torch.int32
            )
    with pytest.raises(dgl.DGLError, match=r"graph's id dtype torch.int32, got torch.int64"):
        list(ours(graph, ids.long(), NeighborSampler([2])))
    with pytest.raises(dgl.DGLError, match="got torch.float32"):
        list(ours(graph, ids.float(), NeighborSampler([2])))


def test_dict_indices_are_batched_in_the_dicts_order():
    class Echo(dgl.dataloading.Sampler):
        def sample(self, g, indices):
            return {k: v.clone() for k, v in indices.items()}

    graph = make_graph()
    ids = {
        "b": torch.tensor([1, 2, 3]),
        "a": torch.tensor([7, 8]),
        "c": torch.tensor([], dtype=torch.int64),
    }
    batches = list(ours(graph, ids, Echo(), batch_size=2))
    as_lists = [{k: v.tolist() for k, v in batch.items()} for batch in batches]
    assert as_lists == [{"b": [1, 2]}, {"b": [3], "a": [7]}, {"a": [8]}]
    assert [list(b) for b in batches] == [["b"], ["b", "a"], ["a"]]
    listed = list(ours(graph, {k: v.tolist() for k, v in ids.items()}, Echo(), batch_size=2))
    assert [{k: v.tolist() for k, v in batch.items()} for batch in listed] == as_lists
    shuffled = list(ours(graph, ids, Echo(), batch_size=2, shuffle=True, seed=0))
    flat = sorted((k, i) for batch in shuffled for k, v in batch.items() for i in v.tolist())
    assert flat == [("a", 7), ("a", 8), ("b", 1), ("b", 2), ("b", 3)]


class Batches:
    """A custom dataset whose items are whole batches."""

    device = torch.device("cpu")

    def __init__(self):
        self.shuffles = 0
        self.items = [torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, 5, 6])]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]

    def shuffle(self):
        self.shuffles += 1


def test_a_custom_dataset_gives_whole_batches():
    graph, dataset = make_graph(), Batches()
    loader = ours(graph, dataset, NeighborSampler([2]), batch_size=100)
    assert len(loader) == 3 and outputs(loader) == [[1, 2], [3], [4, 5, 6]]
    assert dataset.shuffles == 0
    outputs(ours(graph, dataset, NeighborSampler([2]), shuffle=True))
    assert dataset.shuffles == 1

    class NoDevice:
        def __len__(self):
            return 1

    with pytest.raises(AttributeError, match="device"):
        ours(graph, NoDevice(), NeighborSampler([2]))


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("native", [True, False])
def test_workers_cover_the_indices_in_order(workers, native):
    graph, ids = make_graph(), torch.arange(11)
    sampler = NeighborSampler([2]) if native else dgl.dataloading.LaborSampler([2])
    loader = ours(graph, ids, sampler, batch_size=4, num_workers=workers, persistent_workers=True)
    for _ in range(2):
        assert outputs(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert loader.num_workers == workers
    shuffled = ours(
        graph,
        ids,
        sampler,
        batch_size=4,
        num_workers=workers,
        persistent_workers=True,
        shuffle=True,
    )
    first, second = (sum(outputs(shuffled), []) for _ in range(2))
    assert first != second and sorted(first) == sorted(second) == ids.tolist()


def test_worker_init_fn_and_torchs_keywords():
    graph, seen = make_graph(), []
    loader = ours(
        graph,
        torch.arange(40),
        NeighborSampler([2]),
        batch_size=4,
        num_workers=3,
        worker_init_fn=seen.append,
        prefetch_factor=4,
        timeout=5,
        generator=torch.Generator().manual_seed(0),
    )
    list(loader)
    assert sorted(seen) == [0, 1, 2]
    assert loader.prefetch_factor == 4 and loader.timeout == 5


def test_signature_is_dgls_with_more_keywords():
    mine = inspect.signature(DataLoader.__init__).parameters
    named = [p for p in inspect.signature(dgl.dataloading.DataLoader.__init__).parameters.values()]
    for parameter in named:
        assert mine[parameter.name].default == parameter.default
        assert mine[parameter.name].kind == parameter.kind
    extra = {n: p for n, p in mine.items() if n not in {q.name for q in named}}
    cached, others = (
        {"cache", "cache_policy", "cache_dtype"},
        {"prefetch", "lookahead", "memory", "seed"},
    )
    assert set(extra) == cached | others | {"batch_dependency", "sampling_device"}
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in extra.values())


def test_by_position_and_by_name():
    graph, ids, sampler = make_graph(), torch.arange(6), NeighborSampler([2])
    positional = ours(
        graph, ids, sampler, None, False, 0, 4, True, False, None, None, None, False, None
    )
    assert len(positional) == 1 and outputs(positional) == [[0, 1, 2, 3]]
    named = ours(graph=graph, indices=ids, graph_sampler=sampler, batch_size=4)
    assert len(named) == 2


def test_attributes_that_users_and_lightning_read():
    graph, ids, sampler = make_graph(), torch.arange(6), NeighborSampler([2])
    loader = ours(graph, ids, sampler, batch_size=4, shuffle=True, drop_last=True)
    reference = theirs(graph, ids, sampler, batch_size=4, shuffle=True, drop_last=True)
    assert isinstance(loader, torch.utils.data.DataLoader)
    for name in COMPARED_ATTRIBUTES:
        assert getattr(loader, name) == getattr(reference, name), name
    assert loader.indices is ids and loader.batch_size is None
    assert isinstance(loader.collate_fn, dgl.dataloading.dataloader.CollateWrapper)
    assert len(loader.dataset) == 1
    assert isinstance(loader.device, torch.device)


@pytest.mark.parametrize("wrap", [tuple, list, dict, "bare", "nested"])
def test_an_item_has_the_samplers_structure(wrap):
    class Custom(dgl.dataloading.Sampler):
        def sample(self, g, indices):
            sub = g.subgraph(indices)
            if wrap == "bare":
                return sub
            if wrap == "nested":
                return {"a": indices, "b": [indices, (indices, sub)]}
            return dict(a=indices, b=sub) if wrap is dict else wrap([indices, sub])

    graph, ids = make_graph(), torch.arange(6)
    for a, b in zip(
        collect(theirs(graph, ids, Custom(), batch_size=3)),
        ours(graph, ids, Custom(), batch_size=3),
        strict=True,
    ):
        assert type(b) is type(a)
        if wrap == "nested":
            assert type(b["b"]) is list and type(b["b"][1]) is tuple
            assert torch.equal(a["b"][1][0], b["b"][1][0])
        elif wrap != "bare":
            first = b["a"] if wrap is dict else b[0]
            assert torch.equal(first, a["a"] if wrap is dict else a[0])


def test_worker_init_fn_leaves_the_training_loops_random_numbers_alone():
    """What PyTorch's documentation tells users to write seeds the global generators: of a process,
    there."""

    def seed_worker(worker):
        np.random.seed(torch.initial_seed() % 2**32)
        random.seed(0)
        torch.manual_seed(0)

    graph = make_graph()
    np.random.seed(1), random.seed(1), torch.manual_seed(1)
    loader = ours(
        graph,
        torch.arange(20),
        NeighborSampler([2]),
        batch_size=10,
        num_workers=2,
        worker_init_fn=seed_worker,
        seed=0,
    )
    drawn = []
    for _ in range(3):
        list(loader)
        drawn.append((np.random.rand(), random.random(), float(torch.rand(()))))
    np.random.seed(1), random.seed(1), torch.manual_seed(1)
    assert drawn == [(np.random.rand(), random.random(), float(torch.rand(()))) for _ in range(3)]


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
@pytest.mark.parametrize("seed", [None, 3])
def test_a_loader_pickled_and_copied_in_the_middle_of_an_epoch_begins_it_anew(how, seed):
    graph = make_graph()
    sampler = NeighborSampler([3, 2], prefetch_node_feats=["feat"])
    loader = ours(
        graph, torch.arange(40), sampler, batch_size=8, shuffle=True, seed=seed, num_workers=2
    )
    batches = iter(loader)
    begun = [next(batches), next(batches)]
    clone = pickle.loads(pickle.dumps(loader)) if how == "pickle" else copy.deepcopy(loader)
    assert type(clone) is DataLoader and clone.graph is not graph and len(clone) == len(loader)
    whole = list(clone)
    assert [bits(b) for b in whole] == [bits(b) for b in (*begun, *batches)]
    assert torch.equal(whole[0][2][0].srcdata["feat"], graph.ndata["feat"][whole[0][0]])
    # Of finished epochs both have one.
    np.random.seed(0), torch.manual_seed(0)
    after = [bits(b) for b in clone]
    np.random.seed(0), torch.manual_seed(0)
    assert [bits(b) for b in loader] == after


def test_worker_init_fn_is_done_before_the_loop_goes_on():
    """It may change the global generators for a while: not while the training loop draws from
    them."""
    done = []

    def slow(worker):
        time.sleep(0.05 * worker)
        done.append(worker)

    options = dict(batch_size=1, num_workers=3, worker_init_fn=slow)
    batches = iter(ours(make_graph(), torch.arange(4), NeighborSampler([2]), **options))
    assert sorted(done) == [0, 1, 2]
    assert len(list(batches)) == 4
