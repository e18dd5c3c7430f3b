"""Wrong arguments of the core: one error each that names the argument, the rule and the value."""

import importlib
import importlib.metadata
import sys
from email.message import Message
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pagraph import Graph, Loader, NeighborSampler, errors
from pagraph.datasets import citation, read_graph, reorder, rmat, sbm, write_graph
from pagraph.errors import FormatError
from pagraph.features import HostFeature, IndexedRows
from pagraph.partition import draw_train, partition_graph
from pagraph.profile import hit_rate_curve, measure_loading
from pagraph.sampling import (
    ClusterSampler,
    EdgeBatches,
    HGTSampler,
    LaborSampler,
    LayerSampler,
    RandomWalks,
    ShaDowSampler,
    SubgraphSampler,
)
from pagraph.train import TrainOptions

IDS = torch.arange(3)


@pytest.fixture
def graph():
    fields = {"feat": torch.rand(4, 3), "label": torch.arange(4)}
    return Graph.from_coo([0, 1, 2, 3], [1, 2, 3, 0], ndata=fields)


@pytest.mark.parametrize("replace", [2**70, b"x", "yes", None, 0.0, 2])
def test_replace(replace):
    with pytest.raises(TypeError, match="replace must be True or False, got"):
        NeighborSampler([1], replace=replace)


@pytest.mark.parametrize("replace", [True, 1, np.True_])
def test_replace_in_other_words(replace):
    assert NeighborSampler([1], replace=replace).replace is True


def test_graphs(graph):
    with pytest.raises(TypeError, match="ndata must be a mapping from name to rows, got 'abc'"):
        Graph(graph.csc, 4, ndata="abc")
    with pytest.raises(
        TypeError, match=r"csc must be a CSC, or a mapping .*Graph.from_coo\), got tuple"
    ):
        Graph((IDS, IDS))


@pytest.mark.parametrize("csc", [{"a": 1}, {("a", "to", "b"): 1}, {"abc": None}])
def test_mappings_to_what_is_no_csc(csc):
    with pytest.raises(TypeError, match="csc must map edge types, such as .*, to CSCs, got"):
        Graph(csc)


@pytest.mark.parametrize("origin", ["nan", [[1], [2, 3]], 5])
def test_origins(graph, tmp_path, origin):
    with pytest.raises(TypeError, match="origin must be a mapping, got"):
        write_graph(graph, tmp_path / "g", origin=origin)


def test_seeds_of_any_size(graph):
    many = rmat(5)
    assert draw_train(many, 0.5, seed=2**70 + 3).equal(draw_train(many, 0.5, seed=3))
    parts = [
        partition_graph(many, 2, hops=1, method="hash", train=many.csc.indices[:9].unique(), seed=s)
        for s in (0, 2**64)
    ]
    assert parts[0].num_parts == parts[1].num_parts == 2


def test_devices_of_training():
    for device in ([], 2**63, "gpu"):
        with pytest.raises(ValueError, match=r"device must be auto, cpu or cuda\[:N\], got"):
            TrainOptions(device=device)


@pytest.mark.parametrize("values", [[None], ["a"], [[1], [1, 2]], object()])
def test_fields_that_are_no_numbers(graph, values):
    with pytest.raises(TypeError, match="field 'z' must be a tensor or rows of numbers"):
        graph.set_field("z", values)


@pytest.mark.parametrize(
    "ask",
    [
        lambda graph: graph.node_fields("a"),
        lambda graph: graph.num_nodes_of("a"),
        lambda graph: graph.set_field("z", IDS, node_type="a"),
    ],
)
def test_unknown_vertex_types(graph, ask):
    with pytest.raises(KeyError, match=r"node_type must be one of \['_N'\], got 'a'"):
        ask(graph)


@pytest.mark.parametrize(
    "ask",
    [
        lambda graph: graph.edge_fields("a"),
        lambda graph: graph.set_field("z", IDS, edge_type=("a", "b", "c")),
    ],
)
def test_unknown_edge_types(graph, ask):
    with pytest.raises(KeyError, match=r"edge_type must be one of \[\('_N', '_E', '_N'\)\], got"):
        ask(graph)


@pytest.mark.parametrize("name", ["fields", "labels"])
def test_names(graph, name):
    for value in ("feat", 5, None, [b"feat"]):
        with pytest.raises(TypeError, match=f"{name} must be a list of names, such as .*, got"):
            Loader(graph, IDS, NeighborSampler([1]), **{name: value})
    with pytest.raises(KeyError, match=f"{name} must be among .*'feat'.*, got 'x'"):
        Loader(graph, IDS, NeighborSampler([1]), **{name: ["x"]})


