"""A DuckDB connection that keeps to a memory limit, guesses nothing, and yields arrays."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import FormatError
from ...system.arrays import Array
from ...system.threads import usable_cpus
from ...system.units import one_line
from ..original_ids import zero_byte

# DuckDB's limit is only for its buffers. The process takes 80 to 200 MB more, measured for
# numbering, joining and reading text with 2 threads.
BEYOND_LIMIT = 160 * 2**20
LEAST_LIMIT = 200 * 2**20
"""Sufficient if rows are read once and nothing is kept."""
# With less, DuckDB spills more and finally fails.
_SMALLEST_LIMIT = 64 * 2**20
LEAST_ROOM = 3 * _SMALLEST_LIMIT
"""Minimal bytes for tables larger than memory, with DuckDB's excess over its limit."""
# A thread's own buffers are also beyond the limit.
_THREAD_BYTES = 96 * 2**20
# More threads take more buffers, and our sort dominates the time anyway.
_MOST_THREADS = 8

# Arrow's format letters of fixed-width types, as NumPy dtypes.
_DTYPES: dict[str, np.dtype[Any]] = {
    "c": np.dtype(np.int8),
    "C": np.dtype(np.uint8),
    "s": np.dtype(np.int16),
    "S": np.dtype(np.uint16),
    "i": np.dtype(np.int32),
    "I": np.dtype(np.uint32),
    "l": np.dtype(np.int64),
    "L": np.dtype(np.uint64),
    "f": np.dtype(np.float32),
    "g": np.dtype(np.float64),
}


