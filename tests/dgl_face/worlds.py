"""Graphs of several shapes, with what edge-wise samplers must know of them, for the differential
tests."""

import functools
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cases import dgl, random_field

FOLLOWS, BUYS, VIEWS = (
    ("user", "follows", "user"),
    ("user", "buys", "item"),
    ("user", "views", "item"),
)
BOUGHT, TAGS = ("item", "bought-by", "user"), ("tag", "on", "item")
HAS, MADE = ("item", "has", "ghost"), ("ghost", "made", "user")

# Vertices by type; edges by relation: how many, and whose reverse they are (None, their own other
# half's, or those of another relation with the same ids).
SHAPES = {
    "homogeneous": ({"_N": 60}, {("_N", "_E", "_N"): (300, "paired")}),
    # Nothing leads to a tag; there is no ghost; users and items have two relations.
    "heterograph": (
        {"user": 40, "item": 25, "tag": 8, "ghost": 0},
        {
            FOLLOWS: (160, "paired"),
            BUYS: (90, None),
            VIEWS: (70, None),
            BOUGHT: (90, BUYS),
            TAGS: (30, None),
            HAS: (0, None),
            MADE: (0, None),
        },
    ),
    "relations": (
        {"v": 50},
        {
            ("v", "a", "v"): (150, None),
            ("v", "b", "v"): (100, "paired"),
            ("v", "back", "v"): (150, ("v", "a", "v")),
        },
    ),
    "bipartite": ({"left": 40, "right": 30}, {("left", "to", "right"): (200, None)}),
    "edgeless": ({"v": 18, "w": 20}, {("v", "a", "w"): (0, None), ("v", "b", "v"): (0, None)}),
}
SINGLE = ("homogeneous",)
FLOATS = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, eq=False)
class World:
    """A graph, and which edge is the reverse of which."""

    graph: Any
    reverse_eids: dict[tuple[str, str, str], torch.Tensor]
    reverse_etypes: dict[str, str]


