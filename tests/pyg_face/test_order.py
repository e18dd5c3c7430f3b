"""Which input nodes make which batch: as torch's loader draws them, as a function of a seed, and
from the middle on."""

import io

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)
from torch_geometric.data import Data
from torch_geometric.loader import ImbalancedSampler, NodeLoader

from pagraph.pyg import NeighborLoader, NeighborSampler

pytestmark = pytest.mark.usefixtures("no_threads_left")


def make_data(num_nodes=50, num_edges=300):
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(num_nodes, 4, generator=generator),
        y=torch.randint(4, (num_nodes,), generator=generator),
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=generator),
    )


class Silent(NeighborSampler):
    """Draws nothing from torch's generator, as samplers with generators of their own."""

    def sample_from_nodes(self, inputs, **kwargs):
        return self.sample_nodes(inputs, 0)[0]


DATA = make_data()
SAMPLER = Silent(DATA, [2])


class Weighted(torch.utils.data.Sampler):
    """Draws from the global generator, item by item, some items often."""

    def __init__(self, count=23):
        self.count = count

    def __iter__(self):
        for _ in range(self.count):
            yield int(torch.randint(20, ()))

    def __len__(self):
        return self.count


class Uneven(torch.utils.data.Sampler):
    """A batch sampler whose batches have several sizes, one of them none; drawn when it is asked
    for an iterator."""

    def __iter__(self):
        order = torch.randperm(20)
        return iter([order[:3].tolist(), [], order[3:10].tolist(), [-1, 0], order[10:]])

    def __len__(self):
        return 5


class Growing(torch.utils.data.Sampler):
    """Its length is a guess."""

    epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter([[i, i + 1] for i in range(2 * self.epoch)])

    def __len__(self):
        return 3


def options(name):
    """Arguments of a torch loader, made anew: samplers have states."""
    generator = torch.Generator().manual_seed(7)
    return {
        "as given": lambda: dict(batch_size=8),
        "drop_last": lambda: dict(batch_size=8, drop_last=True),
        "shuffle": lambda: dict(batch_size=8, shuffle=True),
        "shuffle, drop_last": lambda: dict(batch_size=8, shuffle=True, drop_last=True),
        "generator": lambda: dict(batch_size=8, shuffle=True, generator=generator),
        "generator alone": lambda: dict(batch_size=8, generator=generator),
        "own generator": lambda: dict(
            batch_size=8, sampler=RandomSampler(range(20), generator=generator)
        ),
        "few of them": lambda: dict(batch_size=8, sampler=SequentialSampler(range(10))),
        "few, at random": lambda: dict(batch_size=8, sampler=RandomSampler(range(10))),
        "with replacement": lambda: dict(batch_size=8, sampler=RandomSampler(range(20), True, 33)),
        "twice": lambda: dict(batch_size=8, sampler=RandomSampler(range(20), num_samples=40)),
        "subset": lambda: dict(batch_size=3, sampler=SubsetRandomSampler(range(4, 15))),
        "list": lambda: dict(batch_size=3, sampler=[5, -1, 5, 7, torch.tensor(3)]),
        "weighted": lambda: dict(batch_size=5, sampler=Weighted()),
        "imbalanced": lambda: dict(batch_size=5, sampler=ImbalancedSampler(DATA.y[:20])),
        "distributed": lambda: dict(batch_size=3, sampler=DistributedSampler(range(20), 3, 1)),
        "batch sampler": lambda: dict(
            batch_sampler=BatchSampler(RandomSampler(range(20)), 6, True)
        ),
        "list of batches": lambda: dict(batch_sampler=[[1, 2], [2], [19, 0]]),
        "uneven": lambda: dict(batch_sampler=Uneven()),
        "growing": lambda: dict(batch_sampler=Growing()),
    }[name]()


ALL = [
    *(
        "as given",
        "drop_last",
        "shuffle",
        "shuffle, drop_last",
        "generator",
        "generator alone",
        "own generator",
    ),
    *(
        "few of them",
        "few, at random",
        "with replacement",
        "twice",
        "subset",
        "list",
        "weighted",
        "imbalanced",
    ),
    *("distributed", "batch sampler", "list of batches", "uneven", "growing"),
]


def ours(name, **more):
    return NeighborLoader(DATA, [2], input_nodes=torch.arange(20), **options(name), **more)


def ids(loader):
    return [batch.input_id.tolist() for batch in loader]


def whole(loader):
    return [(batch.input_id.tolist(), batch.n_id.tolist(), batch.e_id.tolist()) for batch in loader]


@pytest.mark.every
@pytest.mark.parametrize("name", ALL)
def test_the_batches_that_torch_would_draw(name):
    theirs = NodeLoader(DATA, SAMPLER, torch.arange(20), **options(name))
    loaders = [
        ours(name),
        ours(name, num_workers=2),
        ours(name, prefetch=0),
        ours(name, neighbor_sampler=SAMPLER),
    ]
    torch.manual_seed(3)
    expected = [ids(theirs) for _ in range(3)]
    assert len({*map(str, expected)}) > 1 or name not in ("shuffle", "generator", "weighted")
    for loader in loaders:
        torch.manual_seed(3)
        if loader.generator is not None:
            loader.generator.manual_seed(7)
        assert len(loader) == len(theirs)
        fresh = ours(name) if "generator" in name or name == "growing" else loader
        assert [ids(fresh) for _ in range(3)] == expected


