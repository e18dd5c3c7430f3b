"""Arguments of a profile: seeds, fields, and budgets with the rows that they buy of each type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..cache.division import Demand, divide_each
from ..graph.csc import check_range
from ..graph.fields import materialized, stored_row_bytes
from ..seeds.order import drawn_order, share_size
from ..system.arrays import Int64Array
from ..system.budget import SLOT_BYTES, Budget, curve_budget

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from ..ranking.policy import Ranking

DEFAULT_BUDGETS: tuple[float, ...] = (
    *(0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.13, 0.16, 0.2, 0.25),
    *(0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)
"""Default budgets, as shares of the vertices: close together where curves bend."""
GRID: tuple[float, ...] = tuple(percent / 100 for percent in range(1, 101))
"""Budgets that are always computed, so that recommendations do not depend on those asked for."""


@dataclass(frozen=True)
class Spending:
    """A budget of a curve in bytes, for rows.

    With ``pays_tables`` also for the tables from vertex to place in the cache.
    """

    nbytes: int
    pays_tables: bool = False


@dataclass(frozen=True)
class RowSizes:
    """Bytes of a vertex in the cache, by vertex type.

    Attributes:
        num_nodes: Vertex type to its number of vertices.
        row_bytes: Vertex type to the bytes of a vertex's rows of all fields, for types with fields.
            None if no field is named: all vertices then count the same.
    """

    num_nodes: Mapping[str, int]
    row_bytes: Mapping[str, int] | None

    @property
    def cached_types(self) -> dict[str, int]:
        """Cacheable vertex types, to the bytes of a vertex."""
        if self.row_bytes is None:
            return dict.fromkeys(self.num_nodes, 1)
        return dict(self.row_bytes)

    @property
    def vertices(self) -> int:
        """Number of vertices of all cacheable types."""
        return sum(self.num_nodes[ntype] for ntype in self.cached_types)

    @property
    def all_bytes(self) -> int:
        """Bytes of all their rows."""
        return sum(self.num_nodes[ntype] * width for ntype, width in self.cached_types.items())

    def spending(self, value: Any) -> Spending:
        """Parse a budget.

        Args:
            value: Rows as an int or a string of digits, a share of the vertices (0.1, "10%"), or
                bytes with a unit ("2GiB"), tables included.

        Raises:
            ValueError: It is negative, NaN, more than all vertices, not a number, or in bytes
                although no field is named.
            TypeError: It is neither a number nor a string.
        """
        number = curve_budget(value)
        if isinstance(number, Budget):
            if self.row_bytes is None:
                raise ValueError(
                    f"budgets must be rows or shares if no field is named, got {value!r}"
                )
            return Spending(number.limit or 0, pays_tables=True)
        if isinstance(number, float):
            types = [(width, self.num_nodes[ntype]) for ntype, width in self.cached_types.items()]
            if not number:
                return Spending(0)
            # Rounded as by a loader, so that the curve holds for its cache.
            return Spending(Budget(share=number).nbytes(types, free=int))
        if not 0 <= number <= self.vertices:
            raise ValueError(
                f"budgets must be from 0 to {self.vertices} rows (all vertices), got {value!r}"
            )
        # Which types are bought is not known yet, so rows count with their average size.
        return Spending(number * self.all_bytes // max(1, self.vertices))

    def spendings(self, values: Iterable[Any]) -> list[Spending]:
        """Parse budgets, of which there must be at least one.

        Raises as :meth:`spending`, and TypeError for a single string.
        """
        # A string is iterable, too: "10%" would be read as three budgets.
        if isinstance(values, str):
            raise TypeError(f"budgets must be a list, got {values!r}")
        result = [self.spending(value) for value in values]
        if not result:
            raise ValueError("budgets must hold at least 1 budget, got none")
        return result

    def rows(self, spending: Spending) -> int:
        """Number of vertices of average size that a budget buys."""
        left = spending.nbytes
        if spending.pays_tables:
            left -= self._tables
        return max(0, min(self.vertices, left * self.vertices // max(1, self.all_bytes)))

    def nbytes(self, spending: Spending) -> int | None:
        """The budget as bytes for a loader's ``cache``, tables included.

        None where no field is named.
        """
        if self.row_bytes is None:
            return None
        # A cache of tables alone would serve nothing.
        if not self.rows(spending):
            return 0
        nbytes = spending.nbytes
        if not spending.pays_tables:
            nbytes += self._tables
        return min(nbytes, self.all_bytes + self._tables)

    def divide(
        self, rankings: Mapping[str, Ranking], budgets: Sequence[Spending]
    ) -> dict[str, Int64Array]:
        """Divide every budget as a loader does.

        Returns:
            Vertex type to the number of vertices bought, shape ``(len(budgets),)``.
        """
        types = self.cached_types
        rows = np.zeros((len(budgets), len(types)), np.int64)
        # Tables cost something only in budgets that pay for them, so there are two sets of demands.
        for pays_tables in (False, True):
            places = [i for i, b in enumerate(budgets) if b.pays_tables == pays_tables]
            if not places:
                continue
            demands = []
            for ntype, width in types.items():
                num_nodes = self.num_nodes[ntype]
                tables = SLOT_BYTES * num_nodes * pays_tables
                demands.append(Demand(num_nodes, width, tables, rankings[ntype]))
            rows[places] = divide_each([budgets[place].nbytes for place in places], demands)
        return {ntype: rows[:, column] for column, ntype in enumerate(types)}

    @property
    def _tables(self) -> int:
        # The table from vertex to place has an entry for every vertex, cached or not.
        return SLOT_BYTES * self.vertices


FieldNames = Sequence[str] | Mapping[str, Sequence[str]]
"""Names of vertex fields; for several vertex types, by type."""


@dataclass(frozen=True)
class FieldSizes:
    """Fields that are read, by vertex type.

    Attributes:
        inputs, labels: Vertex type to the bytes of a row of each field, for fields read for the
            input nodes, and for the seeds.
        rows: Bytes of a vertex in a cache.
    """

    inputs: dict[str, dict[str, int]]
    labels: dict[str, dict[str, int]]
    rows: RowSizes

    @classmethod
    def of(cls, graph: Graph, fields: FieldNames | None, labels: FieldNames) -> FieldSizes:
        """Look the fields up.

        Raises:
            ValueError: A field is unknown, or names come without a type where there are several.
        """
        inputs = _widths(graph, fields or (), "fields")
        outputs = _widths(graph, labels, "labels")
        row_bytes = {}
        for ntype in graph.node_types:
            widths = [*inputs.get(ntype, {}).values(), *outputs.get(ntype, {}).values()]
            # A type of which nothing is read is not cached.
            if width := sum(widths):
                row_bytes[ntype] = width
        return cls(inputs, outputs, RowSizes(graph.num_nodes_by_type, row_bytes or None))

    @property
    def row_bytes(self) -> dict[str, int]:
        """Field, with its type where there are several, to the bytes of a row."""
        found = {}
        for part in (self.inputs, self.labels):
            for ntype, widths in part.items():
                for name, width in widths.items():
                    found[self.key(ntype, name)] = width
        return found

    def key(self, ntype: str, name: str) -> str:
        """Name of a field in a curve: ``"feat"``, or ``"paper/feat"`` if there are several
        types."""
        return name if len(self.rows.num_nodes) == 1 else f"{ntype}/{name}"


def check_fields(
    graph: Graph, names: Iterable[str], node_type: str | None = None, *, argument: str = "fields"
) -> None:
    """Raise ValueError for a field that the vertices, or those of a type, do not have."""
    own_type = graph.only_node_type if node_type is None else node_type
    have = graph.node_fields(own_type)
    for name in names:
        if name not in have:
            of = "" if node_type is None else f" of {node_type!r} vertices"
            raise ValueError(f"{argument} must be among {sorted(have)}{of}, got {name!r}")


def _widths(graph: Graph, names: FieldNames, argument: str) -> dict[str, dict[str, int]]:
    if isinstance(names, str):  # it would be read as names of one letter
        raise TypeError(f"{argument} must be a list of names, got {names!r}")
    if not isinstance(names, Mapping):
        if not names:
            return {}
        if len(graph.node_types) > 1:
            raise ValueError(
                f"{argument} must be a mapping from types among {graph.node_types}, got "
                f"{list(names)}"
            )
        names = {graph.only_node_type: names}
    widths = {}
    for ntype, of_type in names.items():
        if ntype not in graph.node_types:
            raise ValueError(
                f"{argument} must name vertex types among {graph.node_types}, got {ntype!r}"
            )
        # The message names the type only if there are several.
        named = ntype if len(graph.node_types) > 1 else None
        check_fields(graph, of_type, named, argument=argument)
        fields = graph.node_fields(ntype)
        widths[ntype] = {name: stored_row_bytes(fields[name]) for name in of_type}
    return widths


def training_seeds(
    graph: Graph,
    *,
    node_type: str | None = None,
    split: str = "",
    fraction: float | None = None,
    seed: int = 0,
) -> Tensor:
    """Select the vertices of the field ``train_mask``, or a random share of all.

    Args:
        graph: The graph.
        node_type: Type of the vertices. Default: the only one.
        split: Prefix of the mask's name: ``"pub_"`` takes ``pub_train_mask``.
        fraction: Share of all vertices to draw, in (0, 1]; at least one is drawn. Default: use the
            mask.
        seed: Random seed of the draw.

    Returns:
        Ids in ascending order, shape ``(n,)``, int64.

    Raises:
        ValueError: There is neither a mask nor a fraction; one of them is wrong or selects nothing;
            or the graph has several vertex types and ``node_type`` is not given.
    """
    node_type = graph.only_node_type if node_type is None else node_type
    if fraction is not None:
        return _drawn(graph.num_nodes_of(node_type), "vertex", fraction, seed)
    name = f"{split}train_mask"
    mask = graph.node_fields(node_type).get(name)
    if mask is None:
        raise ValueError(
            f"graph must have the field {name}, or train_fraction must be given, it has neither"
        )
    return _selected(name, mask, "vertex")


def training_edges(
    graph: Graph, *, fraction: float | None = None, seed: int = 0
) -> Tensor | dict[EdgeType, Tensor]:
    """Select the edges of the field ``train_mask``, a random share, or all, for link prediction.

    Args:
        graph: The graph.
        fraction: Share of the edges of each type to draw, in (0, 1]; at least one is drawn.
        seed: Random seed of the draw.

    Returns:
        Edge ids in ascending order; a mapping from type for several edge types. If any type has a
        mask, only types with a mask are in it.

    Raises:
        ValueError: The fraction or a mask is wrong, or there is no edge.
    """
    sizes = {edge_type: graph.csc_of(edge_type).num_edges for edge_type in graph.edge_types}
    ids = {}
    for edge_type, size in sizes.items():
        mask = graph.edge_fields(edge_type).get("train_mask")
        if fraction is None and mask is not None:
            ids[edge_type] = _selected("train_mask", mask, "edge")
        # A type without edges has nothing to draw from; others may have.
        elif fraction is not None and size:
            ids[edge_type] = _drawn(size, "edge", fraction, seed)
    if fraction is None and not ids:
        ids = {edge_type: torch.arange(size, device="cpu") for edge_type, size in sizes.items()}
    if not any(map(len, ids.values())):
        raise ValueError("graph must have at least 1 edge, got 0")
    return ids if len(graph.edge_types) > 1 else ids[graph.edge_types[0]]


def _drawn(count: int, what: str, fraction: float, seed: int) -> Tensor:
    """A random share of the ids below ``count``, ascending."""
    if not 0 < fraction <= 1:
        raise ValueError(f"train_fraction must be in (0, 1], got {fraction}")
    if not count:
        raise ValueError(f"graph must have at least 1 {what}, got 0")
    drawn = drawn_order(count, seed)[: share_size(count, fraction)]
    return torch.from_numpy(np.sort(drawn))


def _selected(name: str, mask: Any, what: str) -> Tensor:
    """The ids that a mask selects."""
    if mask.dim() != 1 or mask.is_floating_point() or mask.is_complex():
        raise ValueError(
            f"{name} must be a 1-D field of booleans, got {mask.dtype} {tuple(mask.shape)}"
        )
    ids = materialized(mask).bool().nonzero().squeeze(1)
    if not len(ids):
        raise ValueError(f"{name} must select at least 1 {what}, got 0")
    return ids


def check_seeds(
    graph: Graph, seeds: Tensor | Mapping[Any, Tensor], *, of_links: bool = False
) -> int:
    """Check and count the seeds, which are vertices, or with ``of_links`` edges.

    Raises:
        TypeError: They are not tensors of integers.
        ValueError: They are empty, not 1-D, or of a type that the graph does not have.
        IndexError: One is outside the graph.
    """
    what = "edge" if of_links else "vertex"
    sizes: Mapping[Any, int] = graph.num_nodes_by_type
    if of_links:
        sizes = {etype: graph.csc_of(etype).num_edges for etype in graph.edge_types}
    if isinstance(seeds, Mapping):
        by_type: Mapping[Any, Tensor] = seeds
    elif len(sizes) > 1:
        raise ValueError(f"seeds must be a mapping from {what} type for the types {list(sizes)}")
    else:
        by_type = {next(iter(sizes)): seeds}
    for kind, ids in by_type.items():
        name = f"seeds[{kind!r}]" if isinstance(seeds, Mapping) else "seeds"
        if kind not in sizes:
            raise ValueError(f"seeds must name {what} types among {list(sizes)}, got {kind!r}")
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
            got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise TypeError(f"{name} must be an int32 or int64 tensor, got {got}")
        check_range(name, ids, sizes[kind], IndexError)
    count = sum(map(len, by_type.values()))
    if not count:
        raise ValueError(f"seeds must hold at least 1 {what}, got 0")
    return count