@functools.cache
def make_world(shape, idtype=torch.int64, layout="unsorted"):
    """A graph of ``SHAPES`` with columns of all sorts; the same object throughout a test.

    Layouts: edges "unsorted", "sorted" by destination, made from "csc" arrays, or in "csc only".
    """
    counts, relations = SHAPES[shape]
    rng = np.random.default_rng(len(shape))
    edges, reverse_eids = {}, {}
    for etype, (m, reverse) in relations.items():
        reverse_eids[etype] = torch.arange(m, dtype=idtype)
        if isinstance(reverse, tuple):
            edges[etype] = edges[reverse][::-1]
            continue
        src, dst = _random_edges(rng, counts[etype[0]], counts[etype[2]], m, reverse == "paired")
        order = np.argsort(dst, kind="stable") if layout == "sorted" else np.arange(m)
        edges[etype] = src[order], dst[order]
        if reverse == "paired":
            reverse_eids[etype] = torch.from_numpy(np.argsort(order)[(order + m // 2) % m]).to(
                idtype
            )
    graph = _as_graph(edges, counts, idtype, layout)
    for ntype in graph.ntypes:
        graph.nodes[ntype].data.update(_node_columns(ntype, graph.num_nodes(ntype)))
    for i, (etype, (_, dst)) in enumerate(edges.items()):
        graph.edges[etype].data.update(_edge_columns(i, dst))
    turned = {
        etype[1]: other[1] for etype, (_, other) in relations.items() if isinstance(other, tuple)
    }
    return World(graph, reverse_eids, turned | {other: name for name, other in turned.items()})


def _as_graph(edges, counts, idtype, layout):
    data = {
        etype: tuple(torch.from_numpy(ends.copy()).to(idtype) for ends in pair)
        for etype, pair in edges.items()
    }
    graph = dgl.heterograph(data, counts, idtype=idtype)
    if "csc" not in layout:
        return graph
    data = {etype: ("csc", graph.adj_tensors("csc", etype)) for etype in data}
    graph = dgl.heterograph(data, counts, idtype=idtype)
    return graph.formats("csc") if layout == "csc only" else graph


def _random_edges(rng, num_src, num_dst, m, paired):
    """Edges with self-loops and parallel ones that leave the last vertices alone; paired: i's
    reverse is i + m/2."""
    src, dst = rng.integers(0, max(num_src - 3, 1), m), rng.integers(0, max(num_dst - 3, 1), m)
    src[: m // 20], dst[: m // 20] = 2, 2
    if paired:
        src[m // 2 :], dst[m // 2 :] = dst[: m // 2], src[: m // 2]
    return src, dst


def mapped(tensor):
    """The same values in a mapped file, which goes with the tensor: what the cache on the CPU is
    for."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return tensor
    with tempfile.NamedTemporaryFile() as file:
        file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        file.flush()
        storage = torch.from_file(file.name, shared=True, size=size, dtype=torch.uint8)
    return storage.view(tensor.dtype).view(tensor.shape)


def _node_columns(ntype, n):
    """The same name with another width and dtype in each type; no labels for tags."""
    kinds = {
        "item": ((3, 2), torch.float64),
        "tag": ((), torch.uint8),
        "right": ((5,), torch.float16),
    }
    shape, dtype = kinds.get(ntype, ((8,), torch.float32))
    columns = {
        "feat": mapped(random_field(n, shape, dtype, len(ntype))),
        "plain": random_field(n, (2,), torch.float32),
    }
    return columns if ntype == "tag" else columns | {"label": random_field(n, (), torch.int64, 1)}


def _edge_columns(i, dst):
    """Two kinds of "w"; weights "p_..." and masks "m_..." with zeros, which every third relation
    lacks.

    All edges into some vertices weigh nothing.
    """
    m, generator = len(dst), torch.Generator().manual_seed(i)
    columns = {
        "w": random_field(m, (2,) if i % 2 else (), torch.float64 if i % 2 else torch.float32, i)
    }
    if i % 3 == 2:
        return columns
    weights = torch.rand(m, generator=generator, dtype=torch.float64) + 0.1
    weights[
        (torch.rand(m, generator=generator) < 0.3) | torch.from_numpy(np.isin(dst, (0, 1, 5)))
    ] = 0.0
    columns |= {f"p_{name}": weights.to(dtype) for name, dtype in FLOATS.items()}
    return columns | {"m_bool": weights > 0, "m_uint8": (weights > 0).to(torch.uint8)}


def seeds_of(world, kind, seed=0):
    """Vertices to begin with: a tensor, or a mapping from type, as a user would give them."""
    graph, generator = world.graph, torch.Generator().manual_seed(seed)
    ids = {
        ntype: torch.randperm(n, generator=generator)[: 30 - 4 * i].to(graph.idtype)
        for i, ntype in enumerate(reversed(graph.ntypes))
        if (n := graph.num_nodes(ntype))
    }
    if kind == "one type":
        ids = dict(list(ids.items())[-1:])
    if kind == "repeated":
        ids = {ntype: torch.cat([part, part[:5], part[:5]]) for ntype, part in ids.items()}
    return next(iter(ids.values())) if len(graph.ntypes) == 1 and kind != "dict" else ids


def edge_seeds_of(world, keys, seed=0):
    """Edges to begin with, of several types, some of them twice."""
    graph, generator = world.graph, torch.Generator().manual_seed(seed)
    ids = {}
    for i, etype in enumerate(graph.canonical_etypes[::-1]):
        if (m := graph.num_edges(etype)) and i != 1:
            part = torch.randperm(m, generator=generator)[: 25 - 3 * i].to(graph.idtype)
            ids[etype if keys == "canonical" else etype[1]] = torch.cat([part, part[:2]])
    return next(iter(ids.values())) if len(graph.canonical_etypes) == 1 and keys == "none" else ids
