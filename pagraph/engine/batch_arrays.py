"""The arrays of a mini-batch, for a copy of all of them at once, and the same mini-batch with
others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from torch import Tensor

from ..graph.minibatch import Block, HeteroBlock, HeteroMiniBatch, Links, MiniBatch, Relation

__all__ = ["arrays_of", "links_of", "tensors_of", "with_arrays"]


def arrays_of(batch: MiniBatch | HeteroMiniBatch) -> list[Tensor]:
    """The arrays of a sampled batch without fields, but for those that are the first part of
    another."""
    arrays = (
        [batch.input_nodes] if isinstance(batch, MiniBatch) else list(batch.input_nodes.values())
    )
    for block in batch.blocks:
        for edges in (block,) if isinstance(block, Block) else block.relations.values():
            arrays += [edges.indptr, edges.indices, edges.positions]
            if edges.weights is not None:
                arrays.append(edges.weights)
    for links in links_of(batch):
        arrays += [links.positive, links.negative]
        if links.edge_ids is not None:
            arrays.append(links.edge_ids)
    return arrays


def with_arrays(
    batch: MiniBatch | HeteroMiniBatch, arrays: Iterable[Tensor]
) -> MiniBatch | HeteroMiniBatch:
    """The batch with other arrays in place of :func:`arrays_of`.

    The vertices of every block become the first of the outermost one's, and the seeds the first of
    all.
    """
    there = iter(arrays)
    if isinstance(batch, MiniBatch):
        nodes, blocks = next(there), []
        for block in batch.blocks:
            edges = _edges(block, there)
            src_nodes = nodes[: block.num_src]
            blocks.append(
                Block(
                    edges.indptr,
                    edges.indices,
                    src_nodes,
                    edges.positions,
                    block.num_dst,
                    edges.weights,
                )
            )
        links = None if batch.links is None else _links(batch.links, there)
        return MiniBatch(nodes[: len(batch.output_nodes)], blocks, links=links)
    by_type, hetero_blocks = {ntype: next(there) for ntype in batch.input_nodes}, []
    for hetero in batch.blocks:
        relations = {etype: _edges(relation, there) for etype, relation in hetero.relations.items()}
        sources = {ntype: by_type[ntype][: len(ids)] for ntype, ids in hetero.src_nodes.items()}
        hetero_blocks.append(HeteroBlock(relations, sources, hetero.num_dst))
    seeds = {ntype: by_type[ntype][: len(ids)] for ntype, ids in batch.output_nodes.items()}
    pairs = (
        None
        if batch.links is None
        else {etype: _links(links, there) for etype, links in batch.links.items()}
    )
    return HeteroMiniBatch(seeds, hetero_blocks, by_type, links=pairs)


def tensors_of(batch: MiniBatch | HeteroMiniBatch) -> list[Tensor]:
    """All tensors of a sampled batch without fields."""
    if isinstance(batch, MiniBatch):
        parts = [batch.output_nodes, *(block.src_nodes for block in batch.blocks)]
    else:
        parts = [
            *batch.output_nodes.values(),
            *chain(*(block.src_nodes.values() for block in batch.blocks)),
        ]
    return [*parts, *arrays_of(batch)]


def links_of(batch: MiniBatch | HeteroMiniBatch) -> Iterable[Links]:
    """The links of all edge types; none in batches of vertices."""
    if batch.links is None:
        return ()
    return (batch.links,) if isinstance(batch.links, Links) else batch.links.values()


def _edges(edges: Block | Relation, there: Iterator[Tensor]) -> Relation:
    indptr, indices, positions = next(there), next(there), next(there)
    return Relation(indptr, indices, positions, None if edges.weights is None else next(there))


def _links(links: Links, there: Iterator[Tensor]) -> Links:
    positive, negative = next(there), next(there)
    return Links(positive, negative, None if links.edge_ids is None else next(there))
