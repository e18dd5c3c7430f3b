"""HGTLoader and HGTSampler: PyG's arguments and batches."""

import inspect
import pickle

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import HGTLoader as PyGHGTLoader
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput

from pagraph.pyg import HGTLoader, HGTSampler

pytestmark = pytest.mark.kernels


COUNTS = {"paper": 90, "author": 60, "venue": 7}
EDGES = {("author", "writes", "paper"): 300, ("paper", "cites", "paper"): 400, ("venue", "holds", "paper"): 90,
         ("paper", "by", "author"): 300}  # fmt: skip


def random_data(seed=0):
    generator, data = torch.Generator().manual_seed(seed), HeteroData()
    for ntype, count in COUNTS.items():
        data[ntype].x = torch.randn(count, 3, generator=generator)
        data[ntype].number = torch.arange(count)
    for etype, count in EDGES.items():
        ends = [
            torch.randint(COUNTS[etype[place]], (count,), generator=generator) for place in (0, 2)
        ]
        data[etype].edge_index, data[etype].edge_attr = torch.stack(ends), torch.arange(count)
    return data


def content(batch):
    return {
        key: {
            name: value.tolist() if isinstance(value, torch.Tensor) else value
            for name, value in store.items()
        }
        for key, store in [*batch.node_items(), *batch.edge_items()]
    }


def all_content(loader):
    return [content(batch) for batch in loader]


def test_a_batch_holds_all_edges_among_its_vertices():
    data = random_data()
    loader = HGTLoader(
        data, {"paper": [4, 3], "author": [5, 0], "venue": [1, 1]}, "paper", batch_size=20
    )
    assert len(loader) == 5 and str(loader) == "HGTLoader()"
    for batch in loader:
        assert isinstance(batch, HeteroData) and batch.metadata() == data.metadata()
        papers = batch["paper"]
        assert set(papers.keys()) == {"x", "number", "n_id", "input_id", "batch_size"}
        assert papers.n_id[: papers.batch_size].tolist() == papers.input_id.tolist()
        assert papers.num_nodes == papers.batch_size + 7 and batch["author"].num_nodes == 5
        assert batch["venue"].num_nodes == 2
        for ntype in COUNTS:
            store = batch[ntype]
            assert len(store.n_id.unique()) == len(store.n_id) and torch.equal(
                store.n_id, store.number
            )
            assert torch.equal(store.x, data[ntype].x[store.n_id])
        for etype in EDGES:
            src, dst = (batch[etype[place]].n_id.tolist() for place in (0, 2))
            ends = data[etype].edge_index.t().tolist()
            expected = {
                (src.index(u), dst.index(v), e)
                for e, (u, v) in enumerate(ends)
                if u in src and v in dst
            }
            store = batch[etype]
            assert set(store.keys()) == {
                "edge_index",
                "edge_attr",
                "e_id",
            } and store.num_edges == len(expected)
            assert (
                set(zip(*store.edge_index.tolist(), store.e_id.tolist(), strict=True)) == expected
            )
            assert torch.equal(store.e_id, store.edge_attr)


def test_types_that_are_not_reached_are_there_and_empty():
    data = random_data()
    del data["author", "writes", "paper"], data["venue", "holds", "paper"]
    batch = next(iter(HGTLoader(data, [3, 3], ("paper", [1, 2]), batch_size=2)))
    assert batch["venue"].x.shape == (0, 3) and batch["author"].num_nodes == 0
    assert batch["paper", "by", "author"].edge_index.shape == (2, 0)


def test_same_bits_with_any_number_of_threads():
    data, epochs = random_data(), []
    for how in ({}, {"prefetch": 0}, {"num_workers": 2}, {"num_workers": 3, "prefetch": 5}):
        loader = HGTLoader(data, [5, 5], "paper", batch_size=9, shuffle=True, seed=1, **how)
        epochs.append(all_content(loader) + all_content(loader))
    assert all(epoch == epochs[0] for epoch in epochs) and epochs[0][0] != epochs[0][10]


