"""The user's own datasets as indices, and what DGL reads of its loader at each epoch: the same
batches, random numbers and lengths as of DGL's loader."""

import copy
import itertools
import pickle
import random

import numpy as np
import pytest
import torch
from cases import collect, dgl, make_graph, ours, theirs
from torch.utils.data import (
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

pytestmark = pytest.mark.usefixtures("no_threads_left")

d = dgl.dataloading
FULL = d.MultiLayerFullNeighborSampler(1, prefetch_node_feats=["feat"])


class Stream(IterableDataset):
    """Batches of several sizes."""

    device = torch.device("cpu")
    sizes = (3, 1, 5)

    def __iter__(self):
        begins = np.cumsum([0, *self.sizes])
        for begin, size in zip(begins, self.sizes, strict=False):
            yield torch.arange(begin, begin + size)


class Drawn(Stream):
    """Draws its batches from all global generators."""

    def __init__(self, count=4):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        first = int(torch.randint(0, 100, ()))
        for _ in range(self.count):
            yield torch.tensor([first, random.randrange(100), np.random.randint(100)])


class Endless(Stream):
    def __iter__(self):
        for number in itertools.count():
            yield torch.tensor([number % 100])


class Typed(Stream):
    def __iter__(self):
        yield {"_N": torch.tensor([3, 1])}


class Items(Dataset):
    """Map-style."""

    device = torch.device("cpu")

    def __len__(self):
        return 6

    def __getitem__(self, number):
        if isinstance(number, str):
            return torch.tensor([len(number)])
        if number >= 6:  # or DGL's loader, which tries to make a tensor of it, takes all memory
            raise IndexError(number)
        return torch.arange(number, number + 1 + number % 2)


class Shuffled(Stream):
    def __init__(self):
        self.begin = 0

    def shuffle(self):
        self.begin = np.random.randint(50)

    def __iter__(self):
        yield torch.tensor([self.begin])


def seeds(loader):
    return [batch[1].tolist() for batch in collect(loader)]


SOURCES = {
    "iterable": (Stream, None),
    "with a length": (Drawn, None),
    "random": (Items, lambda of: RandomSampler(of)),
    "replacement": (Items, lambda of: RandomSampler(of, replacement=True, num_samples=9)),
    "weighted": (Items, lambda of: WeightedRandomSampler([1.0, 2, 3], 5)),
    "subset": (Items, lambda of: SubsetRandomSampler([1, 4])),
    "a list": (Items, lambda of: [5, 5, 0]),
    "names": (Items, lambda of: ["ab", "c"]),
    "map-style": (Items, lambda of: None),
}


def begin_random(seed=5):
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)


def drawn_next():
    """What the global generators give next."""
    return float(torch.rand(())), np.random.rand(), random.random()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("generator", [False, True])
def test_the_batches_and_random_states_are_those_of_dgls(source, generator):
    make, sampler_of = SOURCES[source]
    graph, found = make_graph(), []
    for of in (theirs, ours):
        dataset = make()
        options = {} if sampler_of is None else {"sampler": sampler_of(dataset)}
        if generator:
            options["generator"] = torch.Generator().manual_seed(1)
        begin_random()
        loader = of(graph, dataset, FULL, **options)
        found.append([[seeds(loader) for _ in range(2)], drawn_next()])
        assert loader.dataset is dataset
        if options.get("sampler") is not None:
            assert loader.sampler is options["sampler"]
    assert found[0] == found[1]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("seed", [None, 2])
def test_with_threads_each_item_comes_once_and_in_order(workers, seed):
    graph = make_graph()
    loader = ours(graph, Stream(), d.NeighborSampler([3]), num_workers=workers, seed=seed)
    for _ in range(2):
        assert seeds(loader) == [[0, 1, 2], [3], [4, 5, 6, 7, 8]]
    for input_nodes, _, blocks in ours(graph, Stream(), FULL, num_workers=workers):
        assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][input_nodes])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_endless_one(workers):
    loader = ours(make_graph(), Endless(), FULL, num_workers=workers)
    for _ in range(2):
        first = [batch[1].tolist() for batch in itertools.islice(loader, 5)]
        assert first == [[0], [1], [2], [3], [4]]


def test_lengths_are_dgls():
    graph = make_graph()
    assert len(ours(graph, Drawn(7), FULL)) == 7
    assert len(ours(graph, Items(), FULL, sampler=[1, 2, 1])) == 3
    for make in (theirs, ours):
        with pytest.raises(TypeError, match="has no len"):
            len(make(graph, Stream(), FULL))
    assert "batches" in repr(ours(graph, Stream(), FULL))


def test_a_dataset_by_types_and_one_that_shuffles():
    assert len(list(ours(make_graph(), Typed(), FULL))) == 1
    found = []
    for make in (theirs, ours):
        begin_random()
        loader = make(make_graph(), Shuffled(), FULL, shuffle=True)
        found.append([seeds(loader) for _ in range(3)])
    assert found[0] == found[1] and found[0][0] != found[0][1]
    with pytest.raises(AttributeError, match="shuffle"):
        ours(make_graph(), Stream(), FULL, shuffle=True)