class Connection:
    """A private in-memory database, which spills to its own folder; a context manager.

    Our SQL quotes names with :func:`quoted`, and passes values as parameters.

    Args:
        room: Bytes that the process may take beyond what it holds now. 0: nothing is kept, so
            little suffices.
        inside: Parent of the folder. Default: the system's temporary folder.

    Attributes:
        folder: The folder, deleted when the connection is closed.
        has_spare_thread: Whether one thread more than DuckDB's may run queries here.
    """

    def __init__(self, room: int, inside: Path | None = None) -> None:
        import duckdb  # here: it takes 0.2 s, and most graph imports do not need it

        self._folder = tempfile.TemporaryDirectory(prefix="pagraph-", dir=inside)
        self.folder = Path(self._folder.name)
        limit = _limit(room)
        threads = min(usable_cpus(), _MOST_THREADS, max(limit // _THREAD_BYTES, 1))
        self.has_spare_thread = 1 < threads < limit // _THREAD_BYTES
        self._registered: dict[str, Any] = {}
        self._loading: list[Any] = []
        self.sql = duckdb.connect(
            config={
                "memory_limit": f"{limit // 2**20}MiB",
                "temp_directory": str(self.folder),
                "threads": threads,
                # Download nothing, and do not resolve tables as Python variables.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
                "python_enable_replacements": False,
            }
        )
        # Times without a zone stay unchanged, independent of the machine's zone.
        self.sql.execute("set global TimeZone = 'UTC'")
        # Prefetching reads whole row groups, which are gigabytes for wide tables.
        self.sql.execute("set global disable_parquet_prefetching = true")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.sql.close()
        self._folder.cleanup()

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement; returns all rows of its (small) result."""
        with self._cursor() as cursor, _one_line_errors():
            return list(cursor.execute(statement, list(values)).fetchall())

    def columns(self, relation: str) -> dict[str, str]:
        """The type of each column of a table or view, in order."""
        return {str(row[0]): str(row[1]) for row in self.run(f"describe {quoted(relation)}")}

    def batches(self, query: str) -> Iterator[list[Array]]:
        """Yield the columns of blocks of rows, in order.

        All values are present, and are numbers or arrays of one length, which are flattened.
        """
        import nanoarrow

        # A separate cursor, since an open result blocks its connection.
        with self._cursor() as cursor, _one_line_errors():
            stream = nanoarrow.c_array_stream(cursor.sql(query))
            for batch in stream:
                yield [_values(column) for column in batch.children]

    def register(self, name: str, rows: Any) -> None:
        """Let a pandas DataFrame be read by name, in place."""
        self._registered[name] = rows

    def register_stream(self, name: str, rows: Any) -> None:
        """Let anything with ``__arrow_c_stream__`` be read by name.

        In place if DuckDB requests the stream at every scan, else copied.
        """
        import duckdb

        stream = _Stream(rows)
        if int(duckdb.__version__.split(".")[0]) >= 2:
            self._registered[name] = stream
            return
        # DuckDB 1 reads a stream only once, and then finds it empty.
        with _one_line_errors():
            self.sql.from_arrow(stream).create(quoted(name))

    def limit(self, room: int) -> None:
        """Reduce the process's memory from now on; DuckDB spills the excess."""
        self.run(f"set memory_limit = '{_limit(room) // 2**20}MiB'")

    def load(self, name: str, rows: Any, values: str, rest: str = "") -> None:
        """Make a table of the rows of a stream, in order; it may spill to disk.

        Args:
            name: The table's.
            rows: An Arrow stream.
            values: The table's columns, in SQL.
            rest: The end of the query.
        """
        with self._cursor() as cursor, _one_line_errors():
            cursor.register("pagraph stream", rows)
            query = f'select {values} from "pagraph stream" {rest}'
            self._loading.append(cursor)
            try:
                cursor.execute(f"create table {quoted(name)} as {query}")
            finally:
                self._loading.remove(cursor)

    def stop_loading(self) -> None:
        """Let :meth:`load` fail in other threads, if it has begun there."""
        import duckdb

        for cursor in list(self._loading):
            # It may just have ended.
            with contextlib.suppress(duckdb.Error):
                cursor.interrupt()

    def padded(self, query: str, longest: int) -> Iterator[Array]:
        """Yield a query's only column, of texts, in blocks of bytes zero-padded to ``longest``.

        Raises:
            FormatError: A text has a zero byte, which padding would make ambiguous.
        """
        import nanoarrow

        with self._cursor() as cursor, _one_line_errors():
            stream = nanoarrow.c_array_stream(cursor.sql(query))
            for batch in stream:
                view = next(iter(batch.children)).view()
                offsets = np.frombuffer(view.buffer(1), dtype=np.int32)
                offsets = offsets[view.offset : view.offset + view.length + 1]
                data = np.frombuffer(view.buffer(2), dtype=np.uint8)
                data = data[offsets[0] : offsets[-1]]
                if not data.all():
                    place = offsets[0] + int(np.argmin(data))
                    row = int(np.searchsorted(offsets, place, "right")) - 1
                    begin, end = offsets[row : row + 2] - offsets[0]
                    found = bytes(data[begin:end])
                    raise zero_byte(found.decode("utf-8", "replace"))
                lengths = np.diff(offsets)
                words = np.zeros((len(lengths), longest), dtype=np.uint8)
                # The bytes of a batch are consecutive, in the order of the mask's true places.
                words[np.arange(longest) < lengths[:, None]] = data
                yield words

    def _cursor(self) -> Any:
        cursor = self.sql.cursor()
        # Registered names are per cursor.
        for name, rows in self._registered.items():
            cursor.register(name, rows)
        return cursor


class _Stream:
    """Rows with only Arrow's interface: for polars' own classes DuckDB would need pyarrow."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._rows.__arrow_c_stream__(requested_schema)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn DuckDB's errors of many lines into our errors of one line."""
    import duckdb
    from nanoarrow._utils import NanoarrowException

    try:
        yield
    # Those of a block of rows, such as of a damaged page of Parquet, come through the stream.
    except (duckdb.Error, NanoarrowException) as error:
        text = one_line(error).removeprefix("ArrowArrayStream::get_next() failed (5): ")
        if isinstance(error, duckdb.OutOfMemoryException) or text.startswith("Out of Memory"):
            raise ValueError(f"memory must be larger for these tables: {text}") from None
        # From spilling. DuckDB does not pass the error number.
        if "No space left on device" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise FormatError(text) from None


def _limit(room: int) -> int:
    """Bytes for DuckDB's buffers, out of the process's."""
    return max(room - BEYOND_LIMIT, _SMALLEST_LIMIT) if room else LEAST_LIMIT


def quoted(name: str) -> str:
    """A quoted name of a table or column for SQL, with any characters."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """A text literal for SQL, where parameters are not allowed."""
    return "'" + text.replace("'", "''") + "'"


def _values(column: Any) -> Array:
    """The numbers of a batch's column, as a view of DuckDB's memory."""
    view = column.view()
    if view.null_count:
        raise AssertionError("a query of ours must leave no value missing")
    first = view.offset
    count = view.length
    form = column.schema.format
    if form.startswith("+w:"):
        # Arrays of one length: one child has all their numbers.
        width = int(form.removeprefix("+w:"))
        (child,) = column.children
        form = child.schema.format
        view = child.view()
        first = first * width + view.offset
        count *= width
        if view.null_count:
            raise AssertionError("a query of ours must leave no number missing")
    numbers: Array = np.frombuffer(view.buffer(1), dtype=_DTYPES[form])
    return numbers[first : first + count]


def padded_words(connection: Connection, query: str, count: int, longest: int) -> Tensor:
    """The words of a query as zero-padded rows of bytes, shape ``(count, longest)``."""
    rows = np.zeros((count, longest), dtype=np.uint8)
    begin = 0
    for block in connection.padded(query, longest):
        rows[begin : begin + len(block)] = block
        begin += len(block)
    return torch.from_numpy(rows)
