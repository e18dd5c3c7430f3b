"""Sums of neighbours' rows against their definitions, and the folders they are written to."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

import pagraph.train.preaggregation as module
from pagraph import FormatError, Graph, Loader, NeighborSampler
from pagraph.datasets import open_graph, rmat, write_graph
from pagraph.partition import partition_graph, write_partition
from pagraph.system import budget
from pagraph.train.preaggregation import NeighborSums, preaggregate, preaggregated_for
from pagraph.train.windows import SourceWindows

MODELS = ("sage", "gcn")


@st.composite
def graphs(draw):
    """Few vertices and many edges between them: self-loops, parallel edges, isolated vertices; or
    no edges at all."""
    n = draw(st.integers(1, 12))
    ends = st.lists(st.integers(0, n - 1), min_size=(m := draw(st.integers(0, 40))), max_size=m)
    features = torch.randn(
        n,
        draw(st.integers(1, 5)),
        generator=torch.Generator().manual_seed(draw(st.integers(0, 99))),
    )
    return Graph.from_coo(draw(ends), draw(ends), n, ndata={"feat": features})


def edges_of(graph):
    return list(zip(graph.csc.indices.tolist(), graph.csc.destinations().tolist(), strict=True))


def mean_by_definition(graph, x):
    rows = []
    for v in range(graph.num_nodes):
        found = [x[u] for u, w in edges_of(graph) if w == v]
        rows.append(torch.stack(found).mean(0) if found else torch.zeros_like(x[0]))
    return torch.stack(rows)


def gcn_by_definition(graph, x):
    n = graph.num_nodes
    edges = [(u, v) for u, v in edges_of(graph) if u != v] + [(v, v) for v in range(n)]
    out = torch.zeros_like(x)
    for u, v in edges:
        out_degree = sum(a == u for a, _ in edges)
        in_degree = sum(b == v for _, b in edges)
        out[v] += x[u] / (out_degree * in_degree) ** 0.5
    return out


def expected(graph, model, row_normalize=False):
    x = graph.ndata["feat"].double()
    if row_normalize:
        x = torch.nn.functional.normalize(x, p=1.0, dim=1)
    return mean_by_definition(graph, x) if model == "sage" else gcn_by_definition(graph, x)


def sums_of(graph, **options):
    return NeighborSums(graph, **options)[:]


@pytest.mark.many
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=examples(60))
@given(
    graph=graphs(),
    row_normalize=st.booleans(),
    chunk_bytes=st.integers(1, 200),
    chunk_edges=st.integers(1, 9),
    rows=st.integers(1, 5),
)
def test_sums_are_those_of_the_definition(
    model, graph, row_normalize, chunk_bytes, chunk_edges, rows
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
        patch.setattr(module, "_CHUNK_EDGES", chunk_edges)
        sums = NeighborSums(graph, model=model, row_normalize=row_normalize)
        got = torch.cat([sums[begin : begin + rows] for begin in range(0, graph.num_nodes, rows)])
    assert got.dtype == torch.float32
    torch.testing.assert_close(
        got.double(), expected(graph, model, row_normalize), rtol=1e-5, atol=1e-5
    )


@pytest.mark.every
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int64]
)
@settings(max_examples=8)
@given(graph=graphs(), chunk_bytes=st.integers(1, 200))
def test_features_of_any_type_are_added_as_float32(model, dtype, graph, chunk_bytes):
    graph.set_field("feat", graph.ndata["feat"].mul(10).abs().to(dtype))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
        got = sums_of(graph, model=model)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected(graph, model), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_strided_features(model):
    wide = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    graph = Graph.from_coo([0, 1, 2, 2], [1, 1, 0, 2], ndata={"feat": wide[:, ::2]})
    torch.testing.assert_close(
        sums_of(graph, model=model).double(), expected(graph, model), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(0, 4), (5, 0)])
@pytest.mark.parametrize("model", MODELS)
def test_nothing_to_add(model, shape, tmp_path):
    graph = Graph.from_coo([], [], shape[0], ndata={"feat": torch.empty(shape)})
    preaggregate(graph, tmp_path / "out", model=model, row_normalize=True)
    assert open_graph(tmp_path / "out", verify=True).ndata[module.SUMS[model]].shape == shape


@pytest.fixture
def graph():
    """A graph with edge ids that do not count, and fields of several kinds on vertices and
    edges."""
    g = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, 50, (2, 300), generator=g)
    ndata = {
        "feat": torch.rand(50, 6, generator=g),
        "label": torch.arange(50) % 3,
        "train_mask": torch.arange(50) < 20,
        "other": torch.randn(50, 2, 2, generator=g).bfloat16(),
    }
    return Graph.from_coo(src, dst, 50, ndata=ndata, edata={"weight": torch.rand(300, generator=g)})


@pytest.mark.every
@pytest.mark.parametrize("row_normalize", [False, True])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mapped", [False, True])
def test_the_folder_is_the_graph_with_the_sums(graph, model, row_normalize, mapped, tmp_path):
    source = graph
    if mapped:
        write_graph(graph, tmp_path / "source")
        source = open_graph(tmp_path / "source")
    out = tmp_path / "out"
    preaggregate(source, out, model=model, row_normalize=row_normalize, origin={"source": "here"})
    got = open_graph(out, verify=True)
    assert preaggregated_for(got) == model and preaggregated_for(graph) is None
    kept = {name: value for name, value in graph.ndata.items() if name != "feat"}
    own = {"feat"} if model == "sage" else set()
    assert set(got.ndata) == {*kept, *own, module.SUMS[model]}
    assert all(torch.equal(got.ndata[name], value) for name, value in kept.items())
    assert torch.equal(got.edata["weight"], graph.edata["weight"])
    for name in ("indptr", "indices", "edge_ids"):
        assert torch.equal(getattr(got.csc, name), getattr(graph.csc, name))
    sums = got.ndata[module.SUMS[model]]
    torch.testing.assert_close(
        sums.double(), expected(graph, model, row_normalize), rtol=1e-5, atol=1e-5
    )
    if own:
        x = graph.ndata["feat"]
        want = torch.nn.functional.normalize(x, p=1.0, dim=1) if row_normalize else x
        torch.testing.assert_close(got.ndata["feat"], want)
    origin = json.loads((out / "manifest.json").read_text())["origin"]
    assert origin == {"source": "here", "preaggregated_for": model, "row_normalize": row_normalize}


def test_the_source_is_not_changed(graph, tmp_path):
    before = {name: value.clone() for name, value in graph.ndata.items()}
    for model in MODELS:
        preaggregate(graph, tmp_path / model, model=model, row_normalize=True)
    assert list(graph.ndata) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in graph.ndata.items())


def test_progress_ends_with_the_whole(graph, tmp_path):
    told = []
    preaggregate(
        graph,
        tmp_path / "out",
        model="gcn",
        progress=lambda done, total: told.append((done, total)),
    )
    size = sum(file.stat().st_size for file in (tmp_path / "out").glob("*.npy"))
    assert 0.8 * size < told[-1][0] == told[-1][1] < size  # without headers
    assert all(0 < done <= total for done, total in told)


@pytest.mark.parametrize("at", [1, 2])
def test_a_failure_leaves_nothing(graph, tmp_path, at):
    calls = []

    def full(*_amounts):
        calls.append(1)
        if len(calls) == at:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        preaggregate(graph, tmp_path / "out", model="gcn", progress=full)
    assert list(tmp_path.iterdir()) == []


def test_bad_input(graph, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="model must be one of sage, gcn, got 'gat'"):
        preaggregate(graph, out, model="gat")
    preaggregate(graph, out, model="gcn")
    with pytest.raises(FileExistsError, match="folder must not exist yet"):
        preaggregate(graph, out, model="gcn")
    with pytest.raises(
        ValueError,
        match="graph must not be pre-aggregated already, got one with the field feat_gcn",
    ):
        preaggregate(open_graph(out), tmp_path / "twice", model="gcn")
    with pytest.raises(
        ValueError, match="graph must have the field feat to be pre-aggregated, it has "
    ):
        preaggregate(Graph.from_coo([0], [1]), tmp_path / "bare", model="gcn")
    two = Graph({("_N", "a", "_N"): graph.csc, ("_N", "b", "_N"): graph.csc}, ndata=graph.ndata)
    with pytest.raises(ValueError, match="graph must have one vertex type and one edge type"):
        preaggregate(two, tmp_path / "two", model="sage")
    both = Graph(graph.csc, ndata={"feat_gcn": torch.ones(50, 1), "feat_mean": torch.ones(50, 1)})
    with pytest.raises(
        ValueError, match="graph must have at most one of the fields feat_mean, feat_gcn, got both"
    ):
        preaggregated_for(both)
    partition = partition_graph(graph, 2, hops=1, method="hash")
    write_partition(partition, tmp_path / "parts")
    with pytest.raises(ValueError, match="graph must be a whole graph, got a part of a partition"):
        preaggregate(open_graph(tmp_path / "parts" / "part-0"), tmp_path / "part", model="gcn")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "parts"}


@pytest.mark.parametrize(
    "bad", [torch.zeros(50), torch.zeros(50, 2, 2), torch.zeros(50, 2, dtype=torch.complex64)]
)
def test_features_that_do_not_fit(graph, bad, tmp_path):
    graph.set_field("feat", bad)
    with pytest.raises(ValueError, match=r"feat must be a 2-D real field, got torch.\w+ \(50"):
        preaggregate(graph, tmp_path / "out", model="sage")


@pytest.mark.parametrize("bit", [9, 20, 31])
def test_flipped_bits_in_the_indices_are_found(graph, tmp_path, bit):
    """By comparing checksums, and else wherever the edges are read: each id is checked before it is
    used."""
    folder = tmp_path / "out"
    preaggregate(graph, folder, model="sage")
    indices = np.load(folder / "edge-indices.npy", mmap_mode="r+")
    indices.view(np.uint32)[:] ^= 1 << bit
    indices.flush()
    with pytest.raises(FormatError, match=r"edge-indices.npy is corrupt: its SHA-256"):
        open_graph(folder, verify=True)
    damaged = open_graph(folder)
    for use in (
        lambda: list(Loader(damaged, range(50), NeighborSampler([3]))),
        damaged.csc.validate,
    ):
        with pytest.raises(ValueError, match=r"indices must be in \[0, 50\), got"):
            use()


def test_a_corrupt_source_is_noticed(graph, tmp_path):
    graph.csc.indices[7] = 50
    with pytest.raises(ValueError, match=r"indices must be in \[0, 50\), got 50"):
        preaggregate(graph, tmp_path / "out", model="sage")


@pytest.mark.every
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_same_bits_where_features_do_not_fit(model, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr(module, "_KERNEL_BYTES", 0)
    monkeypatch.setattr(budget, "held_by_process", lambda: 0)
    rows = rmat(13, num_features=100, edge_factor=4, seed=2)
    rows.set_field("feat", rows.ndata["feat"].to(dtype))
    write_graph(rows, tmp_path / "rmat")
    graph = open_graph(tmp_path / "rmat")
    preaggregate(graph, tmp_path / "large", model=model)
    made = []
    real = SourceWindows._next
    monkeypatch.setattr(
        SourceWindows, "_next", lambda *given: made.append(real(*given)) or made[-1]
    )
    preaggregate(
        graph,
        tmp_path / "small",
        model=model,
        memory="1MiB" if dtype == torch.float16 else "1400KiB",
    )
    assert len(made) > 3
    name = module.SUMS[model]
    assert torch.equal(*(open_graph(tmp_path / size).ndata[name] for size in ("small", "large")))


def test_too_little_memory(tmp_path):
    graph = rmat(10, num_features=4)
    with pytest.raises(
        ValueError, match=r"^memory must be at least \d+MiB for this graph and the .*; got 1 MiB$"
    ):
        preaggregate(graph, tmp_path / "out", model="sage", memory="1MiB")
    assert not list(tmp_path.iterdir())
