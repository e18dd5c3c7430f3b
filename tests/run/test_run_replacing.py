"""The frameworks' classes stay what they are, and their objects become ours where ours can."""

import contextlib
import copy
import importlib
import inspect
import pickle
import random
import re
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from watching import of_line, small_data, watched

from pagraph.run import whose
from pagraph.run.replacing import is_of_pagraph
from pagraph.run.whose import is_about_data, is_for_theirs

pyg = pytest.importorskip("torch_geometric.loader")


@pytest.fixture(scope="module")
def data():
    return small_data()


class Tagged(pyg.NeighborLoader):
    """A user's subclass, with a constructor and attributes of its own."""

    def __init__(self, data, *, tag):
        self.before = tag
        super().__init__(data, [3], batch_size=25)
        self.tag = tag


class Filtering(pyg.NeighborLoader):
    """A user's subclass that makes batches itself."""

    def filter_fn(self, out):
        batch = super().filter_fn(out)
        batch.is_filtered = True
        return batch


def test_a_loader_becomes_ours_and_is_an_instance_of_theirs(data):
    import pagraph.pyg

    with watched() as seen:
        loader = pyg.NeighborLoader(data, [3, 3], batch_size=30)
        assert isinstance(loader, pyg.NeighborLoader)
        assert isinstance(loader, pagraph.pyg.NeighborLoader)
        assert isinstance(loader, torch.utils.data.DataLoader)
        assert type(loader).__name__ == "NeighborLoader" and str(loader) == "NeighborLoader()"
        batches = list(loader)
        assert [b.batch_size for b in batches] == [30, 30, 30, 10]
        assert all(b.x.equal(data.x[b.n_id]) for b in batches)
    key, line = of_line(seen(), "NeighborLoader")
    assert (key.ran, key.why) == ("pagraph", "")
    assert key.place.startswith("tests/run/test_run_replacing.py:") or "replacing" in key.place
    assert (line.loaders, line.epochs, line.batches) == (1, 1, 4)
    assert 0 < line.waited == line.first


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("NeighborLoader", {"num_neighbors": [2]}),
        ("LinkNeighborLoader", {"num_neighbors": [2]}),
        ("ShaDowKHopSampler", {"depth": 1, "num_neighbors": 2}),
        ("GraphSAINTNodeSampler", {"batch_size": 20, "num_steps": 2}),
        ("GraphSAINTEdgeSampler", {"batch_size": 20, "num_steps": 2}),
        ("GraphSAINTRandomWalkSampler", {"batch_size": 20, "walk_length": 2, "num_steps": 2}),
    ],
)
def test_each_class_that_we_have(kind, arguments, data):
    with watched() as seen:
        loader = getattr(pyg, kind)(data, **arguments)
        assert isinstance(loader, getattr(pyg, kind))
        assert next(iter(loader)) is not None
    assert of_line(seen(), kind)[0].ran == "pagraph"


def test_clusters_and_their_loader(data):
    with watched() as seen:
        clusters = pyg.ClusterData(data, num_parts=4, log=False)
        assert isinstance(clusters, pyg.ClusterData) and len(clusters) == 4
        loader = pyg.ClusterLoader(clusters, batch_size=2)
        assert sum(batch.num_nodes for batch in loader) == 100
    assert [(key.kind, key.ran) for key in seen().lines] == [("ClusterLoader", "pagraph")]


def test_a_heterograph():
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["paper"].x = torch.randn(20, 3)
    data["author"].x = torch.randn(10, 3)
    data["author", "writes", "paper"].edge_index = torch.randint(0, 10, (2, 40))
    with watched() as seen:
        loader = pyg.HGTLoader(data, [4], ("paper", None), batch_size=5)
        assert len(list(loader)) == 4
    assert of_line(seen(), "HGTLoader")[0].ran == "pagraph"


def test_a_subclass_is_ours_and_keeps_what_it_is(data):
    with watched() as seen:
        loader = Tagged(data, tag="x")
        assert isinstance(loader, Tagged) and issubclass(type(loader), pyg.NeighborLoader)
        assert (type(loader).__name__, loader.tag, loader.before) == ("Tagged", "x", "x")
        assert len(list(loader)) == 4
        # Copies and pickles are what the loader is.
        for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
            assert isinstance(other, Tagged) and other.tag == "x"
            assert len(list(other)) == 4
    keys = list(seen().lines)
    assert {(key.kind, key.ran) for key in keys} == {("Tagged", "pagraph")}
    assert [key.why for key in keys] == ["", "a copy"]


