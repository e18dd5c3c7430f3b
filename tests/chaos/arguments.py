"""Calls that are valid but for one argument: they work, or the error says what is wrong with it."""

import gc
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner

from pagraph import CSC, Graph, Loader, NeighborSampler, open_partition
from pagraph.cli import main
from pagraph.datasets import citation, open_graph, read_graph, rmat, sbm, shop, write_graph
from pagraph.dgl import DataLoader, to_dgl
from pagraph.partition import (
    describe,
    draw_train,
    partition_graph,
    verify_partition,
    write_partition,
)
from pagraph.profile import hit_rate_curve, merge_traces, recommend, training_seeds
from pagraph.pyg import LinkNeighborLoader, to_pyg
from pagraph.pyg import NeighborLoader as PygLoader
from pagraph.sampling import LaborSampler, LayerSampler, SubgraphSampler
from pagraph.train import TrainOptions
from pagraph.train.preaggregation import preaggregate

from .files import use
from .loaders import FANOUTS, graph_of
from .verbs import VERBS, arguments_of
from .worker import Case

import dgl  # isort: skip  (pagraph.dgl makes it importable)

NASTY: list[Callable[[], Any]] = [
    *[
        lambda value=value: value
        for value in (None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 2**70, -(2**63))
    ],
    *[
        lambda value=value: value
        for value in (0.0, 0.5, 1.0, -0.5, 1e300, float("nan"), float("inf"), 1j)
    ],
    *[
        lambda value=value: value
        for value in ("", "a", "feat", "cpu", "10%", "-1GiB", "nan", "a\nb\x1b[2J", "x" * 5000)
    ],
    *[
        lambda value=value: value
        for value in (b"x", (), (1,), (1, 2), (-1, -1), ("a",), {1, 2}, range(3), range(0))
    ],
    *[
        list,
        dict,
        object,
        lambda: [1, 2],
        lambda: [[1], [2, 3]],
        lambda: ["feat"],
        lambda: [None],
        lambda: [-1, 0],
    ],
    *[
        lambda: {"a": 1},
        lambda: {"feat": [1]},
        lambda: {("_N", "_E", "_N"): [1, 2]},
        lambda: {"_N": [1, 2]},
    ],
    *[
        lambda: int,
        lambda: len,
        lambda: print,
        lambda: iter([1, 2]),
        lambda: Path("nowhere"),
        lambda: Path("/"),
    ],
    *[
        lambda: torch.tensor(3),
        lambda: torch.tensor([]),
        lambda: torch.tensor([1, 2]),
        lambda: torch.tensor([-1]),
    ],
    *[
        lambda: torch.tensor([1.5]),
        lambda: torch.ones(300, dtype=torch.bool),
        lambda: torch.ones(2, 2).long(),
    ],
    *[
        lambda: torch.tensor([1], dtype=torch.int8),
        lambda: torch.tensor([2**62]),
        lambda: torch.rand(300, 2),
    ],
    *[
        lambda: torch.arange(300),
        lambda: torch.arange(3, device="meta"),
        lambda: torch.rand(3, requires_grad=True),
    ],
    *[
        lambda: torch.tensor([1j]),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.full((300,), float("nan")),
    ],
    *[
        lambda: np.array(3),
        lambda: np.array([]),
        lambda: np.array(["a"]),
        lambda: np.array([None]),
        lambda: np.arange(3),
    ],
    *[
        lambda: np.arange(3)[::-1],
        lambda: np.array([1, 2], ">i4"),
        lambda: np.ones(300, bool),
        lambda: np.float32(0.5),
    ],
    *[
        lambda: np.array(["2020-01-01"], "M8[D]"),
        lambda: np.zeros((2, 0)),
        lambda: np.int8(3),
        lambda: np.bool_(True),
    ],
    *[
        lambda: NeighborSampler([2]),
        lambda: Graph.from_coo([0], [1]),
        lambda: Graph.from_coo([], [], 0),
    ],
]
_NO_NUMBER = re.compile(
    "ambiguous|only one element|inhomogeneous|not implemented for|is not supported|meta "
    "tensors|Could not run"
)
"""NumPy's and torch's own words for arrays where one number belongs."""
_MANY = {
    "epochs",
    "num_nodes",
    "num_edges",
    "num_papers",
    "num_authors",
    "num_institutions",
    "scale",
    "edge_factor",
}
_MANY |= {
    "threads",
    "num_features",
    "num_classes",
    "num_author_features",
    "authorships",
    "citations",
    "num_workers",
    "hidden",
}
_FOREIGN = (
    "dgl._ffi",
    "/dgl/",
    "/torch_geometric/",
    "/torch/utils/data/",
)  # whose loaders refuse some arguments themselves


def read(batches: Iterable[Any]) -> None:
    for number, _ in enumerate(batches):
        if number == 3:
            return


