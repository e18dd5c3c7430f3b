"""Links: what PyG's ``edge_sample`` does around the sampling, with negatives that are a function of the batch's key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..field_version import FieldVersion
from ..graph import NODE_TYPE
from ..sampling.negative_ends import NegativeEnds
from ..sampling.pair_batches import PairNegatives, PairSeeds

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["LinkNegatives", "end_types", "link_metadata", "owners_of"]


def end_types(input_type: tuple[str, str, str] | None) -> tuple[str, str]:
    """The vertex types of both ends of links."""
    return (NODE_TYPE, NODE_TYPE) if input_type is None else (input_type[0], input_type[-1])


class LinkNegatives:
    """PyG's ``NegativeSampling`` as the core's; what is made of a tensor is kept until it is written or replaced.

    Args:
        num_nodes: Vertices of each type.
    """

    def __init__(self, num_nodes: Mapping[str, int]) -> None:
        self._num_nodes = num_nodes
        self._made: dict[tuple[str, str], tuple[list[FieldVersion | None], NegativeEnds]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_num_nodes": self._num_nodes, "_made": {}}  # a version does not outlive its process

    def of(self, neg_sampling: Any, types: tuple[str, str], node_time: Any = None) -> PairNegatives | None:
        """The negatives of links between two types of vertices; None without ``neg_sampling``.

        Args:
            neg_sampling: A ``NegativeSampling`` or None.
            types: As said.
            node_time: Times of vertices that count, a tensor or by type; None where there are none.

        Raises:
            TypeError, ValueError: A weight is not one; PyG's ValueError for one of another length.
        """
        if neg_sampling is None:
            return None
        ends = {}
        for end, ntype in zip(("src", "dst"), types, strict=True):
            name = f"{end}_weight" if hasattr(neg_sampling, f"{end}_weight") else "weight"  # PyG 2.5: of both ends
            weight = getattr(neg_sampling, name, None)
            time = node_time.get(ntype) if isinstance(node_time, Mapping) else node_time
            if end == "dst" or neg_sampling.is_binary():
                ends[end] = self._ends(name, ntype, weight, time)
        return PairNegatives(neg_sampling.amount, ends["dst"], ends.get("src"))

    def _ends(self, name: str, ntype: str, weight: Any, time: Tensor | None) -> NegativeEnds:
        if weight is not None and not isinstance(weight, Tensor):
            raise TypeError(f"{name} must be a tensor of numbers, got {type(weight).__name__}")
        place = (ntype, "" if weight is None else name)
        versions = [None if tensor is None else FieldVersion.of(tensor) for tensor in (weight, time)]
        known = self._made.get(place)
        if known is None or known[0] != versions:  # threads that ask at once make the same
            count = self._num_nodes[ntype]
            if weight is not None and weight.numel() != count:
                raise ValueError(
                    f"The 'weight' attribute in 'NegativeSampling' needs to match the number of nodes {count} "
                    f"(got {weight.numel()})"
                )
            known = self._made[place] = (versions, NegativeEnds(count, weight, time, name=name))
        return known[1]


def owners_of(pairs: PairSeeds, graph: Graph) -> Tensor | None:
    """The pair that each tree of a subgraph was sampled for; None where trees share their vertices."""
    if pairs.owners is None:
        return None
    return torch.cat([pairs.owners[ntype] for ntype in graph.node_types if ntype in pairs.owners])


def link_metadata(inputs: Any, pairs: PairSeeds, negatives: PairNegatives | None) -> tuple[Any, ...]:
    """What PyG's ``LinkLoader`` wants to know of a batch; its ids are places among the sampled vertices.

    Returns:
        ``input_id``, ``edge_label_index`` of shape ``(2, p + q)``, ``edge_label`` or None, and the times of these pairs
        or None; with negatives that have no sources ``input_id``, ``src_index`` and ``dst_pos_index`` of shape
        ``(p,)``, ``dst_neg_index`` of shape ``(p,)`` or ``(p, amount)``, and the times of the pairs or None.
    """
    count, time = len(inputs.row), inputs.time
    if negatives is not None and negatives.src is None:
        negative = pairs.dst[count:].view(-1, count) if count else pairs.dst.view(int(negatives.amount), 0)
        negative = negative.t().contiguous().squeeze(-1)
        return inputs.input_id, pairs.src, pairs.dst[:count], negative, time
    label = inputs.label
    if negatives is not None:
        drawn = len(pairs.src) - count
        label = torch.ones(count) if label is None else label
        label = torch.cat([label, label.new_zeros((drawn, *label.shape[1:]))])
        time = None if time is None else time[torch.arange(count + drawn) % max(1, count)]
    return inputs.input_id, torch.stack([pairs.src, pairs.dst]), label, time
