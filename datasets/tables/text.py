"""Text with columns as a relation of DuckDB: read from its file, or unpacked and tidied on the way."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...system.checks import StrPath
from ...system.files import open_plain
from ...system.progress import Progress
from ..text_blocks import LINE_LIMIT, read_blocks
from .connection import text_literal

# Linux's number for it; Python names it from 3.10 on, but not on every system.
_SET_PIPE_SIZE = 1031
# The most that an ordinary user may ask for: fewer switches between the writer and DuckDB.
_PIPE_BYTES = 2**20


@dataclass(frozen=True)
class TextLines:
    """How the lines of a text are divided into columns ``c0``, ``c1`` and so on, all texts.

    An empty column is NULL, and so is an empty quoted one.

    Attributes:
        separator: One character.
        width: Number of columns; lines with more or fewer are errors.
        quoted: Whether ``"`` around a column lets it hold separators.
    """

    separator: str
    width: int
    quoted: bool = False

    def of(self, source: str, skip: int = 0) -> str:
        """The relation, for SQL; nothing is guessed.

        Args:
            source: A path.
            skip: Lines to leave out at the beginning.
        """
        quote = '"' if self.quoted else ""
        columns = ", ".join(f"'c{place}': 'VARCHAR'" for place in range(self.width))
        return (
            f"read_csv({text_literal(source)}, auto_detect=false, header=false, skip={skip}, "
            f"delim={text_literal(self.separator)}, quote='{quote}', escape='{quote}', "
            f"max_line_size={LINE_LIMIT}, columns={{{columns}}})"
        )


@contextlib.contextmanager
def file_source(path: StrPath) -> Iterator[str]:
    """The path of a file that DuckDB reads itself, with all threads.

    It is the open file's: a name may hold characters that DuckDB takes for a pattern.
    """
    with open_plain(path) as file:
        yield f"/dev/fd/{file.fileno()}"


@contextlib.contextmanager
def piped_source(
    path: StrPath,
    change: Callable[[bytes, bool], bytes],
    *,
    progress: Progress | None = None,
) -> Iterator[str]:
    """The path of a pipe into which a thread writes the file's lines, unpacked and changed.

    Half as fast as :func:`file_source`, as DuckDB reads a pipe with one thread.

    Args:
        path: The file.
        change: Gets the bytes of some whole lines, and whether they are the file's first; returns
            those to be read.
        progress: Called with the bytes read from the disk and the file's size.

    Raises:
        Exception: What the thread was stopped by, at the end of the ``with`` block: it is the cause
            of what DuckDB says of a text that ends early.
    """
    reading, writing = os.pipe()
    fcntl.fcntl(writing, _SET_PIPE_SIZE, _PIPE_BYTES)
    failures: list[BaseException] = []

    stopped = threading.Event()

    def write() -> None:
        try:
            for block in read_blocks(path, progress=progress):
                left = memoryview(change(block.data, block.first_line == 1))
                while left and not stopped.is_set():
                    left = left[os.write(writing, left) :]
                if stopped.is_set():
                    break
        except BaseException as error:
            failures.append(error)
        finally:
            os.close(writing)

    thread = threading.Thread(target=write, name="pagraph-text", daemon=True)
    thread.start()
    try:
        yield f"/dev/fd/{reading}"
    except Exception:
        if not failures:
            raise
    finally:
        # The writer may wait for room in the pipe, and DuckDB hold its end open: this makes room.
        stopped.set()
        os.set_blocking(reading, False)
        while thread.is_alive():
            with contextlib.suppress(BlockingIOError):
                os.read(reading, _PIPE_BYTES)
            thread.join(0.001)
        os.close(reading)
    if failures:
        raise failures[0]


def ends_alike(data: bytes) -> bool:
    """Whether all lines of a text end as Unix's, or all as Windows': DuckDB refuses others."""
    returns = data.count(b"\r")
    return returns == 0 or returns == data.count(b"\r\n") == data.count(b"\n")