def loader_options(**more: Any) -> dict[str, Any]:
    """Those that all loaders have."""
    options = {
        "batch_size": 16,
        "shuffle": True,
        "drop_last": False,
        "cache": 0.5,
        "cache_policy": "degree",
    }
    return {
        **options,
        "cache_dtype": None,
        "prefetch": 2,
        "num_workers": 1,
        "seed": 1,
        "device": "cpu",
        "lookahead": "auto",
        "memory": "4GiB",
        **more,
    }


def calls(
    graph: Graph, samples: Path, out: Path
) -> dict[str, tuple[Callable[..., Any], dict[str, Any], Any]]:
    """Function, valid arguments, and what is done with the result, by name."""
    seeds, sampler, csc = torch.arange(100), NeighborSampler(FANOUTS), graph.csc
    core = {
        "graph": graph,
        "seeds": seeds,
        "sampler": sampler,
        "fields": ["feat"],
        "labels": ["label"],
    }
    fanouts = {"fanouts": [3, 2], "replace": False, "prob": None, "edge_dir": "in"}
    labor = {"fanouts": [3, 2], "prob": "w", "edge_dir": "out"}
    pyg = {
        "data": to_pyg(graph),
        "num_neighbors": [3, 2],
        "replace": False,
        "disjoint": False,
        "weight_attr": None,
    }
    ends = to_pyg(graph).edge_index[:, :50]
    parts = partition_graph(graph, 2, hops=1, method="hash")
    curve = hit_rate_curve(
        graph, seeds, sampler, batch_size=50, policies=["degree"], budgets=["10%"]
    )
    size = {"num_classes": 3, "num_features": 4, "fractions": (0.6, 0.2, 0.2), "seed": 1}
    blocks = {**size, "homophily": 0.5, "exponent": 2.5, "feature_noise": 0.5}
    counts = {
        "num_authors": 40,
        "num_institutions": 5,
        "authorships": 2.0,
        "citations": 2.0,
        "num_author_features": 3,
    }

    def sample(made: Any) -> None:
        read(Loader(graph, seeds, made, batch_size=50))

    return {
        "Loader": (
            Loader,
            {**core, **loader_options(), "sampling_device": "cpu", "transfer": "auto"},
            read,
        ),
        "Loader.load_state_dict": (
            lambda **state: state_of(core, state),
            Loader(**core, seed=1).state_dict() | {"checksum": None},
            None,
        ),
        "Graph": (
            Graph,
            {"csc": csc, "num_nodes": 300, "ndata": {"a": seeds.repeat(3)}, "edata": {}},
            use,
        ),
        "Graph.from_coo": (
            Graph.from_coo,
            {"src": [0, 1], "dst": [1, 2], "num_nodes": 300, "ndata": {}},
            use,
        ),
        "Graph.set_field": (
            graph.set_field,
            {"name": "x", "value": seeds.repeat(3), "node_type": "_N"},
            None,
        ),
        "CSC": (
            CSC,
            {
                "indptr": csc.indptr,
                "indices": csc.indices,
                "num_src": 300,
                "edge_ids": csc.edge_ids,
            },
            None,
        ),
        "NeighborSampler": (NeighborSampler, fanouts, sample),
        "LaborSampler": (
            LaborSampler,
            {**labor, "importance_sampling": 0, "layer_dependency": False},
            sample,
        ),
        "LayerSampler": (
            LayerSampler,
            {"sizes": [20, 20], "method": "ladies", "prob": None, "edge_dir": "in"},
            sample,
        ),
        "SubgraphSampler": (
            SubgraphSampler,
            {"fanouts": [3], "replace": False, "disjoint": False},
            None,
        ),
        "hit_rate_curve": (
            hit_rate_curve,
            {
                **core,
                "batch_size": 50,
                "epochs": 1,
                "policies": ["vip"],
                "budgets": ["10%", 5],
                "threads": 1,
                "seed": 0,
            },
            recommend,
        ),
        "recommend": (recommend, {"curve": curve}, str),
        "training_seeds": (training_seeds, {"graph": graph}, None),
        "partition_graph": (
            partition_graph,
            {
                "graph": graph,
                "num_parts": 2,
                "hops": 1,
                "method": "hash",
                "train": seeds,
                "seed": 0,
                "fanout": [3],
            }
            | {"evaluation": "source", "max_replication": 1.9},
            describe,
        ),
        "write_partition": (
            write_partition,
            {"partition": parts, "out": out, "features": "copy", "split": ""},
            None,
        ),
        "open_partition": (
            open_partition,
            {"out": samples / "parts", "rank": 0, "world_size": 2, "verify": True},
            None,
        ),
        "verify_partition": (
            verify_partition,
            {"out": samples / "parts", "source": samples / "graph"},
            None,
        ),
        "draw_train": (draw_train, {"graph": graph, "fraction": 0.5, "seed": 1}, None),
        "open_graph": (open_graph, {"folder": samples / "graph", "verify": True, "split": ""}, use),
        "read_graph": (
            read_graph,
            {
                "source": samples / "edges.csv",
                "num_nodes": None,
                "relabel": False,
                "undirected": False,
            }
            | {"weight": "w", "header": None, "split": ""},
            use,
        ),
        "write_graph": (write_graph, {"graph": graph, "folder": out, "origin": {"a": 1}}, None),
        "preaggregate": (
            preaggregate,
            {"graph": graph, "folder": out, "model": "sage", "row_normalize": False},
            None,
        ),
        "sbm": (sbm, {"num_nodes": 60, "num_edges": 100, **blocks}, use),
        "rmat": (
            rmat,
            {
                "scale": 5,
                "edge_factor": 2.0,
                "noise": 0.1,
                "undirected": True,
                "simple": True,
                **size,
            },
            use,
        ),
        "citation": (citation, {"num_papers": 40, **counts, **blocks}, use),
        "shop": (
            shop,
            {
                "num_customers": 20,
                "num_products": 4,
                "num_periods": 4,
                "persistence": 0.9,
                "seed": 1,
            },
            use,
        ),
        "TrainOptions": (TrainOptions, {**vars(TrainOptions())}, None),
        "merge_traces": (
            lambda path, out: merge_traces(path, out=out),
            {"path": samples / "trace.json", "out": out},
            None,
        ),
        "dgl.DataLoader": (
            DataLoader,
            {"graph": to_dgl(graph), "indices": seeds, "use_ddp": False, "use_uva": False}
            | {"graph_sampler": dgl.dataloading.NeighborSampler([3, 2]), **loader_options()},
            read,
        ),
        "dgl.DataLoader of a Graph": (
            DataLoader,
            {
                "graph": graph,
                "indices": seeds,
                "graph_sampler": dgl.dataloading.NeighborSampler([3, 2]),
            },
            read,
        ),
        "pyg.NeighborLoader": (
            PygLoader,
            {**pyg, "input_nodes": seeds, "time_attr": None, **loader_options()},
            read,
        ),
        "pyg.LinkNeighborLoader": (
            LinkNeighborLoader,
            {
                **pyg,
                "edge_label_index": ends,
                "edge_label": None,
                "neg_sampling": "binary",
                **loader_options(),
            },
            read,
        ),
    }


