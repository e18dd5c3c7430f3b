"""LayerSampler and HardNegatives as DGL samplers, for DGL's loader and ours."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..sampling import LayerSampler as CoreSampler
from ..sampling.negative import HardNegatives as CoreNegatives
from ..seeds.keys import random_key
from .blocks import BlockBuilder
from .convert import by_edge_type, core_graph, excluded_sets
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl import utils  # noqa: E402
from dgl.dataloading import BlockSampler as DGLBlockSampler  # noqa: E402
from dgl.dataloading.negative_sampler import _BaseNegativeSampler  # noqa: E402


class LayerSampler(DGLBlockSampler):
    """Draws a number of vertices for each layer (LADIES, FastGCN), with all edges to the frontier.

    It is a ``dgl.dataloading.BlockSampler``. Blocks have ``edata["edge_weights"]``, float32. The
    sum over a vertex's in-edges of weight times source row is an unbiased estimate of the mean over
    all its in-neighbours, or of the mean weighted by ``edge_weight``. So aggregate by a sum, not by
    a mean. See ``pagraph.sampling.LayerSampler``.

    With ``pagraph.dgl.DataLoader`` batches are a function of the loader's seed; otherwise each
    batch's random key comes from torch's default generator.

    Args:
        sizes: Vertices drawn for each layer, and for each edge type if there are several; the last
            entry is for the seeds' layer. An entry may be a mapping from edge type to a number,
            where 0 draws nothing.
        method: "ladies" (Zou et al., NeurIPS 2019) or "fastgcn" (Chen et al., ICLR 2018).
        edge_weight: Name of a column of ``edata`` with non-negative weights of the mean. In edge
            types without the column every edge weighs 1. Default: all edges weigh 1.
        edge_dir: "in" draws from in-edges; "out" from out-edges, for homogeneous graphs.
        prefetch_node_feats: Columns of vertices that the first block's sources get.
        prefetch_labels: Columns of vertices that the last block's destinations get.
        prefetch_edge_feats: Columns of edges that all blocks get.
        output_device: Where blocks are returned. Default: on the CPU.

    Raises:
        TypeError: A size is not an integer, or ``edge_weight`` is not a string.
        ValueError: No size, one below 1, an unknown method or direction.

    Example:
        >>> import dgl, torch
        >>> graph = dgl.graph(([0, 1, 2, 3], [4, 4, 5, 5]))
        >>> _, _, blocks = LayerSampler([4]).sample(graph, torch.tensor([4, 5]))
        >>> blocks[0].edata["edge_weights"].tolist()
        [0.5, 0.5, 0.5, 0.5]
    """

    def __init__(
        self,
        sizes: Sequence[int | Mapping[Any, int]],
        method: str = "ladies",
        *,
        edge_weight: str | None = None,
        edge_dir: str = "in",
        prefetch_node_feats: Any = None,
        prefetch_labels: Any = None,
        prefetch_edge_feats: Any = None,
        output_device: Any = None,
    ) -> None:
        super().__init__(prefetch_node_feats, prefetch_labels, prefetch_edge_feats, output_device)
        if edge_weight is not None and not isinstance(edge_weight, str):
            raise TypeError(f"edge_weight must be the name of an edge column, got {edge_weight!r}")
        checked = CoreSampler(sizes, method, edge_dir=edge_dir)
        self.sizes = list(checked.sizes)
        self.method = method
        self.edge_weight = edge_weight
        self.edge_dir = edge_dir

    def core_sampler(self, graph: Any) -> CoreSampler:
        """The equivalent core sampler for a graph, which a loader runs in its threads.

        Raises:
            DGLError: A mapping of sizes lacks an edge type, or has one that the graph does not.
            KeyError: No edge type has the column ``edge_weight``.
            ValueError: ``edge_dir`` is "out" and the graph is not homogeneous.
        """
        etypes = graph.canonical_etypes
        if self.edge_dir != "in" and not graph.is_homogeneous:
            raise ValueError(
                f"edge_dir must be 'in' for graphs of several types, got {self.edge_dir!r}"
            )
        if self.edge_weight is not None and not any(
            self.edge_weight in graph.edges[t].data for t in etypes
        ):
            names = sorted({name for etype in etypes for name in graph.edges[etype].data})
            raise KeyError(
                f"edge_weight must name an edge column of the graph, {names}; got "
                f"{self.edge_weight!r}"
            )
        sizes = [
            by_edge_type(graph, "sizes", size) if isinstance(size, Mapping) else size
            for size in self.sizes
        ]
        return CoreSampler(sizes, self.method, prob=self.edge_weight, edge_dir=self.edge_dir)

    def sample_blocks(
        self, g: Any, seed_nodes: Any, exclude_eids: Any = None
    ) -> tuple[Any, Any, list[Any]]:
        """Sample the blocks of one batch.

        Args:
            g: A graph on the CPU.
            seed_nodes: Ids, or a mapping from vertex type.
            exclude_eids: Edges to leave out of blocks: ids, or a mapping from edge type. The
                weights of other edges do not change.

        Returns:
            Input nodes, ``seed_nodes``, and the blocks, outermost first.

        Raises:
            TypeError: ``g`` is not a DGL graph.
            DGLError: ``g`` is not on the CPU; ids of the wrong dtype or type; see
                :meth:`core_sampler`.
            IndexError: A seed is outside the graph.
        """
        if not isinstance(g, dgl.DGLGraph) or g.is_block:
            raise TypeError(
                f"LayerSampler samples from whole dgl.DGLGraph objects, got {type(g).__name__}"
            )
        if g.device.type != "cpu":
            raise dgl.DGLError(
                f"LayerSampler samples from graphs on the CPU, got one on {g.device}"
            )
        sampler = self.core_sampler(g)
        core = core_graph(g, self.edge_dir)
        seeds = utils.prepare_tensor_or_dict(g, seed_nodes, "seed_nodes")
        if not isinstance(seeds, Mapping) and len(g.ntypes) != 1:
            raise dgl.DGLError(
                f"seed_nodes must be a mapping from vertex type for a graph of {list(g.ntypes)}"
            )
        by_type = dict(seeds) if isinstance(seeds, Mapping) else {g.ntypes[0]: seeds}
        batch = sampler.with_in_edges().sample(
            core,
            by_type,
            int(torch.randint(2**63 - 1, (), device="cpu")),
            dtype=g.idtype,
            field=lambda etype, name: g.edges[etype].data.get(name),
            exclude=excluded_sets(g, core, exclude_eids),
        )
        builder = BlockBuilder(g, core)
        # Copies: DGL's indices hold addresses, and a worker process that sends a batch moves the
        # memory of the columns, which is the same, to where processes share it.
        indices = builder.structures(copy.deepcopy(batch.blocks))
        blocks = builder.build_all(batch.blocks, indices)
        if self.output_device is not None:
            blocks = [block.to(self.output_device) for block in blocks]
        return blocks[0].srcdata[dgl.NID], seed_nodes, blocks


class HardNegatives(_BaseNegativeSampler):
    """Draws ``k`` hard negatives for each edge of a batch: edges from its source that do not exist.

    It is used like ``dgl.dataloading.negative_sampler.PerSourceUniform``. With
    ``pagraph.dgl.DataLoader`` it runs in the loader's threads, and draws are a function of the
    loader's seed; otherwise each call's random key comes from torch's default generator. A source
    with edges to all destinations gets no negative; see ``pagraph.sampling.HardNegatives``.

    Args:
        k: Negative edges per edge.
        power: Destinations are drawn in proportion to their in-degree to this power: 0 draws
            uniformly, 0.75 like word2vec.
        among: Draw only these vertices: ids, or a mask of all; or a mapping from vertex type to
            either.
        in_batch: Draw from the destinations of the batch's other edges.
        exclude_edges: Never draw a destination to which the source has an edge of the type.

    Raises:
        TypeError: A value of the wrong type.
        ValueError: ``k`` is below 1; ``power`` negative, infinite or NaN, or given with
            ``in_batch``.

    Example:
        >>> import dgl, torch
        >>> graph = dgl.graph(([0, 0, 1], [1, 2, 2]))
        >>> HardNegatives(2)(graph, torch.tensor([0]))
        (tensor([0, 0]), tensor([0, 0]))
    """

    def __init__(
        self,
        k: int = 1,
        *,
        power: float = 0.0,
        among: Any = None,
        in_batch: bool = False,
        exclude_edges: bool = True,
    ) -> None:
        self.core: CoreNegatives = CoreNegatives(k, power, among, in_batch, exclude_edges)
        self.k: int = self.core.k

    def _generate(self, g: Any, eids: Any, canonical_etype: Any) -> tuple[Any, Any]:
        csc = core_graph(g).csc_of(canonical_etype)
        src, dst = csc.ends_at(csc.positions_of(eids))
        pairs = src.to(g.idtype), dst.to(g.idtype)
        return self.core.draw(csc, canonical_etype, pairs, random_key())
