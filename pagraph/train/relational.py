"""The model of ``pagraph train`` on graphs of several types: GraphSAGE by edge type, which is
R-GCN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from ..graph.graph import EdgeType, Graph
from .models import Framework
from .preaggregation import FEATURES

__all__ = ["VERTICES", "RelationalLayer", "RelationalSAGE", "Shape"]

VERTICES = "vertex_id"
"""The field of vertices without features: their rows in the table of embeddings."""


@dataclass(frozen=True)
class Shape:
    """Vertex and edge types that the layers of a model compute and read.

    Attributes:
        target: The vertex type of the outputs.
        types: Vertex types by layer: ``types[i]`` are those that layer ``i`` reads, the last one is
            the target alone.
        edge_types: Edge types by layer, along which it reads.
        widths: Vertex type to the width of its features, of those that the first layer reads.
        embedded: Vertex type to the number of vertices in the whole graph, of the others: each
            learns an embedding.
    """

    target: str
    types: tuple[tuple[str, ...], ...]
    edge_types: tuple[tuple[EdgeType, ...], ...]
    widths: Mapping[str, int]
    embedded: Mapping[str, int]

    @classmethod
    def of(cls, graph: Graph, target: str, hops: int, counts: Mapping[str, int]) -> Shape:
        """The types that ``target`` depends on within ``hops``; ``counts`` are the vertices of the
        whole graph.

        Raises:
            ValueError: The features of one of them are no matrix of real numbers.
        """
        types, edge_types = [{target}], []
        for _ in range(hops):
            edge_types.append(tuple(etype for etype in graph.edge_types if etype[2] in types[-1]))
            types.append(types[-1] | {etype[0] for etype in edge_types[-1]})
        fields = {
            t: graph.node_fields(t)[FEATURES]
            for t in graph.node_types
            if FEATURES in graph.node_fields(t)
        }
        widths = {}
        for ntype, rows in fields.items():
            if ntype not in types[-1]:
                continue
            if len(rows.shape) != 2 or rows.dtype.is_complex:
                got = f"{rows.dtype} {tuple(rows.shape)}"
                raise ValueError(f"{FEATURES} of {ntype!r} must be a 2-D real field, got {got}")
            widths[ntype] = int(rows.shape[1])
        embedded = {t: counts[t] for t in graph.node_types if t in types[-1] and t not in widths}
        ordered = tuple(tuple(t for t in graph.node_types if t in some) for some in reversed(types))
        return cls(target, ordered, tuple(reversed(edge_types)), widths, embedded)

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Vertex type and name of each field that the first layer's inputs are made of."""
        return tuple(
            (ntype, FEATURES if ntype in self.widths else VERTICES) for ntype in self.types[0]
        )


class RelationalLayer(nn.Module):
    """A layer: for each vertex type a matrix for a vertex itself, for each edge type one for the
    neighbours' mean.

    Args:
        types, edge_types: Those of the outputs, and those read along.
        sizes: Width of the inputs by vertex type.
        width: That of the outputs.
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
        self.types, self.edge_types, self.width, self._framework = (
            tuple(types),
            tuple(edge_types),
            width,
            framework,
        )
        # By place: names of types may hold what names of modules must not.
        self.own = nn.ModuleList(nn.Linear(sizes[ntype], width) for ntype in types)
        self.convolutions = nn.ModuleList(
            framework.mean_conv(sizes[etype[0]], width) for etype in edge_types
        )

    def forward(self, block: Any, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs of a block's destinations from its sources' inputs, by vertex type."""
        run, out = self._framework, {}
        for ntype, own in zip(self.types, self.own, strict=True):
            out[ntype] = own(x[ntype][: run.num_dst_of(block, ntype)])
        for etype, conv in zip(self.edge_types, self.convolutions, strict=True):
            out[etype[2]] = out[etype[2]] + run.convolve(
                conv, run.relation(block, etype), x[etype[0]]
            )
        return out

    def kept(self, ntype: str, x: Tensor) -> Tensor:
        """A vertex's own summand, to which the means of what it receives are added."""
        kept: Tensor = self.own[self.types.index(ntype)](x)
        return kept

    def sent(self, etype: EdgeType, x: Tensor) -> Tensor:
        """The message that a vertex sends along an edge of a type."""
        return linear(
            x, self._framework.weights(self.convolutions[self.edge_types.index(etype)])[0]
        )


class RelationalSAGE(nn.Module):
    """GraphSAGE with a matrix for each edge type: R-GCN (Schlichtkrull et al., 2018, equation 2)
    without bases.

    A vertex's output is
    ``W_t h_v + b_t + sum over edge types r of W_r mean(h_u for in-neighbours u along r)``, where
    ``t`` is its type; with one edge type it is GraphSAGE's. Only what the target's outputs depend
    on is computed. For one state of torch's generator the initial parameters are the same in all
    frameworks: Glorot's, biases of 0.

    Args:
        shape: What the layers read and compute.
        sizes: Width of embeddings, of each hidden layer, and the number of classes.
        framework: Makes and runs the convolutions.
        dropout: Share of the hidden values dropped in training.
        row_normalize: Whether each row of features is divided by the sum of its magnitudes.

    Attributes:
        layers: Of ``RelationalLayer``.
        fields: Vertex type and name of the fields whose rows :meth:`forward` takes.
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
        self.shape, self.fields, self.row_normalize, self.sizes = (
            shape,
            shape.fields,
            row_normalize,
            tuple(sizes),
        )
        self.dropout = nn.Dropout(dropout)
        width: dict[str, int] = {**shape.widths, **dict.fromkeys(shape.embedded, sizes[0])}
        layers = []
        with torch.random.fork_rng(devices=[]):  # what the frameworks draw themselves differs
            self.embeddings = nn.ModuleList(
                nn.Embedding(count, sizes[0]) for count in shape.embedded.values()
            )
            for types, edge_types, size in zip(
                shape.types[1:], shape.edge_types, sizes[1:], strict=True
            ):
                layers.append(RelationalLayer(types, edge_types, width, size, framework))
                width = dict.fromkeys(types, size)
        self.layers = nn.ModuleList(layers)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() == 1:
                    parameter.zero_()
                else:
                    parameter.copy_(
                        nn.init.xavier_uniform_(torch.empty(parameter.shape, device="cpu"))
                    )

    def forward(self, blocks: Sequence[Any], *rows: Tensor) -> Tensor:
        """Predict the classes of the last block's destinations of the target type, from the rows of
        ``fields``."""
        x = {
            ntype: self.begin(ntype, some)
            for (ntype, _), some in zip(self.fields, rows, strict=True)
        }
        for layer, block in zip(self.layers, blocks, strict=True):
            x = layer(block, x)
            if layer is not self.layers[-1]:
                x = {ntype: self.dropout(rows.relu()) for ntype, rows in x.items()}
        return x[self.shape.target]

    def begin(self, ntype: str, rows: Tensor) -> Tensor:
        """The first layer's inputs of vertices of a type: their features, or embeddings by their
        numbers."""
        if ntype in self.shape.embedded:
            table = self.embeddings[list(self.shape.embedded).index(ntype)]
            embedded: Tensor = table(rows.long())
            return embedded
        return normalize(rows.float(), p=1.0, dim=1) if self.row_normalize else rows.float()
