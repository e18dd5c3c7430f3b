"""Base of all samplers, and of those that expand seeds hop by hop."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import check_range
from ..system.checks import as_flag, as_integer, check_fanout
from .edge_values import EdgeField, EdgeWeights, KnownFields, edge_weights
from .hop import CALLER, Hop, HopEdges, set_slots
from .pickers import UniformPicker, WeightedPicker
from .plan import MOST_SMALL_FANOUT, SamplePlan, edge_ends

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..graph.graph import EdgeType, Graph
    from .hop import Picker

# Settings that do not change how often a vertex is expected to be read.
_SAME_READS = ("batch_dependency",)


class MiniBatchSampler:
    """Base of all samplers: turns seeds into a mini-batch, as a pure function of graph, seeds and
    key.

    Subclasses are frozen dataclasses (see :attr:`cache_key`) and thread-safe.

    Attributes:
        seeds_are_vertices: Whether seeds are vertices, whose rows are read; else edges or pairs.
        disjoint: Whether each seed has its own tree: a vertex found from two seeds occurs twice.
    """

    seeds_are_vertices: bool = True
    disjoint: bool = False

    @property
    def hops(self) -> HopSampler | None:
        """The sampler of the hops to neighbours: this one or one inside; None if unknown."""
        return None

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        raise NotImplementedError

    @property
    def trees_per_seed(self) -> int:
        """Maximum trees rooted at one seed, if trees are disjoint."""
        return 1

    @property
    def cache_key(self) -> Hashable:
        """Equal for samplers that sample the same from the same graph; the key of shared caches."""
        settings: Any = self
        names = [field.name for field in fields(settings) if field.name not in _SAME_READS]
        return type(self), *(_hashable(getattr(self, name)) for name in names)

    def seed_rates(self, seeds: Any, batch_size: int) -> dict[str, Tensor] | None:
        """Probability of each vertex to be in the first frontier of a batch of ``batch_size``
        seeds.

        Returns:
            Vertex type to float64, shape ``(num_nodes,)``; None if seeds are the frontier.
        """
        return None

    def sample(self, graph: Graph, seeds: Any, key: int = 0) -> Any:
        """Sample one mini-batch; thread-safe."""
        raise NotImplementedError


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple(sorted((repr(name), _hashable(entry)) for name, entry in value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value.cache_key if isinstance(value, MiniBatchSampler) else value


def check_per_hop(
    name: str, entries: Any, check: Callable[[Any, int], int], *, least: int = 1
) -> tuple[int | dict[EdgeType, int], ...]:
    """The checked entries of all hops; a mapping may have 0, for edge types without picks.

    Args:
        name: Name of the argument, for errors.
        entries: A number, or a mapping from edge type to numbers, for each hop.
        check: Returns a number as an int, or raises, given the number and its lower bound.
        least: Lower bound of a number outside a mapping; with 0 entries may be empty.

    Raises:
        ValueError: There is no entry.
    """
    entries = tuple(entries)
    if least and not entries:
        raise ValueError(f"{name} must have at least 1 entry, got none")
    return tuple(
        {t: check(number, 0) for t, number in entry.items()}
        if isinstance(entry, Mapping)
        else check(entry, least)
        for entry in entries
    )


def check_prob(prob: object) -> None:
    """Raise TypeError unless ``prob`` is a name of an edge field or None."""
    if prob is not None and not isinstance(prob, str):
        raise TypeError(f"prob must be the name of an edge field, got {prob!r}")


def check_edge_dir(edge_dir: str) -> None:
    """Raise ValueError for an unknown direction of edges."""
    if edge_dir not in ("in", "out"):
        raise ValueError(f"edge_dir must be 'in' or 'out', got {edge_dir!r}")


def of_edge_type(entry: int | Mapping[EdgeType, int], edge_type: EdgeType) -> int:
    """A hop's number for an edge type.

    Raises:
        KeyError: The hop's entry is a mapping without this type.
    """
    return entry[edge_type] if isinstance(entry, Mapping) else entry


_DECIDE = (
    "pick",
    "picker",
    "fanout",
    "weights",
    "weighs_edges",
    "times",
    "timed_picker",
    "window",
)


def _decides_itself(sampler: Any) -> bool:
    """Whether a user's subclass overrides a method that decides about picks."""
    for name in _DECIDE:
        owners = [kind.__module__ for kind in type(sampler).__mro__ if name in vars(kind)]
        if name in vars(sampler) or (owners and not owners[0].startswith("pagraph.")):
            return True
    return False


