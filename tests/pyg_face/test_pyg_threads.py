"""Threads in place of worker processes: the same batches, no thread left behind, errors as they
are."""

import logging
import os
import subprocess
import sys
import traceback

import pytest
import torch
from fresh_processes import HANGING
from torch_geometric.data import Data

from pagraph.pyg import LinkNeighborLoader, NeighborLoader

pytestmark = pytest.mark.usefixtures("no_threads_left")

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pins = pytest.mark.skipif(not CORES, reason="this system pins no threads")


def make_data(num_nodes=60, num_edges=500):
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return Data(x=torch.randn(num_nodes, 3, generator=generator), edge_index=edge_index)


def make_loader(**options):
    return NeighborLoader(make_data(), [3, 2], **{"batch_size": 8} | options)


def bits(batch):
    return {
        key: value.tolist() if torch.is_tensor(value) else value
        for key, value in batch.to_dict().items()
    }


@pytest.mark.every
@pytest.mark.parametrize("link", [False, True], ids=["nodes", "links"])
@pytest.mark.parametrize("options", [{}, {"seed": 3}], ids=["torch's seed", "seed"])
def test_the_same_batches_for_any_number_of_workers_and_any_depth(link, options):
    data, epochs = make_data(), []
    for how in (
        {"prefetch": 0},
        {},
        {"num_workers": 1},
        {"num_workers": 3, "prefetch": 1},
        {
            "num_workers": 2,
            "prefetch": 7,
            "persistent_workers": True,
            "prefetch_factor": 4,
            "timeout": 60,
        },
        {"num_workers": 2, "multiprocessing_context": "spawn", "filter_per_worker": False},
    ):
        torch.manual_seed(5)
        how = {"batch_size": 8, "shuffle": True} | options | how
        if link:
            loader = LinkNeighborLoader(
                data, [3, 2], edge_label_index=data.edge_index[:, :40], neg_sampling="binary", **how
            )
        else:
            loader = NeighborLoader(data, [3, 2], **how)
        epochs.append([bits(batch) for _ in range(2) for batch in loader])
    assert all(epoch == epochs[0] for epoch in epochs)
    half = len(epochs[0]) // 2
    assert epochs[0][:half] != epochs[0][half:]


def test_workers_are_threads_of_this_process():
    loader, seen = make_loader(num_workers=2), []
    loader.worker_init_fn = lambda worker: seen.append((worker, os.getpid()))
    list(loader)
    assert sorted(seen) == [(0, os.getpid()), (1, os.getpid())]


def test_a_worker_init_fn_that_seeds_leaves_the_training_loops_generators():
    def seeding(worker):
        torch.manual_seed(worker)

    loader = make_loader(num_workers=2, worker_init_fn=seeding, seed=1)
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    epoch = iter(loader)
    assert torch.equal(torch.rand(3), expected)
    assert len(list(epoch)) == len(loader)


class Odd(Exception):
    """A user's own."""


def failing(batch):
    if batch.input_id[0] == 16:
        raise Odd("on purpose")
    return batch


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["transform", "transform_sampler_output"])
def test_errors_of_the_users_code(workers, where):
    def output(sampled):
        if sampled.metadata[0][0] == 16:
            raise Odd("on purpose")
        return sampled

    function = failing if where == "transform" else output
    loader = make_loader(num_workers=workers, **{where: function})
    epoch = iter(loader)
    assert [next(epoch).input_id[0].item() for _ in range(2)] == [0, 8]
    with pytest.raises(Odd, match="on purpose") as caught:
        next(epoch)
    assert function.__name__ in {frame.name for frame in traceback.extract_tb(caught.tb)}
    # As in torch's loaders, an error is one batch's own.
    assert [batch.input_id[0].item() for batch in epoch] == [24, 32, 40, 48, 56]
    assert loader.state_dict()["epoch"] == 1


def test_stop_iteration_in_a_transform_is_not_the_end():
    def transform(batch):
        raise StopIteration

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(make_loader(transform=transform))


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_a_worker_init_fn(workers):
    def init(worker):
        raise Odd("at the beginning")

    loader = make_loader(num_workers=workers, worker_init_fn=init)
    if workers:
        with pytest.raises(Odd, match="at the beginning"):
            list(loader)
    else:
        assert len(list(loader)) == len(loader)  # as in torch


@pytest.mark.parametrize("workers", [0, 2])
def test_an_attribute_that_is_too_short(workers):
    loader = make_loader(num_workers=workers)
    loader.data.x = loader.data.x[:5]
    with pytest.raises(IndexError, match=r"must be in \[0, 5\)"):
        list(loader)


def test_leaving_a_pass():
    loader = make_loader(num_workers=2)
    for _ in loader:
        break
    epoch = iter(loader)
    next(epoch)
    del epoch
    epoch = iter(loader)
    next(epoch)
    del loader
    assert len(list(epoch)) == 7


