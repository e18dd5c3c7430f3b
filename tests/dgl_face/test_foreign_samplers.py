"""Every other sampler runs its own ``sample``: same structure, lazy columns, errors in place, one
call at a time."""

import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from cases import dgl, make_graph, ours
from fresh_processes import HANGING, forked_python

pytestmark = pytest.mark.usefixtures("no_threads_left")

d = dgl.dataloading


class Failing(d.Sampler):
    """Fails at its third batch."""

    def __init__(self, at=2):
        self.calls, self.at = 0, at

    def sample(self, g, indices):
        self.calls += 1
        if self.calls - 1 == self.at:
            raise ZeroDivisionError("the sampler's own fault")
        return indices


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_exception_keeps_its_type_and_place_and_the_loader_goes_on(workers):
    sampler = Failing()
    loader = ours(make_graph(), torch.arange(20), sampler, batch_size=4, num_workers=workers)
    got = []
    with pytest.raises(ZeroDivisionError, match="own fault"):
        for batch in loader:
            got.append(batch.tolist())
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(list(loader)) == 5


def test_one_call_at_a_time_over_all_loaders_of_a_sampler():
    class Jealous(d.Sampler):
        def __init__(self):
            self.inside, self.worst = 0, 0

        def sample(self, g, indices):
            self.inside += 1
            self.worst = max(self.worst, self.inside)
            time.sleep(0.002)
            self.inside -= 1
            return indices

    graph, sampler = make_graph(), Jealous()
    loaders = [
        ours(graph, torch.arange(40), sampler, batch_size=2, num_workers=3) for _ in range(2)
    ]
    threads = [threading.Thread(target=lambda it=loader: list(it)) for loader in loaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sampler.worst == 1


def test_without_workers_a_users_sampler_stays_in_the_callers_thread():
    names = []

    class Who(d.Sampler):
        def sample(self, g, indices):
            names.append(threading.current_thread())
            return indices

    list(ours(make_graph(), torch.arange(6), Who(), batch_size=2))
    assert set(names) == {threading.current_thread()}


def test_any_object_with_a_device_can_be_the_graph():
    class Table:
        device = torch.device("cpu")

    class Squares(d.Sampler):
        def sample(self, g, indices):
            return indices, indices**2

    batches = list(ours(Table(), torch.arange(5), Squares(), batch_size=2))
    assert [b[1].tolist() for b in batches] == [[0, 1], [4, 9], [16]]


@pytest.mark.parametrize(
    "ending",
    [
        "break",
        "raise SystemExit(0)",
        "del loader; break",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    ],
)
@pytest.mark.processes
def test_nothing_is_left_behind_when_the_program_ends_in_the_middle(ending):
    script = textwrap.dedent(f"""
        import warnings; warnings.simplefilter("ignore")
        import pagraph.dgl, dgl, torch, threading
        g = dgl.graph((torch.randint(0, 1000, (20000,)), torch.randint(0, 1000, (20000,))))
        loader = pagraph.dgl.DataLoader(
            g, torch.arange(1000), dgl.dataloading.NeighborSampler([5, 5]), batch_size=4, num_workers=2
        )
        try:
            for i, batch in enumerate(loader):
                if i == 3:
                    {ending}
        except KeyboardInterrupt:
            print("interrupted")
        del batch
        print([t.name for t in threading.enumerate() if t.name.startswith("pagraph")])
    """)
    # At the end of the program the interpreter itself ends, with the loader's threads.
    python = sys.executable if "SystemExit" in ending else forked_python()
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if ending != "raise SystemExit(0)":
        assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("prob", [None, "p"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_subgraphs_whose_columns_are_lazy(prob, share):
    whole = make_graph()
    whole.edata["p"] = torch.rand(whole.num_edges()) + 0.1
    count = int(share * whole.num_nodes())
    graph = whole.subgraph(torch.randperm(whole.num_nodes())[:count])
    true = whole.ndata["feat"][graph.ndata[dgl.NID]]
    graph = whole.subgraph(graph.ndata[dgl.NID])  # nothing of this one has been read yet
    sampler = d.NeighborSampler([5, 5], prob=prob, prefetch_node_feats=["feat"])
    for input_nodes, _, blocks in ours(
        graph, torch.arange(count), sampler, batch_size=40, num_workers=2
    ):
        assert torch.equal(blocks[0].srcdata["feat"], true[input_nodes])
        assert torch.equal(blocks[1].srcdata["feat"], true[blocks[1].srcdata[dgl.NID]])
        w = whole.edata["w"][graph.edata[dgl.EID]]
        assert torch.equal(blocks[1].edata["w"], w[blocks[1].edata[dgl.EID]])


def test_two_edge_samplers_over_one_node_sampler():
    """The state that two threads must not share is in the inner sampler."""
    graph = dgl.to_bidirected(make_graph(n=600, m=9000), copy_ndata=False)
    inner = d.NeighborSampler([10, 10])
    loaders = [
        ours(
            graph,
            torch.arange(2000),
            d.as_edge_prediction_sampler(inner),
            batch_size=200,
            num_workers=1,
        )
        for _ in range(2)
    ]
    for pair in zip(*loaders, strict=True):
        for input_nodes, _, blocks in pair:
            assert torch.equal(input_nodes, blocks[0].srcdata[dgl.NID])
            for block in blocks:
                src, dst = block.edges()
                parent_src, parent_dst = graph.find_edges(block.edata[dgl.EID])
                assert torch.equal(block.srcdata[dgl.NID][src], parent_src)
                assert torch.equal(block.dstdata[dgl.NID][dst], parent_dst)


def test_a_sampler_may_iterate_a_loader_of_its_own():
    class Nested(d.Sampler):
        def __init__(self):
            self.depth = 0

        def sample(self, g, indices):
            if self.depth == 0:
                self.depth = 1
                assert len(list(ours(g, torch.arange(4), self, batch_size=2))) == 2
                self.depth = 0
            return indices

    assert len(list(ours(make_graph(), torch.arange(4), Nested(), batch_size=2))) == 2


def test_foreign_batches_are_counted():
    graph = make_graph()
    loader = ours(
        graph, torch.arange(40), d.LaborSampler([3, 3], prefetch_node_feats=["feat"]), batch_size=10
    )
    edges = sum(block.num_edges() for _, _, blocks in loader for block in blocks)
    assert loader.stats.total.counts["edges"] == edges > 0


def test_vertices_with_two_edge_types_are_not_ranked_by_one():
    edges = {
        ("v", "a", "v"): (torch.arange(9), torch.arange(9)),
        ("v", "b", "v"): (torch.arange(9), torch.arange(9)),
    }
    graph = dgl.heterograph(edges, num_nodes_dict={"v": 10})
    graph.ndata["x"] = torch.randn(10, 2)
    sampler = d.NeighborSampler([2], prefetch_node_feats=["x"])
    loader = ours(graph, torch.arange(10), sampler, batch_size=5, cache=1.0)
    for input_nodes, _, blocks in loader:
        assert torch.equal(blocks[0].srcdata["x"], graph.ndata["x"][input_nodes])
    assert loader.stats.total.hit_rate == 0
