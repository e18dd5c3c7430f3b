"""What the versions of PyG differ in, where tests see it."""

import inspect

import pytest
import torch
import torch_geometric
from torch_geometric.sampler import NegativeSampling

# 2.5: edges of a batch are an EdgeIndex, which newer versions of torch cannot deep-copy, and for
# whose size vertices are counted anew for every batch.
HAS_EDGE_INDEX_BATCHES = tuple(map(int, torch_geometric.__version__.split(".")[:2])) < (2, 6)
EDGE_TENSOR = torch_geometric.EdgeIndex if HAS_EDGE_INDEX_BATCHES else torch.Tensor
counts_vertices = pytest.mark.filterwarnings(
    "ignore:Unable to accurately infer 'num_nodes'" if HAS_EDGE_INDEX_BATCHES else "error"
)

# 2.5: negatives have one weight for both ends.
HAS_WEIGHTS_OF_ENDS = "src_weight" in inspect.signature(NegativeSampling.__init__).parameters


def end_weight(end, weight):
    """The argument of ``NegativeSampling`` for the weight of one end; in 2.5 it is that of the
    other end too."""
    return {f"{end}_weight" if HAS_WEIGHTS_OF_ENDS else "weight": weight}
