"""Compares the lists of training, validation and test vertices of all parts with the whole graph."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...graph import Graph
from ..parts.manifest import SPLITS, PartitionManifest, train_digest
from ..parts.part import Part
from .findings import Finding

__all__ = ["check_evaluation", "check_training"]

_NO_HOP = 255


def check_training(parts: list[Part], manifest: PartitionManifest, whole: Graph) -> Iterator[Finding]:
    """Each training vertex is in exactly one part, and no other."""
    of_part, findings = _disjoint("training", [part.global_ids[part.train] for part in parts], whole.num_nodes)
    yield from findings
    found = (of_part >= 0).nonzero().squeeze(1)
    mask = whole.ndata.get("train_mask")
    if manifest.train_is_mask and mask is not None:
        wrong = (mask.bool() != (of_part >= 0)).nonzero().squeeze(1)
        if len(wrong):
            vertex = int(wrong[0])
            what = "be in a part" if mask[vertex] else "not be a training vertex"
            message = f"vertex {vertex} of the source must {what} ({len(wrong)} differ from its train_mask)"
            yield Finding("training", None, message)
    elif train_digest(found) != manifest.train_sha256:
        yield Finding(
            "training", None, f"the training vertices must be those that were divided, got {len(found)} others"
        )


def check_evaluation(parts: list[Part], manifest: PartitionManifest, whole: Graph) -> Iterator[Finding]:
    """Each validation and test vertex that parts hold is in the list of one, of those that hold it at the lowest hop.

    (Parts that hold what evaluation takes have those they list as seeds: that has been checked.)
    """
    lowest = torch.full((whole.num_nodes,), _NO_HOP, dtype=torch.uint8)
    if manifest.evaluation == "source":
        for part in parts:
            lowest[part.global_ids] = torch.minimum(lowest[part.global_ids], _hops(part))
    for name in SPLITS[1:]:
        mask = whole.ndata.get(f"{name}_mask", torch.zeros(whole.num_nodes, dtype=torch.bool)).bool()
        lists = [part.global_ids[getattr(part, name)] for part in parts]
        of_part, findings = _disjoint(name, lists, whole.num_nodes)
        yield from findings
        for part, ids in zip(parts, lists, strict=True):
            yield from _check_list(part, name, ids, mask, lowest)
        lost = (mask & (lowest != _NO_HOP) & (of_part < 0)).nonzero().squeeze(1)
        if len(lost):
            message = f"{name} vertex {int(lost[0])} of the source must be in a part's list, got none"
            yield Finding("evaluation", None, f"{message} ({len(lost)} are missing)")
        outside = int((mask & (of_part < 0)).sum())
        if outside != manifest.outside[name]:
            message = f"{name} vertices in no part's list must be {manifest.outside[name]}, got {outside}"
            yield Finding("evaluation", None, message)


def _check_list(part: Part, name: str, ids: Tensor, mask: Tensor, lowest: Tensor) -> Iterator[Finding]:
    """What is wrong with the vertices ``ids`` that a part lists; ``lowest`` says at which hop any part holds each."""
    strange = ids[~mask[ids]]
    if len(strange):
        message = f"vertex {int(strange[0])} of the source must be in no {name} list ({len(strange)} are wrong)"
        yield Finding("evaluation", part.index, message)
    hops = _hops(part)[getattr(part, name)]
    far = (hops > lowest[ids]).nonzero().squeeze(1)
    if len(far):
        vertex, least, got = int(ids[far[0]]), int(lowest[ids[far[0]]]), int(hops[far[0]])
        message = f"vertex {vertex} of the source must be in the {name} list of a part that holds it at hop {least}"
        yield Finding("evaluation", part.index, f"{message}, got one at hop {got} ({len(far)} are wrong)")


def _hops(part: Part) -> Tensor:
    """The hop at which a part holds each of its vertices, uint8."""
    ends = torch.tensor((0, *part.hop_ends))
    return torch.repeat_interleave(torch.arange(len(part.hop_ends), dtype=torch.uint8), torch.diff(ends))


def _disjoint(name: str, lists: list[Tensor], num_nodes: int) -> tuple[Tensor, list[Finding]]:
    """The part that lists each vertex, -1 where none does, and what is listed twice."""
    of_part = torch.full((num_nodes,), -1, dtype=torch.int32)
    findings = []
    for part, ids in enumerate(lists):
        taken = ids[of_part[ids] >= 0]
        if len(taken):
            vertex = int(taken[0])
            message = f"{name} vertex {vertex} of the source must be in one part, got {int(of_part[vertex])} and {part}"
            findings.append(Finding("training" if name == "training" else "evaluation", None, message))
        of_part[ids] = part
    return of_part, findings
