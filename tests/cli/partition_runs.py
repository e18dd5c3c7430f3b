"""Runs of ``pagraph partition``."""

from functools import partial

import runs
import torch

HASH = ["--method", "hash"]
QUICK = [*HASH, "--cache", "0"]

run, fails = partial(runs.run, "partition"), partial(runs.fails, "partition")


def first_ones(graph, train, num_parts, hops, *, seed=0, progress=None):
    """The training vertices in the order of their ids, cut into pieces."""
    return (torch.arange(len(train)) * num_parts // len(train)).int()
