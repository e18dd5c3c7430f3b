"""Types of DGL's graphs and blocks for annotations, since DGL has none.

At run time each name is DGL's own class.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from torch import Tensor

from .graphbolt import import_dgl

import_dgl()
from dgl import DGLGraph  # noqa: E402
from dgl.dataloading import EdgePredictionSampler  # noqa: E402
from dgl.heterograph import DGLBlock  # noqa: E402

if TYPE_CHECKING:

    class Column(Tensor):
        """Rows of a column: a tensor, or with several types a dictionary ``column[type]``."""

        def __getitem__(self, rows: Any, /) -> Tensor: ...

    class Columns(MutableMapping[str, Tensor]):
        """Columns by name."""

        def __getitem__(self, name: str, /) -> Column: ...
        def __setitem__(self, name: str, rows: Tensor | Mapping[Any, Tensor], /) -> None: ...

    # Declared as attributes. In DGL they are properties.
    class NodeGraph(DGLGraph):
        """A ``dgl.DGLGraph`` with its columns."""

        ndata: Columns
        edata: Columns

    class Block(DGLBlock):
        """A block (message flow graph) of a batch, with its columns."""

        srcdata: Columns
        dstdata: Columns
        edata: Columns

    class PairSampler(EdgePredictionSampler):
        """Blocks of the ends of edges."""

    class NegativePairSampler(EdgePredictionSampler):
        """Blocks of the ends of edges and of negative pairs."""

    @overload
    def as_edge_prediction_sampler(
        sampler: object,
        exclude: object = None,
        reverse_eids: Any = None,
        reverse_etypes: Any = None,
        negative_sampler: None = None,
        prefetch_labels: Any = None,
    ) -> PairSampler: ...
    @overload
    def as_edge_prediction_sampler(
        sampler: object,
        exclude: object = None,
        reverse_eids: Any = None,
        reverse_etypes: Any = None,
        *,
        negative_sampler: object,
        prefetch_labels: Any = None,
    ) -> NegativePairSampler: ...
    def as_edge_prediction_sampler(*args: Any, **kwargs: Any) -> Any:
        """See ``dgl.dataloading.as_edge_prediction_sampler``."""

else:
    from dgl.dataloading import as_edge_prediction_sampler

    NodeGraph = DGLGraph
    Block = DGLBlock
    PairSampler = NegativePairSampler = EdgePredictionSampler

NodeBatch: TypeAlias = tuple[Tensor, Tensor, list[Block]]
"""A batch of a sampler of blocks: input nodes, output nodes, and the blocks, outermost first."""

PairBatch: TypeAlias = tuple[Tensor, NodeGraph, list[Block]]
"""A batch of seed edges: input nodes, the graph of these edges, and the blocks."""

NegativePairBatch: TypeAlias = tuple[Tensor, NodeGraph, NodeGraph, list[Block]]
"""A batch of seed edges with negatives, whose graph follows that of the edges."""

__all__ = [
    "Block",
    "NegativePairBatch",
    "NegativePairSampler",
    "NodeBatch",
    "NodeGraph",
    "PairBatch",
    "PairSampler",
    "as_edge_prediction_sampler",
]

__dir__ = __all__.copy
