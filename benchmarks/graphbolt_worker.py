"""GraphBolt's DataLoader over a graph on disk: a contender of ``larger_than_memory.py``, in an
environment of its own.

DGL's wheel for the newest torch that it knows, 2.2.1, which in turn needs NumPy 1:

    python3.11 -m venv ~/graphbolt
    ~/graphbolt/bin/pip install torch==2.2.1 dgl==2.1.0 torchdata==0.7.1 'numpy<2' pandas pydantic
    pyyaml python benchmarks/larger_than_memory.py --graphbolt ~/graphbolt/bin/python

Structure and features are its own classes over mapped arrays: ``FusedCSCSamplingGraph`` and
``TorchBasedFeature``, which its ``OnDiskDataset`` makes of features that are not to be loaded.
"""

import dgl.graphbolt as gb
import numpy as np
import torch
from disk_worker import arguments, measure


class GraphBolts:
    """The loader as DGL's examples build it: sample neighbours, fetch features; in this process."""

    def __init__(self, folder, seeds, options):
        indptr, indices = (
            torch.from_numpy(np.load(folder / f"edge-{name}.npy", mmap_mode="c"))
            for name in ("indptr", "indices")
        )
        graph = gb.fused_csc_sampling_graph(indptr, indices)
        items = gb.ItemSet(torch.from_numpy(seeds).to(indices.dtype), names="seed_nodes")
        pipe = gb.ItemSampler(items, batch_size=options.batch_size)
        pipe = pipe.sample_neighbor(graph, options.hops)
        self._features = options.features
        if options.features:
            feat = torch.from_numpy(np.load(folder / "node-feat.npy", mmap_mode="c"))
            store = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(feat)})
            pipe = pipe.fetch_feature(store, node_feature_keys=["feat"])
        self._loader = gb.DataLoader(pipe)

    def __iter__(self):
        for batch in self._loader:
            ids = batch.input_nodes
            values = (
                float(batch.node_features["feat"][:, 0].double().sum()) if self._features else 0.0
            )
            edges = sum(len(layer.sampled_csc.indices) for layer in batch.sampled_subgraphs)
            yield len(ids), edges, int(ids.sum()) + values


if __name__ == "__main__":
    measure(GraphBolts, arguments(["graphbolt"]))