def test_a_plain_loader_is_pickled_as_ours(data):
    with watched():
        saved = pickle.dumps(pyg.NeighborLoader(data, [3], batch_size=50))
    loader = pickle.loads(saved)  # where nothing is replaced
    assert isinstance(loader, pyg.NeighborLoader) and len(list(loader)) == 2


def test_a_subclass_that_makes_batches_is_iterated_by_torch(data):
    with watched() as seen:
        assert all(batch.is_filtered for batch in Filtering(data, [3], batch_size=50))
    key, line = of_line(seen(), "Filtering")
    assert (key.ran, line.batches) == ("pagraph", 2)
    assert key.why == "its own filter_fn is called by torch"


def test_what_we_do_not_do_stays_theirs_with_the_reason(data, monkeypatch):
    import pagraph.pyg

    def refuse(self, *args, **kwargs):
        self.half_made = True
        raise NotImplementedError("cannot, today")

    monkeypatch.setattr(pagraph.pyg.NeighborLoader, "__init__", refuse)
    with watched() as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG's, without pyg-lib
        loader = pyg.NeighborLoader(data, [3], batch_size=50)
    assert type(loader) is pyg.NeighborLoader and not hasattr(loader, "half_made")
    key, _ = of_line(seen(), "NeighborLoader")
    assert (key.ran, key.why) == ("their own", "cannot, today")
    assert "keeps its own loader: cannot, today" in str(seen())


def given(data, **values):
    """The data with other values, as ``edge_index`` or ``time``."""
    changed = data.clone()
    changed.update(values)
    return changed


def load(data, num_neighbors=3, **options):
    hops = [num_neighbors] if isinstance(num_neighbors, int) else num_neighbors
    return next(iter(pyg.NeighborLoader(data, hops, **{"batch_size": 50} | options)))


def node2vec(data, **options):
    return pyg_nn().Node2Vec(data.edge_index, 4, walk_length=6, context_size=3, **options)


def pyg_nn():
    import torch_geometric.nn

    return torch_geometric.nn


OTHER = {
    "num_neighbors": (lambda d: load(d, "x"), "num_neighbors must be a list"),
    "temporal_strategy": (
        lambda d: load(given(d, time=torch.arange(100)), time_attr="time", temporal_strategy="x"),
        "temporal_strategy must",
    ),
    "time_attr": (lambda d: load(d, time_attr="when"), "when"),
    "weight_attr": (lambda d: load(d, weight_attr="w"), "weight_attr must"),
    "batch_size": (lambda d: load(d, batch_size=None), "batch_size must"),
    "a short mask": (lambda d: load(d, input_nodes=torch.ones(90, dtype=torch.bool)), "one of 90"),
    "num_parts": (lambda d: pyg.ClusterData(d, 400), "num_parts must"),
    "p": (lambda d: node2vec(d, p=float("inf")), "p must be positive and finite"),
}


class TheirsError(Exception):
    pass


@pytest.fixture
def theirs_is_said(monkeypatch):
    """The constructors of theirs raise TheirsError; gives the reasons why they are called."""

    def instead_of(original):
        """Theirs, which may not run here. Ours calls some of its constructors, too."""

        def theirs(self, *args, **kwargs):
            if is_of_pagraph(type(self)):
                return original(self, *args, **kwargs)
            raise TheirsError

        return theirs

    for kind in (pyg.NeighborLoader, pyg.ClusterData, pyg_nn().Node2Vec):
        monkeypatch.setattr(kind, "__init__", instead_of(kind.__init__))
    reasons = []

    def reason(error):
        reasons.append(str(error))
        return reasons[-1]

    monkeypatch.setattr("pagraph.run.replacing.reason", reason)
    return reasons


@pytest.mark.parametrize("case", OTHER)
def test_other_errors_are_a_reason_for_theirs(data, theirs_is_said, case):
    fails, message = OTHER[case]
    with watched(), pytest.raises(TheirsError):
        fails(data)
    assert len(theirs_is_said) == 1 and re.search(message, theirs_is_said[0])


