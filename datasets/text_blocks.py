"""Reads a text file, plain or gzipped, in blocks of whole lines."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from ..errors import FormatError

__all__ = ["Block", "read_blocks"]

_BLOCK_BYTES = 8 * 2**20
_LINE_LIMIT = 2**20
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Block:
    """Some whole lines of a file: their bytes, and the number of the first line, from 1."""

    data: bytes
    first_line: int

    def line_at(self, offset: int) -> tuple[int, str]:
        """Number and (shortened) text of the line that begins at ``offset``."""
        text = self.data[offset : offset + 80].split(b"\n")[0].decode("utf-8", "replace")
        return self.first_line + self.data.count(b"\n", 0, offset), text.rstrip("\r")


def read_blocks(path: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None) -> Iterator[Block]:
    """Yield the file's lines in blocks of a few MiB; gzip is recognised by its first bytes.

    Args:
        path: The file.
        progress: Called with the bytes read from the disk and the file's size.

    Raises:
        FormatError: The gzip stream is corrupt or truncated, or a line is unreasonably long.
    """
    with open(path, "rb") as raw:
        size = os.fstat(raw.fileno()).st_size
        zipped = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        rest, line, first = b"", 1, True
        for data in _read(gzip.GzipFile(fileobj=raw) if zipped else raw, path):
            data = data.removeprefix(_BYTE_ORDER_MARK) if first else data
            first = False
            whole, newline, tail = data.rpartition(b"\n")
            if newline:
                yield Block(rest + whole + newline, line)
                line += data.count(b"\n")
                rest = tail
            else:
                rest += data
            if len(rest) > _LINE_LIMIT:
                raise FormatError(f"{path} must have lines of at most {_LINE_LIMIT} bytes, line {line} is longer")
            if progress is not None:
                progress(raw.tell(), size)
        if rest:
            yield Block(rest, line)


def _read(stream: IO[bytes] | gzip.GzipFile, path: str | os.PathLike[str]) -> Iterator[bytes]:
    try:
        while data := stream.read(_BLOCK_BYTES):
            yield data
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(f"{path} is no whole gzip file: {error}") from error
