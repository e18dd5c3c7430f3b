"""Framework: the interface of training to DGL and PyG.

``dgl/training.py`` and ``pyg/training.py`` implement it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from .graph.graph import NODE_TYPE, EdgeType, Graph

Field = tuple[str, str]
"""Vertex type and name of a field."""


@dataclass(frozen=True, eq=False)
class Seeds:
    """Seeds of a loader, and the fields that are read for its batches.

    Attributes:
        graph: Graph to sample.
        ids: Vertices of ``node_type``, int64; without ``label`` they are edges.
        fields: Fields read for the input nodes.
        label: Field with the classes of the seeds. None: the seeds are edges, and each batch holds
            a random destination for each of them.
        node_type: Vertex type of the seeds.
        time: Field with the vertices' times. No vertex of a batch is later than its seed. None:
            times are ignored.
    """

    graph: Graph
    ids: Tensor
    fields: tuple[Field, ...]
    label: str | None
    node_type: str = NODE_TYPE
    time: str | None = None


class Batch(NamedTuple):
    """Inputs of a model, and what its outputs are compared with.

    Attributes:
        blocks: One for each hop, the first layer's first.
        rows: Rows of the first block's sources, in the order of ``Seeds.fields``.
        answers: Labels of the seeds. For seed edges their ends, and those of the random pairs, both
            ``(2, n)`` and local to the last block's destinations.
    """

    blocks: Sequence[Any]
    rows: Sequence[Tensor]
    answers: tuple[Tensor, ...]


class Weights(NamedTuple):
    """Parameters of a convolution; matrices are ``(out, in)``.

    Attributes:
        neighbours: Applied to what neighbours send.
        own: Applied to the vertex itself. None: there is no such matrix.
        bias: None for ``"mean"``.
        attention: GAT's vectors for sources and for destinations, both ``(heads, width)``.
    """

    neighbours: Tensor
    own: Tensor | None
    bias: Tensor | None
    attention: tuple[Tensor, ...] = ()


def runs_as(layer: Any, kinds: Sequence[Any]) -> bool:
    """Whether a layer is of one of these classes, and its ``forward`` that of the class."""
    return any(isinstance(layer, kind) and type(layer).forward is kind.forward for kind in kinds)


class Framework(Protocol):
    """Adapter of a GNN framework: its convolutions, blocks and loaders.

    The destinations of a block are its first sources.
    """

    name: str

    def convolution(self, kind: str, in_size: int, out_size: int, heads: int = 1) -> nn.Module:
        """A new convolution.

        Args:
            kind: ``"sage"`` is GraphSAGE's with the mean of the neighbours. ``"gcn"`` is normalised
                by edge weights alone. ``"gat"`` adds no self-loops. ``"mean"`` is a matrix applied
                to the neighbours' mean, without bias and without the vertex itself.
            in_size: Width of the inputs.
            out_size: Width of the outputs.
            heads: Attention heads of ``"gat"``. Their outputs, each ``out_size / heads`` wide, are
                concatenated.
        """

    def weights(self, conv: Any) -> Weights:
        """The parameters of a convolution."""

    def convolve(
        self,
        conv: nn.Module,
        block: Any,
        x: Tensor,
        *,
        edge_type: EdgeType | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Run a convolution on the rows of a block's sources; returns a row per destination.

        ``edge_type`` is required where the block has several.
        """

    def num_dst(self, block: Any, node_type: str | None = None) -> int:
        """Number of destinations; ``node_type`` is required where the block has several."""

    def edges(self, block: Any) -> tuple[Tensor, Tensor]:
        """Local sources and destinations of the edges of a block of one type, int64."""

    def with_edges(self, block: Any, src: Tensor, dst: Tensor) -> Any:
        """A block for :meth:`convolve` with the same vertices, other edges and no data."""

    def check_own_loader(self) -> None:
        """Raise ``MissingDependencyError`` if the framework's own loader cannot run."""

    def loader(self, seeds: Seeds, fanout: Sequence[int], *, own: bool, **more: Any) -> Any:
        """A shuffling loader that yields the framework's batches.

        Args:
            seeds: What to start from and what to read.
            fanout: Neighbours sampled per hop along each edge type, the seeds' last.
            own: Use the framework's own loader, not pagraph's.
            **more: ``batch_size``, ``num_workers`` and ``device``, and for pagraph's loader its
                options.
        """

    def batch(self, item: Any, seeds: Seeds, num_hops: int) -> Batch:
        """Convert a batch of a loader over ``seeds`` for the models."""

    def seed(self, seed: int) -> None:
        """Seed the framework's own random numbers."""
