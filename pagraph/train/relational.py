"""RelationalSAGE: the model of ``pagraph train`` for graphs of several types, which is R-GCN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from ..framework import Field, Framework
from ..graph.graph import EdgeType, Graph
from .models import check_matrix, glorot_
from .preaggregation import FEATURES

VERTICES = "vertex_id"
"""The field of vertices without features that holds their rows in the table of embeddings."""


@dataclass(frozen=True)
class Shape:
    """Vertex and edge types that the layers of a model compute and read.

    Attributes:
        target: The vertex type of the outputs.
        types: Vertex types by layer: ``types[i]`` are those that layer ``i`` reads. The last entry
            is only the target.
        edge_types: Edge types by layer, along which it reads.
        widths: Width of the features, by vertex type that the first layer reads and that has some.
        embedded: Number of vertices in the whole graph, by vertex type that the first layer reads
            and that has no features. Each of these vertices learns an embedding.
    """

    target: str
    types: tuple[tuple[str, ...], ...]
    edge_types: tuple[tuple[EdgeType, ...], ...]
    widths: Mapping[str, int]
    embedded: Mapping[str, int]

    @classmethod
    def of(cls, graph: Graph, target: str, hops: int, counts: Mapping[str, int]) -> Shape:
        """The types that ``target`` depends on within ``hops``.

        ``counts`` are the vertices of the whole graph by type.

        Raises:
            ValueError: The features of a type are not a real matrix.
        """
        # From the outputs back to the inputs. A layer also reads the types of its outputs, as a
        # vertex has its own summand, so each set includes the next layer's.
        types = [{target}]
        edge_types: list[tuple[EdgeType, ...]] = []
        for _ in range(hops):
            incoming = tuple(etype for etype in graph.edge_types if etype[2] in types[0])
            edge_types.insert(0, incoming)
            types.insert(0, types[0] | {etype[0] for etype in incoming})
        # In the graph's order. The order of a set differs between processes, and with it the
        # parameters that a seed draws.
        ordered = tuple(tuple(t for t in graph.node_types if t in some) for some in types)
        widths = {}
        for ntype in ordered[0]:
            rows = graph.node_fields(ntype).get(FEATURES)
            if rows is not None:
                widths[ntype] = check_matrix(f"{FEATURES} of {ntype!r}", rows)
        embedded = {ntype: counts[ntype] for ntype in ordered[0] if ntype not in widths}
        return cls(target, ordered, tuple(edge_types), widths, embedded)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that the first layer's inputs are made of."""
        return tuple(
            (ntype, FEATURES if ntype in self.widths else VERTICES) for ntype in self.types[0]
        )