def test_workers(graph):
    with pytest.raises(ValueError, match="num_workers must be at least 0, got -1"):
        Loader(graph, IDS, NeighborSampler([1]), num_workers=-1)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:-1", "", 5.5, 2**63])
def test_devices(graph, device):
    with pytest.raises(
        ValueError, match='device must be "cpu", "cuda", "cuda:1" or a torch.device, got'
    ):
        Loader(graph, IDS, NeighborSampler([1]), device=device)


def test_states(graph):
    loader = Loader(graph, IDS, NeighborSampler([1]), seed=1)
    state = loader.state_dict()
    for key in state.keys() - {"permutation", "checksum"}:
        with pytest.raises((TypeError, ValueError), match=rf"state\['{key}'\] must be"):
            loader.load_state_dict({**state, "checksum": None, key: torch.tensor([1, 2])})
    loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("extra", "version", "cure"),
    [
        ("dgl", (3, 12, 1), "pip install 'pagraph[dgl]'"),
        ("dgl", (3, 14, 0), "take Python 3.12 or older, as DGL has no build for Python 3.14"),
        ("pyg", (3, 14, 0), "pip install 'pagraph[pyg]'"),
    ],
)
def test_packages_that_this_python_can_have(monkeypatch, extra, version, cure):
    monkeypatch.setattr(errors, "sys", SimpleNamespace(version_info=version))
    assert errors.how_to_install(extra) == cure


PAGE = "why-slow", "Why is my loader slow?"
TITLE = "the page 'Why is my loader slow?' of the documentation"


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        ([], TITLE),
        (["Changes, https://a.invalid"], TITLE),
        (["Changes, https://a.invalid", "Documentation, https://b.invalid/"], "https://b.invalid/why-slow.html"),
    ],
)  # fmt: skip
def test_a_page_is_named_by_its_address_or_title(monkeypatch, urls, said):
    package = Message()
    for url in urls:
        package["Project-URL"] = url
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: package)
    assert errors.documentation(*PAGE) == said