def test_a_fault_in_a_check_of_data_is_a_reason_for_theirs(data, theirs_is_said, monkeypatch):
    monkeypatch.setattr("pagraph.sampling.times.check_unrounded", None)
    with watched(), pytest.raises(TheirsError):
        load(given(data, time=torch.rand(100)), time_attr="time")
    assert theirs_is_said == ["'NoneType' object is not callable"]


@pytest.mark.parametrize("damaged", [b"", b"no tensors"])
def test_a_cache_that_cannot_be_read_is_a_reason_for_theirs(
    data, tmp_path, theirs_is_said, damaged
):
    import pagraph.pyg

    pagraph.pyg.ClusterData(data, 4, save_dir=str(tmp_path), log=False)
    (file,) = tmp_path.rglob("*.pt")
    file.write_bytes(damaged)
    with watched(), pytest.raises(TheirsError):
        pyg.ClusterData(data, 4, save_dir=str(tmp_path), log=False)


def test_frames_without_python_code_are_no_checks():
    here = sys._getframe()
    error = ValueError().with_traceback(types.TracebackType(None, here, 10**6, 1))  # as Cython's
    assert not is_about_data(error)


def test_the_listed_checks_exist():
    for name, functions in (whose._CHECKS | {"pagraph.dgl.workload": whose._OF_DGL}).items():
        if name.startswith("pagraph.dgl") and Ten is None:
            continue
        source = inspect.getsource(importlib.import_module(name))
        assert "raise" in source
        assert all(f"def {function}(" in source for function in functions), name


def test_an_error_is_theirs_and_nothing_stands_behind_it(data):
    with watched() as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="conflicting 'input_time'") as raised:
            pyg.NeighborLoader(data, [3], input_time=torch.zeros(100))
        with pytest.raises(TypeError) as missing:
            pyg.NeighborLoader(data)
    assert raised.value.__context__ is None and missing.value.__context__ is None
    assert seen().lines == {}


def typed_data(**edges):
    """Ten authors, five papers, and what authors wrote."""
    from torch_geometric.data import HeteroData

    data = HeteroData(a={"x": torch.zeros(10, 2)}, b={"x": torch.zeros(5, 2)})
    data["a", "to", "b"].edge_index = torch.tensor([[0, 3, 9], [1, 4, 0]])
    data["a", "to", "b"].update(edges)
    return data


