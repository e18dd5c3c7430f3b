"""Kernels that read edge lists from bytes."""

import numpy as np

from .._jit import kernel

_NEWLINE, _RETURN, _TAB, _SPACE = np.uint8(10), np.uint8(13), np.uint8(9), np.uint8(32)
_HASH, _PERCENT, _COMMA, _SEMICOLON = np.uint8(35), np.uint8(37), np.uint8(44), np.uint8(59)
_MINUS, _PLUS, _ZERO, _NINE = np.uint8(45), np.uint8(43), np.uint8(48), np.uint8(57)
_BEFORE_OVERFLOW = np.int64((2**63 - 1) // 10)


@kernel
def is_blank(byte):  # type: ignore[no-untyped-def]
    """Whether a byte is space inside a line."""
    return byte in (_SPACE, _TAB)


@kernel
def ends_line(byte):  # type: ignore[no-untyped-def]
    """Whether a byte ends a line; of a return and a newline the second ends an empty one."""
    return byte in (_NEWLINE, _RETURN)


@kernel
def ends_field(byte):  # type: ignore[no-untyped-def]
    """Whether a byte cannot be part of a field."""
    return is_blank(byte) or ends_line(byte) or byte in (_COMMA, _SEMICOLON)


@kernel
def skip_blanks(text, at):  # type: ignore[no-untyped-def]
    """The next place that is no space inside the line."""
    while at < len(text) and is_blank(text[at]):
        at += 1
    return at


@kernel
def skip_separator(text, at):  # type: ignore[no-untyped-def]
    """Past spaces and at most one comma or semicolon, so that an empty field is not taken for none."""
    at = skip_blanks(text, at)
    if at < len(text) and (text[at] == _COMMA or text[at] == _SEMICOLON):
        at = skip_blanks(text, at + 1)
    return at


@kernel
def skip_line(text, at):  # type: ignore[no-untyped-def]
    """The beginning of the next line."""
    while at < len(text) and not ends_line(text[at]):
        at += 1
    return at + 1


@kernel
def skip_field(text, at):  # type: ignore[no-untyped-def]
    """The end of the field that begins here."""
    while at < len(text) and not ends_field(text[at]):
        at += 1
    return at


@kernel
def read_int(text, at):  # type: ignore[no-untyped-def]
    """An integer and the place after it; the place is -1 where the field is no integer or beyond int64."""
    negative = at < len(text) and text[at] == _MINUS
    if negative or (at < len(text) and text[at] == _PLUS):
        at += 1
    begin = at
    value = np.int64(0)
    while at < len(text) and _ZERO <= text[at] <= _NINE:
        digit = np.int64(text[at] - _ZERO)
        if value > _BEFORE_OVERFLOW or (value == _BEFORE_OVERFLOW and digit > 7):
            return np.int64(0), -1
        value = value * 10 + digit
        at += 1
    if at == begin or (at < len(text) and not ends_field(text[at])):
        return np.int64(0), -1
    return (-value if negative else value), at


@kernel
def parse_edges(text, src, dst, third):  # type: ignore[no-untyped-def]
    """Read every line of ``text``: two ids each, and where a third field begins.

    Without a third field ``third`` is ``-1 - the beginning of the line``.

    Returns:
        The number of edges, and where the first line begins that cannot be read (-1 without one).
    """
    at = 0
    count = 0
    while at < len(text):
        line = at
        at = skip_blanks(text, at)
        if at == len(text) or ends_line(text[at]) or text[at] == _HASH or text[at] == _PERCENT:
            at = skip_line(text, at)
            continue
        src[count], at = read_int(text, at)
        if at < 0:
            return count, line
        dst[count], at = read_int(text, skip_separator(text, at))
        if at < 0:
            return count, line
        at = skip_separator(text, at)
        third[count] = at if at < len(text) and not ends_line(text[at]) else -1 - line
        count += 1
        at = skip_line(text, at)
    return count, -1


@kernel
def copy_fields(text, begins, out):  # type: ignore[no-untyped-def]
    """Copy the field at each place into a row of ``out``; returns the first row that cannot be, or -1."""
    for i in range(len(begins)):
        begin = begins[i]
        if begin < 0:
            return i
        end = skip_field(text, begin)
        if end - begin > out.shape[1] or end == begin:
            return i
        for j in range(end - begin):
            out[i, j] = text[begin + j]
    return -1
