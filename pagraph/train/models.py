"""The models of ``pagraph train`` for graphs of one type: GraphSAGE (mean), GCN and GAT.

They run on sampled blocks, with convolutions of DGL or PyG. GraphSAGE and GCN can begin with
pre-aggregated features (``preaggregation``). Their first layer then needs no block, so that they
have one more layer than blocks. The parameters, and with all neighbours the outputs, are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from ..errors import MissingDependencyError, how_to_install
from ..framework import Framework
from ..graph.graph import NODE_TYPE
from ..options.names import SUMS
from ..options.training import FRAMEWORKS
from .preaggregation import FEATURES

NORM = "gcn_norm"
"""The vertex field that GCN reads; see :func:`pagraph.train.task.gcn_norm`."""


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
