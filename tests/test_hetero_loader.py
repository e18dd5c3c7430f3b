"""The core loader on graphs of several types: batches by type, the same bits whatever runs them,
clear errors."""

import copy
import pickle

import numpy as np
import pytest
import torch
from typed_csc import typed_csc

from pagraph import CSC, Graph, Loader, NeighborSampler
from pagraph.accelerator import HostAccelerator
from pagraph.datasets import open_graph, write_graph
from pagraph.graph.mapped import map_npy
from pagraph.graph.minibatch import HeteroMiniBatch
from pagraph.sampling import LaborSampler
from pagraph.seeds.keys import Ranks, batch_key, epoch_key

pytestmark = pytest.mark.usefixtures("no_threads_left")

COUNTS = {"user": 90, "item": 60, "tag": 7, "none": 0}
EDGES = {
    ("user", "buys", "item"): 500,
    ("item", "bought", "user"): 500,
    ("tag", "on", "item"): 80,
    ("item", "is", "tag"): 80,
    ("user", "knows", "user"): 0,
    ("none", "of", "user"): 0,
}
FIELDS = {"user": ["feat", "age"], "item": ["feat"]}
LABELS = {"item": ["label"], "user": ["age"]}
SEEDS = {"item": torch.arange(0, 60, 2), "user": torch.arange(40, 70)}


def make_graph(mapped=lambda name, rows: rows):
    rng = np.random.default_rng(0)
    csc = {}
    for (src, relation, dst), count in EDGES.items():
        ends = (
            rng.zipf(1.6, count) % max(1, COUNTS[src]),
            rng.integers(0, max(1, COUNTS[dst]), count),
        )
        csc[src, relation, dst] = typed_csc(*ends, COUNTS[src], COUNTS[dst])
    ndata = {
        "user": {
            "feat": mapped("user", rng.random((90, 5), dtype=np.float32)),
            "age": torch.arange(90) * 3,
        },
        "item": {
            "feat": mapped("item", rng.random((60, 2)).astype(np.float16)),
            "label": torch.arange(60) % 4,
        },
    }
    return Graph(csc, COUNTS, ndata=ndata)


@pytest.fixture(scope="module")
def graph():
    return make_graph(lambda name, rows: torch.from_numpy(rows))


def make(graph, seeds=SEEDS, sampler=None, **options):
    settings = {
        "fields": FIELDS,
        "labels": LABELS,
        "batch_size": 16,
        "shuffle": True,
        "seed": 3,
    } | options
    return Loader(graph, seeds, NeighborSampler([3, 2]) if sampler is None else sampler, **settings)


def bits(batch):
    by_type = lambda tensors: {t: ids.tolist() for t, ids in tensors.items()}  # noqa: E731
    blocks = [
        (
            {
                t: [x.tolist() for x in (r.indptr, r.indices, r.positions)]
                for t, r in block.relations.items()
            },
            by_type(block.src_nodes),
            block.num_dst,
        )
        for block in batch.blocks
    ]
    rows = (
        {t: by_type(of) for t, of in batch.features.items()},
        {t: by_type(of) for t, of in batch.labels.items()},
    )
    return by_type(batch.output_nodes), blocks, by_type(batch.input_nodes), rows


def check_rows(graph, batch):
    for ntype, names in FIELDS.items():
        for name in names:
            assert torch.equal(
                batch.features[ntype][name],
                graph.node_fields(ntype)[name][batch.input_nodes[ntype]],
            )
    seeds = {
        ntype: batch.output_nodes.get(ntype, torch.empty(0, dtype=torch.int64)) for ntype in LABELS
    }
    for ntype, names in LABELS.items():
        for name in names:
            assert torch.equal(
                batch.labels[ntype][name], graph.node_fields(ntype)[name][seeds[ntype]]
            )
    assert list(batch.features) == list(FIELDS) and set(batch.labels) == set(LABELS)