class HopSampler(MiniBatchSampler):
    """Base of the samplers that expand seeds to their neighbours hop by hop. Subclasses pick the
    edges.

    Attributes:
        edge_dir: Draw in-edges ("in") or out-edges ("out").
        prob: Edge field with the edges' weights; None: uniform.
        time: Field with the times of edges or vertices; None: not by time.
        replace: Draw with replacement.
        layer_dependency: All hops share their random numbers (LABOR).
        batch_dependency: Number of batches after which a vertex gets a new random number; see
            ``Renewal``.
        expands_once: Whether a hop expands only the vertices that the previous hop found; else all
            known ones.
    """

    edge_dir: str
    prob: str | None
    time: str | None = None
    replace: bool = False
    layer_dependency: bool = False
    batch_dependency: int = 1
    expands_once: bool = False

    def check_edges(self) -> None:
        """Check ``edge_dir`` and ``prob``.

        Raises:
            ValueError: ``edge_dir`` is unknown.
            TypeError: ``prob`` is not a string.
        """
        check_edge_dir(self.edge_dir)
        check_prob(self.prob)

    def weights(self, graph: Graph, edge_type: EdgeType, field: EdgeField) -> EdgeWeights | None:
        """The weights in the field ``prob``; None if ``prob`` is None or there is no such field.

        Raises:
            TypeError: The field does not hold numbers.
            ValueError: It does not hold one finite number >= 0 per edge.
        """
        values = None if self.prob is None else field(edge_type, self.prob)
        if values is None:
            return None
        return edge_weights(
            graph.adjacency(self.edge_dir, edge_type), values, name=f"edge field {self.prob!r}"
        )

    @property
    def hops(self) -> HopSampler:  # noqa: D102
        return self

    @property
    def has_fanouts(self) -> bool:
        """Whether :meth:`fanout` is implemented."""
        return type(self).fanout is not HopSampler.fanout

    def fanout(self, hop: int, edge_type: EdgeType) -> int:
        """Number of edges that a vertex draws in hop ``hop`` (0 serves the seeds); -1: all.

        Raises:
            NotImplementedError: The sampler has no fan-outs, see :attr:`has_fanouts`.
        """
        raise NotImplementedError

    @property
    def kind_of_pick(self) -> str:
        """How kernels pick: "each" frontier vertex on its own, "shared" random numbers of sources
        (LABOR), or "caller": by :meth:`pick` alone."""
        return "caller"

    @cached_property
    def known_plans(self) -> dict[Hashable, SamplePlan]:
        """The plans by a graph's types, see :meth:`plan`."""
        return {}

    def plan(self, graph: Graph) -> SamplePlan:
        """The hops as kernels take them; cached, since each batch needs them."""
        plan = self.known_plans.get(graph.types)
        if plan is None:
            plan = self.known_plans[graph.types] = self._planned(graph)
        return plan

    def _planned(self, graph: Graph) -> SamplePlan:
        kind = "caller" if _decides_itself(self) else self.kind_of_pick
        edge_types = graph.types.edges
        rows = [
            [CALLER if kind == "caller" else self._kernel_fanout(hop, t) for t in edge_types]
            for hop in range(self.num_hops)
        ]
        fanouts = np.array(rows, dtype=np.int64).reshape(len(rows), len(edge_types))
        return SamplePlan(
            fanouts,
            edge_ends(graph),
            self.replace,
            self.expands_once,
            self.disjoint,
            self.layer_dependency if kind == "shared" else None,
            # A picker of a user's may give weights without saying so.
            self.weighs_edges or (kind == "caller" and not self.expands_once),
            set_slots(int(fanouts.max(initial=1))),
        )

    def _kernel_fanout(self, hop: int, edge_type: EdgeType) -> int:
        try:
            fanout = self.fanout(hop, edge_type)
        except KeyError:
            return CALLER  # whose error names the type, if a batch reaches it
        return fanout if fanout <= MOST_SMALL_FANOUT else CALLER

    @cached_property
    def known_weights(self) -> KnownFields[Any]:
        """Cache of the weights of the graph that was sampled last, as kernels take them."""
        return KnownFields()

    @property
    def weighs_edges(self) -> bool:
        """Whether blocks have edge weights; a block without edges then has an empty tensor."""
        return False

    def picker(
        self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField
    ) -> Picker | None:
        """The picker of hop ``hop`` (0 serves the seeds) along ``edge_type``; None to draw no
        edges."""
        raise NotImplementedError

    def with_in_edges(self) -> Self:
        """This sampler with ``edge_dir="in"``, for graphs that are already reversed."""
        if self.edge_dir == "in":
            return self
        return replace(self, edge_dir="in")  # type: ignore[type-var]

    def pick(
        self, graph: Graph, hop: Hop, number: int, edge_type: EdgeType, field: EdgeField
    ) -> HopEdges:
        """Draw the edges of one type in hop ``number``; none if the frontier is empty or there is
        no picker."""
        picker = self.picker(graph, number, edge_type, field) if len(hop.frontier) else None
        if picker is not None:
            return picker.pick(hop)
        return hop.edges(
            np.zeros(len(hop.frontier) + 1, dtype=np.int64), weighted=self.weighs_edges
        )


