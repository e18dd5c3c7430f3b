"""Link prediction: holds edges of a graph out, learns from the others, and ranks those held out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..framework import Batch, Framework
from ..graph.csc import CSC
from ..graph.fields import materialized
from ..graph.graph import NODE_TYPE, Graph
from ..options.training import TrainOptions
from .distributed import ALONE, World
from .evaluate import Evaluation, predict
from .preaggregation import FEATURES, preaggregated_for
from .task import SETS, Task, check_features, sampled_graph, whole_norm

_HELD_OUT = 10
"""One in this many links is for validation, and one for test."""
_RIVALS = 100
"""Random ends that the end of a held-out link is ranked against."""
_AT_ONCE = 1024
"""Links that are measured together. The embeddings of their rivals, 64 wide, take 26 MB."""
_LOCAL = 2**31
"""More than the vertices of any batch. Products of two smaller numbers fit in int64."""


@dataclass(frozen=True, eq=False)
class LinkEvaluation(Evaluation):
    """Graph and links to evaluate. ``val`` and ``test`` are their ends, int64, shape ``(2, n)``."""

    def metrics(
        self, model: Any, *, world: World = ALONE, memory: int | str | None = None
    ) -> tuple[dict[str, float], dict[str, float]]:
        """AUC and mean reciprocal rank on validation and test links, against random pairs."""
        embedding = predict(model, self, world=world, memory=memory)
        return _measured(embedding, self.val), _measured(embedding, self.test)


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkTask(Task):
    """Link prediction, where a link's score is the dot product of its ends' embeddings.

    ``train`` are ids of the edges of ``graph`` to learn from, one for each pair of vertices.
    ``val`` and ``test`` are the ends of held-out links, int64, shape ``(2, n)``. Neither ``graph``
    nor ``source`` has an edge between them. ``num_outputs`` is the width of the embeddings.
    """

    label: ClassVar[str | None] = None
    _evaluation: ClassVar[type[Evaluation]] = LinkEvaluation

    def loss(
        self, framework: Framework, batch: Batch, model: Callable[..., Tensor]
    ) -> tuple[Tensor, int]:
        """The loss of a batch, and its number of links.

        Edges between the ends of the batch's links are left out of its blocks.
        """
        links, others = batch.answers
        # Otherwise a model would learn to look the links up, as they are edges of the graph.
        seen = _keys(links[0], links[1], _LOCAL).sort().values
        blocks = [_without(framework, block, seen) for block in batch.blocks]
        embedding = model(blocks, *batch.rows)
        right = _scores(embedding, *links)
        wrong = _scores(embedding, *others)
        truth = torch.cat([torch.ones_like(right), torch.zeros_like(wrong)])
        loss = binary_cross_entropy_with_logits(torch.cat([right, wrong]), truth)
        return loss, links.shape[1]

    def _described_graph(self) -> str:
        graph = self.source
        return f"{graph.num_nodes:,} vertices, {graph.num_edges:,} edges to sample, {self.inputs}"

    def _described_seeds(self) -> str:
        return "links"


def make_link_task(graph: Graph, options: TrainOptions) -> LinkTask:
    """Divide the links of a graph. A link is a pair of different vertices with an edge in either
    direction.

    The edge fields ``train_mask``, ``val_mask`` and ``test_mask`` select the sets. Without them a
    random tenth of the links is for validation and another for test, the same for all seeds. All
    edges between the ends of held-out links are left out of the graph. Self-loops, and edges that
    no mask selects, are only sampled.

    Raises:
        ValueError: A field is missing or does not fit, or the graph has several vertex or edge
            types, pre-aggregated features, or too few links.
    """
    if preaggregated_for(graph) is not None:
        raise ValueError(
            "task must be 'nodes' with pre-aggregated features, which include held-out links, "
            "got 'links'"
        )
    check_features(graph, options)
    csc = graph.csc
    count = csc.num_dst
    src = csc.indices.long()
    dst = csc.destinations().long()
    keys = _keys(src, dst, count)
    has_masks = any(f"{name}_mask" in graph.edata for name in SETS)
    sets = _masked(graph, keys) if has_masks else _drawn(keys)
    # Parallel edges, and those in the other direction, have the same key, so all of them go.
    held_out = torch.cat([sets["val"], sets["test"]])
    kept = ~torch.isin(keys, held_out)
    rest = CSC.from_coo(src[kept], dst[kept], count)
    fields: dict[str, Any] = {FEATURES: graph.ndata[FEATURES]}
    source = Graph(CSC(rest.indptr, rest.indices, count), ndata=fields)
    # By the remaining edges: the degrees of all would reveal which vertices lost a link.
    norm = whole_norm(source) if options.model == "gcn" else None
    sampled = sampled_graph(source, norm)
    train = _one_edge_each(sampled.csc, sets["train"])
    if len(train) == 0:
        raise ValueError(
            "train_mask must select at least 1 edge of a link that is not held out, got 0"
        )
    return LinkTask(
        graph=sampled,
        source=source,
        train=train,
        val=_ends(sets["val"], count),
        test=_ends(sets["test"], count),
        widths={NODE_TYPE: fields[FEATURES].shape[1]},
        num_outputs=options.hidden,
        norm=norm,
    )


def _keys(src: Tensor, dst: Tensor, count: int) -> Tensor:
    """A number for each pair of vertices below ``count``, equal in both directions; -1 for
    self-loops."""
    keys = torch.minimum(src, dst) * count + torch.maximum(src, dst)
    return torch.where(src == dst, -1, keys)


def _ends(keys: Tensor, count: int) -> Tensor:
    """The vertices of pairs, shape ``(2, n)``: the inverse of :func:`_keys`."""
    return torch.stack([keys // count, keys % count])


def _distinct(keys: Tensor) -> Tensor:
    """The keys of links, ascending, each once."""
    return torch.from_numpy(np.unique(keys[keys >= 0].numpy()))


def _masked(graph: Graph, keys: Tensor) -> dict[str, Tensor]:
    """The keys that the edges' masks select."""
    sets = {}
    places = graph.csc.places()
    for name in SETS:
        mask = graph.edata.get(f"{name}_mask")
        if mask is None or mask.dim() != 1:
            got = "none" if mask is None else f"shape {tuple(mask.shape)}"
            raise ValueError(
                f"{name}_mask must have one value for each edge if any edge mask is given, got "
                f"{got}"
            )
        is_selected = materialized(mask).bool()[places]
        sets[name] = _distinct(keys[is_selected])
        if len(sets[name]) == 0:
            raise ValueError(
                f"{name}_mask must select at least 1 edge between different vertices, got 0"
            )
    return sets