TO = ("a", "to", "b")
WRONG = {
    "an edge's end": (
        lambda: pyg.NeighborLoader(typed_data(edge_index=torch.tensor([[0], [7]])), [2], "b"),
        r"data\[\('a', 'to', 'b'\)\].edge_index\[1\] must be in \[0, 5\), got 7",
    ),
    "a link's end": (
        lambda: pyg.LinkNeighborLoader(typed_data(), [2], (TO, torch.tensor([[0], [7]]))),
        r"edge_label_index\[1\] must be in \[0, 5\), got 7",
    ),
    "a seed": (
        lambda: pyg.NeighborLoader(typed_data(), [2], ("b", torch.tensor([7]))),
        r"input_nodes.* must be in \[0, 5\), got 7",
    ),
    "an edge's dtype": (
        lambda: pyg.NeighborLoader(typed_data(edge_index=torch.zeros(2, 1)), [2], "b"),
        r"edge_index\[0\] must .*integers",
    ),
    "a weight": (
        lambda: pyg.NeighborLoader(typed_data(w=-torch.ones(3)), [2], "b", weight_attr="w"),
        "must be finite and not negative, got -1.0",
    ),
    "no weight": (
        lambda: pyg.NeighborLoader(
            typed_data(w=torch.full((3,), np.nan)), [2], "b", weight_attr="w"
        ),
        "must be finite and not negative, got nan",
    ),
    "too few weights": (
        lambda: pyg.NeighborLoader(typed_data(w=torch.ones(2)), [2], "b", weight_attr="w"),
        r"field 'w' must have one row per edge \(3\), got 2",
    ),
    "too few times": (
        lambda: load(
            given(small_data(), time=torch.arange(100)), time_attr="time", input_time=torch.ones(9)
        ),
        "input_time must have one time per input node",
    ),
    "a mask that selects more": (
        lambda: load(small_data(), input_nodes=torch.ones(110, dtype=torch.bool)),
        "input_nodes must be a mask of all 100 vertices, got one of 110",
    ),
    "a cluster's edge": (
        lambda: pyg.ClusterData(given(small_data(), edge_index=torch.tensor([[0], [100]])), 4),
        r"must be in \[0, 100\), got 100",
    ),
    "a rounded time": (
        lambda: pyg.NeighborLoader(
            typed_data(w=torch.full((3,), 1.7e9)), [2], "b", torch.zeros(5), time_attr="w"
        ),
        "must fit into the 24 bits of float32",
    ),
    "times of two kinds": (
        lambda: pyg.NeighborLoader(
            typed_data(w=torch.zeros(3)), [2], "b", torch.zeros(5).long(), time_attr="w"
        ),
        "input_time must be floats",
    ),
    "a walk's edge": (
        lambda: importlib.import_module("torch_geometric.nn").Node2Vec(
            torch.tensor([[0], [7]]), 4, walk_length=6, context_size=3, num_nodes=5
        ),
        r"must be in \[0, 5\), got 7",
    ),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_what_is_wrong_with_the_data_is_said(what):
    """Theirs would be made, and end the process in its first batch."""
    make, error = WRONG[what]
    with watched() as seen:
        with pytest.raises(Exception, match=error) as raised:
            make()
        assert raised.value.__context__ is None
        assert not is_for_theirs(raised.value)
    assert seen().lines == {}


def test_a_subclass_that_catches_it_is_what_it_was():
    class Careful(pyg.NeighborLoader):
        def __init__(self, data):
            try:
                super().__init__(data, [2], "b")
            except ValueError:
                self.kind = type(self)

    with watched():
        loader = Careful(typed_data(edge_index=torch.tensor([[0], [7]])))
    assert loader.kind is type(loader) is Careful
    assert not hasattr(loader, "node_sampler")


def test_an_error_about_the_data_in_the_first_batch_is_said(data, monkeypatch):
    data = copy.copy(data)
    data.w = torch.ones(500)
    with watched() as seen:
        loader = pyg.NeighborLoader(data, [3], weight_attr="w", batch_size=50)
        data.w[7] = -1
        with pytest.raises(ValueError, match="must be finite and not negative, got -1"):
            next(iter(loader))
    assert of_line(seen(), "NeighborLoader")[0].ran == "pagraph"


def test_a_failure_before_the_first_batch_gives_theirs(data, monkeypatch):
    """Ours made the loader and cannot make batches: theirs are asked, and what they say counts."""
    from pagraph.pyg.sampler import NeighborSampler

    # A fault in our own code, and not in a function of the user's.
    monkeypatch.setattr(NeighborSampler, "sample_nodes", None)
    with watched() as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = pyg.RandomNodeLoader(data, num_parts=2)  # theirs anyway
        assert len(list(loader)) == 2
        sampled = pyg.NeighborLoader(data, [3], batch_size=50)
        try:
            assert len(list(sampled)) == 2
        except ImportError as error:  # PyG's own, without pyg-lib
            assert "pyg-lib" in str(error)
        assert type(sampled) is pyg.NeighborLoader
    key, line = of_line(seen(), "NeighborLoader")
    assert (key.ran, key.why) == ("their own", "'NoneType' object is not callable")
    assert line.loaders == 1


def test_an_error_of_the_scripts_own_function_is_the_scripts(data):
    calls = []

    def transform(batch):
        calls.append(batch)
        raise KeyError("mine")

    with watched() as seen:
        loader = pyg.NeighborLoader(data, [3], batch_size=50, transform=transform, num_workers=1)
        with pytest.raises(KeyError, match="mine"):
            next(iter(loader))
    assert of_line(seen(), "NeighborLoader")[0].ran == "pagraph"


def test_settings_are_for_loaders_that_do_not_say_it(data):
    with watched(num_workers=3, cache="10%", memory="2GiB"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `memory` has no effect for a graph in memory
        assert pyg.NeighborLoader(data, [3]).num_workers == 3
        assert pyg.NeighborLoader(data, [3], num_workers=1).num_workers == 1
        assert pyg.NeighborLoader(data, [3])._options["cache"] == "10%"


def test_the_signature_is_theirs():
    before = inspect.signature(pyg.NeighborLoader)
    init = pyg.NeighborLoader.__init__
    with watched():
        assert inspect.signature(pyg.NeighborLoader) == before
        assert pyg.NeighborLoader.__init__ is not init
    assert pyg.NeighborLoader.__init__ is init


def test_theirs_replaces_nothing(data):
    with watched(theirs=True) as seen:
        loader = pyg.RandomNodeLoader(data, num_parts=4)
        assert len(list(loader)) == 4
        plain = torch.utils.data.DataLoader(torch.arange(6), batch_size=2)
        assert len(list(plain)) == 3
    assert {(key.kind, key.ran) for key in seen().lines} == {
        ("RandomNodeLoader", "their own"),
        ("DataLoader", "their own"),
    }


NEIGHBOURS = ["WITH_PYG_LIB", "WITH_TORCH_SPARSE"]
LACKING = [
    ("NeighborLoader", {"num_neighbors": [2]}, NEIGHBOURS),
    ("LinkNeighborLoader", {"num_neighbors": [2]}, NEIGHBOURS),
    ("NeighborLoader", {"num_neighbors": [2], "disjoint": True}, ["WITH_PYG_LIB"]),
    ("NeighborLoader", {"num_neighbors": [2], "subgraph_type": "induced"}, ["WITH_TORCH_SPARSE"]),
    (
        "NeighborLoader",
        {"num_neighbors": [2], "weight_attr": "w"},
        ["WITH_WEIGHTED_NEIGHBOR_SAMPLE"],
    ),
    ("ShaDowKHopSampler", {"depth": 1, "num_neighbors": 2}, ["WITH_TORCH_SPARSE"]),
    ("GraphSAINTNodeSampler", {"batch_size": 20}, ["WITH_TORCH_SPARSE"]),
    ("ClusterData", {"num_parts": 4, "log": False}, ["WITH_METIS", "WITH_TORCH_SPARSE"]),
]


@pytest.fixture
def no_packages(monkeypatch):
    """PyG believes that nothing is installed that its own loaders need."""
    for _, _, flags in LACKING:
        for flag in flags:
            monkeypatch.setattr(f"torch_geometric.typing.{flag}", False)


@pytest.mark.usefixtures("no_packages")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "arguments", "flags"), LACKING)
def test_theirs_that_cannot_run_here_are_ours(kind, arguments, flags, data, monkeypatch):
    data = copy.copy(data)
    data.w = torch.ones(500)
    with watched(theirs=True) as seen:
        loader = getattr(pyg, kind)(data, **arguments)
        assert next(iter(loader)) is not None
    key, _ = of_line(seen(), kind)
    assert key.ran == "pagraph"
    assert key.why.startswith("its own cannot run here without ")
    packages = {"WITH_TORCH_SPARSE": "torch-sparse"}
    assert key.why.endswith(" or ".join(packages.get(flag, "pyg-lib") for flag in flags))
    assert key.why in str(seen()) and "where its own cannot run here" in seen().title
    for flag in flags:
        monkeypatch.setattr(f"torch_geometric.typing.{flag}", True)
        # Some find out once more that the package is missing.
        with watched(theirs=True) as seen, contextlib.suppress(ImportError, AttributeError):
            assert type(getattr(pyg, kind)(data, **arguments)) is getattr(pyg, kind)
        assert all(key.ran == "their own" for key in seen().lines)
        monkeypatch.setattr(f"torch_geometric.typing.{flag}", False)