class RelationalLayer(nn.Module):
    """A layer with a matrix for each vertex type, and one for each edge type.

    The first is applied to the vertex itself, the second to the mean of its neighbours.

    Args:
        types: Vertex types of the outputs.
        edge_types: Edge types along which it reads.
        sizes: Width of the inputs by vertex type.
        width: Width of the outputs.
        framework: Makes and runs the convolutions.
    """

    def __init__(
        self,
        types: Sequence[str],
        edge_types: Sequence[EdgeType],
        sizes: Mapping[str, int],
        width: int,
        framework: Framework,
    ) -> None:
        super().__init__()
        self.types: tuple[str, ...] = tuple(types)
        self.edge_types: tuple[EdgeType, ...] = tuple(edge_types)
        self.width = width
        self._framework = framework
        # By position, as names of types may contain a dot, which names of modules may not.
        self.own: nn.ModuleList = nn.ModuleList(nn.Linear(sizes[ntype], width) for ntype in types)
        self.convolutions: nn.ModuleList = nn.ModuleList(
            framework.convolution("mean", sizes[etype[0]], width) for etype in edge_types
        )

    def forward(self, block: Any, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs of a block's destinations from its sources' inputs, by vertex type."""
        run = self._framework
        out = {}
        for ntype, own in zip(self.types, self.own, strict=True):
            # The destinations are the first sources.
            out[ntype] = own(x[ntype][: run.num_dst(block, ntype)])
        for etype, conv in zip(self.edge_types, self.convolutions, strict=True):
            means = run.convolve(conv, block, x[etype[0]], edge_type=etype)
            out[etype[2]] = out[etype[2]] + means
        return out

    def kept(self, ntype: str, x: Tensor) -> Tensor:
        """A vertex's own summand, to which the means of received messages are added."""
        kept: Tensor = self.own[self.types.index(ntype)](x)
        return kept

    def sent(self, etype: EdgeType, x: Tensor) -> Tensor:
        """The message that a vertex sends along an edge of a type."""
        conv = self.convolutions[self.edge_types.index(etype)]
        return linear(x, self._framework.weights(conv).neighbours)


class RelationalSAGE(nn.Module):
    """GraphSAGE with a matrix for each edge type: R-GCN (Schlichtkrull et al., 2018, equation 2)
    without bases.

    A vertex's output is
    ``W_t h_v + b_t + sum over edge types r of W_r mean(h_u for in-neighbours u along r)``, where
    ``t`` is its type. With one edge type it is GraphSAGE's. Only what the target's outputs depend
    on is computed. Initial parameters are those of :class:`pagraph.train.models.BlockModel`.

    Args:
        shape: Types that the layers read and compute.
        sizes: Width of embeddings, of each hidden layer, and the number of classes.
        framework: Makes and runs the convolutions.
        dropout: Share of the hidden values dropped in training.
        row_normalize: Whether each row of features is divided by the sum of its magnitudes.

    Attributes:
        layers: One ``RelationalLayer`` per hop.
        fields: Fields whose rows :meth:`forward` takes.
    """

    def __init__(
        self,
        shape: Shape,
        sizes: Sequence[int],
        framework: Framework,
        *,
        dropout: float,
        row_normalize: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.fields: tuple[tuple[str, str], ...] = shape.fields
        self.sizes: tuple[int, ...] = tuple(sizes)
        self.row_normalize = row_normalize
        self.dropout: nn.Dropout = nn.Dropout(dropout)
        width = dict(shape.widths)
        width |= dict.fromkeys(shape.embedded, sizes[0])
        layers = []
        # Frameworks draw initial weights in different ways. These are replaced below.
        with torch.random.fork_rng(devices=[]):
            self.embeddings: nn.ModuleList = nn.ModuleList(
                nn.Embedding(count, sizes[0]) for count in shape.embedded.values()
            )
            computed = zip(shape.types[1:], shape.edge_types, sizes[1:], strict=True)
            for types, edge_types, size in computed:
                layers.append(RelationalLayer(types, edge_types, width, size, framework))
                width = dict.fromkeys(types, size)
        self.layers: nn.ModuleList = nn.ModuleList(layers)
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.zeros_(parameter)
            else:
                glorot_(parameter)

    def forward(self, blocks: Sequence[Any], *rows: Tensor) -> Tensor:
        """Class scores of the last block's destinations of the target type, from the rows of
        ``fields``."""
        x = {}
        for (ntype, _), of_type in zip(self.fields, rows, strict=True):
            x[ntype] = self.begin(ntype, of_type)
        for layer, block in zip(self.layers, blocks, strict=True):
            x = layer(block, x)
            if layer is not self.layers[-1]:
                x = {ntype: self.dropout(hidden.relu()) for ntype, hidden in x.items()}
        return x[self.shape.target]

    def begin(self, ntype: str, rows: Tensor) -> Tensor:
        """The first layer's inputs of a type: features, or embeddings looked up by number."""
        if ntype in self.shape.embedded:
            table = self.embeddings[list(self.shape.embedded).index(ntype)]
            embedded: Tensor = table(rows.long())
            return embedded
        features = rows.float()
        return normalize(features, p=1.0, dim=1) if self.row_normalize else features
