"""The contenders of ``larger_than_memory.py`` that run in pagraph's environment, and what their
batches need.

pagraph's loader over a folder; DGL's and PyG's own loaders over the same mapped arrays, with
features as a ``numpy.memmap`` that is indexed, as users write it. Also two counts without a clock:
the pages of the structure, and the distinct rows in windows of batches, that the same batches need
at the least.
"""

import importlib
import warnings

import numpy as np
import torch
from disk_worker import arguments, measure, read_seeds, say

from pagraph import Graph, Loader, NeighborSampler

PAGE, HEADER = 4096, 128


class Ours:
    """pagraph's loader; what it says of its memory is told at the end."""

    def __init__(self, folder, seeds, options):
        graph = Graph.open(folder)
        self._fields = ["feat"] if options.features else []
        settings = {
            "fields": self._fields,
            "batch_size": options.batch_size,
            "seed": 0,
        } | options.loader
        self._loader = Loader(
            graph, torch.from_numpy(seeds), NeighborSampler(options.hops), **settings
        )
        self.told = {"statistics": lambda: str(self._loader.stats)}
        for name in ("cache_plan", "memory_plan"):
            if hasattr(Loader, name):
                self.told[name] = lambda name=name: str(getattr(self._loader, name))

    def __iter__(self):
        for batch in self._loader:
            values = float(batch.features["feat"][:, 0].double().sum()) if self._fields else 0.0
            checksum = int(batch.input_nodes.sum()) + values
            yield len(batch.input_nodes), sum(block.num_edges for block in batch.blocks), checksum


class Mapped:
    """The arrays of a folder as a user maps them: ``indptr``, ``indices`` and, if asked for,
    ``feat``."""

    def __init__(self, folder, options):
        self.indptr, self.indices = (
            torch.from_numpy(np.load(folder / f"edge-{name}.npy", mmap_mode="c"))
            for name in ("indptr", "indices")
        )
        self.feat = np.load(folder / "node-feat.npy", mmap_mode="r") if options.features else None

    def rows(self, ids):
        """The sum of one column of the rows: that of a copy of all, as a model gets it."""
        return (
            float(self.feat[ids.numpy()][:, 0].astype(np.float64).sum())
            if self.feat is not None
            else 0.0
        )


class Dgls:
    """DGL's DataLoader without workers, for every one of which the memory would count again."""

    def __init__(self, folder, seeds, options):
        importlib.import_module("pagraph.dgl")  # makes DGL importable
        import dgl

        self._arrays = Mapped(folder, options)
        graph = dgl.graph(("csc", (self._arrays.indptr, self._arrays.indices, [])))
        # fused: with int32 ids it draws fewer edges from batch to batch (60 instead of 230 thousand
        # rows in 20).
        sampler = dgl.dataloading.NeighborSampler(options.hops, fused=False)
        ids = torch.from_numpy(seeds).to(graph.idtype)
        self._loader = dgl.dataloading.DataLoader(
            graph, ids, sampler, batch_size=options.batch_size
        )

    def __iter__(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on CPU affinity
            for input_nodes, _, blocks in self._loader:
                checksum = int(input_nodes.sum()) + self._arrays.rows(input_nodes)
                yield len(input_nodes), sum(block.num_edges() for block in blocks), checksum


class Pygs:
    """PyG's NeighborLoader over pyg-lib, without workers; its sampler is given the mapped arrays.

    By itself it would sort an ``edge_index`` in memory. Its ids are int64: those of the folder are
    widened into files beside it, before the clock runs.
    """

    def __init__(self, folder, seeds, options):
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader
        from torch_geometric.sampler import NeighborSampler as Sampler

        feat = Mapped(folder, options).feat
        x = (
            torch.from_numpy(np.load(folder / "node-feat.npy", mmap_mode="c"))
            if feat is not None
            else None
        )
        wide = folder.with_name(folder.name + "-int64")
        indptr, indices = (
            np.load(wide / f"{name}.npy", mmap_mode="c") for name in ("indptr", "indices")
        )
        data = Data(
            x=x, edge_index=torch.empty((2, 0), dtype=torch.int64), num_nodes=len(indptr) - 1
        )
        sampler = Sampler(data, options.hops[::-1])
        sampler.colptr, sampler.row, sampler.perm = (
            torch.from_numpy(indptr),
            torch.from_numpy(indices),
            None,
        )
        settings = {"batch_size": options.batch_size, "neighbor_sampler": sampler}
        self._loader = NeighborLoader(
            data, options.hops[::-1], input_nodes=torch.from_numpy(seeds), **settings
        )

    def __iter__(self):
        for batch in self._loader:
            values = float(batch.x[:, 0].double().sum()) if batch.x is not None else 0.0
            yield batch.num_nodes, batch.num_edges, int(batch.n_id.sum()) + values


def batches_of(options):
    """Our loader's batches without rows, in memory that is not limited."""
    graph = Graph.open(options.folder)
    seeds = torch.from_numpy(read_seeds(options))
    return graph, Loader(
        graph, seeds, NeighborSampler(options.hops), batch_size=options.batch_size, seed=0
    )


def count_pages(options):
    """Tell on how many distinct pages of the structure's files the batches' picks lie."""
    graph, batches = batches_of(options)
    width = graph.csc.indptr.element_size()
    starts, picks, edges = [], [], 0
    for batch in batches:
        for block in batch.blocks:
            vertices, positions = block.dst_nodes.long(), block.positions.long()
            starts.append(
                torch.cat([(HEADER + (vertices + end) * width) // PAGE for end in (0, 1)]).unique()
            )
            picks.append(((HEADER + positions * width) // PAGE).unique())
            edges += len(positions)
    pages = {
        "indptr_pages": len(torch.cat(starts).unique()),
        "indices_pages": len(torch.cat(picks).unique()),
    }
    each = sum(map(len, starts)) + sum(map(len, picks))
    say(event="needed", edges=edges, page_bytes=PAGE, pages_of_each_layer=each, **pages)


def count_rows(options):
    """Tell how many distinct rows each window of batches needs that the window before it did not
    have."""
    graph, batches = batches_of(options)
    inputs = [batch.input_nodes.long() for batch in batches]
    for length in options.windows:
        # Number of the window that had the row last.
        known = torch.zeros(graph.num_nodes, dtype=torch.int64) - 2
        distinct = new = pages = 0
        for number, begin in enumerate(range(0, len(inputs), length)):
            rows = torch.cat(inputs[begin : begin + length]).unique()
            distinct += len(rows)
            fresh = rows[known[rows] != number - 1]
            new += len(fresh)
            row_bytes = graph.ndata["feat"][0].nbytes
            first, last = ((HEADER + (fresh + end) * row_bytes - end) // PAGE for end in (0, 1))
            pages += len(torch.cat([first, last]).unique())
            known[rows] = number
        figures = {"distinct_rows": distinct, "rows": new, "pages": pages, "row_bytes": row_bytes}
        say(event="needed", window=length, batches=len(inputs), **figures)


def main():
    contenders = {"pagraph": Ours, "dgl": Dgls, "pyg": Pygs}
    counts = {"pages": count_pages, "rows": count_rows}
    options = arguments([*contenders, *counts])
    if options.contender in counts:
        counts[options.contender](options)
    else:
        measure(contenders[options.contender], options)


if __name__ == "__main__":
    main()