@pytest.mark.usefixtures("no_packages")
@pytest.mark.filterwarnings("ignore")
def test_theirs_that_need_no_package_stay_theirs(data):
    """A reader of our clusters, and a loader with a sampler of the script's own."""
    from torch_geometric.sampler import NeighborSampler

    class Own(NeighborSampler):
        def sample_from_nodes(self, inputs):
            raise KeyError("mine")

    with watched(theirs=True) as seen:
        clusters = pyg.ClusterData(data, num_parts=4, log=False)
        assert sum(batch.num_nodes for batch in pyg.ClusterLoader(clusters, batch_size=2)) == 100
        owns = pyg.NeighborLoader(data, [2], neighbor_sampler=Own(data, [2]))
        with pytest.raises(KeyError, match="mine"):
            next(iter(owns))
        assert len(list(pyg.NodeLoader(data, NeighborSampler(data, [2]), batch_size=50))) == 2
    assert {key.kind: key.ran for key in seen().lines} == {
        "ClusterData": "pagraph",
        "ClusterLoader": "their own",
        "NeighborLoader": "their own",
        "NodeLoader": "pagraph",
    }


def test_a_base_class_with_pygs_sampler_as_lightnings_data_modules_make_it(data):
    from torch_geometric.sampler import NeighborSampler

    with watched() as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = NeighborSampler(data, [3])
        evaluated = copy.copy(sampler)
        evaluated.num_neighbors = [5, 5]
        loaders = [
            pyg.NodeLoader(data, node_sampler=each, batch_size=50) for each in (sampler, evaluated)
        ]
        hops = [len(next(iter(loader)).num_sampled_nodes) for loader in loaders]
        links = pyg.LinkLoader(data, link_sampler=sampler, batch_size=100)
        assert next(iter(links)).edge_label_index.shape == (2, 100)
    assert hops == [2, 3]
    assert all(key.ran == "pagraph" for key in seen().lines)
    assert all(isinstance(loader, pyg.NodeLoader) for loader in loaders)


