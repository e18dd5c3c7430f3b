"""Vertex classification in a graph of several types: the task and its evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from ..framework import Field, Framework, Seeds
from ..graph.csc import CSC
from ..graph.graph import Graph, without_fields
from ..options.training import TrainOptions
from .distributed import ALONE, World
from .evaluate import LABELS, Evaluation, shares_right
from .layer_pass import Rows
from .models import VERTICES, RelationalSAGE, Shape, framework_of
from .preaggregation import FEATURES
from .task import MASKS_COME, SETS, Task, count_classes, drawn_sets, labels_of, selected

if TYPE_CHECKING:
    from ..partition import Part

TIME = "time"
"""The vertex field of times."""

_MOST_EMBEDDED = 2**18
"""Most vertices of a type that learns embeddings. With a width of 64 their table, gradient and two
moments take 256 MiB."""
_AT_ONCE = 2**16  # vertices whose edges are gathered together
_FLOAT = 4


@dataclass(frozen=True, eq=False)
class HeteroEvaluation(Evaluation):
    """Graph and vertices of one type to evaluate."""

    def metrics(
        self, model: RelationalSAGE, *, world: World = ALONE, memory: int | str | None = None
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Accuracy on the validation and on the test vertices of all processes.

        Takes :meth:`least_memory`, whatever ``memory`` is.
        """
        alone = world.size == 1 or self.is_part
        ids = torch.cat([self.val, self.test])
        mine = slice(None) if alone else slice(world.rank, None, world.size)
        of_val = (torch.arange(len(ids), device="cpu") < len(self.val))[mine]
        sharing = ALONE if alone else world
        scores = predict(model, self.graph, ids[mine], world=sharing)
        right = scores.argmax(1) == self.graph.node_fields(model.shape.target)[LABELS][ids[mine]]
        val, test = shares_right(right, of_val, world)
        return {"accuracy": val}, {"accuracy": test}

    def least_memory(self, model: RelationalSAGE) -> int:
        """Bytes that :meth:`metrics` takes.

        They hold inputs and outputs of a hidden layer, and the messages of one edge type.
        """
        width = max(model.sizes)
        return (
            _FLOAT * width * (2 * self.graph.num_nodes + max(self.graph.num_nodes_by_type.values()))
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedEvaluation(Evaluation):
    """Graph and vertices to evaluate, each as of its own time.

    The outputs of a hidden layer differ with the time, so they are not computed for all vertices.
    Neighbours are sampled, as in training.

    Attributes:
        seeds: Seeds of the training, with their fields.
        options: Options of the run: fan-out, batch size and layers.
    """

    seeds: Seeds
    options: TrainOptions

    @torch.no_grad()
    def metrics(
        self, model: RelationalSAGE, *, world: World = ALONE, memory: int | str | None = None
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Accuracy on the validation and on the test vertices of all processes."""
        mine = slice(None) if self.is_part else slice(world.rank, None, world.size)
        training = model.training
        model.eval()
        # Loaders draw their order from torch's generator, whose state belongs to the training.
        try:
            with torch.random.fork_rng(devices=[]):
                right = [self._right(model, ids[mine]) for ids in (self.val, self.test)]
        finally:
            model.train(training)
        of_val = torch.cat([torch.full_like(r, i == 0) for i, r in enumerate(right)])
        val, test = shares_right(torch.cat(right), of_val, world)
        return {"accuracy": val}, {"accuracy": test}

    def _right(self, model: RelationalSAGE, ids: Tensor) -> Tensor:
        """Whether each vertex is classified right, in the loader's order."""
        if not len(ids):
            return torch.zeros(0, dtype=torch.bool, device="cpu")
        seeds = replace(self.seeds, ids=ids)
        device = next(model.parameters()).device
        run = framework_of(self.options.layers)
        size = self.options.batch_size
        # A fixed seed, so that epochs are compared on the same neighbours.
        loader = run.loader(
            seeds, self.options.fanout, own=False, batch_size=size, seed=0, device=device
        )
        found = []
        for item in loader:
            batch = run.batch(item, seeds, len(self.options.fanout))
            (labels,) = batch.answers
            found.append((model(batch.blocks, *batch.rows).argmax(1) == labels).cpu())
        return torch.cat(found)

    def least_memory(self, model: RelationalSAGE) -> int:
        """Bytes that :meth:`metrics` takes: none but the loader's, which limits its own."""
        return 0


@dataclass(frozen=True, eq=False, kw_only=True)
class HeteroTask(Task):
    """Classification of the vertices of one type in a graph of several types.

    Attributes:
        shape: Types that the outputs depend on, and their inputs.
        options: Options of the run if seeds have times; None if there are none, or are ignored.
    """

    _evaluation: ClassVar[type[Evaluation]] = HeteroEvaluation

    shape: Shape
    options: TrainOptions | None = None

    def seeds(self, fields: Sequence[Field]) -> Seeds:
        """What training batches start from, with times if seeds have them."""
        seeds = super().seeds(fields)
        return seeds if self.options is None else replace(seeds, time=TIME)

    def evaluation(self, *, is_part: bool = False) -> Evaluation:
        """The evaluation on validation and test vertices."""
        if self.options is None:
            return super().evaluation(is_part=is_part)
        return TimedEvaluation(
            graph=self.source,
            val=self.val,
            test=self.test,
            is_part=is_part,
            seeds=self.seeds(self.shape.fields),
            options=self.options,
        )

    @property
    def inputs(self) -> str:
        """Inputs of the first layer, in words."""
        features = [
            f"{width} feature{'s' * (width != 1)} of {ntype!r}"
            for ntype, width in self.widths.items()
        ]
        embeddings = [f"embeddings of {ntype!r}" for ntype in self.shape.embedded]
        return ", ".join([*features, *embeddings])

    def model(self, options: TrainOptions, framework: Framework) -> RelationalSAGE:
        """A new model on the CPU."""
        return RelationalSAGE(
            self.shape,
            [*[options.hidden] * len(options.fanout), self.num_outputs],
            framework,
            dropout=options.dropout,
            row_normalize=options.row_normalize,
        )

    def _described_graph(self) -> str:
        graph = self.graph
        counts = ", ".join(f"{count:,} {t!r}" for t, count in graph.num_nodes_by_type.items())
        size = f"vertices {counts}, {graph.num_edges:,} edges of {len(graph.edge_types)} types"
        return f"{size}, {self.inputs}, {self.num_outputs} classes"

    def _described_seeds(self) -> str:
        return repr(self.node_type) + (" in time" if self.options is not None else "")


def make_hetero_task(graph: Graph, options: TrainOptions) -> HeteroTask:
    """Make the task of a graph of several types.

    One vertex type must have ``label`` and the three masks, or with ``train_fraction`` only
    ``label``. Vertex types with the field ``feat`` are read by it. Other types that the outputs
    depend on learn an embedding for each vertex.

    Raises:
        ValueError: No type, or several, have masks and labels; a field does not fit; the options
            ask for another model; or a type without features has too many vertices.
    """
    _check_options(options)
    fraction = options.train_fraction
    field = "train_mask" if fraction is None else LABELS
    targets = [ntype for ntype in graph.node_types if field in graph.node_fields(ntype)]
    if len(targets) != 1:
        advice = f": {MASKS_COME}" if fraction is None and not targets else ""
        raise ValueError(
            f"graph must have the field {field} for one vertex type to be trained on, got "
            f"{targets}{advice}"
        )
    fields = graph.node_fields(targets[0])
    ids = selected(fields, SETS) if fraction is None else drawn_sets(fields, fraction)
    return _task(graph, options, targets[0], ids, graph.num_nodes_by_type)


def hetero_part_task(part: Part, options: TrainOptions) -> HeteroTask:
    """Make the task of a part of a graph of several types; raises as :func:`make_hetero_task`.

    Every process has embeddings for all vertices of the whole graph.
    """
    _check_options(options)
    ids = {name: getattr(part, name) for name in SETS}
    counts = part.manifest.node_types
    return _task(part.graph, options, part.train_type, ids, counts, is_part=True)


def whole_evaluation(graph: Graph, options: TrainOptions, target: str) -> tuple[Evaluation, int]:
    """The evaluation on a whole graph whose parts are trained on, and its number of classes."""
    ids = selected(graph.node_fields(target), SETS[1:])
    ids["train"] = ids["val"][:0]  # the parts have them
    task = _task(graph, options, target, ids, graph.num_nodes_by_type)
    return task.evaluation(), task.num_outputs


def _check_options(options: TrainOptions) -> None:
    if options.task != "nodes":
        raise ValueError(f"task must be 'nodes' for a graph of several types, got {options.task!r}")
    if options.model != "sage":
        raise ValueError(
            "model must be 'sage' for a graph of several types, where it is R-GCN, got "
            f"{options.model!r}"
        )


def _task(
    graph: Graph,
    options: TrainOptions,
    target: str,
    ids: Mapping[str, Tensor],
    counts: Mapping[str, int],
    *,
    is_part: bool = False,
) -> HeteroTask:
    """Make the task. ``graph`` may be a part of a graph, whose vertices by type are ``counts``."""
    labels = labels_of(graph.node_fields(target))
    shape = Shape.of(graph, target, len(options.fanout), counts)
    for ntype, count in shape.embedded.items():
        if count > _MOST_EMBEDDED:
            raise ValueError(
                "vertices without features, which learn embeddings, must be at most "
                f"{_MOST_EMBEDDED:,} of a type, got {count:,} of {ntype!r}: give them the field "
                f"{FEATURES}"
            )
    read = without_fields(graph)
    for ntype in shape.widths:
        read.set_field(FEATURES, graph.node_fields(ntype)[FEATURES], node_type=ntype)
    for ntype in shape.embedded:
        # Embeddings are numbered by the vertices' ids in the whole graph.
        numbers = torch.arange(graph.num_nodes_of(ntype), device="cpu")
        if is_part:
            numbers = graph.node_fields(ntype)["global_ids"]
        read.set_field(VERTICES, numbers, node_type=ntype)
    read.set_field(LABELS, labels, node_type=target)
    timed_options = None
    if TIME in graph.node_fields(target) and not options.ignore_time:
        _check_timed(options)
        timed_options = options
        for ntype in graph.node_types:
            if TIME in graph.node_fields(ntype):
                read.set_field(TIME, graph.node_fields(ntype)[TIME], node_type=ntype)
    every = torch.cat([ids[name] for name in SETS])
    return HeteroTask(
        graph=read,
        source=read,
        train=ids["train"],
        val=ids["val"],
        test=ids["test"],
        widths=shape.widths,
        num_outputs=count_classes(labels, every),
        node_type=target,
        shape=shape,
        options=timed_options,
    )


def _check_timed(options: TrainOptions) -> None:
    """Refuse layers whose loader does not sample in time, and would show the model the future."""
    if options.layers != "pyg":
        raise ValueError(
            f"layers must be 'pyg' for seeds with the field {TIME}, got {options.layers!r}, "
            "whose loader would show the model later data; ignore_time=True allows that"
        )


@torch.no_grad()
def predict(model: RelationalSAGE, graph: Graph, ids: Tensor, *, world: World = ALONE) -> Tensor:
    """Outputs from all neighbours, each hidden layer for all vertices of its types.

    Args:
        model: A model whose ``fields`` the graph has.
        graph: The graph, the same in all processes.
        ids: Vertices of the target type, int64.
        world: The processes, which divide the vertices of hidden layers.

    Returns:
        A row for each of ``ids``.
    """
    device = next(model.parameters()).device
    training = model.training
    inputs = {}
    for ntype, name in model.fields:
        inputs[ntype] = Rows(
            [graph.node_fields(ntype)[name]],
            lambda some, of=ntype: model.begin(of, some.to(device)),
        )
    model.eval()
    try:
        *hidden, last = model.layers
        layer: Any
        for layer in hidden:
            out = {}
            for ntype in layer.types:
                out[ntype] = torch.zeros(graph.num_nodes_of(ntype), layer.width, device="cpu")
                share = world.share(len(out[ntype]))
                some = torch.arange(share.start, share.stop, device="cpu")
                out[ntype][share] = _outputs(layer, graph, inputs, ntype, some).relu_()
                world.complete(out[ntype])
            inputs = {
                ntype: Rows([rows], lambda some: some.to(device)) for ntype, rows in out.items()
            }
        return _outputs(last, graph, inputs, model.shape.target, ids)
    finally:
        model.train(training)


def _outputs(
    layer: Any, graph: Graph, inputs: Mapping[str, Rows], ntype: str, ids: Tensor
) -> Tensor:
    """A layer's outputs of some vertices of a type, on the CPU, before the activation."""
    out = torch.empty(len(ids), layer.width, device="cpu")
    order = ids.argsort()  # so that rows are read in file order
    for part, x in inputs[ntype].read(ids[order]):
        out[order[part]] = layer.kept(ntype, x).cpu()
    for etype in layer.edge_types:
        if etype[2] != ntype:
            continue
        csc = graph.csc_of(etype)
        sent = torch.empty(csc.num_src, layer.width, device="cpu")
        for part, x in inputs[etype[0]].read(torch.arange(csc.num_src, device="cpu")):
            sent[part] = layer.sent(etype, x).cpu()
        for places, sources, offsets in _in_edges(csc, ids):
            out[places] += embedding_bag(
                sources, sent, offsets, mode="mean", include_last_offset=True
            )
    return out


def _in_edges(csc: CSC, ids: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield runs of vertices with the sources of all their in-edges, and each vertex's offset in
    them."""
    for begin in range(0, len(ids), _AT_ONCE):
        some = ids[begin : begin + _AT_ONCE]
        starts = csc.indptr[some].long()
        counts = csc.indptr[some + 1].long() - csc.indptr[some].long()
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        places = torch.repeat_interleave(starts - offsets[:-1], counts) + torch.arange(
            int(offsets[-1]), device="cpu"
        )
        yield slice(begin, begin + len(some)), csc.indices[places].long(), offsets