def state_of(core: dict[str, Any], state: dict[str, Any]) -> None:
    loader = Loader(**core, seed=1)
    loader.load_state_dict(state)
    read(loader)


def trial(case: Case) -> None:
    if case.rng.random() < 0.3:
        return try_verb(case)
    known = calls(graph_of(case.samples), case.samples, case.folder / "out")
    name = case.choose("call", known)
    function, arguments, then = known[name]
    arguments = dict(arguments)
    word = case.choose("argument", arguments)
    value = case.rng.choice(NASTY)()
    if isinstance(value, int) and abs(value) > 2**20 and word in _MANY:  # valid, and takes for ever
        value = -abs(value)
    if isinstance(arguments[word], (list, tuple)) and case.rng.random() < 0.4:
        changed = list(arguments[word])
        changed[case.rng.randrange(len(changed) or 1) : 1] = [value]
        value = type(arguments[word])(changed)
    arguments[word] = value
    case.done.append(f"value: {value!r}"[:300])
    with case.refusing(
        *(_FOREIGN if name.startswith(("dgl.", "pyg.")) else ()), quoted=repr(value)
    ):
        try:
            result = function(**arguments)
            then(result) if then else None
        except (ValueError, RuntimeError) as error:
            if not _NO_NUMBER.search(str(error)):
                raise
        except MemoryError:
            assert isinstance(value, (int, float)), "only large numbers may ask for too much memory"
        finally:
            result = None
            gc.collect() if case.rng.random() < 0.02 else None


def try_verb(case: Case) -> None:
    """A verb with one option or path changed."""
    verb = case.choose("verb", VERBS)
    out = case.folder / "out"
    out.mkdir()
    arguments = arguments_of(verb, case.samples, out)
    place = case.rng.randrange(1, len(arguments))
    many = arguments[place - 1].removeprefix("--") in {
        "epochs",
        "nodes",
        "scale",
        "hidden",
        "features",
        "parts",
    }
    words = [
        "",
        "-1",
        "0",
        "1.5",
        "x",
        "nan",
        "--",
        "-x",
        "--nonsense",
        "1,2,x",
        "10%,",
        "é\x1b[2J",
        "/",
        "/dev/null",
    ]
    arguments[place] = case.choose(
        f"word {place}", [*words, *([] if many else ["99999999999999999999", "1e9"])]
    )
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": "100"})
    text = done.stderr
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in (0, 1, 2), done.exit_code
    errors = [line for line in text.splitlines() if line.startswith("Error: ")]
    assert len(errors) == (done.exit_code != 0) or "Usage: " in text, text[-1500:]
    assert "PAGRAPH_TRACEBACK" not in text and "\x1b" not in text, text[-1500:]