def test_lightning_makes_a_data_modules_loader_again_for_several_processes(data):
    """It does so from what it noted of their constructor, and ours takes other arguments."""
    noting = pytest.importorskip("lightning.fabric.utilities.data", reason="needs Lightning")
    from lightning.pytorch.utilities.data import _update_dataloader
    from torch_geometric.sampler import NeighborSampler

    divided = torch.utils.data.DistributedSampler(range(100), 2, 1, shuffle=False)
    with watched() as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = NeighborSampler(data, [3])
        with noting._replace_dunder_methods(torch.utils.data.DataLoader, "dataset"):
            loader = pyg.NodeLoader(data, node_sampler=sampler, batch_size=30)
        again = _update_dataloader(loader, divided)
        assert type(again) is type(loader) and isinstance(again, pyg.NodeLoader)
        seeds = [batch.n_id[: batch.batch_size].tolist() for batch in again]
    assert all("replacing" in key.place for key in seen().lines)
    assert sum(seeds, []) == list(range(1, 100, 2))


@pytest.mark.parametrize("name", ["Node2Vec", "MetaPath2Vec"])
def test_models_that_walk_are_ours(name):
    """PyG's own stop without pyg-lib and torch-cluster."""
    from torch_geometric import nn

    import pagraph.pyg

    edges = torch.randint(0, 20, (2, 100), generator=torch.Generator().manual_seed(0))
    there, back = ("author", "writes", "paper"), ("paper", "of", "author")
    arguments = {"embedding_dim": 4, "walk_length": 6, "context_size": 3}
    with watched():
        given = edges
        if name == "MetaPath2Vec":
            given = {there: edges, back: edges.flip(0)}
            arguments["metapath"] = [there, back]
        model = getattr(nn, name)(given, **arguments)
        assert isinstance(model, getattr(nn, name)) and type(model) is getattr(pagraph.pyg, name)
        positive, negative = next(iter(model.loader(batch_size=10)))
        assert model.loss(positive, negative).isfinite()
        assert list(copy.deepcopy(model).state_dict()) == ["embedding.weight"]


@pytest.mark.usefixtures("no_packages")
def test_a_model_that_walks_is_ours_where_theirs_cannot_be_made(monkeypatch):
    from torch_geometric import nn

    import pagraph.pyg

    monkeypatch.setattr("torch_geometric.typing.WITH_TORCH_CLUSTER", False, raising=False)
    with watched(theirs=True) as seen:
        model = nn.Node2Vec(torch.randint(0, 20, (2, 100)), 4, walk_length=6, context_size=3)
        assert type(model) is pagraph.pyg.Node2Vec
    assert "without pyg-lib or torch-cluster" in of_line(seen(), "Node2Vec")[0].why


def test_a_base_class_with_the_scripts_own_sampler_stays_theirs(data):
    from torch_geometric.sampler import BaseSampler, SamplerOutput

    class Own(BaseSampler):
        edge_permutation = None
        sample_from_edges = None

        def sample_from_nodes(self, inputs):
            none = torch.empty(0, dtype=torch.long)
            return SamplerOutput(inputs.node, none, none, none, metadata=(inputs.input_id, None))

    with watched() as seen:
        assert len(list(pyg.NodeLoader(data, Own(), batch_size=50))) == 2
    key, _ = of_line(seen(), "NodeLoader")
    assert (key.ran, key.why) == ("their own", "Own is the script's own sampler")