@pytest.mark.parametrize(
    "sampler", [NeighborSampler([3, 2]), NeighborSampler([-1]), LaborSampler([2, 2])], ids=str
)
def test_batches_are_the_samplers_with_the_rows_of_their_vertices(graph, sampler):
    loader, seen = make(graph, sampler=sampler), {"item": [], "user": []}
    for index, batch in enumerate(loader):
        check_rows(graph, batch)
        again = sampler.sample(
            graph, batch.output_nodes, batch_key(epoch_key(3, 0, None), index, Ranks(0, 1))
        )
        assert bits(again)[:3] == bits(batch)[:3]
        for ntype, ids in batch.output_nodes.items():
            seen[ntype] += ids.tolist()
    assert len(loader) == index + 1 == 4
    assert {t: sorted(ids) for t, ids in seen.items()} == {
        t: ids.tolist() for t, ids in SEEDS.items()
    }
    assert loader.stats.total.counts["seeds"] == 60


@pytest.mark.parametrize(
    "options", [{"num_workers": 3}, {"prefetch": 0}, {"num_workers": 1, "prefetch": 4}], ids=str
)
def test_the_same_bits_however_it_runs(graph, options):
    expected = [bits(batch) for loader in [make(graph)] for _ in range(2) for batch in loader]
    loader = make(graph, **options)
    assert [bits(batch) for _ in range(2) for batch in loader] == expected
    assert bits(next(iter(make(graph, seed=4)))) != expected[0]


def test_a_cut_epoch_goes_on_and_copies_are_at_the_same_place(graph):
    whole, cut = make(graph), make(graph)
    expected = [bits(batch) for batch in whole]
    batches = iter(cut)
    assert [bits(next(batches)) for _ in range(2)] == expected[:2]
    for other in (make(graph), pickle.loads(pickle.dumps(cut)), copy.deepcopy(cut)):
        other.load_state_dict(cut.state_dict())
        assert [bits(batch) for batch in other] == expected[2:]
    cut.close()


@pytest.fixture
def mapped(tmp_path):
    """The graph with the features of users and items in files."""

    def as_file(name, rows):
        np.save(tmp_path / f"{name}.npy", rows)
        return map_npy(tmp_path / f"{name}.npy")

    return make_graph(as_file)


@pytest.mark.every
@pytest.mark.parametrize("policy", ["auto", "degree", "presample", "vip", "adaptive", "random"])
def test_one_cache_serves_all_types(graph, mapped, policy):
    expected = [bits(batch) for loader in [make(graph)] for _ in range(2) for batch in loader]
    loader = make(mapped, cache=1500, cache_policy=policy)
    assert [bits(batch) for _ in range(2) for batch in loader] == expected
    assert 0 < loader.stats.total.hit_rate < 1
    plans = loader.cache_plan
    assert len(plans) == 4 and 0 < sum(plan.nbytes for plan in plans) <= 1500
    assert set(loader.stats.total.reads.fields) == {
        "user/feat",
        "user/age",
        "item/feat",
        "item/label",
    }


def test_a_replaced_field_is_read_anew(graph):
    graph = make_graph(lambda name, rows: torch.from_numpy(rows))
    batches = iter(make(graph))
    next(batches)
    graph.set_field("feat", torch.rand(60, 3), node_type="item")
    for batch in batches:
        check_rows(graph, batch)


def test_from_a_folder(graph, tmp_path):
    write_graph(graph, tmp_path / "folder")
    loader = make(open_graph(tmp_path / "folder"), lookahead=3, memory="4GiB")
    assert [bits(batch) for batch in loader] == [bits(batch) for batch in make(graph)]
    assert loader.memory_plan.total <= 2**32


@pytest.mark.parametrize("transfer", ["zero-copy", "staging"])
@pytest.mark.parametrize("cache", [0, 0.3])
def test_on_an_accelerator(graph, cache, transfer):
    pytest.importorskip("triton")
    device = HostAccelerator()
    loader = make(graph, device=device, cache=cache, transfer=transfer)
    assert [bits(batch) for batch in loader] == [bits(batch) for batch in make(graph)]
    assert set(loader.transfers) == {"user/feat", "user/age", "item/feat", "item/label"}
    loader.close()


