"""Comparing a batch of ours with DGL's: equal in all that DGL promises, whatever it leaves open."""

import torch
from cases import dgl


def by_type(ids, types):
    """Ids as a mapping, also where a graph with one type gives a tensor."""
    return ids if isinstance(ids, dict) else {types[0]: ids}


def assert_same_ids(mine, reference, *, in_order):
    """Both tensors or both mappings with the same keys in the same order; equal, or equal as sets
    of distinct ids."""
    assert isinstance(mine, dict) == isinstance(reference, dict)
    if isinstance(mine, dict):
        assert list(mine) == list(reference)
    my_parts, parts = by_type(mine, [None]), by_type(reference, [None])
    for key, part in parts.items():
        mine = my_parts[key]
        assert mine.dtype == part.dtype and mine.device == part.device and mine.shape == part.shape
        assert mine.is_contiguous()
        assert torch.equal(
            mine if in_order else mine.sort().values, part if in_order else part.sort().values
        )


def assert_same_batch(graph, mine, reference):
    """``(input_nodes, output_nodes, blocks)`` of both loaders."""
    assert type(mine) is tuple and type(mine[2]) is list and len(mine) == len(reference) == 3
    assert_same_ids(mine[1], reference[1], in_order=True)
    assert_same_ids(mine[0], reference[0], in_order=False)
    assert_same_blocks(graph, mine[2], reference[2])
    assert_chained(mine[0], mine[1], mine[2])


def assert_same_edge_batch(graph, mine, reference):
    """``(input_nodes, pair_graph, [negative_graph,] blocks)`` of both loaders."""
    assert type(mine) is tuple and type(mine[-1]) is list and len(mine) == len(reference)
    assert_same_ids(mine[0], reference[0], in_order=False)
    assert_same_pair(graph, mine[1], reference[1])
    if len(mine) == 4:
        assert_same_negatives(mine[1], mine[2], reference[2])
    assert_same_blocks(graph, mine[-1], reference[-1])
    assert_chained(mine[0], nodes_of(mine[1]), mine[-1])


def nodes_of(graph):
    """The original ids of a pair graph's vertices, by type."""
    return {ntype: graph.nodes[ntype].data[dgl.NID] for ntype in graph.ntypes}


def assert_chained(input_nodes, output_nodes, blocks):
    """Input nodes, sources, destinations and output nodes of a batch follow from each other, in
    order."""
    ntypes = blocks[0].srctypes
    inputs, outputs = by_type(input_nodes, ntypes), by_type(output_nodes, ntypes)
    for ntype in ntypes:
        assert torch.equal(inputs[ntype], blocks[0].srcnodes[ntype].data[dgl.NID])
        last = blocks[-1].dstnodes[ntype].data[dgl.NID]
        assert torch.equal(outputs[ntype], last) if ntype in outputs else len(last) == 0
        for block in blocks:
            src, dst = block.srcnodes[ntype].data[dgl.NID], block.dstnodes[ntype].data[dgl.NID]
            assert torch.equal(src[: len(dst)], dst)
            new = src[len(dst) :]
            assert len(new.unique()) == len(new) and not torch.isin(new, dst).any()
        for outer, inner in zip(blocks, blocks[1:], strict=False):
            assert torch.equal(
                outer.dstnodes[ntype].data[dgl.NID], inner.srcnodes[ntype].data[dgl.NID]
            )


def assert_same_blocks(graph, mine, reference):
    """Blocks with the same types, ids, edges and columns."""
    assert len(mine) == len(reference)
    for my_block, block in zip(mine, reference, strict=True):
        assert type(my_block) is type(block) and my_block.is_block
        assert_same_types(my_block, block)
        assert (my_block.srctypes, my_block.dsttypes) == (block.srctypes, block.dsttypes)
        for ntype in block.srctypes:
            for my_nodes, nodes in (
                (my_block.srcnodes, block.srcnodes),
                (my_block.dstnodes, block.dstnodes),
            ):
                assert_same_columns(
                    graph.nodes[ntype].data, my_nodes[ntype].data, nodes[ntype].data, dgl.NID
                )
            assert my_block.num_src_nodes(ntype) == block.num_src_nodes(ntype)
            assert my_block.num_dst_nodes(ntype) == block.num_dst_nodes(ntype)
        for etype in block.canonical_etypes:
            expected = dict(block.edges[etype].data)
            if not block.num_edges(etype):
                # DGL's uniform LABOR gives these to blocks without edges only.
                expected.pop("edge_weights", None)
            assert_same_columns(
                graph.edges[etype].data, my_block.edges[etype].data, expected, dgl.EID
            )
            assert edge_rows(my_block, etype) == edge_rows(block, etype)


def assert_same_types(mine, reference):
    assert mine.ntypes == reference.ntypes and mine.canonical_etypes == reference.canonical_etypes
    assert mine.idtype == reference.idtype and mine.device == reference.device
    assert sorted(mine.metagraph().edges(keys=True)) == sorted(
        reference.metagraph().edges(keys=True)
    )


