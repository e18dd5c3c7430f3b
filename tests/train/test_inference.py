"""Inference by layers against one pass over the whole graph, in memory and from files that do not
fit."""

import signal
import subprocess

import numpy as np
import pytest
import torch
from fresh_processes import forked_python
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples
from torch import nn

import pagraph.train.inference as module
from pagraph import Graph, inference
from pagraph.datasets import open_graph, rmat, write_graph
from pagraph.graph.mapped import map_npy
from pagraph.system.atomic import is_unfinished
from pagraph.system.budget import memory_bytes
from pagraph.train.inference import OneHop
from pagraph.train.windows import SourceWindows, most_in_edges

FACES = ("dgl", "pyg")


@st.composite
def graphs(draw):
    """Few vertices: self-loops, parallel edges, isolated vertices; or no edges at all."""
    n = draw(st.integers(1, 12))
    ends = st.lists(st.integers(0, n - 1), min_size=(m := draw(st.integers(0, 40))), max_size=m)
    features = torch.randn(n, 3, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    return Graph.from_coo(draw(ends), draw(ends), n, ndata={"feat": features})


def edge_index(graph):
    return torch.stack([graph.csc.indices, graph.csc.destinations()]).long()


def layers_of(face):
    """Every kind of layer that is known, with functions of rows between, and a norm that measured
    something."""
    norm = nn.BatchNorm1d(4)
    norm.running_mean.fill_(0.3)
    if face == "pyg":
        layers = pytest.importorskip("torch_geometric.nn")
        return [
            *(
                nn.Linear(3, 3),
                layers.SAGEConv(3, 4),
                norm,
                torch.relu,
                layers.GATConv(4, 2, heads=2),
                nn.Dropout(0.9),
            ),
            *(
                layers.GCNConv(4, 4),
                layers.GATv2Conv(4, 4, heads=1, add_self_loops=False),
                layers.Linear(4, 3),
            ),
            *(
                layers.GraphConv(3, 3),
                layers.GCNConv(3, 3, add_self_loops=False),
                layers.TransformerConv(3, 3),
            ),
            *(layers.GINConv(nn.Linear(3, 2)), layers.GCNConv(2, 2, normalize=False)),
        ]
    pytest.importorskip("pagraph.dgl")
    from dgl import nn as layers

    zero = {"allow_zero_in_degree": True}
    return [
        *(
            nn.Linear(3, 3),
            layers.SAGEConv(3, 4, "mean"),
            norm,
            torch.relu,
            layers.GATConv(4, 2, 2, **zero),
        ),
        *(
            lambda rows: rows.flatten(1),
            nn.Dropout(0.9),
            layers.GraphConv(4, 4, **zero),
            layers.SAGEConv(4, 3, "pool"),
        ),
        *(
            layers.GraphConv(3, 3, norm="left", **zero),
            layers.GraphConv(3, 3, norm="right", **zero),
        ),
        *(layers.GINConv(nn.Linear(3, 2), "max"), layers.GraphConv(2, 2, norm="none", **zero)),
    ]


@torch.no_grad()
def at_once(face, graph, layers):
    """One pass over the whole graph, as the framework does it."""
    edges, x = edge_index(graph), graph.ndata["feat"]
    if face == "dgl":
        import dgl

        whole = dgl.graph((edges[0], edges[1]), num_nodes=graph.num_nodes)
    for layer in layers:
        if isinstance(layer, nn.Module):
            layer.eval()
        home = type(layer).__module__
        if home.startswith("torch_geometric.nn.conv"):
            x = layer(x, edges)
        elif home.startswith("dgl."):
            x = layer(whole, x)
        else:
            x = layer(x)
    return x


@pytest.mark.parametrize("face", FACES)
@settings(max_examples=examples(15), deadline=None)
@given(graph=graphs(), computed=st.integers(1, 3000))
def test_equals_one_pass_over_the_whole_graph(face, graph, computed):
    torch.manual_seed(0)
    layers = layers_of(face)
    want = at_once(face, graph, layers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_COMPUTED", computed)  # blocks of few vertices
        patch.setattr(module, "_ROWS_BYTES", 8)
        torch.testing.assert_close(inference(graph, layers), want, rtol=1e-4, atol=1e-5)


@st.composite
def mapped_graphs(draw):
    graph = draw(graphs())
    return graph, draw(st.integers(0, 400))


@settings(max_examples=examples(60), deadline=None)
@given(given_graph=mapped_graphs())
def test_windows_hold_what_their_vertices_need(given_graph, tmp_path_factory):
    graph, room = given_graph
    file = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(file, graph.ndata["feat"].numpy())
    rows, csc = map_npy(file), graph.csc
    assert most_in_edges(csc) == max(csc.indptr.diff().tolist())
    least = min(most_in_edges(csc) + 1, graph.num_nodes) * (12 + 8)
    if room < least and room < 12 * graph.num_nodes:
        with pytest.raises(ValueError, match=r"^memory must leave "):
            SourceWindows(csc, rows, room)
        return
    windows, vertex = SourceWindows(csc, rows, room), 0
    for window in windows:
        assert window.begin == vertex < window.end
        for vertex in range(window.begin, window.end):
            needed = torch.tensor(
                [vertex, *csc.indices[csc.indptr[vertex] : csc.indptr[vertex + 1]].tolist()]
            )
            assert torch.equal(window.rows[window.places_of(needed)], rows[needed])
            assert torch.equal(
                window.rows[window.places_of(torch.tensor([vertex]))[0]], rows[vertex]
            )
        assert len(window.rows) * 12 <= room and windows.at(vertex) is window
        vertex += 1
    assert vertex == graph.num_nodes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A graph with hubs, whose features are mapped."""
    path = tmp_path_factory.mktemp("graphs") / "rmat"
    write_graph(rmat(14, num_features=100, edge_factor=8, seed=3), path)
    return path


def least_memory(graph, layers):
    with pytest.raises(
        ValueError, match=r"^memory must be at least .* for this graph and these layers, got 1 "
    ) as told:
        inference(graph, layers, memory=1)
    return memory_bytes(str(told.value).split()[5])


@pytest.mark.parametrize("face", FACES)
def test_in_the_least_memory(face, folder, tmp_path, monkeypatch):
    """Features, and what is between the layers, do not fit: they are read by windows, and come to
    the same."""
    sage = pytest.importorskip("torch_geometric.nn").SAGEConv
    if face == "dgl":
        pytest.importorskip("pagraph.dgl")
        from dgl.nn import SAGEConv as sage
    more = () if face == "pyg" else ("mean",)
    torch.manual_seed(0)
    layers = [sage(100, 50, *more), torch.tanh, sage(50, 3, *more)]
    graph = open_graph(folder)
    monkeypatch.setattr(module, "_ROWS_BYTES", 1 << 12)
    monkeypatch.setattr(module, "_MOST_COMPUTED", 1 << 16)
    made, spills, progress = [], [], []
    for owner, name, seen in ((SourceWindows, "_next", made), (module, "spilled", spills)):
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given, real=real, seen=seen: seen.append(real(*given)) or seen[-1]
        )
    got = inference(
        graph,
        layers,
        memory=least_memory(graph, layers),
        out=tmp_path / "out.npy",
        progress=lambda *done: progress.append(done),
    )
    torch.testing.assert_close(got, at_once(face, graph, layers), rtol=1e-4, atol=1e-5)
    assert len(made) > 3 and made[0].ids is not None and len(spills) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]
    assert progress[-1] == (2 << 14, 2 << 14) and progress == sorted(progress)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "out.npy")), got, rtol=0, atol=0)


KILLED = """
import os, signal, sys
from pagraph import Graph, inference
from pagraph.train.inference import OneHop
import pagraph.train.inference as module

module._MOST_COMPUTED, module._ROWS_BYTES, calls = 1 << 20, 1 << 18, []

def layer(block, x):
    calls.append(block)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return x[: block.num_dst]

inference(Graph.open(sys.argv[1]), [OneHop(layer)], out=sys.argv[2])
"""


def test_a_killed_run_leaves_no_result(folder, tmp_path):
    done = subprocess.run([forked_python(), "-c", KILLED, folder, tmp_path / "out.npy"])
    assert done.returncode == -signal.SIGKILL
    assert (
        all(is_unfinished(path) for path in tmp_path.iterdir())
        and not (tmp_path / "out.npy").exists()
    )
    kept = inference(open_graph(folder), [torch.nn.Identity()], out=tmp_path / "out.npy")
    assert torch.equal(kept, open_graph(folder).ndata["feat"])
    # The next run clears what was left.
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]


def test_a_layer_that_fails_leaves_nothing_and_modes_as_they_were(tmp_path):
    graph = Graph.from_coo([0, 1], [1, 2], ndata={"feat": torch.ones(3, 2)})
    norm, still = nn.BatchNorm1d(2), nn.Dropout(0.5).eval()

    def fail(rows):
        if len(rows) > 1:
            raise ZeroDivisionError
        return rows

    with pytest.raises(ZeroDivisionError):
        inference(graph, [norm, still, fail], out=tmp_path / "out.npy")
    assert not list(tmp_path.iterdir()) and norm.training and not still.training


def test_float64_stays_and_others_become_float32():
    for dtype, want in (
        (torch.float64, torch.float64),
        (torch.float16, torch.float32),
        (torch.int8, torch.float32),
    ):
        graph = Graph.from_coo([0, 1], [1, 2], ndata={"x": torch.ones(3, 2, dtype=dtype)})
        assert (
            inference(graph, [OneHop(lambda block, x: x[: block.num_dst])], field="x").dtype == want
        )


def test_bad_arguments(tmp_path):
    graph = Graph.from_coo([0, 1], [1, 2], ndata={"feat": torch.ones(3, 2)})
    several = Graph({("a", "to", "b"): graph.csc}, {"a": 3, "b": 3})
    for words, each, layers, more in (
        ("graph must have one vertex type", several, [torch.relu], {}),
        ("field must be one of feat, got 'x'", graph, [torch.relu], {"field": "x"}),
        ("layers must hold at least 1 layer", graph, [], {}),
        (
            "layers must give a row for each of 1 vertices, got \\(2, 1\\)",
            graph,
            [lambda rows: rows.T],
            {},
        ),
        (
            "layers must track running statistics",
            graph,
            [nn.BatchNorm1d(2, track_running_stats=False)],
            {},
        ),
        ("memory must be bytes .* not a share", graph, [torch.relu], {"memory": 0.5}),
    ):
        with pytest.raises(ValueError, match=f"^{words}"):
            inference(each, layers, **more)
    with pytest.raises(TypeError, match="^layers must be callable, got 3"):
        inference(graph, [3])


def test_layers_that_may_read_more_are_refused():
    layers = pytest.importorskip("torch_geometric.nn")
    graph = Graph.from_coo([0, 1], [1, 2], ndata={"feat": torch.ones(3, 2)})
    backwards = layers.SAGEConv(2, 2, flow="target_to_source")
    for layer in (
        layers.APPNP(2, 0.1),
        layers.LayerNorm(2),
        layers.GCN(2, 2, 2),
        layers.TAGConv(2, 2),
        backwards,
    ):
        with pytest.raises(
            TypeError, match="^layers must be known to read one hop or single rows, got PyG's "
        ):
            inference(graph, [layer])
    assert inference(graph, [layers.LayerNorm(2, mode="node")]).shape == (3, 2)
