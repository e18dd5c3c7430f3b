"""The models of ``pagraph train`` on sampled blocks: GraphSAGE (mean), GCN and GAT, of DGL's or
PyG's layers.

The first two can begin with pre-aggregated features (``preaggregation``): their first layer then
needs no block, so that there is one layer more than there are blocks. The parameters, and with all
neighbours the outputs, are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..errors import MissingDependencyError, how_to_install
from ..graph.graph import EdgeType, Graph
from .options import FRAMEWORKS
from .preaggregation import FEATURES, SUMS

__all__ = ["GAT", "GCN", "NORM", "BlockModel", "Framework", "GraphSAGE", "framework_of", "peers"]

NORM = "gcn_norm"
"""The vertex field GCN reads; see :func:`pagraph.train.task.gcn_norm`."""


class Framework(Protocol):
    """Adapter of a GNN framework: its convolutions, blocks (destinations are the first sources) and
    loaders."""

    name: str

    def sage_conv(self, in_size: int, out_size: int) -> nn.Module:
        """GraphSAGE's convolution with the mean of the neighbours."""

    def gcn_conv(self, in_size: int, out_size: int) -> nn.Module:
        """GCN's convolution, normalised by edge weights alone."""

    def gat_conv(self, in_size: int, out_size: int, heads: int) -> nn.Module:
        """GAT's convolution, which lays its heads, ``out_size / heads`` wide each, side by side;
        adds no self-loops."""

    def attention(self, conv: Any) -> tuple[Tensor, ...]:
        """GAT's attention vectors for sources and for destinations, both ``(heads, width)``; none
        of another's."""

    def weights(self, conv: Any) -> tuple[Tensor, Tensor | None, Tensor]:
        """The matrix for neighbours, the one for the vertex itself, if any, both ``(out, in)``; and
        the bias."""

    def convolve(
        self, conv: nn.Module, block: Any, x: Tensor, edge_weight: Tensor | None = None
    ) -> Tensor:
        """Run a convolution on the rows of a block's sources; a row for each destination."""

    def edges(self, block: Any) -> tuple[Tensor, Tensor]:
        """Local sources and destinations of a block's edges, int64."""

    def num_dst(self, block: Any) -> int:
        """Number of a block's destinations."""

    def mean_conv(self, in_size: int, out_size: int) -> nn.Module:
        """The mean of the neighbours through a matrix, and nothing else: no bias, nothing of the
        vertex itself."""

    def relation(self, block: Any, edge_type: EdgeType) -> Any:
        """The edges of one type in a block of several, for :meth:`convolve` with a
        :meth:`mean_conv`."""

    def num_dst_of(self, block: Any, node_type: str) -> int:
        """Number of destinations of a vertex type in a block of several."""

    def with_edges(self, block: Any, src: Tensor, dst: Tensor) -> Any:
        """A block of the same vertices with other edges and no data, for :meth:`convolve`."""

    def check_own_loader(self) -> None:
        """Raise ``MissingDependencyError`` if the framework's own loader cannot run."""

    def loader(
        self,
        graph: Graph,
        ids: Tensor,
        fanout: Sequence[int],
        fields: Sequence[str],
        label: str,
        *,
        own: bool,
        **more: Any,
    ) -> Any:
        """A shuffling loader over the seeds ``ids`` in the framework's batches: its ``own``, or
        ours.

        ``fields`` are read for the input nodes, ``label`` for the seeds. ``more`` are
        ``batch_size``, ``num_workers`` and ``device``, and for ours what only ours takes.
        """

    def batch(
        self, item: Any, num_hops: int, label: str
    ) -> tuple[Sequence[Any], Mapping[str, Tensor], Tensor]:
        """The blocks of what a loader gave, the rows of the first one's sources by field, and the
        seeds' labels."""

    def hetero_loader(
        self,
        graph: Graph,
        target: str,
        ids: Tensor,
        fanout: Sequence[int],
        fields: Sequence[tuple[str, str]],
        label: str,
        *,
        own: bool,
        **more: Any,
    ) -> Any:
        """:meth:`loader` for a graph of several types: seeds are of the type ``target``, a field is
        a type and a name.

        A fan-out is that of each edge type.
        """

    def hetero_batch(
        self, item: Any, num_hops: int, target: str, label: str
    ) -> tuple[Sequence[Any], Mapping[Any, Tensor], Tensor]:
        """:meth:`batch` for a graph of several types: rows are by vertex type and name."""

    def link_loader(
        self,
        graph: Graph,
        edges: Tensor,
        fanout: Sequence[int],
        fields: Sequence[str],
        *,
        own: bool,
        **more: Any,
    ) -> Any:
        """A shuffling loader over the edges ``edges``, with a random destination for each; else as
        :meth:`loader`."""

    def link_batch(
        self, item: Any, num_hops: int
    ) -> tuple[Sequence[Any], Mapping[str, Tensor], Tensor, Tensor]:
        """Blocks and rows as :meth:`batch`, and local ends of the edges and of the random pairs,
        both ``(2, n)``."""

    def seed(self, seed: int) -> None:
        """Seed the framework's own random numbers."""