def test_is_pygs_class_with_pygs_arguments():
    loader = HGTLoader(random_data(), [2, 2], ("author", torch.arange(60) < 9), batch_size=4)
    assert isinstance(loader, PyGHGTLoader) and len(loader) == 3
    assert loader.node_sampler.num_hops == 2 and loader.node_sampler.num_samples["venue"] == [2, 2]
    assert loader.input_data.node.tolist() == list(range(9))
    ours, theirs = (inspect.signature(cls.__init__).parameters for cls in (HGTLoader, PyGHGTLoader))
    assert [(p.name, p.default) for p in ours.values()] == [
        (p.name, p.default) for p in theirs.values()
    ]


def test_transforms_and_a_copy():
    settings = {
        "input_nodes": ("paper", torch.arange(30)),
        "batch_size": 10,
        "shuffle": True,
        "seed": 2,
    }
    loader = HGTLoader(
        random_data(), [3], transform=len_of_papers, transform_sampler_output=noted, **settings
    )
    sizes = list(loader)
    assert sizes == [13, 13, 13]
    plain = HGTLoader(random_data(), [3], **settings)
    assert all_content(pickle.loads(pickle.dumps(plain))) == all_content(plain)
    assert content(plain([4, 5]))["paper"]["n_id"][:2] == [4, 5]


def len_of_papers(batch):
    return batch["paper"].num_nodes


def noted(output):
    assert output.num_sampled_nodes is None and output.batch is None
    return output


def test_pygs_own_loader_with_our_sampler():
    data = random_data()
    sampler = HGTSampler(data, [4, 4])
    for batch in NodeLoader(data, sampler, ("paper", torch.arange(20)), batch_size=10):
        assert batch["paper"].num_nodes == 18 and torch.equal(
            batch["paper"].n_id, batch["paper"].number
        )
    with pytest.raises(NotImplementedError, match="HGTSampler does not sample from edges"):
        sampler.sample_from_edges(None)
    inputs = NodeSamplerInput(torch.arange(3), torch.arange(3), None, "paper")
    torch.manual_seed(0)
    one = sampler.sample_from_nodes(inputs).node["paper"]
    torch.manual_seed(0)
    assert torch.equal(one, sampler.sample_from_nodes(inputs).node["paper"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"data": Data()},
            NotImplementedError,
            "HGTSampler does not support a data object of type <class",
        ),
        (
            {"num_samples": {"paper": [2]}},
            ValueError,
            "num_samples must be given for every vertex type, 'author'",
        ),
        (
            {"num_samples": dict.fromkeys([*COUNTS, "book"], [2])},
            ValueError,
            "vertex types among .*, got 'book'",
        ),
        (
            {"num_samples": 5},
            TypeError,
            "num_samples must be a list of integers, or a dict of such lists, got 5",
        ),
        ({"num_samples": [-1]}, ValueError, r"num_samples\['paper'\] must be at least 0, got -1"),
        ({"num_samples": [1.5]}, TypeError, r"num_samples\['paper'\] must be an integer, got 1.5"),
        (
            {"num_samples": {"paper": [1], "author": [1, 2], "venue": [1]}},
            ValueError,
            "the same number of hops for all vertex types, got .*'author': 2",
        ),
        ({"input_nodes": None}, ValueError, "input_nodes must be a vertex type, or a pair"),
        ({"input_nodes": "book"}, ValueError, "input_nodes must name one of the vertex types"),
        (
            {"input_nodes": ("paper", torch.ones(9, dtype=torch.bool))},
            ValueError,
            "a mask of all 90 vertices",
        ),
        ({"input_nodes": ("paper", [90])}, IndexError, r"input_nodes must be in \[0, 90\), got 90"),
        ({"transform": 3}, TypeError, "transform must be callable, got 3"),
        ({"cash": 0}, TypeError, "unexpected keyword argument 'cash'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        HGTLoader(
            **({"data": random_data(), "num_samples": [2], "input_nodes": "paper"} | arguments)
        )
