"""A table as a graph's task: its rows are labelled seeds, split by time; and default features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...errors import FormatError
from ...graph.fields import FieldNote, Fields
from ...graph.graph import Graph
from ...system.arrays import Array
from ...system.units import printable
from ..column_files import Scratch, new_column
from ..original_ids import ORIGINAL_ID
from ..paths import PARTS
from .columns import TIME, family, is_mask
from .connection import Connection, quoted
from .schema import Column, Schema, VertexTable

LABEL = "label"
FEATURES = "feat"

# Maximal words of a field to one-hot encode in `feat`; more are better embedded by the model.
_MOST_WORDS = 32
# Maximal vertices of a type for which `pagraph train` learns embeddings. Larger types without other
# features get a column of ones.
_MOST_EMBEDDED = 2**18
_BLOCK_ROWS = 2**16


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


def with_label(
    connection: Connection,
    schema: Schema,
    table: str,
    label: str,
    shares: tuple[float, float, float],
) -> tuple[Schema, Asked]:
    """The schema with the field ``label`` for the label's column, and the task.

    Raises:
        FormatError: A label is not a class.
        ValueError: The column is a key or the time, or its values are not classes.
    """
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
    return replace(schema, vertices=vertices, notes=notes), Asked(table, label, shares)


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


def set_task(graph: Graph, task: Asked, scratch: Scratch | None) -> None:
    """Add the masks of a task, and features for types without any.

    Raises:
        ValueError: A set is empty, for lack of distinct times.
    """
    fields = graph.node_fields(task.table)
    known = fields[LABEL].numpy() >= 0
    if TIME in fields:
        masks = _masks_in_time(known, fields[TIME].numpy(), task.shares)
    else:
        masks = _drawn_masks(known, task.shares)
    for part, mask in zip(PARTS, masks, strict=True):
        if mask.any():
            fields[f"{part}_mask"] = torch.from_numpy(mask)
    # Rows that refer to others are events, which occur once, so learned embeddings would not
    # generalise. Types that are only referred to may have one.
    events = {link.source.table for link in graph.tables.links}
    for ntype in graph.node_types:
        count = graph.num_nodes_of(ntype)
        learns = ntype not in events and count <= _MOST_EMBEDDED
        _set_features(graph.node_fields(ntype), count, scratch, with_ones=not learns)


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


# -- features --------------------------------------------------------------------------------------


def _set_features(fields: Fields, count: int, scratch: Scratch | None, *, with_ones: bool) -> None:
    """Set ``feat`` from standardised numbers and one-hot words."""
    if FEATURES in fields:
        return
    parts = [_Part.of(rows, fields.notes.get(name)) for name, rows in _inputs(fields)]
    width = sum(part.width for part in parts)
    if not width and not with_ones:
        return
    store = new_column(scratch, "float32")
    for begin in range(0, count, _BLOCK_ROWS):
        end = min(begin + _BLOCK_ROWS, count)
        blocks = [part.read(begin, end) for part in parts]
        ones = np.ones((end - begin, 1), dtype=np.float32)
        store.append(np.concatenate(blocks or [ones], axis=1).reshape(-1))
    fields[FEATURES] = store.mapped().reshape(count, max(width, 1))


def _inputs(fields: Fields) -> Iterator[tuple[str, Tensor]]:
    """The input fields of features: all but keys, times, labels and masks."""
    for name, rows in fields.items():
        note = fields.notes.get(name, FieldNote())
        if name in (TIME, LABEL, ORIGINAL_ID) or is_mask(name) or note.unit or rows.dim() > 2:
            continue
        if len(note.words) <= _MOST_WORDS:
            yield name, rows


@dataclass(frozen=True)
class _Part:
    """Feature columns from one field."""

    rows: Tensor
    width: int
    num_words: int
    mean: Array
    scale: Array

    @classmethod
    def of(cls, rows: Tensor, note: FieldNote | None) -> _Part:
        """Compute the statistics of a field in one pass."""
        words = len(note.words) if note else 0
        width = words or (rows.shape[1] if rows.dim() == 2 else 1)
        sums = np.zeros((3, width))
        if not words:
            for begin in range(0, len(rows), _BLOCK_ROWS):
                block = rows[begin : begin + _BLOCK_ROWS].numpy().astype(np.float64)
                values = block.reshape(-1, width)
                is_there = np.isfinite(values)
                values[~is_there] = 0
                sums += [is_there.sum(0), values.sum(0), np.square(values).sum(0)]
        count = np.maximum(sums[0], 1)
        mean = sums[1] / count
        deviation = np.sqrt(np.maximum(sums[2] / count - np.square(mean), 0))
        # A constant column becomes 0, rather than amplified rounding errors.
        is_flat = deviation <= 1e-9 * np.abs(mean)
        return cls(rows, width, words, mean, np.where(is_flat, np.inf, deviation))

    def read(self, begin: int, end: int) -> Array:
        """A block of rows, with 0 (the mean) for missing values."""
        block = self.rows[begin:end].numpy()
        if self.num_words:
            words: Array = (block[:, None] == np.arange(self.num_words)).astype(np.float32)
            return words
        rows = block.astype(np.float64).reshape(-1, self.width)
        values = (rows - self.mean) / self.scale
        filled: Array = np.where(np.isfinite(values), values, 0).astype(np.float32)
        return filled