def assert_same_columns(parent, mine, reference, id_name):
    """A frame of a sampled graph: the reference's columns, each with the parent's rows at its
    ids."""
    assert set(mine) == set(reference)
    for name, expected in reference.items():
        got = mine[name]
        assert (got.dtype, got.shape, got.device) == (
            expected.dtype,
            expected.shape,
            expected.device,
        )
    assert_parents_rows(parent, mine, id_name)


def assert_parents_rows(parent, mine, id_name):
    """A frame of a sampled graph has the parent's columns, with the rows of its ids."""
    assert set(mine) == {*parent, id_name}
    for name in parent:
        expected = parent[name][mine[id_name].long()]
        assert (
            mine[name].dtype == expected.dtype
            and mine[name].is_contiguous()
            and torch.equal(mine[name], expected)
        )


def edge_rows(block, etype):
    """A block's edges as sorted (source id, destination id, edge id): the order DGL leaves open."""
    src, dst = block.edges(etype=etype)
    src_ids, dst_ids = (
        block.srcnodes[etype[0]].data[dgl.NID],
        block.dstnodes[etype[2]].data[dgl.NID],
    )
    eids = block.edges[etype].data[dgl.EID]
    return sorted(
        zip(src_ids[src.long()].tolist(), dst_ids[dst.long()].tolist(), eids.tolist(), strict=True)
    )


def assert_same_messages(graph, mine, reference):
    """Message passing over each relation of each block: the same sums for each vertex, the same
    gradients."""
    for my_block, block in zip(mine, reference, strict=True):
        for etype in block.canonical_etypes:
            my_sums, my_gradients = messages(graph, my_block[etype], etype)
            sums, gradients = messages(graph, block[etype], etype)
            torch.testing.assert_close(my_sums, sums)
            torch.testing.assert_close(my_gradients, gradients)


def messages(graph, block, etype):
    """Weighted sums over in-edges by destination id, and the gradient of a function of them by
    source id."""
    src_ids, dst_ids, eids = (
        block.srcdata[dgl.NID].long(),
        block.dstdata[dgl.NID].long(),
        block.edata[dgl.EID],
    )
    x = torch.stack([src_ids.double().sin(), src_ids.double().cos()], 1).requires_grad_()
    with block.local_scope():
        block.srcdata["x"], block.edata["e"] = x, eids.double().cos().unsqueeze(1)
        block.update_all(dgl.function.u_mul_e("x", "e", "m"), dgl.function.sum("m", "y"))
        y = block.dstdata["y"]
    # Linear, so that it does not matter which of a repeated seed's rows has the edges.
    (y * (dst_ids.double() + 1).unsqueeze(1)).sum().backward()
    sums = torch.zeros(graph.num_nodes(etype[2]), 2, dtype=torch.float64).index_add_(
        0, dst_ids, y.detach()
    )
    gradient = torch.zeros_like(x) if x.grad is None else x.grad
    return sums, torch.zeros(graph.num_nodes(etype[0]), 2, dtype=torch.float64).index_add_(
        0, src_ids, gradient
    )


def assert_same_pair(graph, mine, reference):
    """A pair graph: the seed edges in batch order between the right vertices, with the parent's
    columns."""
    assert type(mine) is type(reference) and not mine.is_block
    assert_same_types(mine, reference)
    assert_same_ids(nodes_of(mine), nodes_of(reference), in_order=False)
    for ntype in reference.ntypes:
        assert_same_columns(
            graph.nodes[ntype].data, mine.nodes[ntype].data, reference.nodes[ntype].data, dgl.NID
        )
    for etype in reference.canonical_etypes:
        data, expected = mine.edges[etype].data, reference.edges[etype].data
        assert_same_columns(graph.edges[etype].data, data, expected, dgl.EID)
        assert torch.equal(data[dgl.EID], expected[dgl.EID])
        src, dst = end_ids(mine, etype)
        parent_src, parent_dst = graph.find_edges(data[dgl.EID], etype=etype)
        assert torch.equal(src, parent_src) and torch.equal(dst, parent_dst)


def assert_same_negatives(pair, mine, reference):
    """A negative graph over the pair graph's vertices with the reference's edges, in order."""
    assert type(mine) is type(reference) and not mine.is_block
    assert_same_types(mine, reference)
    for ntype in reference.ntypes:
        assert set(mine.nodes[ntype].data) == set(reference.nodes[ntype].data) == {dgl.NID}
        assert torch.equal(mine.nodes[ntype].data[dgl.NID], pair.nodes[ntype].data[dgl.NID])
    for etype in reference.canonical_etypes:
        assert set(mine.edges[etype].data) == set(reference.edges[etype].data)
        for my_ids, ids in zip(end_ids(mine, etype), end_ids(reference, etype), strict=True):
            assert torch.equal(my_ids, ids)


def end_ids(graph, etype):
    """The original ids of the ends of a compacted graph's edges, in the order of the edges."""
    src, dst = graph.edges(etype=etype, order="eid")
    src_ids, dst_ids = graph.nodes[etype[0]].data[dgl.NID], graph.nodes[etype[2]].data[dgl.NID]
    return src_ids[src.long()], dst_ids[dst.long()]


def pairs_of(graph, etype):
    """The same as a list of pairs."""
    return list(zip(*(part.tolist() for part in end_ids(graph, etype)), strict=True))
