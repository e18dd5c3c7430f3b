"""PyG's training framework: its convolutions on trimmed batches, our loader, and PyG's own to compare with.

PyG expands a vertex once and gives one subgraph of all hops. A layer computes no more than later ones read: its block
is the first edges and vertices of the subgraph, as many as the hops that remain have found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import MissingDependencyError
from ..graph.field_value import materialized
from ..graph.graph import Graph
from .graphs import to_pyg
from .loaders import LinkNeighborLoader, NeighborLoader
from .package import import_pyg

import_pyg()
from torch_geometric import typing as pyg_typing  # noqa: E402
from torch_geometric.loader import LinkNeighborLoader as _LinkNeighborLoader  # noqa: E402
from torch_geometric.loader import NeighborLoader as _NeighborLoader  # noqa: E402
from torch_geometric.nn import GATConv, GCNConv, SAGEConv  # noqa: E402
from torch_geometric.sampler import NegativeSampling  # noqa: E402

__all__ = ["PyGBlock", "framework"]


class PyGBlock(NamedTuple):
    """The edges of one layer of a batch; destinations are the first sources."""

    edge_index: Tensor
    num_dst: int


class _OnDevice:
    """Base of PyG's own loaders whose batches are moved to a device as a training loop would move them."""

    def __init__(self, *args: Any, device: torch.device, **more: Any) -> None:
        super().__init__(*args, **more)
        self._to = device

    def __iter__(self) -> Iterator[Any]:
        return (batch.to(self._to) for batch in super().__iter__())  # type: ignore[misc]


class _PyGsLoader(_OnDevice, _NeighborLoader):
    """PyG's own ``NeighborLoader``."""


class _PyGsLinkLoader(_OnDevice, _LinkNeighborLoader):
    """PyG's own ``LinkNeighborLoader``."""


class _PyG:
    """Implements ``pagraph.train.models.Framework``; blocks are :class:`PyGBlock`."""

    name = "pyg"

    def sage_conv(self, in_size: int, out_size: int) -> nn.Module:
        conv: nn.Module = SAGEConv(in_size, out_size)
        return conv

    def gcn_conv(self, in_size: int, out_size: int) -> nn.Module:
        conv: nn.Module = GCNConv(in_size, out_size, normalize=False, add_self_loops=False)
        return conv

    def gat_conv(self, in_size: int, out_size: int, heads: int) -> nn.Module:
        conv: nn.Module = GATConv(in_size, out_size // heads, heads, add_self_loops=False)
        return conv

    def attention(self, conv: Any) -> tuple[Tensor, ...]:
        return (conv.att_src[0], conv.att_dst[0]) if isinstance(conv, GATConv) else ()

    def weights(self, conv: Any) -> tuple[Tensor, Tensor | None, Tensor]:
        if isinstance(conv, SAGEConv):
            return conv.lin_l.weight, conv.lin_r.weight, conv.lin_l.bias
        return conv.lin.weight, None, conv.bias

    def convolve(self, conv: nn.Module, block: PyGBlock, x: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        if isinstance(conv, SAGEConv):
            rows: Tensor = conv((x, x[: block.num_dst]), block.edge_index)
            return rows
        rows = conv(x, block.edge_index) if isinstance(conv, GATConv) else conv(x, block.edge_index, edge_weight)
        return rows[: block.num_dst]

    def edges(self, block: PyGBlock) -> tuple[Tensor, Tensor]:
        return block.edge_index[0], block.edge_index[1]

    def num_dst(self, block: PyGBlock) -> int:
        return block.num_dst

    def with_edges(self, block: PyGBlock, src: Tensor, dst: Tensor) -> PyGBlock:
        return PyGBlock(torch.stack([src, dst]), block.num_dst)

    def check_own_loader(self) -> None:
        if not (pyg_typing.WITH_PYG_LIB or pyg_typing.WITH_TORCH_SPARSE):
            version = torch.__version__.partition("+")[0]
            raise MissingDependencyError(
                "PyG's own NeighborLoader needs pyg-lib or torch-sparse, and neither is installed: pip install pyg-lib "
                f"-f https://data.pyg.org/whl/torch-{version}+cpu.html (or +cu126 and so on), or pip install "
                "--no-build-isolation torch-sparse, which compiles it; pagraph's loader needs neither"
            )

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
        if own:
            self.check_own_loader()
        data = _data(graph, (*fields, label))
        return (_PyGsLoader if own else NeighborLoader)(data, list(fanout)[::-1], ids, shuffle=True, **more)

    def batch(self, item: Any, num_hops: int, label: str) -> tuple[Sequence[Any], Mapping[str, Tensor], Tensor]:
        return _blocks(item, num_hops, item.batch_size), item, item[label][: item.batch_size]

    def link_loader(
        self, graph: Graph, edges: Tensor, fanout: Sequence[int], fields: Sequence[str], *, own: bool, **more: Any
    ) -> Any:
        if own:
            self.check_own_loader()
        more["edge_label_index"] = torch.stack([graph.csc.indices[edges], graph.csc.destinations()[edges]]).long()
        loader = _PyGsLinkLoader if own else LinkNeighborLoader
        negatives = NegativeSampling("triplet")
        return loader(_data(graph, fields), list(fanout)[::-1], neg_sampling=negatives, shuffle=True, **more)

    def link_batch(self, item: Any, num_hops: int) -> tuple[Sequence[Any], Mapping[str, Tensor], Tensor, Tensor]:
        links, others = (torch.stack([item.src_index, item[f"dst_{kind}_index"]]) for kind in ("pos", "neg"))
        return _blocks(item, num_hops, 1 + int(torch.cat([links, others]).max())), item, links, others

    def seed(self, seed: int) -> None:
        """PyG's random numbers are torch's."""


framework = _PyG()


def _data(graph: Graph, fields: Sequence[str]) -> Any:
    """PyG's data of a graph with some of its fields."""
    data = to_pyg(Graph(graph.csc))
    for name in fields:
        data[name] = materialized(graph.ndata[name])
    return data


def _blocks(batch: Any, num_hops: int, num_seeds: int) -> list[PyGBlock]:
    """The blocks of a batch, whose first vertices are the seeds."""
    hops = list(pairwise(_hop_ends(batch, num_hops, num_seeds)))
    return [PyGBlock(batch.edge_index[:, :edges], before) for (before, _), (_, edges) in reversed(hops)]


def _hop_ends(batch: Any, num_hops: int, num_seeds: int) -> list[tuple[int, int]]:
    """Numbers of vertices and edges known after each hop, the seeds being hop 0."""
    if batch.get("num_sampled_nodes") is not None:
        return list(zip(accumulate(batch.num_sampled_nodes), accumulate([0, *batch.num_sampled_edges]), strict=True))
    (src, dst), known = batch.edge_index, int(num_seeds)
    ends = [(known, 0)]
    for _ in range(num_hops):  # torch-sparse counts nothing; its edges, too, come in the order of their destinations
        edges = int(torch.searchsorted(dst, known))
        known = max(known, 1 + int(src[:edges].max())) if edges else known
        ends.append((known, edges))
    return ends
