"""One file or folder of each kind, made by the library itself."""

import sys
from pathlib import Path

import numpy as np
import scipy.sparse
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.datasets import citation, sbm, write_graph
from pagraph.partition import partition_graph, write_pagraph_partition, write_partition
from pagraph.train.preaggregation import preaggregate


def sample_graph() -> Graph:
    """300 vertices, edges in any order, with fields of vertices and edges."""
    graph = sbm(300, num_features=6, num_classes=4, seed=1)
    order = torch.randperm(graph.num_edges, generator=torch.Generator().manual_seed(1))
    mixed = Graph.from_coo(graph.csc.indices[order], graph.csc.destinations()[order], 300, ndata=dict(graph.ndata))
    mixed.set_field("w", torch.rand(graph.num_edges), edge_type=mixed.edge_types[0])
    mixed.set_field("half", torch.rand(300, 2).bfloat16())
    return mixed


def build(folder: Path) -> None:
    """Write the samples into ``folder``, which is made."""
    folder.mkdir()
    graph = sample_graph()
    ends = [graph.csc.indices.tolist(), graph.csc.destinations().tolist()]
    write_graph(graph, folder / "graph")
    write_graph(citation(60, num_features=4, num_author_features=3, seed=1), folder / "citation")
    preaggregate(graph, folder / "sums", model="sage")
    partition = partition_graph(graph, 2, hops=1, method="hash")
    write_partition(partition, folder / "parts", source=folder / "graph")
    write_pagraph_partition(partition, folder / "pagraph-parts")
    _write_pagraph_form(graph, folder / "pagraph-form", ends)
    for form in ("csr", "csc", "coo"):
        matrix = scipy.sparse.coo_matrix((np.ones(len(ends[0])), ends), shape=(300, 300)).asformat(form)
        scipy.sparse.save_npz(folder / f"{form}.npz", matrix)
    _write_edges(folder, ends)
    _write_foreign(graph, folder)
    for name in ("trace.json", "trace.json.gz"):
        loader = Loader(graph, range(50), NeighborSampler([3]), fields=["feat"], batch_size=10)
        with loader.trace(folder / name):
            list(loader)


def _write_pagraph_form(graph: Graph, folder: Path, ends: list[list[int]]) -> None:
    folder.mkdir()
    scipy.sparse.save_npz(folder / "adj.npz", scipy.sparse.coo_matrix((np.ones(len(ends[0])), ends), shape=(300, 300)))
    np.save(folder / "feat.npy", graph.ndata["feat"].numpy())
    np.save(folder / "labels.npy", graph.ndata["label"].numpy())
    for name in ("train", "val", "test"):
        np.save(folder / f"{name}.npy", graph.ndata[f"{name}_mask"].numpy())


def _write_edges(folder: Path, ends: list[list[int]]) -> None:
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as parquet

    pairs = list(zip(*ends, strict=True))
    (folder / "edges.txt").write_text("".join(f"{a} {b}\n" for a, b in pairs))
    (folder / "edges.tsv").write_text("# a comment\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    (folder / "edges.csv").write_text("source,target,w\n" + "".join(f"{a},{b},{a / 7:.3f}\n" for a, b in pairs))
    (folder / "words.csv").write_text("source,target\n" + "".join(f"v{a},{b}é\n" for a, b in pairs))
    with gzip.open(folder / "edges.txt.gz", "wt") as file:
        file.write("".join(f"{a} {b}\n" for a, b in pairs))
    table = pa.table({"source": ends[0], "target": ends[1], "w": np.ones(len(pairs))})
    parquet.write_table(table, folder / "edges.parquet")


def _write_foreign(graph: Graph, folder: Path) -> None:
    from pagraph.dgl import to_dgl
    from pagraph.pyg import to_pyg

    import dgl  # isort: skip  (pagraph.dgl makes it importable)

    dgl.save_graphs(str(folder / "graph.bin"), [to_dgl(graph)])
    torch.save(to_pyg(graph), folder / "graph.pt")
    torch.save(to_pyg(graph).to_dict(), folder / "dict.pt")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
