"""torch-sparse's neighbour sampling in plain Python, for fan-outs that leave nothing to chance, as
a PyG sampler."""

import torch
from torch_geometric.data import HeteroData
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput


def compress(edge_index, num_dst):
    """``colptr``, ``row`` and the permutation: edges sorted by destination, in their order where
    that is the same."""
    if edge_index is None:
        return [0] * (num_dst + 1), [], torch.empty(0, dtype=torch.int64)
    src, dst = edge_index.tolist()
    perm = sorted(range(len(dst)), key=lambda e: dst[e])
    colptr = [0] * (num_dst + 1)
    for v in dst:
        colptr[v + 1] += 1
    for v in range(num_dst):
        colptr[v + 1] += colptr[v]
    return colptr, [src[e] for e in perm], torch.tensor(perm, dtype=torch.int64)


def neighbor_sample(graph, seeds, num_neighbors, num_hops, directed):
    """What is found from seeds.

    Args:
        graph: Edge type to ``(colptr, row)``, in the order in which edge types are drawn.
        seeds: Vertex type to a list; every type is there.
        num_neighbors: Edge type to a number for each hop: negative, 0, or not below any degree.
        num_hops: How many hops.
        directed: Return the edges that led to a vertex; otherwise all among the vertices.

    Returns:
        Vertex type to vertices and to how many each hop found; edge type to rows, columns and
        places in CSC, and to how many edges each hop drew.
    """
    samples = {t: list(ids) for t, ids in seeds.items()}
    local = {t: {} for t in seeds}
    for t, ids in samples.items():
        for i, v in enumerate(ids):
            local[t].setdefault(v, i)
    found, drawn = {t: [len(ids)] for t, ids in samples.items()}, {etype: [] for etype in graph}
    rows, cols, edges = ({etype: [] for etype in graph} for _ in range(3))
    begin, end = dict.fromkeys(samples, 0), {t: len(ids) for t, ids in samples.items()}
    for hop in range(num_hops):
        for etype, (colptr, row) in graph.items():
            s, d = etype[0], etype[-1]
            before, number = len(edges[etype]), num_neighbors[etype][hop]
            for i in range(begin[d], end[d]):
                w = samples[d][i]
                degree = colptr[w + 1] - colptr[w]
                if not (degree and (number < 0 or number >= degree)):
                    assert degree == 0 or number == 0, "would have to draw"
                    continue
                for offset in range(colptr[w], colptr[w + 1]):
                    v = row[offset]
                    if v not in local[s]:
                        local[s][v] = len(samples[s])
                        samples[s].append(v)
                    rows[etype].append(local[s][v])
                    cols[etype].append(i)
                    edges[etype].append(offset)
            drawn[etype].append(len(edges[etype]) - before)
        for t in samples:
            begin[t], end[t] = end[t], len(samples[t])
            found[t].append(end[t] - begin[t])
    if not directed:
        rows, cols, edges = ({etype: [] for etype in graph} for _ in range(3))
        for etype, (colptr, row) in graph.items():
            for i, w in enumerate(samples[etype[-1]]):
                for offset in range(colptr[w], colptr[w + 1]):
                    if row[offset] in local[etype[0]]:
                        rows[etype].append(local[etype[0]][row[offset]])
                        cols[etype].append(i)
                        edges[etype].append(offset)
    return samples, found, rows, cols, edges, drawn


def tensors(lists):
    return {key: torch.tensor(values, dtype=torch.int64) for key, values in lists.items()}


class PlainSampler(BaseSampler):
    """Does what PyG's ``NeighborSampler`` does with torch-sparse, and counts hops as it does with
    pyg-lib."""

    def __init__(self, data, num_neighbors, subgraph_type="directional"):
        self.hetero = isinstance(data, HeteroData)
        self.subgraph_type = subgraph_type
        stores = dict(data.edge_items()) if self.hetero else {("", ""): data}
        sizes = (
            {t: data[t].num_nodes for t in data.node_types} if self.hetero else {"": data.num_nodes}
        )
        csc = {
            etype: compress(store.get("edge_index"), sizes[etype[-1]])
            for etype, store in stores.items()
        }
        self.types = list(sizes)
        self.graph = {etype: (colptr, row) for etype, (colptr, row, _) in csc.items()}
        self.perm = {etype: perm for etype, (_, _, perm) in csc.items()}
        by_type = isinstance(num_neighbors, dict)
        self.num_neighbors = num_neighbors if by_type else dict.fromkeys(csc, num_neighbors)
        self.num_hops = len(next(iter(self.num_neighbors.values())))

    @property
    def edge_permutation(self):
        return self.perm if self.hetero else self.perm["", ""]

    def sample_from_edges(self, inputs, neg_sampling=None):
        raise NotImplementedError

    def sample_from_nodes(self, inputs):
        seeds = {
            t: inputs.node.tolist() if t == (inputs.input_type or "") else [] for t in self.types
        }
        directed = self.subgraph_type != "induced"
        samples, found, *edges, drawn = neighbor_sample(
            self.graph, seeds, self.num_neighbors, self.num_hops, directed
        )
        if not directed:
            found = drawn = None
        if self.hetero:
            row, col, edge = map(tensors, edges)
            out = HeteroSamplerOutput(tensors(samples), row, col, edge, None, found, drawn)
        else:
            row, col, edge = (torch.tensor(ends["", ""], dtype=torch.int64) for ends in edges)
            counts = (found[""], drawn["", ""]) if directed else (None, None)
            out = SamplerOutput(
                torch.tensor(samples[""], dtype=torch.int64), row, col, edge, None, *counts
            )
        out.metadata = (inputs.input_id, inputs.time)
        return out.to_bidirectional() if self.subgraph_type == "bidirectional" else out
