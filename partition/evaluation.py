"""Validation and test vertices for parts that are to evaluate them from what they hold."""

from __future__ import annotations

from dataclasses import replace

import torch

from .methods.halo import HaloSearch
from .partition import Partition

__all__ = ["with_evaluation"]

_MASKS = ("val_mask", "test_mask")


def with_evaluation(partition: Partition) -> Partition:
    """Give every validation and test vertex to a part, which then holds its neighbourhood as well.

    Each goes where it brings the fewest vertices; all parts get equally many. (One that is trained on too stays where
    it is trained on.)

    Args:
        partition: Its training vertices stay where they are.

    Raises:
        ValueError: The graph has neither ``val_mask`` nor ``test_mask``, or they select nothing.
    """
    graph = partition.graph
    masks = [graph.ndata[name].bool() for name in _MASKS if name in graph.ndata]
    chosen = torch.stack(masks).any(0) if masks else torch.zeros(graph.num_nodes, dtype=torch.bool)
    evaluated = chosen.nonzero().squeeze(1)
    if len(evaluated) == 0:
        raise ValueError("graph must have validation or test vertices for parts to evaluate, got none")
    part_of = torch.full((graph.num_nodes,), -1, dtype=torch.int32)
    part_of[partition.train] = partition.parts
    others = evaluated[part_of[evaluated] < 0]
    search = HaloSearch(graph.csc, partition.train, partition.num_parts, partition.hops)
    search.adopt(partition.parts.numpy())
    part_of[others] = torch.from_numpy(search.place_others(others))
    return replace(partition, evaluated=evaluated, evaluation=part_of[evaluated])
