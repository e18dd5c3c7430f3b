"""Edges, vertices and rows that change within an epoch: each batch is of the graph as it then is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.dgl import DataLoader, to_dgl
from pagraph.pyg import NeighborLoader as PygLoader
from pagraph.pyg import to_pyg

from .loaders import FANOUTS, check_no_threads, draw_options, graph_of
from .worker import Case

import dgl  # isort: skip  (pagraph.dgl makes it importable)

d = dgl.dataloading
SEEDS = 120
_MOST = 200
"""Edges removed at once; the sample has thousands, and its seeds among them stay."""


def trial(case: Case) -> None:
    graph, options = graph_of(case.samples), draw_options(case)
    torch.manual_seed(case.rng.randrange(2**31))
    # Only DGL's has edges that change.
    ATTACKS[case.choose("loader", ["dgl", "dgl", "dgl", "core", "pyg"])](case, graph, options)
    check_no_threads()


def of_dgl(case: Case, graph: Graph, options: dict[str, Any]) -> None:
    given: Any = graph if case.rng.random() < 0.5 else to_dgl(graph)
    sampler = SAMPLERS[case.choose("sampler", SAMPLERS)](case.rng)
    loader = DataLoader(given, torch.arange(SEEDS), sampler, **options)
    own = loader.graph
    # A column in memory, beside those in files.
    own.edata["p"] = torch.rand(own.num_edges())
    changes = []
    for _ in range(2):
        for batch in loader:
            check_batch(batch, own)
            for _ in range(case.rng.choice([0, 0, 1, 2])):
                changes.append(case.rng.choice(list(CHANGES)))
                CHANGES[changes[-1]](own, case.rng)
    case.done.append(f"changes: {changes}")


def of_core(case: Case, graph: Graph, options: dict[str, Any]) -> None:
    loader = Loader(
        graph, range(SEEDS), NeighborSampler(FANOUTS), fields=["feat"], labels=["label"], **options
    )
    for _ in range(2):
        for batch in loader:
            found, label = batch.features["feat"], batch.labels["label"]
            assert torch.equal(found, graph.ndata["feat"][batch.input_nodes]), "rows of 'feat'"
            assert torch.equal(label, graph.ndata["label"][batch.output_nodes]), "rows of 'label'"
            if case.rng.random() < 0.5:
                width = case.rng.choice([2, 6])
                graph.set_field("feat", torch.rand(graph.num_nodes, width))
            elif case.rng.random() < 0.5:
                graph.ndata["label"].add_(1)


def of_pyg(case: Case, graph: Graph, options: dict[str, Any]) -> None:
    """A loader keeps the edges that it was made with, as PyG's does; their rows are the present."""
    data = to_pyg(graph)
    data.edge_attr = torch.rand(data.num_edges)
    edges = data.edge_index.clone()
    loader = PygLoader(data, FANOUTS, input_nodes=torch.arange(SEEDS), **options)
    for _ in range(2):
        for batch in loader:
            ends = batch.n_id[batch.edge_index]
            assert torch.equal(ends, edges[:, batch.e_id]), "edges of another graph"
            assert torch.equal(batch.x, data.x[batch.n_id]), "rows of 'x'"
            assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id]), "rows of 'edge_attr'"
            change = case.rng.randrange(6)
            if change == 0:
                data.edge_index = edges.flip(0)
            elif change == 1:
                data.edge_attr = torch.rand(data.num_edges, case.rng.choice([1, 3]))
            elif change == 2:
                data.x = torch.rand(data.num_nodes, case.rng.choice([2, 6]))
            elif change == 3:
                data.edge_attr.mul_(2)


ATTACKS = {"dgl": of_dgl, "core": of_core, "pyg": of_pyg}


def check_batch(batch: Any, graph: Any) -> None:
    """Everything in a batch of DGL's loader is the graph's, as it is now."""
    if isinstance(batch, (tuple, list)):
        for part in batch:
            check_batch(part, graph)
    elif isinstance(batch, dgl.DGLGraph):
        _check_sampled(batch, graph)


def _check_sampled(sampled: Any, graph: Any) -> None:
    """Edges and rows of a block, a subgraph or a graph of pairs."""
    sources, ends = sampled.srcdata, sampled.dstdata
    for frame in (sources, ends):
        ids = frame[dgl.NID]
        assert not len(ids) or int(ids.max()) < graph.num_nodes(), "vertices of another graph"
        for name in set(frame) - {dgl.NID}:
            assert torch.equal(frame[name], graph.ndata[name][ids]), f"rows of {name!r}"
    if dgl.EID not in sampled.edata:  # negative pairs
        return
    ids = sampled.edata[dgl.EID]
    assert not len(ids) or int(ids.max()) < graph.num_edges(), "edges of another graph"
    src, dst = sampled.edges()
    found = sources[dgl.NID][src], ends[dgl.NID][dst]
    there = graph.find_edges(ids)
    # Blocks of out-edges have these turned round.
    assert any(
        torch.equal(found[0], a) and torch.equal(found[1], b) for a, b in (there, there[::-1])
    ), "edges of another graph"
    for name in set(sampled.edata) - {dgl.EID, "edge_weights"}:
        assert torch.equal(sampled.edata[name], graph.edata[name][ids]), f"edge rows of {name!r}"


