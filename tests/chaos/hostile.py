"""Folders whose arrays lie, under right checksums, and are written while open: no kernel leaves its
arrays.

The process has numba check every index: what would read or write elsewhere raises, with numba's own
words.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pagraph import Graph, Loader, NeighborSampler, inference, open_partition
from pagraph.datasets import export_graph, open_graph, reorder, write_graph
from pagraph.datasets.summary import summarise
from pagraph.dgl import DataLoader, to_dgl
from pagraph.dgl import sampling as dgl_sampling
from pagraph.partition import (
    describe,
    partition_graph,
    verify_partition,
    write_dgl,
    write_partition,
)
from pagraph.profile import hit_rate_curve
from pagraph.pyg import (
    ClusterData,
    ClusterLoader,
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    HGTLoader,
    LinkNeighborLoader,
    Node2Vec,
    ShaDowKHopSampler,
    to_pyg,
)
from pagraph.pyg import NeighborLoader as PygLoader
from pagraph.sampling import (
    ClusterSampler,
    EdgeBatches,
    GlobalUniformNegatives,
    HardNegatives,
    HGTSampler,
    LaborSampler,
    LayerSampler,
    RandomWalks,
    SaintSampler,
    ShaDowSampler,
    SubgraphSampler,
    UniformNegatives,
)
from pagraph.train import OneHop, TrainOptions
from pagraph.train.hetero import make_hetero_task
from pagraph.train.links import make_link_task
from pagraph.train.loop import train
from pagraph.train.preaggregation import preaggregate
from pagraph.train.task import make_task

from .files import seal
from .worker import Case, unclear

import dgl  # isort: skip  (pagraph.dgl makes it importable)

Use = Callable[[Graph, Path], Any]
_FOREIGN = ("/dgl/", "/torch_geometric/", "dgl._ffi")
"""Packages that may refuse a graph, which was checked, in their own words."""


def read(batches: Iterable[Any]) -> None:
    """All batches, and what is gathered of them when it is first read."""
    for batch in batches:
        for block in getattr(batch, "blocks", ()):
            for name in ("edge_ids", "positions"):
                getattr(block, name, None)
        if isinstance(batch, tuple) and isinstance(batch[-1], list):
            for block in batch[-1]:
                [
                    block.edges[etype].data[dgl.EID]
                    for etype in block.canonical_etypes
                    if block.num_edges(etype)
                ]


def core(sampler: Any, **options: Any) -> Use:
    """A core loader of all vertices."""

    def run(graph: Graph, _out: Path) -> None:
        seeds = {name: range(graph.num_nodes_of(name)) for name in graph.node_types}
        fields = {name: [*graph.node_fields(name)] for name in graph.node_types}
        only = graph.only_node_type if graph.is_homogeneous else None
        given = (seeds, fields) if only is None else (seeds[only], fields[only])
        read(
            Loader(
                graph,
                given[0],
                sampler,
                fields=given[1],
                **{"batch_size": 64, "num_workers": 1, **options},
            )
        )

    return run


def pairs(negatives: Any, **options: Any) -> Use:
    """A core loader of edges."""

    def run(graph: Graph, _out: Path) -> None:
        etype = graph.edge_types[0]
        ids = range(min(200, graph.csc_of(etype).num_edges))
        seeds = ids if graph.is_homogeneous else {etype: ids}
        sampler = EdgeBatches(NeighborSampler([3]), negatives=negatives, **options)
        read(Loader(graph, seeds, sampler, batch_size=50, num_workers=1))

    return run


def alone(sampler: Any) -> Use:
    """A sampler without a loader, a few batches of it."""

    def run(graph: Graph, _out: Path) -> None:
        for key in range(3):
            seeds = torch.arange(key * 20, key * 20 + 20)
            sampler.sample(graph, seeds if graph.is_homogeneous else {"paper": seeds}, key)

    return run


def timed(**options: Any) -> Use:
    """Trees in time."""

    def run(graph: Graph, _out: Path) -> None:
        sampler = SubgraphSampler([3, 2], time="t", disjoint=True, **options)
        seeds = torch.arange(0, 200, 2)
        for key in range(2):
            sampler.sample(graph, seeds, key, seed_times=seeds % 90)

    return run


def of_dgl(make: Callable[[], Any], whole: bool = False) -> Use:
    """The DGL face, of the folder's graph as it is or of DGL's own."""

    def run(graph: Graph, _out: Path) -> None:
        given = to_dgl(graph) if whole else graph
        ids = torch.arange(100)
        seeds = ids if graph.is_homogeneous else {graph.node_types[0]: ids[:50]}
        read(DataLoader(given, seeds, make(), batch_size=40))

    return run


def dgl_pairs(graph: Graph, _out: Path) -> None:
    etype = graph.edge_types[0]
    negatives = dgl.dataloading.negative_sampler.Uniform(1)
    blocks = dgl.dataloading.NeighborSampler([3])
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        blocks, exclude="self", negative_sampler=negatives
    )
    read(DataLoader(graph, {etype: torch.arange(100)}, sampler, batch_size=40))


def of_pyg(make: Callable[[Any], Any]) -> Use:
    """The PyG face."""

    def run(graph: Graph, _out: Path) -> None:
        read(make(to_pyg(graph)))

    return run


def clusters(data: Any) -> Any:
    return ClusterLoader(ClusterData(data, 5, log=False), batch_size=2)


def pinsage(graph: Graph, _out: Path) -> None:
    dgl_sampling.PinSAGESampler(to_dgl(graph), "_N", "_N", 3, 0.5, 4, 3)(torch.arange(40))


def node2vec(data: Any) -> Any:
    model = Node2Vec(
        data.edge_index, 4, walk_length=5, context_size=3, p=2.0, q=0.5, num_nodes=data.num_nodes
    )
    return model.loader(batch_size=64)


def walk(**options: Any) -> Use:
    def run(graph: Graph, _out: Path) -> None:
        RandomWalks(6, **options).sample(graph, torch.arange(200), 3, with_edges=True)

    return run


def parts(method: str, hops: int = 1, **options: Any) -> Use:
    """Divide, describe, and write parts."""

    def run(graph: Graph, out: Path) -> None:
        partition = partition_graph(graph, 3, hops=hops, method=method, **options)
        describe(partition)
        write_partition(partition, out / "divided")
        open_partition(out / "divided", 0, verify=True)

    return run


def parts_of_dgl(graph: Graph, out: Path) -> None:
    write_dgl(partition_graph(graph, 2, hops=1, method="hash"), out / "dgl-parts")


def ranked(policy: str, sampler: Any) -> Use:
    """A loader whose cache a policy fills, and the curve that it is expected to have."""

    def run(graph: Graph, out: Path) -> None:
        core(sampler, cache=0.2, cache_policy=policy)(graph, out)
        if graph.is_homogeneous:
            hit_rate_curve(
                graph,
                torch.arange(200),
                sampler,
                batch_size=50,
                epochs=2,
                policies=[policy],
                threads=1,
            )

    return run


def trained(**options: Any) -> Use:
    """An epoch, and the evaluation after it."""

    def run(graph: Graph, _out: Path) -> None:
        given = TrainOptions(epochs=1, hidden=4, heads=2, fanout=(3, 3), batch_size=64, **options)
        of_one_type = make_link_task if given.task == "links" else make_task
        make = of_one_type if graph.is_homogeneous else make_hetero_task
        task = make(graph, given)
        train(task, given, evaluation=task.evaluation())

    return run


def sums(model: str) -> Use:
    return lambda graph, out: preaggregate(graph, out / "sums", model=model)


def layers(graph: Graph, _out: Path) -> None:
    convolution = dgl.nn.SAGEConv(6, 4, "mean")
    degrees = OneHop(
        lambda block, x: block.indptr.diff()[:, None] + x[block.indices].sum() + x[: block.num_dst]
    )
    inference(graph, [convolution, torch.relu, degrees], memory="64MiB")


def moved(by: str) -> Use:
    def run(graph: Graph, out: Path) -> None:
        seeds = torch.arange(100)
        given = seeds if graph.is_homogeneous else {graph.node_types[0]: seeds[:50]}
        reorder(
            graph, out / "moved", by=by, seeds=given, sampler=NeighborSampler([3, 2]), batch_size=20
        )

    return run


def turned(graph: Graph, _out: Path) -> None:
    back = graph.reverse()
    for etype in back.edge_types:
        csc = back.csc_of(etype)
        csc.validate()
        assert csc.with_ascending_rows.loop_counts.numel() == csc.num_dst


def looked_up(graph: Graph, _out: Path) -> None:
    for etype in graph.edge_types:
        csc = graph.csc_of(etype)
        ids = torch.arange(csc.num_edges)
        positions = csc.positions_of(ids)
        assert (
            not csc.num_edges or 0 <= int(positions.min()) <= int(positions.max()) < csc.num_edges
        ), positions
        csc.ids_at(positions)
        csc.ends_at(positions)


def rewritten(graph: Graph, out: Path) -> None:
    write_graph(graph, out / "again")
    open_graph(out / "again", verify=True)


def exported(form: str) -> Use:
    def run(graph: Graph, out: Path) -> None:
        if form == "ogb":  # which has no weights, and no narrow fields
            graph = Graph(
                graph.csc,
                ndata={"label": graph.ndata["label"], "train_mask": graph.ndata["train_mask"]},
            )
        export_graph(graph, out / f"exported-{form}.pt", form=form)

    return run


def pyg_loader(**options: Any) -> Use:
    return of_pyg(
        lambda data: PygLoader(
            data, [3, 2], input_nodes=torch.arange(100), batch_size=40, **options
        )
    )


def pyg_links(**options: Any) -> Use:
    return of_pyg(
        lambda data: LinkNeighborLoader(
            data,
            [3],
            edge_label_index=data.edge_index[:, :80],
            neg_sampling="binary",
            batch_size=40,
            **options,
        )
    )


SAINTS = {"node": GraphSAINTNodeSampler, "edge": GraphSAINTEdgeSampler}
ANY: dict[str, Use] = {
    "reverse": turned,
    "positions": looked_up,
    "summary": lambda graph, _out: summarise(graph),
    "write": rewritten,
    "uniform": core(NeighborSampler([4, 3])),
    "uniform, all": core(NeighborSampler([-1, 2]), cache=0.3, shuffle=True),
    "many": core(NeighborSampler([70, 3])),
    "labor": core(LaborSampler([4, 3], importance_sampling=1)),
    "ladies": core(LayerSampler([40, 40])),
    "fastgcn": core(LayerSampler([40, 40], method="fastgcn")),
    "pairs": pairs(UniformNegatives(2), exclude=True),
    "global pairs": pairs(GlobalUniformNegatives(2)),
    "hard pairs": pairs(HardNegatives(2, power=0.75)),
    "hard pairs in batch": pairs(HardNegatives(1, in_batch=True)),
    "subgraph": alone(SubgraphSampler([3, 2])),
    "induced": alone(SubgraphSampler([3, 2], induced=True)),
    "trees": alone(SubgraphSampler([3, 2], disjoint=True)),
    "trees, induced": alone(SubgraphSampler([3, 2], disjoint=True, induced=True)),
    "hgt": alone(HGTSampler([20, 20])),
    "dgl": of_dgl(lambda: dgl.dataloading.NeighborSampler([3, 2])),
    "dgl whole": of_dgl(lambda: dgl.dataloading.NeighborSampler([3, 2]), whole=True),
    "dgl pairs": dgl_pairs,
    "to pyg": lambda graph, _out: to_pyg(graph),
    "pyg form": exported("pyg"),
    "degree": ranked("degree", NeighborSampler([3, 2])),
    "vip": ranked("vip", NeighborSampler([3, 2])),
    "presample": ranked("presample", NeighborSampler([3, 2])),
    "auto": ranked("auto", NeighborSampler([3, 2])),
    "hash parts": parts("hash"),
    "halo parts": parts("halo"),
    "paper parts": parts("pagraph"),
    "reorder": moved("reads"),
    "train": trained(),
}
"""What may be done with any graph."""
PLAIN: dict[str, Use] = {
    "uniform out": core(NeighborSampler([3, 2], replace=True, edge_dir="out")),
    "weighted": core(NeighborSampler([4, 3], prob="w")),
    "weighted, repeated": core(NeighborSampler([4, 20], prob="w", replace=True)),
    "masked": core(NeighborSampler([4, 3], prob="mask")),
    "labor by weight": core(LaborSampler([4, 3], prob="w")),
    "labor to the end": core(
        LaborSampler([4, 3], prob="w", importance_sampling=-1, layer_dependency=True)
    ),
    "ladies by weight": core(LayerSampler([40, 40], prob="w")),
    "fastgcn by weight": core(LayerSampler([40, 40], prob="w", method="fastgcn")),
    "times": timed(),
    "times, latest": timed(latest=True),
    "times, window": timed(time_window=20.0),
    "times, shared": timed(share_trees=True),
    "shadow": alone(ShaDowSampler(2, 5)),
    "saint nodes": lambda graph, _out: SaintSampler("node", 50).sample(graph),
    "saint edges": lambda graph, _out: SaintSampler("edge", 50).sample(graph),
    "saint walks": lambda graph, _out: SaintSampler("walk", 50, walk_length=3).sample(graph),
    "clusters": lambda graph, _out: ClusterSampler(torch.tensor([0, 100, 200])).sample(
        graph, torch.tensor([0, 1])
    ),
    "walks": walk(),
    "walks by weight": walk(prob="w"),
    "walks back": walk(p=0.5, q=2.0),
    "walks back by weight": walk(p=4.0, q=0.25, prob="w", edge_dir="in"),
    "dgl walks": lambda graph, _out: dgl_sampling.random_walk(
        to_dgl(graph), torch.arange(50), length=4, prob="w"
    ),
    "pinsage": pinsage,
    "dgl by weight": of_dgl(lambda: dgl.dataloading.NeighborSampler([3, 2], prob="w")),
    "dgl labor": of_dgl(lambda: dgl.dataloading.LaborSampler([3, 2])),
    "dgl shadow": of_dgl(lambda: dgl.dataloading.ShaDowKHopSampler([3, 2])),
    "dgl form": parts_of_dgl,
    "pyg": pyg_loader(),
    "pyg by weight": pyg_loader(weight_attr="w"),
    "pyg in time": pyg_loader(time_attr="t", input_time=torch.arange(100)),
    "pyg induced": pyg_loader(subgraph_type="induced", disjoint=True),
    "pyg links": pyg_links(),
    "pyg shadow": of_pyg(
        lambda data: ShaDowKHopSampler(data, 2, 4, node_idx=torch.arange(60), batch_size=30)
    ),
    "pyg saint nodes": of_pyg(
        lambda data: GraphSAINTNodeSampler(data, 50, 2, sample_coverage=2, log=False)
    ),
    "pyg saint edges": of_pyg(lambda data: GraphSAINTEdgeSampler(data, 50, 2, log=False)),
    "pyg saint walks": of_pyg(lambda data: GraphSAINTRandomWalkSampler(data, 20, 3, 2, log=False)),
    "pyg clusters": of_pyg(clusters),
    "node2vec": of_pyg(node2vec),
    "vip by weight": ranked("vip", NeighborSampler([3, 2], prob="w")),
    "adaptive": ranked("adaptive", NeighborSampler([3, 2])),
    "halo parts, two hops": parts("halo", 2),
    "paper parts, two hops": parts("pagraph", 2),
    "metis parts": parts("metis"),
    "auto parts": parts("auto"),
    "limited parts": parts("hash", max_replication=1.5, fanout=[3]),
    "reorder by both": moved("both"),
    "train gcn": trained(model="gcn"),
    "train gat": trained(model="gat"),
    "train links": trained(task="links"),
    "train pyg": trained(layers="pyg"),
    "sums": sums("sage"),
    "sums of gcn": sums("gcn"),
    "layers": layers,
    "ogb form": exported("ogb"),
}
"""What needs one type, weights or times."""
TYPED: dict[str, Use] = {
    "hgt of pyg": of_pyg(
        lambda data: HGTLoader(data, [10, 10], ("paper", torch.arange(40)), batch_size=20)
    ),
    "pyg": of_pyg(
        lambda data: PygLoader(data, [3, 2], input_nodes=("paper", torch.arange(40)), batch_size=20)
    ),
}
KINDS: dict[str, dict[str, Use]] = {
    "graph": ANY | PLAIN,
    "narrow": ANY | PLAIN,
    "types": ANY | TYPED,
}
FOLDERS_OF_PARTS = ("parts", "lean")
"""Of parts of ``graph``: with fields of their own, and by reference."""
_USES = 3  # of a folder that was damaged once
_WHOLE = ("parts", "form", "sums", "reorder")
"""Words in the names of uses that take whole graphs alone."""


def use_parts(case: Case, path: Path, out: Path) -> None:
    """Verify parts, open one, and work with its graph, but for what takes whole graphs alone."""
    uses = {
        name: use for name, use in (ANY | PLAIN).items() if not any(word in name for word in _WHOLE)
    }
    step = case.choose("parts", ["verify", "verify", "open", "opened", *uses])
    if step == "verify":
        verify_partition(path)
        return
    part = open_partition(path, case.rng.randrange(2), verify=case.rng.random() < 0.3)
    if step == "open":
        assert len(part.global_ids) == part.graph.num_nodes
        for own in (part.global_edge_ids, part.train, part.val, part.test):
            own.clone()
    elif step == "opened":
        seeds = part.train
        read(
            Loader(
                part.graph,
                seeds,
                NeighborSampler([3]),
                fields=[*part.graph.ndata],
                batch_size=20,
                cache=0.3,
            )
        )
    else:
        uses[step](part.graph, out)


def trial(case: Case) -> None:
    """Damage arrays of a folder, before it is opened or after its ids were checked, and work with
    it."""
    kind = case.choose("kind", [*KINDS, "graph", *FOLDERS_OF_PARTS])
    for name in {kind, "graph"}:
        shutil.copytree(case.samples / "hostile" / name, case.folder / name)
    path = case.folder / kind
    late = kind in KINDS and case.rng.random() < 0.4
    graph = open_graph(path, verify=True) if late else None
    if graph is not None:
        for etype in graph.edge_types:
            graph.csc_of(etype).validate()
        case.done.append("damaged when open")
    some = case.rng.choice([0, 1, 1, 1, 1, 2, 2])
    for _ in range(some):
        damage(case.rng, path, case.done)
    if not late:
        seal(path)
    for number in range(_USES):
        out = case.folder / f"out-{number}"
        out.mkdir()
        with expecting(case, sound=not some):
            if kind in FOLDERS_OF_PARTS:
                use_parts(case, path, out)
                continue
            if graph is None:
                graph = open_graph(path, verify=case.rng.random() < 0.5)
            name = case.choose("use", KINDS[kind])
            KINDS[kind][name](graph, out)
    gc.collect()


class expecting:
    """A block that works, or raises one clear error on purpose; in a ``sound`` graph it works."""

    def __init__(self, case: Case, *, sound: bool) -> None:
        self._case, self._sound = case, sound

    def __enter__(self) -> None:
        warnings.simplefilter("ignore")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        why = "an error without damage" if self._sound else unclear(error, _FOREIGN, "")
        if isinstance(error, (TypeError, AttributeError, KeyError)):
            why = "an internal error"
        if why:
            raise AssertionError(f"{why}: {type(error).__name__}: {error}"[:1000]) from error
        self._case.done.append(f"refused: {error!r}"[:500])
        return True


def damage(rng: random.Random, path: Path, done: list[str]) -> None:
    """Change values of one array in its file, in place, and leave its time as it was."""
    files = [file for file in sorted(path.rglob("*.npy")) if np.load(file, mmap_mode="r").size]
    structure = [
        file for file in files if any(word in file.name for word in ("indptr", "indices", "ids"))
    ]
    file = rng.choice(structure if rng.random() < 0.7 else files)
    before = file.stat()
    array = np.load(file, mmap_mode="r+")
    flat = array.reshape(-1) if array.ndim else array
    done.append(f"{file.relative_to(path)}: {change(rng, flat)}")
    array.flush()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def change(rng: random.Random, values: np.ndarray) -> str:
    """Change some values, and say how."""
    count = len(values)
    at = rng.choice([0, 1, count // 2, count - 2, count - 1, rng.randrange(count)]) % count
    run = slice(at, at + rng.choice([1, 1, 1, 2, 7, count]))
    if values.dtype == np.bool_:
        values.view(np.uint8)[run] = new = rng.choice([0, 1, 2, 255])
    elif values.dtype.kind == "f":
        values[run] = new = rng.choice(
            [float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e-40, 3e38]
        )
    elif rng.random() < 0.25:
        values[run] = new = values[rng.randrange(count)]
    elif rng.random() < 0.2:
        values[run] = values[run][::-1].copy()
        new = "reversed"
    else:
        limits = np.iinfo(values.dtype)
        least, most = int(values.min()), int(values.max())
        far = [
            limits.min,
            limits.max,
            limits.max - 1,
            -1,
            -2,
            -300,
            least - 1,
            most + 1,
            most,
            2**30,
            2**31 - 1,
            2**31,
        ]
        values[run] = new = rng.choice(
            [number for number in far if limits.min <= number <= limits.max]
        )
    return f"{run.start}:{run.stop} = {new}"


def build(graph: Graph, types: Graph, folder: Path) -> None:
    """Write the sound folders."""
    (etype,) = graph.edge_types
    graph = Graph(graph.csc, ndata=dict(graph.ndata), edata=dict(graph.edata))
    generator = torch.Generator().manual_seed(2)
    graph.set_field("mask", torch.rand(graph.num_edges, generator=generator) < 0.7, edge_type=etype)
    graph.set_field(
        "t", torch.randint(0, 90, (graph.num_edges,), generator=generator), edge_type=etype
    )
    write_graph(graph, folder / "graph")
    write_graph(graph, folder / "narrow", store="int8")
    write_graph(types, folder / "types")
    for name, features in (("parts", "copy"), ("lean", "reference")):
        divided = partition_graph(open_graph(folder / "graph"), 2, hops=1, method="hash")
        write_partition(divided, folder / name, source=folder / "graph", features=features)