def framework_of(name: str) -> Framework:
    """Import the framework of a run's ``layers``; MissingDependencyError without it (for "auto":
    without any)."""
    if name == "auto":
        raise MissingDependencyError(
            "training needs the layers of DGL or PyG, and neither is installed: "
            f"{how_to_install('pyg')}; for DGL's, "
            f"{how_to_install('dgl')}"
        )
    try:
        if name == "dgl":
            from ..dgl.training import framework as dgl

            return dgl
        from ..pyg.training import framework as pyg

        return pyg
    except MissingDependencyError as error:
        other = next(each for each in FRAMEWORKS if each != name)
        raise MissingDependencyError(f"{error}; or take the layers of {other}") from error


def peers() -> list[str]:
    """Frameworks whose own loaders can run here, to compare with."""
    found = []
    for name in FRAMEWORKS:
        try:
            framework_of(name).check_own_loader()
        except (ImportError, OSError):  # the latter where a binary of DGL's cannot be loaded
            continue
        found.append(name)
    return found


class BlockModel(nn.Module):
    """Convolutions on sampled blocks, one per hop, with ReLU and dropout between; base of the
    models.

    For one state of torch's generator the initial parameters are the same in all frameworks:
    Glorot's, biases of 0.

    Args:
        sizes: Width of the features, of each hidden layer, and the number of classes.
        framework: Makes and runs the convolutions.
        dropout: Share of the hidden values dropped in training.
        preaggregated: Whether the first layer takes what neighbours send from the field
            :data:`SUMS`.
        row_normalize: Whether each row of features is divided by the sum of its magnitudes.
        heads: Attention heads of GAT's hidden layers.

    Attributes:
        layers: The framework's convolutions.
        features: The fields of the input nodes whose rows :meth:`begin` takes, as float32.
        fields: All fields whose rows :meth:`forward` takes.
    """

    _gain: float
    _summed: tuple[str, ...]  # features where these are pre-aggregated
    _more: tuple[str, ...] = ()  # fields that every layer takes

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
        self.sizes, self.heads, self._framework = tuple(sizes), heads, framework
        with torch.random.fork_rng(devices=[]):  # what the frameworks draw themselves differs
            self.layers = nn.ModuleList(self._make(i) for i in range(len(sizes) - 1))
        self.dropout = nn.Dropout(dropout)
        self.preaggregated, self.row_normalize = preaggregated, row_normalize
        self.features = self._summed if preaggregated else (FEATURES,)
        self.fields = (*self.features, *self._more)
        with torch.no_grad():
            for layer in self.layers:
                *matrices, bias = framework.weights(layer)
                bias.zero_()
                for matrix in (*matrices, *framework.attention(layer)):
                    if matrix is not None:
                        matrix.copy_(
                            nn.init.xavier_uniform_(
                                torch.empty(matrix.shape, device="cpu"), self._gain
                            )
                        )

    def _make(self, i: int) -> nn.Module:
        raise NotImplementedError

    def forward(self, blocks: Sequence[Any], *rows: Tensor) -> Tensor:
        """Predict the classes of the last block's destination vertices from the input nodes' rows
        of ``fields``."""
        rows = tuple(some.float() for some in rows)
        x, more = self.begin(*rows[: len(self.features)]), rows[len(self.features) :]
        for i, block in enumerate(blocks, int(self.preaggregated)):
            x = self.layer(i, block, x, *more)
        return x

    def begin(self, *rows: Tensor) -> Tensor:
        """Do what needs no neighbours: normalise the features, or run the first layer on
        pre-aggregated ones."""
        if not self.preaggregated:
            return nn.functional.normalize(rows[0], p=1.0, dim=1) if self.row_normalize else rows[0]
        x: Tensor = self.dropout((self.kept(0, rows[0]) + self.sent(0, rows[-1])).relu())
        return x

    def attention(self, i: int) -> tuple[Tensor, ...]:
        """GAT's attention vectors of layer ``i`` for sources and for destinations,
        ``(heads, width)``; else none."""
        return self._framework.attention(self.layers[i])

    def kept(self, i: int, x: Tensor) -> Tensor:
        """A vertex's own summand in layer ``i``, to which what it receives is added.

        That is the mean of in-neighbours' messages (:meth:`sent`), for GCN the normalised sum of
        these and its own, for GAT their sum weighted by :meth:`attention`.
        """
        _, own, bias = self._framework.weights(self.layers[i])
        return bias.expand(len(x), -1) if own is None else linear(x, own, bias)

    def sent(self, i: int, x: Tensor) -> Tensor:
        """The message that a vertex sends in layer ``i``."""
        return linear(x, self._framework.weights(self.layers[i])[0])

    def layer(self, i: int, block: Any, x: Tensor, norm: Tensor | None = None) -> Tensor:
        """Run layer ``i`` on a block; GCN needs the rows of :data:`NORM` of its sources, more may
        follow."""
        weight = None if norm is None else _edge_weight(*self._framework.edges(block), norm)
        x = self._framework.convolve(self.layers[i], block, x, weight)
        return x if i == len(self.layers) - 1 else self.dropout(x.relu())