def _drawn(keys: Tensor) -> dict[str, Tensor]:
    """Random keys for validation and test, and the rest."""
    links = _distinct(keys)
    if len(links) < _HELD_OUT:
        raise ValueError(
            f"graph must have at least {_HELD_OUT} links to hold some of them out, got {len(links)}"
        )
    order = torch.randperm(len(links), generator=_generator(), device="cpu")
    mixed = links[order]
    held_out = len(links) // _HELD_OUT
    return {
        "val": mixed[:held_out],
        "test": mixed[held_out : 2 * held_out],
        "train": mixed[2 * held_out :],
    }


def _one_edge_each(csc: CSC, links: Tensor) -> Tensor:
    """The first edge of each link that has one, ascending."""
    keys = _keys(csc.indices.long(), csc.destinations().long(), csc.num_dst)
    distinct, first = map(torch.from_numpy, np.unique(keys.numpy(), return_index=True))
    is_asked = torch.isin(distinct, links)
    return first[is_asked].sort().values


def _without(framework: Framework, block: Any, seen: Tensor) -> Any:
    """A block without the edges whose keys are among ``seen``, which are sorted."""
    src, dst = framework.edges(block)
    keys = _keys(src, dst, _LOCAL)
    # Binary search takes 5 ms for 300,000 edges. Keys above the largest find a place past the end.
    places = torch.searchsorted(seen, keys).clamp(max=len(seen) - 1)
    kept = seen[places] != keys
    return framework.with_edges(block, src[kept], dst[kept])


def _scores(embedding: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return (embedding[src] * embedding[dst]).sum(1)


def _measured(embedding: Tensor, links: Tensor) -> dict[str, float]:
    """AUC against one random end for each link, and the mean reciprocal rank of its end among 100
    random ones.

    Ends are drawn uniformly, and are the same at every call. The few that are neighbours count as
    wrong.
    """
    generator = _generator()
    right = []
    wrong = []
    reciprocal = 0.0
    sources, targets = (ends.split(_AT_ONCE) for ends in links)
    for src, dst in zip(sources, targets, strict=True):
        shape = (len(src), _RIVALS)
        ends = torch.randint(len(embedding), shape, generator=generator, device="cpu")
        score = _scores(embedding, src, dst)
        others = torch.einsum("nd,nkd->nk", embedding[src], embedding[ends])
        better = (others > score[:, None]).sum(1)
        equal = (others == score[:, None]).sum(1)
        # The expected rank among ties, so that a model with equal scores gains nothing.
        rank = 1 + (better + equal / 2).double()
        reciprocal += float((1 / rank).sum())
        right.append(score)
        wrong.append(others[:, 0])
    auc = _auc(torch.cat(right), torch.cat(wrong))
    return {"auc": auc, "mrr": reciprocal / links.shape[1]}


def _auc(right: Tensor, wrong: Tensor) -> float:
    """Area under the ROC curve: the share of pairs whose right score is above the wrong one.

    Ties count half.
    """
    ordered = wrong.sort().values
    # Ties are among the wrong scores not above a right one, and not among those below.
    below = torch.searchsorted(ordered, right)
    not_above = torch.searchsorted(ordered, right, right=True)
    return float((below + not_above).double().mean()) / 2 / len(wrong)


def _generator() -> torch.Generator:
    """A generator with a fixed seed, so that held-out links do not depend on the run's seed."""
    return torch.Generator(device="cpu").manual_seed(0)
