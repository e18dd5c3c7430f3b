"""One file or folder of each kind, made by the library itself."""

import bz2
import gzip
import lzma
import sys
from pathlib import Path

import networkx
import numpy as np
import scipy.io
import scipy.sparse
import torch

from pagraph import Graph, Loader, NeighborSampler
from pagraph.datasets import citation, export_graph, sbm, write_graph
from pagraph.partition import partition_graph, write_pagraph_partition, write_partition
from pagraph.train import TrainOptions
from pagraph.train.loop import train
from pagraph.train.preaggregation import preaggregate
from pagraph.train.task import make_task


def sample_graph() -> Graph:
    """300 vertices, edges in any order, with fields of vertices and edges."""
    graph = sbm(300, num_features=6, num_classes=4, seed=1)
    order = torch.randperm(graph.num_edges, generator=torch.Generator().manual_seed(1))
    mixed = Graph.from_coo(
        graph.csc.indices[order], graph.csc.destinations()[order], 300, ndata=dict(graph.ndata)
    )
    mixed.set_field("w", torch.rand(graph.num_edges), edge_type=mixed.edge_types[0])
    mixed.set_field("half", torch.rand(300, 2).bfloat16())
    return mixed


def build(folder: Path) -> None:
    """Write the samples into ``folder``, which is made."""
    from . import hostile  # which needs ``files``, and that this module

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
        matrix = scipy.sparse.coo_matrix((np.ones(len(ends[0])), ends), shape=(300, 300)).asformat(
            form
        )
        scipy.sparse.save_npz(folder / f"{form}.npz", matrix)
    _write_edges(folder, ends)
    _write_foreign(graph, folder)
    _write_arrays(graph, folder, ends)
    _write_tables(folder / "tables", ends)

    hostile.build(
        graph, citation(60, num_features=4, num_author_features=3, seed=1), folder / "hostile"
    )
    train_a_little(graph, folder / "saved")
    for name in ("trace.json", "trace.json.gz"):
        loader = Loader(graph, range(50), NeighborSampler([3]), fields=["feat"], batch_size=10)
        with loader.trace(folder / name):
            list(loader)


def _write_pagraph_form(graph: Graph, folder: Path, ends: list[list[int]]) -> None:
    folder.mkdir()
    scipy.sparse.save_npz(
        folder / "adj.npz", scipy.sparse.coo_matrix((np.ones(len(ends[0])), ends), shape=(300, 300))
    )
    np.save(folder / "feat.npy", graph.ndata["feat"].numpy())
    np.save(folder / "labels.npy", graph.ndata["label"].numpy())
    for name in ("train", "val", "test"):
        np.save(folder / f"{name}.npy", graph.ndata[f"{name}_mask"].numpy())


def _write_edges(folder: Path, ends: list[list[int]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    pairs = list(zip(*ends, strict=True))
    (folder / "edges.txt").write_text("".join(f"{a} {b}\n" for a, b in pairs))
    (folder / "edges.tsv").write_text("# a comment\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    (folder / "edges.csv").write_text(
        "source,target,w\n" + "".join(f"{a},{b},{a / 7:.3f}\n" for a, b in pairs)
    )
    (folder / "words.csv").write_text("source,target\n" + "".join(f"v{a},{b}é\n" for a, b in pairs))
    for pack, ending in ((gzip, "gz"), (lzma, "xz"), (bz2, "bz2")):
        (folder / f"edges.txt.{ending}").write_bytes(
            pack.compress((folder / "edges.txt").read_bytes())
        )
    (folder / "out.edges").write_text(
        "% asym weighted\n" + "".join(f"{a + 1} {b + 1} 1 {a}\n" for a, b in pairs)
    )
    table = pa.table({"source": ends[0], "target": ends[1], "w": np.ones(len(pairs))})
    parquet.write_table(table, folder / "edges.parquet")


def _write_foreign(graph: Graph, folder: Path) -> None:
    from pagraph.dgl import to_dgl
    from pagraph.pyg import to_pyg

    import dgl  # isort: skip  (pagraph.dgl makes it importable)

    dgl.save_graphs(str(folder / "graph.bin"), [to_dgl(graph)])
    torch.save(to_pyg(graph), folder / "graph.pt")
    torch.save(to_pyg(graph).to_dict(), folder / "dict.pt")


def _write_arrays(graph: Graph, folder: Path, ends: list[list[int]]) -> None:
    matrix = scipy.sparse.csr_matrix((np.ones(len(ends[0])), ends), shape=(300, 300))
    scipy.io.mmwrite(folder / "edges.mtx", matrix)
    benchmark = {
        "adj_data": matrix.data,
        "adj_indices": matrix.indices,
        "adj_indptr": matrix.indptr,
    }
    labels, features = graph.ndata["label"].numpy(), graph.ndata["feat"].numpy()
    np.savez(
        folder / "benchmark.npz",
        **benchmark,
        adj_shape=matrix.shape,
        attr_matrix=features,
        labels=labels,
    )
    np.savez(folder / "index.npz", edge_index=np.array(ends), x=features, y=labels)
    np.save(folder / "index.npy", np.array(ends))
    np.save(folder / "feat.npy", features)
    torch.save({"edge_index": torch.tensor(ends), "x": graph.ndata["feat"]}, folder / "index.pt")
    small = networkx.DiGraph(list(zip(*ends, strict=True))[:200])
    networkx.write_graphml(small, folder / "edges.graphml")
    networkx.write_gml(small, folder / "edges.gml")
    plain = Graph(
        graph.csc, ndata={name: graph.ndata[name] for name in ("feat", "label", "train_mask")}
    )
    write_graph(plain, folder / "plain")
    export_graph(plain, folder / "ogb", form="ogb")


def _write_tables(folder: Path, ends: list[list[int]]) -> None:
    folder.mkdir()
    (folder / "people.csv").write_text(
        "name,age\n" + "".join(f"p{i},{i % 90}\n" for i in range(300))
    )
    rows = "".join(f"p{a},s{b},{a / 7:.2f}\n" for a, b in zip(*ends, strict=True))
    (folder / "bought.csv").write_text("who,what,price\n" + rows)
    (folder / "graph.yaml").write_text(
        "nodes:\n  person: {file: people.csv, id: name, fields: [age]}\n  thing: {}\n"
        "edges:\n  person:bought:thing: {file: bought.csv, src: who, dst: what, fields: [price]}\n"
    )


def train_a_little(graph: Graph, checkpoint: Path) -> None:
    """One epoch, or none if the checkpoint has it already."""
    options = TrainOptions(epochs=1, hidden=4, fanout=(3, 3), batch_size=64)
    train(make_task(graph, options), options, checkpoint=checkpoint)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