# Which counts its passes itself.
@pytest.mark.parametrize("name", [name for name in ALL if name != "growing"])
def test_from_the_middle_of_an_epoch_on(name):
    torch.manual_seed(1)
    loader = ours(name)
    list(loader)
    epoch = iter(loader)
    next(epoch)
    saved = io.BytesIO()
    torch.save(loader.state_dict(), saved)
    rest = whole(epoch)
    saved.seek(0)
    clone = ours(name)
    clone.load_state_dict(torch.load(saved, weights_only=True))
    assert whole(clone) == rest


@pytest.mark.every
@pytest.mark.parametrize("name", ALL)
def test_a_seed_decides_what_is_sampled(name):
    loaders = [
        ours(name, seed=5),
        ours(name, seed=5, num_workers=2),
        ours(name, seed=5, prefetch=0),
    ]
    seen = []
    for loader in loaders:
        torch.manual_seed(4)  # for samplers that draw from it
        if loader.generator is not None:
            loader.generator.manual_seed(7)
        seen.append([whole(loader) for _ in range(2)])
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0] != seen[0][1]


def test_a_seed_decides_the_order_of_torchs_own_samplers():
    seen = []
    for loader in (ours("shuffle", seed=5), ours("shuffle", seed=5), ours("own generator", seed=5)):
        torch.rand(3)  # moves the global generator
        seen.append([ids(loader) for _ in range(2)])
    assert seen[0] == seen[1] == seen[2]
    loader = ours("shuffle", seed=5)
    loader.set_epoch(1)
    assert ids(loader) == seen[0][1]
    few = ids(ours("few, at random", seed=5))
    assert sorted(sum(few, [])) == list(range(10))


def test_several_states_of_one_pass():
    torch.manual_seed(0)
    loader = ours("shuffle")
    states, batches = [loader.state_dict()], []
    for batch in loader:
        batches.append(batch.n_id.tolist())
        states.append(loader.state_dict())
    for i, state in enumerate(states[1:-1], 1):
        loader.load_state_dict(state)
        assert [batch.n_id.tolist() for batch in loader] == batches[i:]
    loader.load_state_dict(states[-1])  # the end of an epoch is the beginning of the next
    assert len(ids(loader)) == 3


@pytest.mark.parametrize("name", ["as given", "shuffle", "subset", "uneven"])
def test_what_is_written_to_a_batch_leaves_the_place_to_go_on_from_as_it_was(name):
    torch.manual_seed(0)
    loader = ours(name)
    epoch = iter(loader)
    next(epoch)
    state = loader.state_dict()
    rest = ids(epoch)
    clone = ours(name)
    clone.load_state_dict(state)
    epoch = iter(clone)
    for batch in epoch:
        batch.input_id.zero_()
    earlier = {"epoch": 0, "batch": 1, "key": state["key"], "checksum": None}
    clone.load_state_dict(clone.state_dict() | earlier)
    assert ids(clone) == rest


def test_states_of_other_loaders_are_refused():
    loader = ours("shuffle")
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ValueError, match="for this loader"):
        ours("as given").load_state_dict(state)
    del state["checksum"]
    with pytest.raises(ValueError, match="each number in"):
        ours("shuffle").load_state_dict(state | {"permutation": torch.zeros(20, dtype=torch.int64)})
    with pytest.raises(ValueError, match="one entry per seed"):
        ours("shuffle").load_state_dict(state | {"permutation": torch.arange(3)})
    with pytest.raises(ValueError, match="must be given once"):
        ours("shuffle").load_state_dict(state | {"permutation": None})
    loader = ours("uneven")
    next(iter(loader))
    state = loader.state_dict() | {"checksum": None}
    for broken, message in {
        (9, 1, 2): "must begin with the ends of batches",
        (2, 3, 1, 5): "must begin with the ends of batches",
        (1, 3, 5): "one entry for each item",
        (1, 1, 20): r"places in \[0, 20\)",
        (): "1-D int64 tensor",
    }.items():
        with pytest.raises(ValueError, match=message):
            ours("uneven").load_state_dict(
                state | {"permutation": torch.tensor(broken, dtype=torch.int64)}
            )
    loader = ours("as given")
    next(iter(loader))
    with pytest.raises(ValueError, match="must be None without shuffle"):
        ours("as given").load_state_dict(
            loader.state_dict() | {"checksum": None, "permutation": torch.arange(20)}
        )


def distributed(rank, **more):
    sampler = DistributedSampler(range(20), num_replicas=2, rank=rank)
    return NeighborLoader(
        DATA, [1], input_nodes=torch.arange(20), sampler=sampler, batch_size=4, **more
    )


