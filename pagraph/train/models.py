"""The models of ``pagraph train``: GraphSAGE (mean), GCN and GAT, and R-GCN for several types.

They run on sampled blocks. Those for graphs of one type have convolutions of DGL or PyG. GraphSAGE
and GCN can begin with pre-aggregated features (``preaggregation``). Their first layer then needs no
block, so that they have one more layer than blocks. The parameters, and with all neighbours the
outputs, are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from ..errors import MissingDependencyError, how_to_install
from ..framework import Field, Framework
from ..graph.graph import NODE_TYPE, EdgeType, Graph
from ..options.names import SUMS
from ..options.training import FRAMEWORKS
from .preaggregation import FEATURES

NORM = "gcn_norm"
"""The vertex field that GCN reads; see :func:`pagraph.train.task.gcn_norm`."""
VERTICES = "vertex_id"
"""The field of vertices without features that holds their rows in the table of embeddings."""


def framework_of(name: str) -> Framework:
    """Import the framework of a run's ``layers``.

    Raises:
        MissingDependencyError: It is not installed, or for "auto" neither is.
    """
    if name == "auto":
        raise MissingDependencyError(
            "training needs the layers of DGL or PyG, and neither is installed: "
            f"{how_to_install('pyg')}; for DGL's, {how_to_install('dgl')}"
        )
    try:
        if name == "dgl":
            from ..dgl.training import framework as dgl

            return dgl
        from ..pyg.training import framework as pyg

        return pyg
    except MissingDependencyError as error:
        other = next(each for each in FRAMEWORKS if each != name)
        raise MissingDependencyError(f"{error}; or use the layers of {other}") from error


def peers() -> list[str]:
    """Frameworks whose own loaders can run here."""
    found = []
    for name in FRAMEWORKS:
        try:
            framework_of(name).check_own_loader()
        except (ImportError, OSError):  # OSError: one of DGL's binaries cannot be loaded
            continue
        found.append(name)
    return found


def check_matrix(name: str, rows: Any, width: int | None = None) -> int:
    """The width of a field of features; ValueError unless it is 2-D, real and ``width`` wide."""
    is_matrix = len(rows.shape) == 2 and not rows.dtype.is_complex
    if not is_matrix or (width is not None and rows.shape[1] != width):
        of_width = "" if width is None else f" {width} wide"
        raise ValueError(
            f"{name} must be a 2-D real field{of_width}, got {rows.dtype} {tuple(rows.shape)}"
        )
    return int(rows.shape[1])


def glorot_(matrix: Tensor, gain: float = 1.0) -> None:
    """Fill a parameter by Glorot's rule (Glorot and Bengio, 2010, equation 16), in place.

    Numbers are drawn on the CPU, so that a seed gives the same weights on every device.
    """
    drawn = nn.init.xavier_uniform_(torch.empty(matrix.shape, device="cpu"), gain)
    with torch.no_grad():
        matrix.copy_(drawn)


class BlockModel(nn.Module):
    """Base of the models: convolutions on sampled blocks, with ReLU and dropout between them.

    Initial parameters follow Glorot's rule, with biases of 0. They depend only on the state of
    torch's generator, not on the framework.

    Args:
        sizes: Width of the features, of each hidden layer, and the number of classes.
        framework: Makes and runs the convolutions.
        dropout: Share of the hidden values dropped in training.
        preaggregated: Whether the first layer reads its sums over neighbours from the field in
            :data:`SUMS`.
        row_normalize: Whether each row of features is divided by the sum of its magnitudes.
        heads: Attention heads of GAT's hidden layers.

    Attributes:
        layers: One convolution per layer.
        features: Names of the 2-D fields whose rows :meth:`begin` takes as float32.
        fields: All fields whose rows :meth:`forward` takes.
    """

    kind: ClassVar[str]
    _gain: ClassVar[float]
    _summed: ClassVar[tuple[str, ...]] = ()  # fields of pre-aggregated features
    _more: ClassVar[tuple[str, ...]] = ()  # fields that every layer takes

    def __init__(
        self,
        sizes: Sequence[int],
        framework: Framework,
        *,
        dropout: float,
        preaggregated: bool = False,
        row_normalize: bool = False,
        heads: int = 1,
    ) -> None:
        super().__init__()
        self.sizes: tuple[int, ...] = tuple(sizes)
        self._framework = framework
        last = len(sizes) - 2
        # Frameworks draw initial weights in different ways. These are replaced below, and must not
        # advance the generator, so that a seed trains the same model in both.
        with torch.random.fork_rng(devices=[]):
            self.layers: nn.ModuleList = nn.ModuleList(
                # The last layer has one head, whose outputs are the classes.
                framework.convolution(self.kind, size, width, heads if i < last else 1)
                for i, (size, width) in enumerate(pairwise(sizes))
            )
        self.dropout: nn.Dropout = nn.Dropout(dropout)
        self.preaggregated = preaggregated
        self.row_normalize = row_normalize
        self.features: tuple[str, ...] = self._summed if preaggregated else (FEATURES,)
        self.fields: tuple[tuple[str, str], ...] = tuple(
            (NODE_TYPE, name) for name in (*self.features, *self._more)
        )
        for layer in self.layers:
            weights = framework.weights(layer)
            assert weights.bias is not None
            nn.init.zeros_(weights.bias)
            for matrix in (weights.neighbours, weights.own, *weights.attention):
                if matrix is not None:
                    glorot_(matrix, self._gain)

    def forward(self, blocks: Sequence[Any], *rows: Tensor) -> Tensor:
        """Class scores of the last block's destinations, from input nodes' rows of ``fields``."""
        rows = tuple(some.float() for some in rows)
        count = len(self.features)
        x = self.begin(*rows[:count])
        # With pre-aggregated features `begin` is the first layer, which has no block.
        for i, block in enumerate(blocks, int(self.preaggregated)):
            x = self.layer(i, block, x, *rows[count:])
        return x

    def begin(self, *rows: Tensor) -> Tensor:
        """Normalise the features, or run the first layer on pre-aggregated ones."""
        if self.preaggregated:
            # GraphSAGE has a vertex's features and its neighbours' mean. GCN has one field, whose
            # sum includes the vertex itself, and its `kept` is always the bias.
            summed = self.kept(0, rows[0]) + self.sent(0, rows[-1])
            x: Tensor = self.dropout(summed.relu())
            return x
        return normalize(rows[0], p=1.0, dim=1) if self.row_normalize else rows[0]

    def attention(self, i: int) -> tuple[Tensor, ...]:
        """GAT's attention vectors of layer ``i`` for sources and for destinations, both
        ``(heads, width)``; empty for other models."""
        return self._framework.weights(self.layers[i]).attention

    def kept(self, i: int, x: Tensor) -> Tensor:
        """A vertex's own summand in layer ``i``, to which the received messages are added.

        These are the mean of in-neighbours' messages (:meth:`sent`), for GCN the normalised sum of
        their messages and its own, for GAT their sum weighted by :meth:`attention`.
        """
        weights = self._framework.weights(self.layers[i])
        if weights.own is not None:
            return linear(x, weights.own, weights.bias)
        assert weights.bias is not None
        return weights.bias.expand(len(x), -1)

    def sent(self, i: int, x: Tensor) -> Tensor:
        """The message that a vertex sends in layer ``i``."""
        return linear(x, self._framework.weights(self.layers[i]).neighbours)

    def layer(self, i: int, block: Any, x: Tensor, norm: Tensor | None = None) -> Tensor:
        """Run layer ``i`` on a block.

        GCN needs the rows of :data:`NORM` of the block's sources, which other rows may follow.
        """
        weight = None
        if norm is not None:
            weight = _edge_weight(*self._framework.edges(block), norm)
        x = self._framework.convolve(self.layers[i], block, x, edge_weight=weight)
        return x if i == len(self.layers) - 1 else self.dropout(x.relu())


class GraphSAGE(BlockModel):
    """GraphSAGE with mean aggregation (Hamilton et al., 2017); for the arguments see
    :class:`BlockModel`."""

    kind = "sage"
    _gain = nn.init.calculate_gain("relu")
    _summed = (FEATURES, SUMS["sage"])


class GCN(BlockModel):
    """The graph convolutional network of Kipf and Welling (2017); for the arguments see
    :class:`BlockModel`.

    A vertex with sampled in-neighbours ``S`` receives
    ``sqrt(d_v) * mean(h_u / sqrt(d_u) for u in S)``, where ``d`` are degrees in the whole graph.
    With all neighbours this is the paper's symmetric normalisation. With a sample, its expectation
    is.
    """

    # Degrees counted in the block would make it another model. The paper also drops input features.
    # That took two thirds of a step on the CPU with 767 features, and did not raise the accuracy.
    kind = "gcn"
    _gain = 1.0  # as in the paper
    _summed = (SUMS["gcn"],)
    _more = (NORM,)


class GAT(BlockModel):
    """The graph attention network of Velickovic et al. (2018); for the arguments see
    :class:`BlockModel`.

    A vertex attends to its sampled in-neighbours, and always once to itself.
    """

    kind = "gat"
    _gain = nn.init.calculate_gain("relu")

    def layer(self, i: int, block: Any, x: Tensor, norm: Tensor | None = None) -> Tensor:
        """Run layer ``i`` on a block."""
        src, dst = self._framework.edges(block)
        # A self-loop of the graph may have been sampled or not, or twice, so it is replaced by one
        # on every vertex. Destinations are the first sources, so both ends have the same number.
        others = src != dst
        loops = torch.arange(self._framework.num_dst(block), device=src.device)
        src = torch.cat([src[others], loops])
        dst = torch.cat([dst[others], loops])
        return super().layer(i, self._framework.with_edges(block, src, dst), x)


def _edge_weight(src: Tensor, dst: Tensor, norm: Tensor) -> Tensor:
    """``sqrt(d_v) / sqrt(d_u) / number of sampled in-neighbours of v`` for every edge of a block.

    ``norm`` holds ``1 / sqrt(d_u)`` and ``sqrt(d_v)`` of the sources, the destinations first.
    """
    ones = torch.ones(len(dst), device=norm.device)
    counts = torch.zeros(len(norm), device=norm.device).scatter_add_(0, dst, ones)
    share = norm[:, 1] / counts.clamp(min=1)  # where nothing was sampled, no edge reads it
    return torch.index_select(norm[:, 0], 0, src) * torch.index_select(share, 0, dst)


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