class FanoutSampler(HopSampler):
    """Base of the samplers with fan-outs.

    Attributes:
        fanouts: Neighbours per vertex for each hop, or a mapping from edge type to such numbers.
            The last entry serves the seeds; -1 takes all.
    """

    fanouts: Sequence[int | Mapping[EdgeType, int]]

    def check_fanouts(self, *, least: int = 1) -> None:
        """Check and normalise ``fanouts``, ``replace`` and ``batch_dependency``, and call
        :meth:`check_edges`.

        See :func:`check_per_hop` for ``least``.
        """
        object.__setattr__(self, "replace", as_flag("replace", self.replace))
        checked = check_per_hop(
            "fanouts",
            self.fanouts,
            lambda n, least: check_fanout(n, self.replace, least=least),
            least=least,
        )
        self.check_edges()
        object.__setattr__(self, "fanouts", checked)
        object.__setattr__(
            self, "batch_dependency", as_integer("batch_dependency", self.batch_dependency, least=1)
        )

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        return len(self.fanouts)

    @property
    def kind_of_pick(self) -> str:
        """See :attr:`HopSampler.kind_of_pick`."""
        return "each"

    def fanout(self, hop: int, edge_type: EdgeType) -> int:
        """Number of neighbours drawn (for LABOR, on average) in hop ``hop`` (0 serves the seeds).

        Raises:
            KeyError: The hop's fan-outs do not name the edge type.
        """
        return of_edge_type(self.fanouts[-1 - hop], edge_type)

    def picker(
        self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField
    ) -> Picker | None:
        """See :meth:`HopSampler.picker`; raises as :meth:`fanout` and :meth:`weights`."""
        fanout = self.fanout(hop, edge_type)
        if not fanout:
            return None
        weights = self.weights(graph, edge_type, field)
        if weights is None:
            return UniformPicker(fanout, self.replace)
        return WeightedPicker(fanout, self.replace, weights)


def seeds_by_type(graph: Graph, seeds: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Seeds by vertex type, checked.

    Raises:
        KeyError: The graph does not have a vertex type.
        IndexError: A seed is outside ``[0, num_nodes)`` of its type.
    """
    by_type = seeds if isinstance(seeds, Mapping) else {graph.only_node_type: seeds}
    for ntype, ids in by_type.items():
        name = f"seeds[{ntype!r}]" if isinstance(seeds, Mapping) else "seeds"
        # Before ids are narrowed, which could wrap a wrong one into the range.
        check_range(name, ids, graph.num_nodes_of(ntype), IndexError)
    return by_type


def own_fields(graph: Graph) -> EdgeField:
    """A function that returns the graph's own edge fields; None for a missing one."""
    return lambda edge_type, name: graph.edge_fields(edge_type).get(name)


def id_dtype_of(graph: Graph) -> Any:
    """The widest id dtype of the graph's edge types."""
    wide = any(graph.csc_of(etype).indices.dtype == torch.int64 for etype in graph.edge_types)
    return np.dtype(np.int64 if wide else np.int32)