def test_a_page_is_named_where_no_package_is_installed(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    assert errors.documentation(*PAGE) == TITLE


def test_curves(graph):
    with pytest.raises(
        TypeError, match="sampler must be a pagraph sampler, such as NeighborSampler, got str"
    ):
        hit_rate_curve(graph, IDS, "sampler")


def test_a_matrix_of_mostly_nothing(tmp_path):
    scipy = pytest.importorskip("scipy.sparse")
    scipy.save_npz(tmp_path / "a.npz", scipy.coo_matrix(([1.0], ([0], [1])), shape=(2**50, 2**50)))
    with pytest.raises(
        FormatError, match="at most 10000000 vertices for 1 edges, it says 1125899906842624"
    ):
        read_graph(tmp_path / "a.npz")


def test_an_array_that_is_said_to_be_larger_than_it_is(tmp_path):
    scipy = pytest.importorskip("scipy.sparse")
    import io
    import zipfile

    scipy.save_npz(tmp_path / "a.npz", scipy.csr_matrix(np.eye(3)))
    header = io.BytesIO()
    description = {"descr": "<i4", "fortran_order": False, "shape": (2**31,)}
    np.lib.format.write_array_header_1_0(header, description)
    with (
        zipfile.ZipFile(tmp_path / "a.npz") as whole,
        zipfile.ZipFile(tmp_path / "b.npz", "w") as changed,
    ):
        for name in whole.namelist():
            changed.writestr(name, header.getvalue() if name == "indptr.npy" else whole.read(name))
    with pytest.raises(
        FormatError, match=r"indptr.npy must hold int32 of shape \(2147483648,\), it has \d+ bytes"
    ):
        read_graph(tmp_path / "b.npz")


def test_numpys_integers_are_numbers_like_any():
    small = np.int8(100)
    assert rmat(small // 20, seed=small).csc.indices.equal(rmat(5, seed=100).csc.indices)
    assert sbm(small, num_classes=np.int8(3), num_features=np.int8(2), seed=small).num_nodes == 100
    assert (
        citation(small, num_authors=small, num_author_features=small, seed=small).num_nodes_of(
            "author"
        )
        == 100
    )
    loader = Loader(rmat(5), IDS, NeighborSampler([1]), seed=1)
    loader.load_state_dict({**loader.state_dict(), "checksum": None, "epoch": np.array(3)})
    assert len(list(loader)) == 3


@pytest.mark.parametrize("count", ["nan", 1.5, torch.ones(2)])
def test_numbers_of_vertices(graph, count):
    for value in (count, {"_N": count}):
        with pytest.raises(TypeError, match=r"num_nodes(\['_N'\])? must be an integer, got "):
            Graph(graph.csc, value)


def test_what_other_packages_say_of_a_file_is_one_short_line():
    assert str(FormatError("a.parquet: bad header\nno end")) == "a.parquet: bad header no end"
    assert len(str(FormatError("x" * 5000))) < 1100


def test_threads_of_curves(graph):
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        hit_rate_curve(graph, IDS, NeighborSampler([1]), threads=0)
    with pytest.raises(TypeError, match="threads must be an integer, got -0.5"):
        hit_rate_curve(graph, IDS, NeighborSampler([1]), threads=-0.5)


NO_SEEDS = [
    torch.zeros(2, 3, dtype=torch.int64),
    torch.zeros(4, 1, dtype=torch.int64),
    torch.tensor(1),
]
MANY = sbm(60, seed=0)
MANY.set_field("w", torch.rand(MANY.num_edges), edge_type=MANY.edge_types[0])
SAMPLERS = {
    "neighbours": NeighborSampler([2, 2]),
    "all neighbours": NeighborSampler([-1]),
    "by weight": NeighborSampler([2], prob="w"),
    "labor": LaborSampler([2]),
    "layers": LayerSampler([5]),
    "subgraph": SubgraphSampler([2, 2]),
    "trees": SubgraphSampler([2], disjoint=True),
    "shadow": ShaDowSampler(2, 3),
    "hgt": HGTSampler([4, 4]),
    "clusters": ClusterSampler(torch.tensor([0, 10, 60])),
    "edges": EdgeBatches(NeighborSampler([2])),
}


@pytest.mark.parametrize("seeds", NO_SEEDS, ids=["2 x 3", "4 x 1", "scalar"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_seeds_of_samplers(sampler, seeds):
    with pytest.raises(ValueError, match="(seeds|edge ids).* must be (1-D|ids, or pairs)"):
        SAMPLERS[sampler].sample(MANY, seeds)
    for other in ([0, 1], np.arange(3), torch.rand(3), torch.ones(60, dtype=torch.bool)):
        with pytest.raises(TypeError, match="(seeds|edge ids).* must be a tensor of integers, got"):
            SAMPLERS[sampler].sample(MANY, other)


ENTRIES = {
    "Loader": lambda seeds: list(Loader(MANY, seeds, NeighborSampler([2]), batch_size=2)),
    "partition": lambda ids: partition_graph(MANY, 2, hops=1, method="hash", train=ids),
    "curve": lambda seeds: hit_rate_curve(MANY, seeds, NeighborSampler([2]), batch_size=2),
    "loading": lambda seeds: measure_loading(MANY, seeds, NeighborSampler([2]), batch_size=2),
    "reorder": lambda ids: reorder(
        MANY, "none", by="both", seeds=ids, sampler=NeighborSampler([2]), batch_size=2
    ),
    "positions": lambda ids: MANY.csc.positions_of(ids),
    "feature": lambda ids: HostFeature(MANY.ndata["feat"]).read(ids),
    "rows by reference": lambda ids: IndexedRows(MANY.ndata["feat"], ids),
    "walks": lambda ids: RandomWalks(3).sample(MANY, ids),
}


@pytest.mark.parametrize("seeds", NO_SEEDS, ids=["2 x 3", "4 x 1", "scalar"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_ids_of_several_dimensions(entry, seeds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match="(seeds|ids|starts) must be 1-D|train must be a list of distinct ids"
    ):
        ENTRIES[entry](seeds)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seeds", NO_SEEDS[:1] + NO_SEEDS[2:], ids=["2 x 3", "scalar"])
def test_seeds_of_the_faces(seeds):
    dgl = pytest.importorskip("pagraph.dgl").import_dgl()
    pyg = pytest.importorskip("pagraph.pyg")
    loader = importlib.import_module("pagraph.dgl").DataLoader
    sampler = dgl.dataloading.NeighborSampler([2])
    for of_edges in (False, True):
        kind = dgl.dataloading.as_edge_prediction_sampler(sampler) if of_edges else sampler
        with pytest.raises(
            (ValueError, TypeError), match="indices must|seeds must have at least one"
        ):
            list(loader(pyg_or_dgl("dgl"), seeds, kind, batch_size=2))
    with pytest.raises(ValueError, match="input_nodes must have one dimension"):
        list(pyg.NeighborLoader(pyg_or_dgl("pyg"), [2], input_nodes=seeds, batch_size=2))


def pyg_or_dgl(face):
    """The graph as a face's library has it."""
    return getattr(importlib.import_module(f"pagraph.{face}"), f"to_{face}")(MANY)