@pytest.fixture(scope="module")
def dgl():
    if Ten is None:
        pytest.skip("needs DGL")
    import dgl

    return dgl


@pytest.fixture(scope="module")
def graph(dgl):
    graph = dgl.rand_graph(100, 600)
    graph.ndata["feat"] = torch.randn(100, 4)
    return graph


class TestDGL:
    def test_a_loader_becomes_ours(self, dgl, graph):
        import pagraph.dgl

        with watched() as seen:
            sampler = dgl.dataloading.NeighborSampler([3], prefetch_node_feats=["feat"])
            loader = dgl.dataloading.DataLoader(graph, torch.arange(100), sampler, batch_size=25)
            assert isinstance(loader, dgl.dataloading.DataLoader)
            assert isinstance(loader, pagraph.dgl.DataLoader)
            for input_nodes, _, blocks in loader:
                assert blocks[0].srcdata["feat"].equal(graph.ndata["feat"][input_nodes])
        key, line = of_line(seen(), "DataLoader")
        assert (key.ran, key.why, line.batches) == ("pagraph", "", 4)

    def test_a_subclass_and_its_pickle(self, dgl, graph):
        with watched() as seen:
            loader = Ten(graph, 4)
            assert isinstance(loader, Ten) and loader.tag == 4
            other = pickle.loads(pickle.dumps(loader))
            assert isinstance(other, Ten) and other.tag == 4
            assert len(list(other)) == len(list(loader)) == 10
        assert {(key.kind, key.ran) for key in seen().lines} == {("Ten", "pagraph")}

    def test_a_sampler_that_runs_its_own_code_is_named(self, dgl, graph):
        class Mine(dgl.dataloading.NeighborSampler):
            def sample_blocks(self, g, seed_nodes, exclude_eids=None):
                return super().sample_blocks(g, seed_nodes, exclude_eids)

        with watched() as seen:
            loader = dgl.dataloading.DataLoader(graph, torch.arange(100), Mine([3]), batch_size=50)
            assert len(list(loader)) == 2
        assert of_line(seen(), "DataLoader")[0].why == "the sampler Mine runs its own code"

    @pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
    def test_theirs_is_measured(self, dgl, graph):
        with watched(theirs=True) as seen:
            sampler = dgl.dataloading.NeighborSampler([3])
            loader = dgl.dataloading.DataLoader(graph, torch.arange(100), sampler, batch_size=25)
            assert type(loader) is dgl.dataloading.DataLoader
            assert len(list(loader)) == 4
        key, line = of_line(seen(), "DataLoader")
        assert (key.ran, line.epochs, line.batches) == ("their own", 1, 4)
        assert line.waited > 0

    @pytest.mark.parametrize(
        ("seeds", "prob", "error"),
        [(torch.tensor([100]), None, "100"), (torch.arange(9), -torch.ones(600), "got -1.0")],
    )
    def test_what_is_wrong_with_the_data_is_said(self, dgl, graph, seeds, prob, error):
        with watched() as seen, graph.local_scope(), pytest.raises(Exception, match=error) as said:
            if prob is not None:
                graph.edata["p"] = prob
            sampler = dgl.dataloading.NeighborSampler([3], prob=None if prob is None else "p")
            next(iter(dgl.dataloading.DataLoader(graph, seeds, sampler, batch_size=2)))
        assert is_about_data(said.value)
        assert all(key.ran == "pagraph" for key in seen().lines)

    @pytest.mark.parametrize(
        ("sampler", "error"),
        [
            (lambda d: d.NeighborSampler([-2]), "fanouts must"),
            (lambda d: d.NeighborSampler([2**31], replace=True), "fanouts must"),
            (lambda d: d.ShaDowKHopSampler([-2]), "fanouts must"),
            (lambda d: d.SAINTSampler("walk", (3, 0)), "walk_length must"),
            (lambda d: d.SAINTSampler("walk", (0, 3)), "budget must"),
            (lambda d: d.SAINTSampler("edge", -1), "budget must"),
        ],
    )
    def test_numbers_that_would_end_the_process_are_refused(self, dgl, graph, sampler, error):
        with watched(), pytest.raises(ValueError, match=error) as said:
            dgl.dataloading.DataLoader(graph, torch.arange(9), sampler(dgl.dataloading))
        assert is_about_data(said.value)

    @pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
    @pytest.mark.parametrize(
        ("sampler", "why"),
        [
            (lambda d: d.NeighborSampler([0]), "fanouts must be positive or -1"),
            (lambda d: d.NeighborSampler([2.5]), "fanouts must be integers"),
            (lambda d: d.LaborSampler([-2]), "fanouts must be positive or -1"),
            (lambda d: d.SAINTSampler("edge", 0), "budget must be at least 1"),
        ],
    )
    def test_numbers_that_theirs_takes_are_a_reason_for_theirs(self, dgl, graph, sampler, why):
        with watched() as seen:
            next(iter(dgl.dataloading.DataLoader(graph, torch.arange(9), sampler(dgl.dataloading))))
        key, _ = of_line(seen(), "DataLoader")
        assert key.ran == "their own" and key.why.startswith(why)

    @pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
    @pytest.mark.parametrize("at", ["start", "sample", "__init__"])
    def test_a_try_that_fails_leaves_random_states_alone(self, dgl, graph, monkeypatch, at):
        """Whether it fails when it is made, at the beginning of an epoch or at a batch."""
        from pagraph.dgl.native_sources import NodeSource
        from pagraph.engine.engine import Engine

        owner = NodeSource if at == "sample" else Engine
        original = getattr(owner, at)
        fails = False

        def drawing(*args, **kwargs):
            if at != "sample":
                torch.rand(3), np.random.rand(), random.random()
                torch.rand((), generator=generator)  # which __init__ has as an argument
            if fails:
                raise NotImplementedError("not today")
            return original(*args, **kwargs)

        # As if it were ours: the frame's module decides.
        drawing = types.FunctionType(
            drawing.__code__,
            {"__name__": "pagraph.test", "torch": torch, "np": np, "random": random}
            | {"NotImplementedError": NotImplementedError},
            closure=drawing.__closure__,
        )
        monkeypatch.setattr(owner, at, drawing)
        found = []
        for theirs in (True, False):
            fails = not theirs
            random.seed(0), np.random.seed(0), torch.manual_seed(0)
            generator = torch.Generator().manual_seed(0)
            with watched(theirs=theirs) as seen:
                loader = dgl.dataloading.DataLoader(
                    graph,
                    torch.arange(100),
                    dgl.dataloading.MultiLayerFullNeighborSampler(1),
                    batch_size=30,
                    shuffle=True,
                    generator=generator,
                )
                seeds = [batch[1].tolist() for batch in loader]
                after = [torch.rand(()), torch.rand((), generator=generator), random.random()]
            assert of_line(seen(), "DataLoader")[0].ran == "their own"
            found.append([seeds, after, np.random.rand()])
        assert found[0] == found[1]

    def test_a_users_own_datasets(self, dgl, graph):
        """Iterable ones, with or without length, and samplers of others."""

        class Stream(torch.utils.data.IterableDataset):
            device = torch.device("cpu")

            def __iter__(self):
                yield torch.randint(0, 100, (3,))
                yield torch.tensor([2])

        with watched() as seen:
            sampler = dgl.dataloading.MultiLayerFullNeighborSampler(1)
            loader = dgl.dataloading.DataLoader(graph, Stream(), sampler)
            assert [len(batch[1]) for batch in loader] == [3, 1]
        key, line = of_line(seen(), "DataLoader")
        assert (key.ran, line.batches) == ("pagraph", 2)

    def test_an_error_is_dgls(self, dgl, graph):
        with watched(), pytest.raises(TypeError):
            dgl.dataloading.DataLoader(graph, torch.arange(4), batch_size=2)


try:
    importlib.import_module("pagraph.dgl")  # makes DGL importable
    from dgl.dataloading import DataLoader, NeighborSampler

    class Ten(DataLoader):
        """A user's subclass with other arguments."""

        def __init__(self, graph, tag):
            sampler = NeighborSampler([2])
            super().__init__(graph, torch.arange(100), sampler, batch_size=10)
            self.tag = tag

except ImportError:
    Ten = None
