"""``transform`` and ``transform_sampler_output`` with workers: ahead of the loop, in order, one at a
time; the same bits as without; whatever they return, raise, keep, draw or call."""

import os
import random
import threading
import time
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from fresh_processes import HANGING
from timelines import checked, spans, stages_by_batch
from torch.nn import functional
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, SamplerOutput

import pagraph.engine.engine as engine
from pagraph.errors import PipelineError
from pagraph.graph.mapped import map_npy
from pagraph.pyg import HGTLoader, LinkNeighborLoader, NeighborLoader, ShaDowKHopSampler

pytestmark = pytest.mark.usefixtures("no_threads_left")

N = 64
WORKERS = [0, 1, 3]
TRANSFORMS = ["transform", "transform_sampler_output"]


def make_data(**attributes):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(N, (2, 500), generator=generator)
    x = torch.randn(N, 3, generator=generator)
    return Data(x=x, edge_index=edge_index, edge_attr=torch.arange(500), **attributes)


def make(data=None, **options):
    defaults = {"batch_size": 8, "seed": 1, "shuffle": True}
    return NeighborLoader(make_data() if data is None else data, [3, 2], **(defaults | options))


def bits(batch):
    return {
        key: value.tolist() if torch.is_tensor(value) else value
        for key, value in batch.to_dict().items()
    }


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_in_order_one_at_a_time_in_the_loaders_threads(workers, name):
    inside, seen, names = Counter(), [], set()

    def note(given):
        inside["now"] += 1
        inside["most"] = max(inside["most"], inside["now"])
        ids = given.input_id if isinstance(given, Data) else given.metadata[0]
        seen.append(ids.tolist())
        names.add(threading.current_thread().name)
        time.sleep(0.002)
        inside["now"] -= 1
        return given

    loader = make(num_workers=workers, prefetch=4, **{name: note})
    batches = [batch.input_id.tolist() for batch in loader]
    assert seen == batches
    assert len(batches) == N // 8
    assert inside["most"] == 1
    assert names <= {f"pagraph-{worker}" for worker in range(workers)}


def test_a_transform_is_ahead_of_the_loop():
    done = threading.Semaphore(0)

    def note(batch):
        done.release()
        return batch

    loader = make(num_workers=2, prefetch=3, transform=note)
    epoch = iter(loader)
    # Nobody reads: as many as may wait are transformed all the same.
    assert all(done.acquire(timeout=HANGING) for _ in range(5))
    assert len(list(epoch)) == N // 8


