"""A DuckDB connection that keeps to its memory, guesses nothing, and yields rows as arrays."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FormatError
from ...system.arrays import Array
from ...system.threads import usable_cpus
from ...system.units import one_line
from ..original_ids import zero_byte

# DuckDB's limit is for its buffers. The process takes 80 to 200 MB more, measured over numbering,
# joining and reading text with 2 threads.
BEYOND_LIMIT = 160 * 2**20
LEAST_LIMIT = 200 * 2**20
"""What is enough where rows are read once and nothing is kept."""
# With less it spills more, and in the end says that it has too little.
_SMALLEST_LIMIT = 64 * 2**20
LEAST_ROOM = 3 * _SMALLEST_LIMIT
"""Fewest bytes for tables that do not fit into them, with what DuckDB takes beyond its limit."""
# A thread's own buffers are beyond the limit, too.
_THREAD_BYTES = 96 * 2**20
# More threads take more buffers at once, and our sort is what takes the time.
_MOST_THREADS = 8

# Arrow's letters of fixed-width types, as NumPy names them.
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
    """A database of our own in memory, which spills into a folder of its own; a context manager.

    SQL of ours names tables and columns by :func:`quoted`, and passes values as parameters.

    Args:
        room: Bytes that the process may take beyond what it holds now. 0: nothing is kept, so that
            little is enough.
        inside: Where the folder is made. Default: where the system has temporary files.

    Attributes:
        folder: It goes when the connection is closed.
    """

    def __init__(self, room: int, inside: Path | None = None) -> None:
        import duckdb  # late: 0.2 s, and most imports of graphs need none of it

        self._folder = tempfile.TemporaryDirectory(prefix="pagraph-", dir=inside)
        self.folder = Path(self._folder.name)
        limit = _limit(room)
        self._registered: dict[str, Any] = {}
        self.sql = duckdb.connect(
            config={
                "memory_limit": f"{limit // 2**20}MiB",
                "temp_directory": str(self.folder),
                "threads": min(usable_cpus(), _MOST_THREADS, max(limit // _THREAD_BYTES, 1)),
                # Nothing is downloaded, and no Python variable is taken for a table.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
                "python_enable_replacements": False,
            }
        )
        # Times without a zone stay as they stand, wherever this machine is.
        self.sql.execute("set global TimeZone = 'UTC'")
        # Or a row group would be read whole, of wide tables gigabytes.
        self.sql.execute("set global disable_parquet_prefetching = true")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.sql.close()
        self._folder.cleanup()

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement; all rows of its result, which is small."""
        with self._cursor() as cursor, _one_line_errors():
            return list(cursor.execute(statement, list(values)).fetchall())

    def columns(self, relation: str) -> dict[str, str]:
        """The type of each column of a table or view, in order."""
        return {str(row[0]): str(row[1]) for row in self.run(f"describe {quoted(relation)}")}

    def batches(self, query: str) -> Iterator[list[Array]]:
        """Yield the columns of some rows at a time, in order; all are numbers, or arrays of as many
        numbers in each row, which come flat; none is missing."""
        import nanoarrow

        # A cursor of its own: an open result would block the connection.
        with self._cursor() as cursor, _one_line_errors():
            stream = nanoarrow.c_array_stream(cursor.sql(query))
            for batch in stream:
                yield [_values(column) for column in batch.children]

    def register(self, name: str, rows: Any) -> None:
        """Let a DataFrame of pandas be read by name, where it is."""
        self._registered[name] = rows

    def register_stream(self, name: str, rows: Any) -> None:
        """Let anything with ``__arrow_c_stream__`` be read by name: in place where DuckDB asks for
        the stream at every scan, else copied."""
        import duckdb

        stream = _Stream(rows)
        if int(duckdb.__version__.split(".")[0]) >= 2:
            self._registered[name] = stream
            return
        # Versions 1 read a stream once, and find nothing the second time.
        with _one_line_errors():
            self.sql.from_arrow(stream).create(quoted(name))

    def limit(self, room: int) -> None:
        """Let the process take fewer bytes from now on; what is over goes to the folder."""
        self.run(f"set memory_limit = '{_limit(room) // 2**20}MiB'")

    def load(self, name: str, rows: Any, values: str) -> None:
        """Make a table of values of the rows of a stream, in their order; larger than memory it
        goes to the folder."""
        with self._cursor() as cursor, _one_line_errors():
            cursor.register("pagraph stream", rows)
            cursor.execute(f'create table {quoted(name)} as select {values} from "pagraph stream"')

    def padded(self, query: str, longest: int) -> Iterator[Array]:
        """Yield the one column of a query, texts that are ids, some rows at a time: the bytes of
        each, padded with zeros to the ``longest``.

        Raises:
            FormatError: One has a zero byte, which is what ids are padded with.
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
                # Row by row the bytes of a batch follow each other, and so do the places that
                # they fill.
                words[np.arange(longest) < lengths[:, None]] = data
                yield words

    def _cursor(self) -> Any:
        cursor = self.sql.cursor()
        # Each has registered names of its own.
        for name, rows in self._registered.items():
            cursor.register(name, rows)
        return cursor


class _Stream:
    """Rows by Arrow's interface alone: DuckDB would need pyarrow to read polars' own classes."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._rows.__arrow_c_stream__(requested_schema)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn DuckDB's errors, of many lines with advice, into one line of ours."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise ValueError(f"memory must be larger for these tables: {one_line(error)}") from None
    except duckdb.Error as error:
        # Of what does not fit into memory; DuckDB keeps no number of the error.
        if "No space left on device" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise FormatError(one_line(error)) from None


def _limit(room: int) -> int:
    """Bytes for DuckDB's buffers, of those for the process."""
    return max(room - BEYOND_LIMIT, _SMALLEST_LIMIT) if room else LEAST_LIMIT


def quoted(name: str) -> str:
    """A name of a table or column for SQL, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """A text for SQL where no parameter is taken."""
    return "'" + text.replace("'", "''") + "'"


def _values(column: Any) -> Array:
    """The numbers of a column of a batch, a view of DuckDB's memory."""
    view = column.view()
    if view.null_count:
        raise AssertionError("a query of ours must leave no value missing")
    first = view.offset
    count = view.length
    form = column.schema.format
    if form.startswith("+w:"):
        # Arrays of one length: all of their numbers lie in one child.
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
