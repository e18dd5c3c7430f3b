"""A table as a graph's task: its rows are labelled seeds, split by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ...errors import FormatError
from ...graph.graph import Graph
from ...system.arrays import Array
from ...system.units import printable
from ..column_files import Scratch
from ..paths import PARTS
from .builder import Gaps
from .columns import TIME, family
from .connection import Connection, quoted
from .features import LABEL, set_features
from .schema import Column, Schema, VertexTable

# Maximal vertices of a type for which `pagraph train` learns embeddings. Larger types without other
# features get a column of ones.
_MOST_EMBEDDED = 2**18


@dataclass(frozen=True)
class Asked:
    """A task, resolved in a schema.

    Attributes:
        table: The vertex type of the seeds.
        label: The column of their labels.
        shares: Shares of the seeds for training, validation and testing.
    """

    table: str
    label: str
    shares: tuple[float, float, float]


def with_label(connection: Connection, schema: Schema, asked: Asked) -> Schema:
    """The schema with the field ``label`` for the label's column, and notes about the task.

    Raises:
        FormatError: A label is not a class.
        ValueError: The column is a key or the time, or its values are not classes.
    """
    table = asked.table
    label = asked.label
    shown = printable(f"{table}.{label}")
    vertex = next((v for v in schema.vertices if v.name == table), None)
    if vertex is None:
        raise ValueError(
            f"task must name a table of vertices, got {printable(table)}, whose rows are edges"
        )
    column = next((c for c in vertex.columns if c.name == label), None)
    if column is None or label in (vertex.time, *vertex.key):
        raise ValueError(f"task must have a label that is no key and no time, got {shown}")
    if not column.field:
        raise ValueError(f"task must have a label of classes, got {shown}: {column.why}")
    if family(column.kind) not in ("integer", "bool", "text"):
        raise ValueError(
            f"task must have a label of integers, booleans or words, got {shown} of {column.kind}"
        )
    if family(column.kind) == "integer":
        ((low,),) = connection.run(
            f"select min({quoted(label)})::BIGINT from {quoted(vertex.relation)}"
        )
        if low is not None and low < 0:
            raise FormatError(f"{shown} must hold classes from 0 on, got {low}")
    field = replace(column, field=LABEL, dtype="int64", sql=f"({column.sql})::BIGINT")
    columns = tuple(field if c is column else _apart(c) for c in vertex.columns)
    found = replace(vertex, columns=columns)
    notes = (*schema.notes, *_notes(connection, schema, found, label))
    vertices = tuple(found if v is vertex else v for v in schema.vertices)
    return replace(schema, vertices=vertices, notes=notes)


def _apart(column: Column) -> Column:
    """A column, renamed if it clashes with a field of the task."""
    taken = (LABEL, *(f"{part}_mask" for part in PARTS))
    return replace(column, field=f"{column.field}_") if column.field in taken else column


def _notes(
    connection: Connection, schema: Schema, vertex: VertexTable, label: str
) -> Iterator[str]:
    """Warnings about the times of a task."""
    shown = printable(vertex.name)
    if not vertex.time:
        yield (
            f"task: {shown} has no time: its rows are divided at random, and a model may see the "
            "future"
        )
        return
    time = quoted(vertex.time)
    rows = quoted(vertex.relation)
    # Values that were written after a row's time may leak its outcome.
    for column in vertex.columns:
        if family(column.kind) != "time" or column.name == vertex.time:
            continue
        is_later = f"{quoted(column.name)} > {time}"
        ((later,),) = connection.run(f"select count(*) from {rows} where {is_later}")
        if later:
            yield (
                f"task: {printable(column.name)} is later than {printable(vertex.time)} in "
                f"{later:,} rows of {shown}, and was not known then: leave it out by "
                f"--skip-column {printable(f'{vertex.name}:{column.name}')}"
            )
    firsts = []
    for other in schema.vertices:
        if other.name != vertex.name and other.time and family(_kind(other)) == "time":
            first = f"select min({quoted(other.time)})::TIMESTAMP as t"
            firsts.append(f"{first} from {quoted(other.relation)}")
    if firsts and family(_kind(vertex)) == "time":
        first = f"(select min(t) from ({' union all '.join(firsts)}))"
        ((early,),) = connection.run(
            f"select count(*) from {rows} where {time}::TIMESTAMP < {first}"
        )
        if early:
            yield (
                f"task: {early:,} rows of {shown} are earlier than all other tables' rows: nothing "
                "was known then"
            )
    yield (
        f"task: the other columns of {shown} are taken as known at {printable(vertex.time)}; "
        f"{printable(label)} is the label alone"
    )


def _kind(vertex: VertexTable) -> str:
    return next((c.kind for c in vertex.columns if c.name == vertex.time), "")


def set_task(
    graph: Graph, task: Asked, scratch: Scratch | None, gaps: Gaps, *, every_word: bool = False
) -> None:
    """Add the masks of a task, and features for types without any; the schema then names these.

    Raises:
        ValueError: A set is empty, for lack of distinct times.
    """
    fields = graph.node_fields(task.table)
    known = fields[LABEL].numpy() >= 0
    if TIME in fields:
        masks = _masks_in_time(known, fields[TIME].numpy(), task.shares)
    else:
        masks = _drawn_masks(known, task.shares)
    # Rows that refer to others are events, which occur once, so learned embeddings would not
    # generalise. Types that are only referred to may have one.
    events = {link.source.table for link in graph.tables.links}
    vertices = []
    for vertex in graph.tables.vertices:
        learns = vertex.name not in events and vertex.rows <= _MOST_EMBEDDED
        found = set_features(
            graph.node_fields(vertex.name),
            vertex.rows,
            scratch,
            gaps={name: rows for (owner, name), rows in gaps.items() if owner == vertex.name},
            with_ones=not learns,
            every_word=every_word,
        )
        columns = tuple(replace(c, feature=found.get(c.field, "")) for c in vertex.columns)
        vertices.append(replace(vertex, columns=columns))
    graph.tables = replace(graph.tables, vertices=tuple(vertices))
    # Last, since masks are no inputs of features.
    for part, mask in zip(PARTS, masks, strict=True):
        if mask.any():
            fields[f"{part}_mask"] = torch.from_numpy(mask)


def _masks_in_time(known: Array, times: Array, shares: Sequence[float]) -> Iterator[Array]:
    """Masks of the sets: the earliest rows for training, the latest for testing.

    Rows of one time are in one set, so sizes are approximate.
    """
    ordered = np.sort(times[known])
    # Cumulative number of rows at each time.
    is_last = np.append(ordered[1:] != ordered[:-1], bool(len(ordered)))
    before = np.flatnonzero(is_last) + 1
    wanted = sum(share > 0 for share in shares)
    if len(before) < wanted:
        raise ValueError(
            f"task must have rows of at least {wanted} different times, to divide them in time, "
            f"got {len(before)} among {len(ordered):,} rows with a label"
        )
    first = 0
    total = 0.0
    for share in shares:
        if not share:
            yield np.zeros(len(known), dtype=bool)
            continue
        total += share
        wanted -= 1
        nearest = _nearest(before, total * len(ordered))
        # Each set, also later ones, gets at least one time.
        last = min(max(nearest, first), len(before) - 1 - wanted)
        earliest, latest = ordered[before[[first, last]] - 1]
        yield known & (times >= earliest) & (times <= latest)
        first = last + 1


def _nearest(ascending: Array, number: float) -> int:
    """The place of the number next to another; the first of two."""
    place = int(np.searchsorted(ascending, number))
    if place == len(ascending):
        return place - 1
    if place and number - ascending[place - 1] <= ascending[place] - number:
        return place - 1
    return place


def _drawn_masks(known: Array, shares: Sequence[float]) -> Iterator[Array]:
    rows = np.flatnonzero(known)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0), device="cpu")
    ends = [round(sum(shares[:n]) * len(rows)) for n in range(len(shares) + 1)]
    bounds = [min(end, len(rows)) for end in ends]
    for begin, end in zip(bounds, bounds[1:], strict=False):
        mask = np.zeros(len(known), dtype=bool)
        mask[rows[order[begin:end].numpy()]] = True
        yield mask