class _Own(d.NeighborSampler):
    """Not sampled by our kernels."""

    def sample_blocks(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        return super().sample_blocks(g, seed_nodes, exclude_eids)


def _links(rng: random.Random) -> Any:
    negatives = d.negative_sampler.Uniform(1) if rng.random() < 0.5 else _last
    inner = d.NeighborSampler(FANOUTS, **_READ)
    exclude = rng.choice([None, "self", lambda edges: edges])
    return d.as_edge_prediction_sampler(
        inner, exclude=exclude, negative_sampler=negatives, prefetch_labels=["w"]
    )


def _last(graph: Any, edges: Any) -> tuple[Any, Any]:
    """A user's negatives."""
    src, _ = graph.find_edges(edges)
    return src, torch.full_like(src, graph.num_nodes() - 1)


_READ = {"prefetch_node_feats": ["feat"], "prefetch_edge_feats": ["w"]}
SAMPLERS: dict[str, Callable[[random.Random], Any]] = {
    "neighbours": lambda rng: d.NeighborSampler(FANOUTS, prefetch_labels=["label"], **_READ),
    "nothing read ahead": lambda rng: d.NeighborSampler(FANOUTS),
    "all": lambda rng: d.MultiLayerFullNeighborSampler(2, **_READ),
    "weights": lambda rng: d.NeighborSampler(FANOUTS, prob="p", replace=rng.random() < 0.5),
    "out": lambda rng: d.NeighborSampler(FANOUTS, edge_dir="out", **_READ),
    "labor": lambda rng: d.LaborSampler(FANOUTS, **_READ),
    "shadow": lambda rng: d.ShaDowKHopSampler(FANOUTS, **_READ),
    "saint": lambda rng: d.SAINTSampler(rng.choice(["node", "edge"]), 40, prefetch_ndata=["feat"]),
    "links": _links,
    "the user's": lambda rng: _Own(FANOUTS, fused=False, prefetch_labels=["label"], **_READ),
}


def _remove_edges(graph: Any, rng: random.Random) -> None:
    count = rng.randrange(1, _MOST)
    if graph.num_edges() - count > SEEDS:
        graph.remove_edges(torch.randperm(graph.num_edges())[:count])


def _add_edges(graph: Any, rng: random.Random) -> None:
    count = rng.randrange(1, _MOST)
    ends = torch.randint(0, graph.num_nodes(), (2, count))
    rows = {name: torch.ones(count, *values.shape[1:]) for name, values in graph.edata.items()}
    graph.add_edges(*ends, rows if rng.random() < 0.5 else None)


def _as_many(graph: Any, rng: random.Random) -> None:
    """No size shows it."""
    count = rng.randrange(1, 50)
    graph.remove_edges(torch.randperm(graph.num_edges())[:count])
    graph.add_edges(*torch.randint(0, graph.num_nodes(), (2, count)))


def _remove_vertices(graph: Any, rng: random.Random) -> None:
    others = graph.num_nodes() - SEEDS
    if others > 5:
        graph.remove_nodes(SEEDS + torch.randperm(others)[: rng.randrange(1, 6)])


def _add_vertices(graph: Any, rng: random.Random) -> None:
    """With edges from them."""
    count, first = rng.randrange(1, 5), graph.num_nodes()
    graph.add_nodes(count)
    graph.add_edges(torch.arange(first, first + count), torch.randint(0, SEEDS, (count,)))


def _replace(graph: Any, rng: random.Random) -> None:
    graph.ndata["feat"] = torch.rand(graph.num_nodes(), rng.choice([2, 6]))
    graph.edata["w"] = torch.rand(graph.num_edges())


def _write(graph: Any, rng: random.Random) -> None:
    graph.edata["w"].add_(1)
    graph.ndata["label"].add_(1)


def _read(graph: Any, rng: random.Random) -> None:
    """DGL gathers columns that wait."""
    for frame in (graph.ndata, graph.edata):
        _ = dict(frame)


CHANGES: dict[str, Callable[[Any, random.Random], None]] = {
    change.__name__[1:]: change
    for change in (
        *(_remove_edges, _add_edges, _as_many, _remove_vertices, _add_vertices),
        *(_replace, _write, _read),
    )
}
