"""Loaders of each kind over one graph, and what their batches hold."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.datasets import open_graph
from pagraph.dgl import DataLoader, to_dgl
from pagraph.pyg import LinkNeighborLoader, to_pyg
from pagraph.pyg import NeighborLoader as PygLoader

import dgl  # isort: skip  (pagraph.dgl makes it importable)

FANOUTS = [3, 2]


def graph_of(samples: Path) -> Graph:
    """The sample graph, mapped, so that caches have something to save."""
    return open_graph(samples / "graph")


def core(graph: Graph, **options: Any) -> Loader:
    return Loader(
        graph, range(120), NeighborSampler(FANOUTS), fields=["feat"], labels=["label"], **options
    )


def of_dgl(graph: Graph, **options: Any) -> Any:
    """Of the graph as it is: DGL's own copies of its graphs have their rows in another order."""
    sampler = dgl.dataloading.NeighborSampler(
        FANOUTS, prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    return DataLoader(graph, torch.arange(120), sampler, **options)


def of_dgl_edges(graph: Graph, **options: Any) -> Any:
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler(FANOUTS),
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
    )
    torch.manual_seed(0)  # DGL's own negatives
    return DataLoader(to_dgl(graph), torch.arange(120), sampler, **options)


def of_pyg(graph: Graph, **options: Any) -> Any:
    return PygLoader(to_pyg(graph), FANOUTS, input_nodes=torch.arange(120), **options)


def of_pyg_links(graph: Graph, **options: Any) -> Any:
    data = to_pyg(graph)
    return LinkNeighborLoader(data, FANOUTS, edge_label_index=data.edge_index[:, :120], **options)


LOADERS: dict[str, Callable[..., Iterable[Any]]] = {
    "core": core,
    "dgl": of_dgl,
    "dgl edges": of_dgl_edges,
    "pyg": of_pyg,
    "pyg links": of_pyg_links,
}
"""By name: functions of a graph and of a loader's options."""
NOT_REPEATED = {"dgl edges"}  # negatives come from torch's global generator


def digest(batch: Any) -> str:
    """A hash of all tensors of a batch."""
    found = hashlib.sha256()
    for tensor in tensors_of(batch):
        found.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def tensors_of(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dgl.DGLGraph):
        for etype in value.canonical_etypes:
            yield from value.edges(etype=etype)
        frames = [*value._node_frames, *value._edge_frames]
        yield from (frame[name] for frame in frames for name in sorted(frame.keys()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
    elif hasattr(value, "to_dict"):
        yield from tensors_of([item for _, item in sorted(value.to_dict().items())])
    elif hasattr(value, "__dict__") or hasattr(value, "__dataclass_fields__"):
        names = getattr(value, "__dataclass_fields__", None) or vars(value)
        yield from tensors_of([getattr(value, name) for name in names])
    elif isinstance(value, dict):
        yield from tensors_of([value[key] for key in sorted(value, key=str)])


def check_no_threads() -> None:
    """The threads of all loaders end within ten seconds."""
    end = time.monotonic() + 10
    while left := [
        thread.name for thread in threading.enumerate() if thread.name.startswith("pagraph")
    ]:
        assert time.monotonic() < end, f"threads left: {left}"
        time.sleep(0.01)


def draw_options(case: Any) -> dict[str, Any]:
    """Options of a loader that repeats itself."""
    rng = case.rng
    options = {
        "batch_size": rng.choice([7, 16, 50]),
        "shuffle": rng.random() < 0.5,
        "drop_last": rng.random() < 0.3,
        "prefetch": rng.choice([0, 1, 2, 5]),
        "num_workers": rng.choice([0, 1, 2, 3]),
        "cache": rng.choice([0, 0.1, 0.5, "auto"]),
        "lookahead": rng.choice([0, 1, 3, "auto"]),
        "memory": rng.choice(["auto", "8GiB"]),
        "seed": rng.randrange(100),
    }
    case.done.append(str(options))
    return options
