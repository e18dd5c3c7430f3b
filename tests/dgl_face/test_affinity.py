"""Pinning the loader's threads and the computation to cores, as DGL's loader does."""

import os

import pytest
import torch
from cases import dgl, make_graph, ours, theirs

from pagraph.dgl.loader import _divide

pytestmark = [
    pytest.mark.usefixtures("no_threads_left"),
    pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no threads"),
]

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def make_loader(num_workers=1, make=ours, **options):
    sampler = dgl.dataloading.NeighborSampler([2])
    return make(
        make_graph(), torch.arange(20), sampler, batch_size=4, num_workers=num_workers, **options
    )


def test_threads_are_pinned_and_all_is_restored():
    seen = []
    loader = make_loader(
        worker_init_fn=lambda worker: seen.append((worker, os.sched_getaffinity(0)))
    )
    init, threads = loader.worker_init_fn, torch.get_num_threads()
    with loader.enable_cpu_affinity(verbose=False) as nothing:
        assert nothing is None and loader.cpu_affinity_enabled
        computing = os.sched_getaffinity(0)
        assert torch.get_num_threads() == len(computing)
        assert [batch[1].tolist() for batch in loader] == torch.arange(20).view(5, 4).tolist()
    ((worker, loading),) = seen
    assert worker == 0 and len(loading) == 1 and (len(CORES) == 1 or not loading & computing)
    assert sorted(os.sched_getaffinity(0)) == CORES and torch.get_num_threads() == threads
    assert loader.worker_init_fn is init and not loader.cpu_affinity_enabled
    seen.clear()
    list(loader)
    assert [sorted(cores) for _, cores in seen] == [CORES]


def test_all_is_restored_after_an_error():
    loader, threads = make_loader(), torch.get_num_threads()
    with pytest.raises(KeyError), loader.enable_cpu_affinity(verbose=False):
        raise KeyError
    assert sorted(os.sched_getaffinity(0)) == CORES and torch.get_num_threads() == threads
    assert loader.worker_init_fn is None and not loader.cpu_affinity_enabled


def test_cores_of_ones_own_choice():
    seen = []
    loader = make_loader(worker_init_fn=lambda worker: seen.append(os.sched_getaffinity(0)))
    with loader.enable_cpu_affinity([CORES[-1]], [CORES[0]], verbose=False):
        assert os.sched_getaffinity(0) == {CORES[0]}
        list(loader)
    assert seen == [{CORES[-1]}]


@pytest.mark.parametrize("make", [ours, theirs])
@pytest.mark.parametrize(
    ("workers", "cores"), [(0, None), (1, [0, 0])], ids=["no worker", "two cores for one"]
)
def test_what_is_refused_has_dgls_type(make, workers, cores):
    loader = make_loader(workers, make)
    with (
        pytest.raises(Exception, match="worker") as caught,
        loader.enable_cpu_affinity(cores, verbose=False),
    ):
        pass
    assert type(caught.value) is Exception
    assert sorted(os.sched_getaffinity(0)) == CORES and not loader.cpu_affinity_enabled


def test_messages():
    foreign = max(CORES) + 1000
    for arguments, message in {
        (0, None, None): "enable_cpu_affinity needs num_workers of at least 1, got 0",
        (
            1,
            (foreign,),
            None,
        ): rf"loader_cores must be among the cores of this process, .*; got \({foreign},\)",
        (1, None, (foreign,)): "compute_cores must be among the cores of this process",
        (
            len(CORES) + 1,
            None,
            None,
        ): rf"at most the number of cores to pin them to \({len(CORES)}\)",
        (1, (CORES[0],) * 3, None): r"loader_cores must name one core per worker \(1\), got",
    }.items():
        loader = make_loader(arguments[0])
        with pytest.raises(Exception, match=message), loader.enable_cpu_affinity(*arguments[1:]):
            pass


@pytest.mark.parametrize(
    ("workers", "loader_cores", "compute_cores", "loading", "computing"),
    [
        (1, [3], None, [3], "others"),
        (2, None, [0, 1], 2, [0, 1]),
        (2, [4, 5], [4, 5, 6], [4, 5], [4, 5, 6]),
        (3, None, None, 3, "others"),
    ],
)
def test_dividing_the_cores(workers, loader_cores, compute_cores, loading, computing):
    allowed = set(range(8))
    got_loading, got_computing = _divide(allowed, workers, loader_cores, compute_cores)
    assert got_loading == loading if isinstance(loading, list) else len(set(got_loading)) == loading
    if computing == "others":
        assert (
            got_computing
            and not set(got_computing) & set(got_loading)
            and allowed.issuperset(got_computing)
        )
    else:
        assert got_computing == computing and (
            loader_cores or not set(got_loading) & set(computing)
        )


def test_nothing_is_pinned_for_batches_on_a_gpu():
    loader = make_loader(0)
    loader.device = torch.device("cuda")
    with loader.enable_cpu_affinity() as nothing:
        assert nothing is None and not loader.cpu_affinity_enabled
        assert sorted(os.sched_getaffinity(0)) == CORES