class GraphSAGE(BlockModel):
    """GraphSAGE with mean aggregation; for the arguments see :class:`BlockModel`."""

    _gain, _summed = nn.init.calculate_gain("relu"), (FEATURES, SUMS["sage"])

    def _make(self, i: int) -> nn.Module:
        return self._framework.sage_conv(*self.sizes[i : i + 2])


class GCN(BlockModel):
    """The graph convolutional network of Kipf and Welling; for the arguments see
    :class:`BlockModel`.

    A vertex with sampled in-neighbours ``S`` receives
    ``sqrt(d_v) * mean(h_u / sqrt(d_u) for u in S)``, where ``d`` are degrees in the whole graph:
    with all neighbours this is the paper's symmetric normalisation, and with a sample its
    expectation is. (Degrees counted in the block would make it another model. Dropping input
    features as well took two thirds of a step on the CPU with 767 features and raised no accuracy.)
    """

    _gain, _summed, _more = 1.0, (SUMS["gcn"],), (NORM,)

    def _make(self, i: int) -> nn.Module:
        return self._framework.gcn_conv(*self.sizes[i : i + 2])


class GAT(BlockModel):
    """The graph attention network of Velickovic et al.; for the arguments see :class:`BlockModel`.

    A vertex attends to its sampled in-neighbours and, always and once, to itself.
    """

    _gain, _summed = nn.init.calculate_gain("relu"), ()

    def _make(self, i: int) -> nn.Module:
        in_size, out_size = self.sizes[i : i + 2]
        return self._framework.gat_conv(
            in_size, out_size, self.heads if i + 2 < len(self.sizes) else 1
        )

    def layer(self, i: int, block: Any, x: Tensor, norm: Tensor | None = None) -> Tensor:
        """Run layer ``i`` on a block."""
        src, dst = self._framework.edges(block)
        others, loops = src != dst, torch.arange(self._framework.num_dst(block), device=src.device)
        ends = (torch.cat([side[others], loops]) for side in (src, dst))
        return super().layer(i, self._framework.with_edges(block, *ends), x)


def _edge_weight(src: Tensor, dst: Tensor, norm: Tensor) -> Tensor:
    """``sqrt(d_v) / sqrt(d_u) / number of sampled in-neighbours of v`` for every edge of a
    block."""
    counts = torch.zeros(len(norm), device=norm.device).scatter_add_(
        0, dst, torch.ones(len(dst), device=norm.device)
    )
    share = norm[:, 1] / counts.clamp(min=1)
    return torch.index_select(norm[:, 0], 0, src) * torch.index_select(share, 0, dst)