def test_distributed_samplers():
    loaders = [distributed(0), distributed(1)]
    epochs = []
    for epoch in range(2):
        parts = []
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
            parts.append(sum(ids(loader), []))
        assert sorted(parts[0] + parts[1]) == list(range(20))
        epochs.append(parts)
    assert epochs[0] != epochs[1]
    loaders[0].set_epoch(1)
    assert loaders[0].sampler.epoch == 1 and sum(ids(loaders[0]), []) == epochs[1][0]


def test_a_state_that_one_process_saved_gives_each_its_own_batches():
    loaders = [distributed(0, seed=1), distributed(1, seed=1)]
    rests, states = [], []
    for loader in loaders:
        loader.set_epoch(3)
        epoch = iter(loader)
        next(epoch)
        states.append(loader.state_dict())
        rests.append(whole(epoch))
    clones = [distributed(0, seed=1), distributed(1, seed=1)]
    for clone in clones:
        clone.load_state_dict(states[0])
    assert [whole(clone) for clone in clones] == rests


def test_processes_do_not_draw_alike():
    data = Data(
        edge_index=torch.stack([torch.arange(1000) % 50, torch.zeros(1000, dtype=torch.int64)]),
        num_nodes=50,
    )
    drawn = []
    for rank in range(2):
        sampler = DistributedSampler([0, 0], num_replicas=2, rank=rank, shuffle=False)
        (batch,) = NeighborLoader(data, [10], input_nodes=[0, 0], sampler=sampler, seed=1)
        drawn.append(batch.e_id.tolist())
    assert drawn[0] != drawn[1]


class Endless(torch.utils.data.Sampler):
    """Has no length, nor an end."""

    def __iter__(self):
        while True:
            yield from torch.randperm(20).tolist()


@pytest.mark.parametrize("more", [{}, {"num_workers": 2}, {"prefetch": 0}, {"seed": 1}], ids=str)
def test_samplers_without_length(more):
    def first(loader):
        return [batch.input_id.tolist() for batch, _ in zip(loader, range(12), strict=False)]

    theirs = NodeLoader(DATA, SAMPLER, torch.arange(20), sampler=Endless(), batch_size=3)
    torch.manual_seed(2)
    expected = first(theirs)
    loader = NeighborLoader(DATA, [2], torch.arange(20), sampler=Endless(), batch_size=3, **more)
    torch.manual_seed(2)
    assert first(loader) == expected
    with pytest.raises(TypeError, match="has no len"):
        len(loader)
    with pytest.raises(TypeError):
        loader.state_dict()


def test_a_sampler_without_length_may_end():
    loader = NeighborLoader(DATA, [2], torch.arange(20), batch_sampler=(b for b in [[1, 2], [3]]))
    assert ids(loader) == [[1, 2], [3]]
    assert ids(loader) == []


def test_items_that_are_not_there():
    for sampler in ([20], [-21]):
        loader = NeighborLoader(DATA, [2], torch.arange(20), sampler=sampler)
        with pytest.raises(IndexError, match=rf"must be in \[0, 20\), got {sampler[0]}"):
            list(loader)


def test_no_input():
    assert ids(NeighborLoader(DATA, [2], [], batch_size=4)) == []
    assert len(NeighborLoader(DATA, [2], [], batch_size=4, seed=1)) == 0
    for make in (
        NeighborLoader,
        lambda *a, **k: NodeLoader(DATA, SAMPLER, torch.tensor([], dtype=torch.int64), **k),
    ):
        with pytest.raises(ValueError, match="num_samples"):
            make(DATA, [2], [], batch_size=4, shuffle=True)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": None}, ValueError, "batch_size must be at least 1, got None"),
        ({"batch_size": 0}, ValueError, "batch_size should be a positive integer"),
        ({"batch_size": 2.5}, ValueError, "batch_size should be a positive integer"),
        ({"sampler": [1], "shuffle": True}, ValueError, "mutually exclusive"),
        ({"batch_sampler": [[1]], "batch_size": 2}, ValueError, "mutually exclusive"),
        ({"num_workers": -1}, ValueError, "num_workers option should be non-negative"),
        ({"num_workers": 1.5}, TypeError, "num_workers must be an integer, got 1.5"),
        ({"prefetch": -1}, ValueError, "prefetch must be at least 0, got -1"),
        ({"prefetch": "2"}, TypeError, "prefetch must be an integer, got '2'"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 1.5}, TypeError, "seed"),
        (
            {"persistent_workers": True},
            ValueError,
            "persistent_workers option needs num_workers > 0",
        ),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor option could only be specified"),
        ({"timeout": -1}, ValueError, "timeout option should be non-negative"),
        (
            {"multiprocessing_context": "spawn"},
            ValueError,
            "multiprocessing_context can only be used",
        ),
        ({"num_workers": 1, "multiprocessing_context": "no"}, ValueError, "valid start method"),
        ({"cache": "much"}, ValueError, "cache|budget"),
        ({"device": "cuda:99"}, ValueError, "device"),
        ({"no_such": 1}, TypeError, "no_such"),
    ],
    ids=str,
)
def test_arguments_that_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(DATA, [2], torch.arange(20), **arguments)