@pytest.mark.compilers
@pytest.mark.parametrize("seeds", [SEEDS, {"item": SEEDS["item"]}], ids=["two types", "one type"])
@pytest.mark.parametrize("workers", [0, 2])
def test_sampled_on_an_accelerator(graph, seeds, workers, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr("pagraph.engine.program._LEARNED", 2)
    monkeypatch.setattr("pagraph.engine.program._SETTLING", 2)
    device = HostAccelerator()
    options = {"num_workers": workers, "cache": 0.3, "cache_policy": "degree"}
    options |= {"sampling_device": device, "transfer": "zero-copy"}
    loader = make(graph, seeds, device=device, **options)
    assert loader.sampling_placement.startswith("device")
    plain = make(graph, seeds)
    expected = [bits(batch) for _ in range(4) for batch in plain]
    assert [bits(batch) for _ in range(4) for batch in loader] == expected
    # Batches of seeds of one type are made by one launch once their sizes are known.
    assert loader._program is None or loader._program._made
    assert (loader._program is None) == (len(seeds) > 1)
    # Most batches of seeds of one type have as many of them: their way is recorded.
    assert loader._device_sampler.is_recorded == (len(seeds) == 1)
    loader.close()


def test_several_edge_types_between_vertices_of_one_type():
    csc = {
        ("v", name, "v"): CSC.from_coo([0, 1, 2], [1, 2, end], 4)
        for name, end in (("x", 3), ("y", 0))
    }
    graph = Graph(csc, {"v": 4}, ndata={"feat": torch.arange(8.0).view(4, 2)})
    loader = Loader(graph, [3, 0], NeighborSampler([-1]), fields=["feat"], labels=["feat"])
    first, second = loader
    assert isinstance(first, HeteroMiniBatch) and loader.cache_plan.num_nodes == 4
    assert first.input_nodes["v"].tolist() == [3, 2] and second.input_nodes["v"].tolist() == [0, 2]
    assert first.features["v"]["feat"].tolist() == [[6.0, 7.0], [4.0, 5.0]]
    assert second.labels["v"]["feat"].tolist() == [[0.0, 1.0]]


def test_a_homogeneous_graph_may_name_its_types():
    graph = Graph(
        {("p", "cites", "p"): CSC.from_coo([0, 1], [1, 2], 3)}, ndata={"feat": torch.eye(3)}
    )
    (batch,) = Loader(
        graph, {"p": [2, 1]}, NeighborSampler([1]), fields={"p": ["feat"]}, batch_size=2
    )
    assert batch.input_nodes.tolist() == [2, 1, 0] and torch.equal(
        batch.features["feat"], torch.eye(3)[[2, 1, 0]]
    )


def test_batches_move_to_a_device(graph):
    batch = next(iter(make(graph)))
    assert bits(batch.to("cpu")) == bits(batch)
    there = batch.to("meta")
    tensors = [
        *there.output_nodes.values(),
        *there.input_nodes.values(),
        *there.features["user"].values(),
    ]
    tensors += [r.indices for block in there.blocks for r in block.relations.values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"seeds": [1, 2]},
            ValueError,
            r"seeds must be a mapping from vertex type for the types \['user', 'item'",
        ),
        (
            {"seeds": {"shop": [1]}},
            KeyError,
            "seeds must be of vertex types among .*'none'.*, got 'shop'",
        ),
        ({"seeds": {"item": [60]}}, IndexError, r"seeds\['item'\] must be in \[0, 60\), got 60"),
        ({"seeds": {"item": [0.5]}}, TypeError, r"seeds\['item'\] must hold integers, got float64"),
        (
            {"seeds": {"item": [True, False]}},
            ValueError,
            r"seeds\['item'\] must have shape \(60,\) as a mask of all v",
        ),
        (
            {"fields": ["feat"]},
            ValueError,
            "fields must be a mapping from vertex type for the types",
        ),
        ({"fields": {"user": "feat"}}, TypeError, r"fields\['user'\] must be a list of names"),
        (
            {"fields": {"shop": ["feat"]}},
            KeyError,
            "fields must be of vertex types among .*, got 'shop'",
        ),
        (
            {"labels": {"item": ["age"]}},
            KeyError,
            r"labels must be among \['feat', 'label'\] of 'item', got 'age'",
        ),
    ],
)
def test_bad_input(graph, options, error, text):
    with pytest.raises(error, match=text):
        make(graph, **options)
