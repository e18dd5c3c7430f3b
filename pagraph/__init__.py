"""pagraph: sampled mini-batches for GNN training, fast enough that the GPU never waits."""

__version__ = "0.1.0"
