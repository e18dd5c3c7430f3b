"""The list of cases that DGL's loader and ours run: node-wise and edge-wise, in pairs of
options."""

import torch
from cases import dgl
from pairwise import pairwise
from worlds import edge_seeds_of, make_world, seeds_of

from dgl.utils import recursive_apply  # isort: skip

d = dgl.dataloading
LOADER = {
    "cache": [0, "1%", 1.0],
    "prefetch": [0, 1, 4],
    "num_workers": [0, 2],
    "shuffle": [False, True],
}
IDTYPES = [torch.int64, torch.int32]
COLUMNS = ["none", "name", "canonical"]
# Each in DGL's order: the last entry serves the seeds.
FANOUTS = {
    "all": lambda etypes: [-1],
    "all, 3 hops": lambda etypes: [-1, -1, -1],
    "more than there are": lambda etypes: [1000, 77],
    "by relation": lambda etypes: [{c: (-1, 500)[i % 2] for i, c in enumerate(etypes)}, -1],
    "none of some": lambda etypes: [-1, {c[1]: (-1, 0, 99)[i % 3] for i, c in enumerate(etypes)}],
    "few": lambda etypes: [2, 3],
    "few by relation": lambda etypes: [{c: (-1, 2, 1)[i % 3] for i, c in enumerate(etypes)}, 4],
    "few of some": lambda etypes: [3, {c[1]: (2, 0, 4)[i % 3] for i, c in enumerate(etypes)}],
}
DETERMINISTIC = [name for name in FANOUTS if not name.startswith("few")]
RANDOM = [name for name in FANOUTS if name.startswith("few")]
WEIGHTS = {
    "uniform": {},
    "p32": {"prob": "p_float32"},
    "p64": {"prob": "p_float64"},
    "mask": {"mask": "m_bool"},
    "mask8": {"mask": "m_uint8"},
    "nowhere": {"prob": "no such column"},
}
NODE_OPTIONS = {
    "shape": ["homogeneous", "heterograph", "relations", "bipartite", "edgeless"],
    "idtype": IDTYPES,
    "layout": ["unsorted", "sorted", "csc only"],
    "weights": list(WEIGHTS),
    "columns": COLUMNS,
    "seeds": ["plain", "one type", "repeated", "dict"],
    "drop_last": [False, True],
    **LOADER,
}
EDGE_OPTIONS = {
    "shape": ["homogeneous", "heterograph", "relations", "bipartite"],
    "idtype": IDTYPES,
    "layout": ["unsorted", "sorted", "csc"],  # DGL cuts no edges out of a graph in CSC form only
    "exclude": [None, "self", "reverse_id", "reverse_types", "ids", "function"],
    "negatives": [None, "uniform", "global", "function", "class"],
    "keys": ["name", "canonical", "none"],
    "labels": COLUMNS,
    "weights": ["uniform", "p32", "mask"],
    "columns": COLUMNS,
    **LOADER,
}
KINDS = ["neighbor", "labor"]
NODE_CASES = pairwise(kind=KINDS, fanouts=DETERMINISTIC, replace=[False], **NODE_OPTIONS)
# "All" with replacement is all, once.
NODE_CASES += [{**case, "fanouts": "all", "replace": True} for case in NODE_CASES[:2]]
RANDOM_NODE_CASES = pairwise(fanouts=RANDOM, replace=[False, True], **NODE_OPTIONS)
EDGE_CASES = pairwise(kind=KINDS, fanouts=DETERMINISTIC, **EDGE_OPTIONS)
RANDOM_EDGE_CASES = pairwise(fanouts=RANDOM, **EDGE_OPTIONS)


def case_name(case):
    return "-".join(str(value).removeprefix("torch.") for value in case.values())


def world_of(case):
    return make_world(case["shape"], case["idtype"], case["layout"])


def loader_options(case):
    """What both loaders take, and what only ours does."""
    return {key: case[key] for key in ("shuffle", "drop_last") if key in case}, {
        key: case[key] for key in ("cache", "prefetch", "num_workers")
    }


def node_seeds(case):
    return seeds_of(world_of(case), case["seeds"])


def edge_seeds(case):
    return edge_seeds_of(world_of(case), case["keys"])


