"""Reads edge lists from Parquet files, batch by batch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..errors import FormatError
from .edge_rows import SOURCE_WORDS, TARGET_WORDS, EdgeRows, WeightColumn
from .text_blocks import Path, Progress, arrow, require_arrow

__all__ = ["read_parquet"]

_BATCH_ROWS = 2**20
_BUFFER_BYTES = 2**20


def read_parquet(
    path: Path, *, weight: str | None, relabel: bool, progress: Progress | None, rows: EdgeRows
) -> EdgeRows:
    """Read a Parquet file into ``rows``, batch by batch: ids are integers, or words with ``relabel``.

    The ends of the edges are the columns of well-known names ("source", "target"), or else the first two.
    """
    pa = require_arrow("reading Parquet")
    import pyarrow.parquet

    size, done = os.path.getsize(path), 0
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES) as file:
            schema = _ends_first(file.schema_arrow)
            names = schema.names
            column = WeightColumn.find(path, weight, names, None)
            places = [0, 1] if column is None else [0, 1, column.place]
            types = _column_types(path, schema, places, relabel)
            chosen = [names[place] for place in places]
            for batch in file.iter_batches(_BATCH_ROWS, columns=chosen):
                batch = batch.select(chosen)  # they come in the file's order
                columns = [_values(path, batch, i, type_, done) for i, type_ in enumerate(types)]
                if pa.types.is_string(types[0]):
                    columns[:2] = [_numbered(rows, column) for column in columns[:2]]
                rows.add(*map(np.asarray, columns))
                done += len(batch)
                if progress is not None:
                    progress(size * done // file.metadata.num_rows, size)
    except FormatError:
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk
            raise
        raise FormatError(f"{path} is no whole Parquet file: {error}") from error
    return rows


def _ends_first(schema: Any) -> Any:
    """The schema with the two columns in front that are called as the ends of edges, where there are such."""
    found = [[f for f in schema if f.name.lower() in words] for words in (SOURCE_WORDS, TARGET_WORDS)]
    if any(len(fields) != 1 for fields in found):
        return schema
    ends = [fields[0] for fields in found]
    return arrow().schema([*ends, *(f for f in schema if f.name not in (ends[0].name, ends[1].name))])


def _column_types(path: Path, schema: Any, places: list[int], relabel: bool) -> list[Any]:
    """Choose the Arrow types to read these columns as, or raise FormatError."""
    types = arrow().types
    if len(schema) < 2:
        raise FormatError(f"{path} must have at least 2 columns, got {len(schema)}")
    ids, values = [schema.field(0), schema.field(1)], [schema.field(place) for place in places[2:]]
    words = [not types.is_integer(column.type) for column in ids]
    for column, is_word in zip(ids, words, strict=True):
        value_type = column.type.value_type if types.is_dictionary(column.type) else column.type
        if is_word and not (types.is_string(value_type) or types.is_large_string(value_type)):
            raise FormatError(f"{path}, column {column.name!r} must hold integers or words, got {column.type}")
        if is_word and not relabel:
            message = f"{path}, column {column.name!r} must hold integers, got {column.type}"
            raise FormatError(f"{message}; relabel=True takes any words as ids")
    for column in values:
        if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type)):
            raise FormatError(f"{path}, column {column.name!r} must hold numbers, got {column.type}")
    pa = arrow()
    return [pa.string() if any(words) else pa.int64()] * 2 + [pa.float64()] * len(values)


def _values(path: Path, batch: Any, place: int, type_: Any, rows_before: int) -> Any:
    """Cast a column of a batch to ``type_``, or raise FormatError where a row has no value or one that does not fit."""
    pa, column, name = arrow(), batch.column(place), batch.schema.names[place]
    try:
        cast = column.cast(type_, safe=place < 2)
    except pa.ArrowInvalid as error:
        raise FormatError(f"{path}, column {name!r} must hold {type_}: {error}") from None
    empty = column.is_null().index(True).as_py()
    if empty < 0 and pa.types.is_string(type_):
        empty = cast.index("").as_py()
    if empty >= 0:
        raise FormatError(f"{path}, row {rows_before + empty + 1} must have a value in column {name!r}, got none")
    return cast


def _numbered(rows: EdgeRows, words: Any) -> Any:
    distinct = words.dictionary_encode()
    return rows.number(distinct.dictionary.to_pylist())[distinct.indices.to_numpy()]
