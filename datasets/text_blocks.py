"""Text files in blocks of whole lines, also compressed ones."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from ..errors import FormatError
from ..system.checks import StrPath
from ..system.files import open_plain
from ..system.progress import Progress

# Text that is parsed at once. Larger blocks take more memory and are not faster.
_BLOCK_BYTES = 8 * 2**20
LINE_LIMIT = 2**20
"""Maximal bytes of a line, which is held in memory."""
# Bytes that are decompressed at once; bombs expand 1000x.
_PIECE = 2**16
_XZ_MEMORY = 256 * 2**20  # xz -9 takes 65 MiB; a header may ask for 4 GiB
_PACKED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    rb"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": bz2.BZ2File,
    rb"\xfd7zXZ\x00": lambda file: _LzmaFile(file),
}
"""Magic bytes of compressed files, and their readers."""
# Windows editors write it before UTF-8; it would become part of the first word.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OF_16_BITS = (b"\xff\xfe", b"\xfe\xff")
_LINE = re.compile(rb"[^\r\n]+")
_TEXT_LINE = re.compile(r"[^\r\n]+")
_WORD = re.compile(r"[^ \t]+")
_HEAD = re.compile(rb"(?:[ \t]*(?:[#%][^\r\n]*)?(?:[\r\n]|\Z))*")  # comments and empty lines


@dataclass(frozen=True)
class Block:
    """The bytes of some whole lines of a file, and the number of the first line, from 1."""

    data: bytes
    first_line: int

    def line_at(self, offset: int) -> tuple[int, str]:
        """Number and (shortened) text of the line that starts at ``offset``."""
        text = self.data[offset : offset + 80].split(b"\n")[0].decode("utf-8", "replace")
        return self.first_line + self.data.count(b"\n", 0, offset), text.rstrip("\r")


def is_packed(path: StrPath) -> bool:
    """Whether a file is compressed, by its first bytes."""
    with open_plain(path) as file:
        return _unpacker(file) is not None


def _unpacker(file: IO[bytes]) -> Callable[[IO[bytes]], Any] | None:
    """The decompressing reader of a file, by its first bytes; None for text."""
    lead = file.read(10)
    file.seek(0)
    return next((unpack for magic, unpack in _PACKED.items() if re.match(magic, lead)), None)


def read_blocks(path: StrPath, *, progress: Progress | None = None) -> Iterator[Block]:
    """Yield the file's lines in blocks of a few MiB; gzip, bzip2 and xz are detected.

    ``progress`` is called with the bytes read from the disk and the file's size.
    """
    with open_plain(path) as raw:
        size = os.fstat(raw.fileno()).st_size
        unpack = _unpacker(raw)
        stream = unpack(raw) if unpack else raw
        rest = b""
        line = 1
        first = True
        # `rest` is the start of a line that ends in a later block.
        for data in _read(stream, path):
            if first and data[:2] in _OF_16_BITS:
                raise FormatError(f"{path} must be UTF-8 text, it begins as UTF-16 does")
            data = data.removeprefix(_BYTE_ORDER_MARK) if first else data
            first = False
            end = data.rfind(b"\n") + 1
            if end:
                yield (block := Block(b"".join([rest, memoryview(data)[:end]]), line))
                line += block.data.count(b"\n")
                rest = data[end:]
            else:
                rest += data
            if len(rest) > LINE_LIMIT:
                raise FormatError(
                    f"{path} must have lines of at most {LINE_LIMIT} bytes, line {line} is longer"
                )
            if progress is not None:
                progress(raw.tell(), size)
        if rest:
            yield Block(rest, line)


def _read(stream: IO[bytes], path: StrPath) -> Iterator[bytes]:
    try:
        while data := stream.read(_BLOCK_BYTES):
            yield data
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # from the disk
            raise
        form = type(stream).__name__.removesuffix("File").strip("_").lower()
        raise FormatError(f"{path} is not a complete {form} file: {error}") from error


class _LzmaFile:
    """Like ``lzma.LZMAFile``, but limits the memory that a file's header may ask for."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._unpack = self._new()

    def _new(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end."""
        while True:
            data = b""
            if self._unpack.eof:  # another stream may follow, after zeros
                data = (self._unpack.unused_data or self._file.read(_PIECE)).lstrip(b"\0")
                if not data and not (data := self._file.read(_PIECE).lstrip(b"\0")):
                    return b""
                self._unpack = self._new()
            elif self._unpack.needs_input:
                data = self._file.read(_PIECE)
                if not data:
                    raise EOFError("it ends before its end mark")
            if out := self._unpacked(data, size):
                return out

    def _unpacked(self, data: bytes, size: int) -> bytes:
        try:
            return self._unpack.decompress(data, size)
        except lzma.LZMAError as error:
            if "memory" in str(error).lower():
                raise FormatError(
                    f"{self._file.name} must take at most {_XZ_MEMORY >> 20} MiB to be unpacked"
                ) from None
            raise


def numbered_lines(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Numbers, from ``first`` on, and text of the non-empty lines of Unix, Windows and old Macs."""
    for number, part in enumerate(text.split("\n"), first):
        for match in _TEXT_LINE.finditer(part):
            yield number, match[0]


def first_line(data: bytes) -> tuple[int, bytes]:
    """Offset and text of the first line that is neither empty nor a comment, or an empty text."""
    head = _HEAD.match(data)
    begin = head.end() if head else 0
    line = _LINE.match(data, begin)
    return begin, line[0] if line else b""


def separator_of(line: bytes) -> str | None:
    """The first of tab, comma and semicolon that is in a line; None: blanks separate."""
    return next((mark for mark in "\t,;" if mark.encode() in line), None)


class OpenQuoteError(FormatError):
    """A quoted field does not end in its line."""

    def __init__(self) -> None:
        super().__init__("a line must close the quotation mark that it opens")

    def at(self, path: StrPath, number: int) -> FormatError:
        """The error for a line of a file."""
        return FormatError(
            f"{path}, line {number} must close the quotation mark that it opens: a field must not "
            "go on in the next line"
        )


def cut(line: str, delimiter: str | None) -> list[str]:
    """Split a line into fields; ``None`` splits at runs of blanks.

    Raises:
        OpenQuoteError: A quoted field does not end in the line.
    """
    if delimiter is None:
        return _WORD.findall(line)
    if '"' not in line:
        return line.split(delimiter)
    # Each line is parsed alone, so that a stray quotation mark does not swallow others.
    try:
        # If a field does not end, the reader consumes the second line.
        reader = csv.reader([line + "\n", ""], delimiter=delimiter)
        fields = next(reader)
    except csv.Error:  # a field of more than 128 KiB
        return line.split(delimiter)
    if reader.line_num > 1:
        raise OpenQuoteError
    return fields