def node_sampler(case, *, fused=False):
    """DGL's sampler object. For DGL's loader not ``fused``, which is wrong on int32 graphs from the
    2nd batch on."""
    graph = world_of(case).graph
    fanouts = FANOUTS[case["fanouts"]](graph.canonical_etypes)
    if graph.is_homogeneous:
        fanouts = [
            next(iter(f.values())) if isinstance(f, dict) and 0 in f.values() else f
            for f in fanouts
        ]
    names = prefetching(graph, case["columns"])
    # Without weights: DGL reads those of other edges, see test_differential_labor.
    if case.get("kind") == "labor":
        return d.LaborSampler(fanouts, **names)
    return d.NeighborSampler(
        fanouts,
        replace=case.get("replace", False),
        fused=fused,
        **WEIGHTS[case["weights"]],
        **names,
    )


def prefetching(graph, form):
    """The prefetch arguments of a block sampler: none, by type name, or by canonical type; lists
    where there is one."""
    if form == "none":
        return {}
    feats = {ntype: ["feat"] for ntype in graph.ntypes}
    labels = {ntype: ["label"] for ntype in graph.ntypes if "label" in graph.nodes[ntype].data}
    if len(graph.ntypes) == 1 and form == "name":
        feats, labels = feats[graph.ntypes[0]], labels[graph.ntypes[0]]
    return dict(
        prefetch_node_feats=feats,
        prefetch_labels=labels,
        prefetch_edge_feats=edge_names(graph, form),
    )


def edge_names(graph, form):
    """Edge columns to prefetch; not those of every relation."""
    if form == "none":
        return None
    if graph.is_homogeneous and form == "name":
        return ["w"]
    return {
        c if form == "canonical" else c[1]: ["w"]
        for i, c in enumerate(graph.canonical_etypes)
        if i % 4 != 3
    }


def edge_sampler(case, negative_sampler, *, fused=False, copying=False):
    """DGL's edge-wise sampler object; ``copying``: excluding copies of the ids, as DGL's loader
    needs.

    DGL sorts the ids that it excludes, in place: with "self" and "reverse_types" these are the pair
    graph's edge ids, and the batch's indices, which then belong to other edges. The reference is
    given copies.
    """
    world = world_of(case)
    graph, exclude, reverse = world.graph, case["exclude"], {}
    tensor_seeds = case["keys"] == "none" and len(graph.canonical_etypes) == 1
    if exclude == "reverse_id":
        reverse["reverse_eids"] = (
            next(iter(world.reverse_eids.values())) if tensor_seeds else world.reverse_eids
        )
    elif exclude == "reverse_types":
        exclude = "self" if tensor_seeds else exclude  # DGL asks for a mapping of seeds here
        reverse["reverse_etypes"] = world.reverse_etypes
    elif exclude in ("ids", "function"):
        ids = {
            c: torch.arange(0, m, 3, dtype=graph.idtype) for c, m in counts_of(graph).items() if m
        }
        exclude = ids if exclude == "ids" else lambda seeds, ids=ids: ids
    if copying:
        mode, found = exclude, d.base.find_exclude_eids
        exclude = lambda seeds: recursive_apply(found(graph, seeds, mode, **reverse), torch.clone)  # noqa: E731
        exclude = None if mode is None else exclude
    return d.as_edge_prediction_sampler(
        node_sampler(case, fused=fused),
        exclude=exclude,
        negative_sampler=negative_sampler,
        prefetch_labels=edge_names(graph, case["labels"]),
        **reverse,
    )


def counts_of(graph):
    return {etype: graph.num_edges(etype) for etype in graph.canonical_etypes}


class Shifted:
    """A negative sampler of the user's own: the next vertex, of some of the edge types, as a
    dict."""

    def __call__(self, graph, seeds):
        if not isinstance(seeds, dict):
            seeds = {graph.canonical_etypes[0]: seeds}
        ends = {c: graph.find_edges(ids, etype=c) for c, ids in seeds.items()}
        return {
            c: (src, (dst + 1) % graph.num_nodes(c[2])) for c, (src, dst) in list(ends.items())[:2]
        }


def shifted(graph, seeds):
    """The same as a function; a pair where the graph has one edge type."""
    ends = Shifted()(graph, seeds)
    return next(iter(ends.values())) if len(graph.canonical_etypes) == 1 else ends


NEGATIVES = {
    None: lambda: None,
    "uniform": lambda: d.negative_sampler.Uniform(2),
    "global": lambda: d.negative_sampler.GlobalUniform(2),
    "function": lambda: shifted,
    "class": Shifted,
}