def test_an_iterator_may_outlive_its_loader():
    assert len(list(iter(make_loader(num_workers=1)))) == 8


SCRIPT = """
import os, signal, threading, warnings
import torch
from pagraph.pyg import NeighborLoader
from torch_geometric.data import Data

edge_index = torch.stack([torch.arange(99), torch.arange(1, 100)])
loader = NeighborLoader(Data(x=torch.ones(100, 2), edge_index=edge_index), [2, 2], batch_size=7, num_workers=2)

interrupts = [signal.SIGINT]

def interrupt(batch):
    if interrupts:  # once: a second one may come while the first ends the pass
        os.kill(os.getpid(), interrupts.pop())
    return batch

loader.transform = interrupt
try:
    for _ in loader: pass
except KeyboardInterrupt:
    print("interrupted,", [t.name for t in threading.enumerate() if t.name.startswith("pagraph")], "left")
loader.transform = None

warnings.simplefilter("ignore")  # of a fork of several threads
epoch = iter(loader)
next(epoch)
child = os.fork()
if child == 0:
    os._exit(0 if len(list(loader)) == 15 else 1)
print("the child's status:", os.waitpid(child, 0)[1], "the parent's rest:", len(list(epoch)))

epoch = iter(loader)
next(epoch)
print("out in the middle")
"""


@pytest.mark.attack
def test_interrupted_forked_and_ended_in_the_middle():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=HANGING
    )
    assert done.stdout.splitlines() == [
        "interrupted, [] left",
        "the child's status: 0 the parent's rest: 14",
        "out in the middle",
    ], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


@pins
def test_threads_are_pinned_and_all_is_restored():
    seen = []
    loader = make_loader(
        num_workers=1, worker_init_fn=lambda worker: seen.append((worker, os.sched_getaffinity(0)))
    )
    init = loader.worker_init_fn
    with loader.enable_cpu_affinity() as nothing:
        assert nothing is None and len(loader.loader_cores) == 1
        assert len(list(loader)) == len(loader)
        # As in PyG, the computation stays where it is.
        assert sorted(os.sched_getaffinity(0)) == CORES
    assert seen == [(0, {*loader.loader_cores})] and loader.worker_init_fn is init
    list(loader)
    assert sorted(seen[1][1]) == CORES


@pins
@pytest.mark.parametrize("cores", [[CORES[-1:]], CORES[-1:], [CORES]], ids=["one", "number", "all"])
def test_cores_of_ones_own_choice(cores):
    seen = []
    loader = make_loader(
        num_workers=1, worker_init_fn=lambda worker: seen.append(sorted(os.sched_getaffinity(0)))
    )
    with loader.enable_cpu_affinity(loader_cores=cores):
        list(loader)
    assert seen == [cores[0] if isinstance(cores[0], list) else cores]


@pins
def test_affinity_that_is_refused():
    for workers, cores, message in (
        (0, None, r"should be used with at least one worker \(got 0\)"),
        (
            1,
            [0, 1],
            r"\(got 2\) in 'enable_cpu_affinity' should match with the number of workers \(got 1\)",
        ),
        (1, [max(CORES) + 1000], "loader_cores must be among the cores of this process"),
        (len(CORES) + 1, None, "More workers"),
    ):
        loader = make_loader(num_workers=workers)
        with pytest.raises(ValueError, match=message), loader.enable_cpu_affinity(cores):
            pass
        assert loader.worker_init_fn is None


def test_multithreading():
    loader, threads = make_loader(num_workers=2, seed=1), torch.get_num_threads()
    with loader.enable_multithreading(1) as nothing:
        assert nothing is None and len(list(loader)) == len(loader)
    with loader.enable_multithreading():
        assert len(list(loader)) == len(loader)
    assert torch.get_num_threads() == threads
    with (
        pytest.raises(ValueError, match="smaller than the total available"),
        loader.enable_multithreading(threads + 1),
    ):
        pass
    with (
        pytest.raises(ValueError, match="at least one worker"),
        make_loader().enable_multithreading(1),
    ):
        pass


def test_the_log_of_memory(caplog):
    loader = make_loader(num_workers=2)
    with caplog.at_level(logging.DEBUG, logger="pagraph"), loader.enable_memory_log():
        list(loader)
    lines = [record.getMessage() for record in caplog.records if "MiB" in record.getMessage()]
    assert len(lines) == 2 and loader.worker_init_fn is None


@pins
def test_context_managers_within_each_other():
    loader, seen = make_loader(num_workers=1), []
    loader.worker_init_fn = seen.append
    with (
        loader.enable_memory_log(),
        loader.enable_cpu_affinity(CORES[:1]),
        loader.enable_multithreading(1),
    ):
        list(loader)
    assert seen == [0] and loader.worker_init_fn == seen.append
    with pytest.raises(Odd), loader.enable_cpu_affinity(CORES[:1]):
        raise Odd
    assert loader.worker_init_fn == seen.append