@pytest.mark.parametrize("workers", WORKERS)
def test_its_time_is_a_stage(workers, tmp_path):
    def slow(given):
        time.sleep(0.005)
        return given

    loader = make(num_workers=workers, transform=slow, transform_sampler_output=slow)
    with loader.trace(tmp_path / "t.json"):
        list(loader)
    seconds = loader.stats.epochs[0].seconds
    assert seconds["transform"] >= 2 * 0.005 * N / 8
    assert f"{seconds['transform']:.3f}" in str(loader.stats)
    assert loader.stats.epochs[0].to_dict()["seconds/transform"] == seconds["transform"]
    events = checked(tmp_path / "t.json")
    assert sorted(stages_by_batch(events, 0)) == list(range(N // 8))
    assert {found["transform"] for found in stages_by_batch(events, 0).values()} == {2}
    readers = {span["tid"] for span in spans(events, "waiting")}
    assert ({span["tid"] for span in spans(events, "transform")} == readers) == (workers == 0)


def test_without_one_nothing_is_booked():
    loader = make(num_workers=2)
    list(loader)
    assert "transform" not in loader.stats.epochs[0].seconds


def links(**options):
    return LinkNeighborLoader(
        make_data(), [3, 2], batch_size=50, seed=1, neg_sampling="binary", **options
    )


def shadow(**options):
    loader = ShaDowKHopSampler(make_data(), 2, 3, batch_size=8, seed=1, **options)
    loader.transform = draws
    return loader


def hgt(**options):
    data = HeteroData()
    data["a"].x = torch.randn(N, 2, generator=torch.Generator().manual_seed(1))
    data["a", "to", "a"].edge_index = make_data().edge_index
    return HGTLoader(data, [5, 5], ("a", None), batch_size=8, seed=1, **options)


def draws(batch):
    """Everything that may be drawn; as lists."""
    x = torch.zeros(3, 2)
    like = torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 9)
    more = torch.randint_like(x, low=5, high=9, dtype=torch.int64), torch.rand_like(input=x)
    made = torch.rand(2), torch.randn(2), torch.randint(100, (2,)), torch.randperm(5)
    named = torch.rand(size=(2,)), torch.normal(0.0, 1.0, (2,)), torch.poisson(x + 9)
    picked = torch.multinomial(torch.ones(9), 3), torch.bernoulli(x + 0.5), x.bernoulli(0.5)
    written = [
        torch.empty(3).uniform_(),
        torch.empty(3).normal_(mean=2.0),
        torch.empty(3).exponential_(),
        torch.empty(3).random_(),
    ]
    named += torch.bernoulli(input=x + 0.5), torch.multinomial(num_samples=2, input=x[0] + 1)
    dropped = functional.dropout(torch.ones(9)), torch.nn.Dropout(0.3)(torch.ones(9))
    gamma = torch.distributions.Gamma(torch.ones(2), 1.0).sample()
    drawn = [*like, *more, *made, *named, *picked, *written, *dropped, gamma]
    return [tensor.tolist() for tensor in drawn]


@pytest.mark.every
@pytest.mark.parametrize("loader", [make, links, hgt])
def test_random_numbers_are_the_batchs_own(loader):
    expected = None
    for options in (
        *({"prefetch": 0}, {}, {"num_workers": 1}, {"num_workers": 3}),
        {"num_workers": 2, "prefetch": 9},
    ):
        torch.manual_seed(7)
        of_loop = torch.stack([torch.rand(()) for _ in range(20)])
        torch.manual_seed(7)
        found, drawn = [], []
        for result in loader(transform=draws, **options):
            found.append(result)
            drawn.append(torch.rand(()))  # dropout of the training step, say
        assert torch.equal(torch.stack(drawn), of_loop[: len(drawn)]), options
        expected = expected or found
        assert found == expected, options
    flat = [str(result) for result in expected]
    assert len(set(flat)) == len(flat)  # another batch, other numbers


def test_another_seed_or_epoch_draws_other_numbers():
    def first(seed, epoch):
        loader = make(transform=lambda batch: torch.rand(2).tolist(), seed=seed, num_workers=1)
        loader.set_epoch(epoch)
        return list(loader)

    assert first(1, 0) == first(1, 0)
    assert not {str(one) for one in first(1, 0)} & {str(one) for one in first(1, 1)}
    assert not {str(one) for one in first(1, 0)} & {str(one) for one in first(2, 0)}


def test_without_a_seed_random_numbers_follow_torchs():
    def run(workers):
        torch.manual_seed(3)
        loader = make(seed=None, transform=draws, num_workers=workers)
        return [list(loader) for _ in range(2)]

    expected = run(0)
    assert run(1) == run(3) == expected
    assert expected[0] != expected[1]


def test_both_functions_draw():
    def of_output(output):
        output.extra = torch.rand(2)
        return output

    def noisy(batch):
        batch.x += torch.rand(1)
        return batch

    found = []
    for workers in WORKERS:
        loader = make(transform_sampler_output=of_output, transform=noisy, num_workers=workers)
        found.append([bits(batch) for batch in loader])
    assert found[0] == found[1] == found[2]


def test_numbers_are_as_random_as_torchs():
    drawn = []

    def note(batch):
        drawn.append((functional.dropout(torch.ones(1000), 0.3), torch.rand_like(batch.x)))

    for _ in make(transform=note, num_workers=1):
        pass
    kept = torch.stack([one for one, _ in drawn])
    assert set(kept.unique().tolist()) == {0.0, (torch.ones(()) / 0.7).item()}
    assert 0.67 < (kept > 0).float().mean() < 0.73
    uniform = torch.cat([two.flatten() for _, two in drawn])
    assert uniform.min() >= 0 and uniform.max() < 1 and 0.4 < uniform.mean() < 0.6


def test_a_generator_and_a_seed_of_the_transforms_own_are_kept_to():
    def seeded(batch):
        own = torch.rand(2, generator=torch.Generator().manual_seed(5))
        state = torch.get_rng_state()
        torch.manual_seed(5)
        drawn = torch.rand(2)
        torch.set_rng_state(state)
        return own.tolist(), drawn.tolist()

    expected = torch.rand(2, generator=torch.Generator().manual_seed(5)).tolist()
    for workers in WORKERS:
        assert set(map(str, make(transform=seeded, num_workers=workers))) == {
            str((expected, expected))
        }


def test_gradients_pass_a_dropout_and_inplace_is_in_place():
    def check(batch):
        x = torch.ones(50, requires_grad=True)
        dropped = functional.dropout(x, 0.5)
        dropped.sum().backward()
        assert torch.equal(x.grad, dropped.detach())
        y = torch.ones(50)
        assert functional.dropout(y, 0.5, inplace=True) is y and y.eq(0).any()
        assert torch.equal(functional.dropout(y, 0.5, training=False), y)
        assert not functional.dropout(torch.ones(5), 1.0).any()
        return torch.rand_like(x.detach(), requires_grad=True).requires_grad

    assert list(make(transform=check, num_workers=2)) == [True] * 8


def test_nothing_is_drawn_without_values():
    def shapes(batch):
        x = torch.empty(3, device="meta")
        drawn = torch.rand(2, device="meta"), torch.rand_like(x), functional.dropout(x), x.normal_()
        return [tuple(each.shape) for each in drawn]

    assert list(make(transform=shapes, num_workers=1)) == [[(2,), (3,), (3,), (3,)]] * 8


@pytest.mark.parametrize("workers", WORKERS)
def test_orders_of_the_users_own(workers):
    order = torch.randperm(N).tolist()
    batches = [order[at : at + 9] for at in range(0, N, 9)]

    def note(batch):
        seen.append(batch.input_id.tolist())
        return batch

    for options in ({"sampler": order, "batch_size": 9}, {"batch_sampler": batches}):
        seen = []
        loader = NeighborLoader(make_data(), [3], transform=note, num_workers=workers, **options)
        assert [batch.input_id.tolist() for batch in loader] == batches == seen


def test_pythons_and_numpys_generators_are_drawn_from_in_order():
    """Documented: they are the process's, and the same where nothing else draws from them."""

    def draw(batch):
        return random.random(), np.random.rand()

    found = []
    for workers in WORKERS:
        random.seed(1)
        np.random.seed(1)
        found.append(list(make(transform=draw, num_workers=workers)))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("result", [None, 3, "text", (), {"a": 1}])
def test_whatever_it_returns(workers, result):
    assert list(make(transform=lambda batch: result, num_workers=workers)) == [result] * 8


class Odd(Exception):
    """A user's own."""


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_errors_are_one_batchs(workers, name):
    count = Counter()

    def odd(given):
        count["calls"] += 1
        if count["calls"] % 3 == 0:
            raise Odd(count["calls"])
        return given

    loader = make(num_workers=workers, **{name: odd})
    epoch, outcomes = iter(loader), []
    while True:
        try:
            outcomes.append(next(epoch).batch_size)
        except Odd as error:
            outcomes.append(error.args[0])
        except StopIteration:
            break
    assert outcomes == [8, 8, 3, 8, 8, 6, 8, 8]
    assert loader.stats.epochs[0].batches == 6
    assert len(loader) == N // 8 and loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("workers", WORKERS)
def test_a_place_after_an_error(workers):
    def odd(batch):
        if batch.n_id[0] == first:
            raise Odd
        return batch

    first = next(iter(make())).n_id[0]
    loader = make(num_workers=workers, transform=odd)
    epoch = iter(loader)
    with pytest.raises(Odd):
        next(epoch)
    again = make(num_workers=workers)
    again.load_state_dict(loader.state_dict())
    assert [bits(batch) for batch in epoch] == [bits(batch) for batch in again]


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_may_be_answered_by_taking_the_transform_away(workers):
    def odd(batch):
        raise Odd

    loader = make(num_workers=workers, transform=odd)
    epoch = iter(loader)
    with pytest.raises(Odd):
        next(epoch)
    loader.transform = None
    assert [batch.batch_size for batch in epoch] == [8] * 7


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_ends_a_process_ends_a_pass(workers, name):
    def leave(given):
        raise SystemExit(3)

    epoch = iter(make(num_workers=workers, **{name: leave}))
    with pytest.raises(SystemExit):
        next(epoch)
    with pytest.raises(StopIteration):
        next(epoch)


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_that_it_keeps_stay_as_they_are(workers):
    kept = []

    def keep(batch):
        kept.append((batch.x, batch.n_id, batch.edge_index, batch.edge_attr))
        return batch.num_nodes

    data = make_data()
    loader = make(data, transform=keep, num_workers=workers)
    for _ in range(3):
        list(loader)
    assert len(kept) == 24
    for x, n_id, edge_index, edge_attr in kept:
        assert torch.equal(x, data.x[n_id])
        assert torch.equal(n_id[edge_index], data.edge_index[:, edge_attr])


@pytest.mark.parametrize("workers", WORKERS)
def test_changed_data_is_seen_whatever_a_transform_wrote(workers):
    """A batch that was transformed ahead is made and transformed again, of what was sampled."""

    def ruin(batch):
        seen = bits(batch)
        for value in batch.to_dict().values():
            if torch.is_tensor(value):
                value.fill_(-1)
        return seen

    data = make_data()
    loader = make(data, num_workers=workers, transform=ruin)
    expected, found = [], []
    for batch in make(data):
        expected.append(bits(batch))
        data.x += 1
    data.x = make_data().x
    for seen in loader:
        found.append(seen)
        data.x += 1
    assert found == expected


@pytest.mark.parametrize("workers", WORKERS)
def test_changed_data_does_not_transform_the_output_twice(workers):
    def shorter(output):
        output.node, keep = output.node[:-1], output.row < len(output.node) - 1
        keep &= output.col < len(output.node)
        output.row, output.col, output.edge = (
            each[keep] for each in (output.row, output.col, output.edge)
        )
        return output

    def note(batch):
        batch.extra = torch.rand(2)
        return batch

    data = make_data()
    loader = make(data, num_workers=workers, transform_sampler_output=shorter, transform=note)
    found = []
    for batch in loader:
        found.append(bits(batch))
        data.x = data.x + 1
    data.x = make_data().x
    loader = make(data, transform_sampler_output=shorter, transform=note, prefetch=0)
    for batch, seen in zip(loader, found, strict=True):
        assert bits(batch) == seen
        data.x = data.x + 1


@pytest.mark.parametrize("workers", WORKERS)
def test_a_transform_that_is_replaced_in_the_middle(workers):
    loader = make(num_workers=workers, transform=lambda batch: "before")
    epoch = iter(loader)
    assert next(epoch) == "before"
    loader.transform = lambda batch: "after"
    assert [*epoch] == ["after"] * 7


@pytest.mark.parametrize("workers", WORKERS)
def test_an_output_transform_that_is_replaced_in_the_middle(workers):
    def renamed(name):
        def rename(output):
            output.metadata = (output.metadata[0], [*(output.metadata[1] or []), name])
            return output

        return rename

    loader = make(num_workers=workers, transform_sampler_output=renamed("before"))
    epoch = iter(loader)
    assert next(epoch).seed_time == ["before"]
    loader.transform_sampler_output = renamed("after")
    assert [batch.seed_time for batch in epoch] == [["after"]] * 7


@pytest.mark.parametrize("workers", WORKERS)
def test_an_output_transform_that_returns_what_counts_no_writes(workers):
    @torch.inference_mode()
    def copied(output):
        output.node = output.node.clone()
        output.metadata = (output.metadata[0], np.arange(2))
        return output

    data = make_data()
    loader = make(data, num_workers=workers, transform_sampler_output=copied, transform=lambda b: b)
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert batch.seed_time.tolist() == [0, 1]
        data.x = data.x + 1


@pytest.mark.parametrize("workers", WORKERS)
def test_attributes_that_need_gradients_are_joined_and_transformed_by_the_reader(workers):
    data = make_data(weight=torch.ones(N, 1, requires_grad=True))
    names = set()

    def note(batch):
        names.add(threading.current_thread().name)
        return batch

    for batch in make(data, num_workers=workers, transform=note):
        batch.weight.sum().backward()
    assert data.weight.grad.sum() >= N
    assert names == {threading.current_thread().name}


@pytest.mark.parametrize("workers", WORKERS)
def test_iterating_its_own_loader_is_refused(workers):
    def again(batch):
        return next(iter(loader))

    loader = make(num_workers=workers, transform=again)
    with pytest.raises(PipelineError, match="must not be iterated in its own transform"):
        next(iter(loader))


@pytest.mark.parametrize("workers", [1, 3])
def test_reading_its_own_pass_is_refused(workers):
    begun = threading.Event()
    epochs = []

    def further(batch):
        assert begun.wait(HANGING)
        return next(epochs[0])

    loader = make(num_workers=workers, transform=further)
    epochs.append(iter(loader))
    begun.set()
    with pytest.raises(PipelineError, match="must not be read by code that prepares its batches"):
        next(epochs[0])
    loader.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_it_may_use_another_loader(workers):
    other = make(num_workers=workers, batch_size=16)
    expected = [bits(batch) for batch in other]

    def both(batch):
        other.set_epoch(0)
        return [bits(each) for each in other]

    for found in make(num_workers=workers, transform=both, batch_size=32):
        assert found == expected


@pytest.mark.parametrize("workers", WORKERS)
def test_it_may_close_its_loader(workers):
    def close(batch):
        loader.close()
        return batch

    loader = make(num_workers=workers, transform=close)
    assert len(list(loader)) <= N // 8


@pytest.mark.every
@pytest.mark.parametrize("workers", WORKERS)
def test_it_may_fork(workers):
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")

    def forked(batch):
        child = os.fork()
        if child == 0:
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks of several threads
        assert list(make(num_workers=workers, transform=forked)) == [7] * 8


def test_leaving_a_pass_ends_its_transforms():
    started = threading.Event()

    def slow(batch):
        started.set()
        time.sleep(0.05)
        return batch

    epoch = iter(make(num_workers=2, transform=slow))
    assert started.wait(HANGING)
    del epoch


class Alone(BaseSampler):
    """Each seed and its successor, and a random number."""

    def sample_from_nodes(self, inputs, **kwargs):
        node = torch.cat([inputs.node, (inputs.node + 1) % N])
        count = len(inputs.node)
        drawn = torch.rand(1).item()
        return SamplerOutput(
            node=node,
            row=torch.arange(count) + count,
            col=torch.arange(count),
            edge=None,
            metadata=(inputs.input_id, [drawn]),
        )

    def sample_from_edges(self, inputs, neg_sampling=None):
        raise NotImplementedError


@pytest.mark.parametrize("workers", [1, 3])
def test_a_users_own_sampler(workers):
    data = make_data()
    seen = []

    def note(batch):
        seen.append(batch.input_id.tolist())
        return batch

    loader = make(data, neighbor_sampler=Alone(), num_workers=workers, transform=note)
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
    assert len(seen) == N // 8
    # What was sampled is kept where it can be: the sampler has no second sample.
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
        data.x = data.x + 1


def test_a_users_own_sampler_whose_output_was_written_to():
    def ruin(batch):
        batch.n_id.fill_(0)
        return batch

    data = make_data()
    before = data.x.clone()
    loader = make(data, neighbor_sampler=Alone(), num_workers=1, transform=ruin, shuffle=False)
    epoch = iter(loader)
    next(epoch)
    while not epoch._stage.is_ready:
        time.sleep(0.001)
    data.x = data.x + 1
    # Documented: what was transformed ahead stays.
    assert torch.equal(next(epoch).x[:8], before[8:16])


@pytest.mark.every
@pytest.mark.parametrize("workers", WORKERS)
def test_batches_of_files(cold_file, monkeypatch, workers):
    monkeypatch.setattr(engine, "MAPPED_SHARE", 0.0)
    x = np.random.default_rng(1).random((3000, 64), dtype=np.float32)
    ends = np.random.default_rng(0).integers(0, 3000, (2, 20_000))
    seen = []

    def note(batch):
        seen.append(batch.input_id.tolist())
        return batch.n_id, batch.x * torch.rand(1)

    def run(x, **options):
        data = Data(x=x, edge_index=torch.from_numpy(ends))
        loader = NeighborLoader(
            data, [4, 3], torch.arange(500), batch_size=20, seed=1, transform=note, **options
        )
        return loader, [(n_id.tolist(), x.tolist()) for n_id, x in loader]

    _, expected = run(torch.from_numpy(x), prefetch=0)
    before, seen[:] = seen[:], []
    loader, found = run(map_npy(cold_file("x", x)), num_workers=workers, lookahead=4, cache=0)
    assert found == expected and seen == before
    assert loader.stats.total.counts["window_rows"] > 0