def test_an_edge_sampler_reads_them_too():
    graph = make_graph()
    sampler = d.as_edge_prediction_sampler(FULL, exclude="self")
    found = [
        [pair.edata[dgl.EID].tolist() for _, pair, _ in collect(make(graph, Stream(), sampler))]
        for make in (theirs, ours)
    ]
    assert found[0] == found[1] == [[0, 1, 2], [3], [4, 5, 6, 7, 8]]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda of: pickle.loads(pickle.dumps(of))]
)
def test_copies_and_states(duplicate):
    loader = ours(make_graph(), Stream(), FULL)
    next(iter(loader))
    assert seeds(duplicate(loader)) == [[0, 1, 2], [3], [4, 5, 6, 7, 8]]
    assert seeds(duplicate(ours(make_graph(), Items(), FULL, sampler=[4, 2]))) == [[4], [2]]
    with pytest.raises(TypeError, match="indices are read one after the other cannot save"):
        loader.state_dict()


@pytest.mark.parametrize("indices", [torch.arange(5), [1, 2], {"_N": torch.arange(3)}, Stream()])
def test_a_sampler_for_anything_else_is_refused_as_by_dgl(indices):
    for make in (theirs, ours):
        with pytest.raises(ValueError, match="sampler"):
            make(make_graph(), indices, FULL, sampler=[0])


def test_an_iterable_without_a_device_is_refused_as_by_dgl():
    class Nowhere(IterableDataset):
        def __iter__(self):
            yield torch.tensor([0])

    for make in (theirs, ours):
        with pytest.raises(AttributeError, match="device"):
            make(make_graph(), Nowhere(), FULL)


def test_a_dataset_that_grows_is_read_at_each_epoch():
    class Grows(Items):
        count = 1

        def __len__(self):
            return self.count

    dataset = Grows()
    loader = ours(make_graph(), dataset, FULL)
    assert len(loader) == len(seeds(loader)) == 1
    loader.dataset.count = 4
    assert len(loader) == len(seeds(loader)) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffle_set_later_counts_from_the_next_epoch_on(workers):
    graph, found = make_graph(), []
    for make, options in ((theirs, {}), (ours, {"num_workers": workers})):
        begin_random()
        loader = make(graph, torch.arange(20), FULL, batch_size=6, **options)
        of_loader = [seeds(loader)]
        for shuffle in (True, True, False, True):
            loader.shuffle = shuffle
            of_loader.append(seeds(loader))
        found.append(of_loader)
    assert found[0] == found[1]
    assert found[1][0] != found[1][1] != found[1][2] == found[1][3]


def test_shuffle_set_later_is_copied_and_goes_with_a_seed():
    loader = ours(make_graph(), torch.arange(20), FULL, batch_size=6, seed=1)
    other = ours(make_graph(), torch.arange(20), FULL, batch_size=6, seed=1, shuffle=True)
    loader.shuffle = True
    again = pickle.loads(pickle.dumps(loader))
    assert seeds(loader) == seeds(again) == seeds(other) != seeds(loader)
    state = loader.state_dict()
    other.load_state_dict(state)
    loader.shuffle = other.shuffle = False
    assert seeds(loader) == seeds(other) and sum(seeds(loader), []) == list(range(20))


@pytest.mark.parametrize("size", [torch.tensor(7), np.int32(7), torch.tensor([7])])
def test_a_batch_size_of_any_integer_type(size):
    expected = seeds(theirs(make_graph(), torch.arange(20), FULL, batch_size=7))
    loader = ours(make_graph(), torch.arange(20), FULL, batch_size=size)
    assert seeds(loader) == expected and len(loader) == 3


def test_ids_of_several_dtypes():
    ends = torch.arange(10), torch.arange(10)
    graph = dgl.heterograph({("a", "x", "b"): ends, ("b", "y", "a"): ends})
    indices = {"a": torch.arange(4), "b": torch.arange(3, dtype=torch.int32)}
    sampler = d.MultiLayerFullNeighborSampler(1)
    found = []
    for make in (theirs, ours):
        batches = collect(make(graph, indices, sampler, batch_size=5))
        found.append([{t: ids.tolist() for t, ids in batch[1].items()} for batch in batches])
        assert all(ids.dtype == torch.int64 for batch in batches for ids in batch[1].values())
    assert found[0] == found[1] and indices["b"].dtype == torch.int32
    small = graph.int()
    indices = {"a": torch.arange(4, dtype=torch.int32), "b": torch.tensor([2**32 + 1])}
    for wrong, error in (
        (indices, r"indices\['b'\] must have the graph's id dtype torch.int32, got torch.int64"),
        (indices | {"b": torch.ones(10, dtype=torch.bool)}, "torch.bool, a mask"),
        (indices | {"b": torch.ones(2)}, "got torch.float32"),
    ):
        with pytest.raises(dgl.DGLError, match=error):
            ours(small, wrong, sampler)
