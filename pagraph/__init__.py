"""pagraph: sampled mini-batches for GNN training, fast enough that the GPU never waits.

``pagraph.dgl`` replaces the loaders of DGL, and ``pagraph.pyg`` those of PyG. The names here are
the core behind both, which needs neither DGL nor PyG nor CUDA. They are imported on first use, so
that ``import pagraph`` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._late import offer

if TYPE_CHECKING:
    from .errors import FormatError, MissingDependencyError, PaGraphError, PipelineError
    from .graph.csc import CSC
    from .graph.graph import Graph
    from .graph.minibatch import Block, HeteroBlock, HeteroMiniBatch, Links, MiniBatch
    from .loader import Loader
    from .partition import open_partition
    from .sampling import NeighborSampler
    from .train.inference import inference
    from .whole_step import WholeStep

__version__ = "0.1.0"


def _open_graph() -> Any:
    from .datasets import open_graph

    return open_graph


def _graph_from_tables() -> Any:
    from .datasets.tables.frames import graph_from_tables

    return graph_from_tables


def _typed_rows() -> Any:
    from .datasets.tables.frames import typed_rows

    return typed_rows


def _schema_of() -> Any:
    from .datasets.tables.schema import schema_of

    return schema_of


def _whole_graph() -> Any:
    from .pyg.graphs import whole_graph

    return whole_graph


def _dgl_block() -> Any:
    from .dgl.blocks import dgl_block

    return dgl_block


def _saved_dgl_graph() -> Any:
    from .datasets.dgl_file import load_saved_graph

    return load_saved_graph


def _vertex_clusters() -> Any:
    from .partition.methods.auto import vertex_clusters

    return vertex_clusters


def _ogb_graph() -> Any:
    from .datasets.ogb_graph import graph_of_dataset

    return graph_of_dataset


offer(
    dgl_block=_dgl_block,
    graph_from_tables=_graph_from_tables,
    ogb_graph=_ogb_graph,
    open_graph=_open_graph,
    saved_dgl_graph=_saved_dgl_graph,
    schema_of=_schema_of,
    typed_rows=_typed_rows,
    vertex_clusters=_vertex_clusters,
    whole_graph=_whole_graph,
)

_HOMES = {
    "Block": "graph.minibatch",
    "CSC": "graph.csc",
    "FormatError": "errors",
    "Graph": "graph.graph",
    "HeteroBlock": "graph.minibatch",
    "HeteroMiniBatch": "graph.minibatch",
    "Links": "graph.minibatch",
    "Loader": "loader",
    "MiniBatch": "graph.minibatch",
    "MissingDependencyError": "errors",
    "NeighborSampler": "sampling",
    "PaGraphError": "errors",
    "PipelineError": "errors",
    "WholeStep": "whole_step",
    "inference": "train.inference",
    "open_partition": "partition",
}

__all__ = [
    "CSC",
    "Block",
    "FormatError",
    "Graph",
    "HeteroBlock",
    "HeteroMiniBatch",
    "Links",
    "Loader",
    "MiniBatch",
    "MissingDependencyError",
    "NeighborSampler",
    "PaGraphError",
    "PipelineError",
    "WholeStep",
    "inference",
    "open_partition",
]


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext pagraph``: replace DGL's and PyG's loaders in a notebook; ``%pagraph`` shows
    them."""
    from .run.notebook import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext pagraph``."""
    from .run.notebook import unload

    unload(shell)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
