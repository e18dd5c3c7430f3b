"""Numbers as text: bytes, shares, counts."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import bidirectional, category

# Words of a field that fit on a line.
_SHOWN_WORDS = 5


def in_units(nbytes: float) -> tuple[float, str]:
    """Bytes as a number in a binary unit, below 1024 up to TiB.

    Example:
        >>> in_units(3 << 19)
        (1.5, 'MiB')
    """
    size = float(nbytes)
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size /= 1024
        unit = larger
    return size, unit


def bytes_text(nbytes: float) -> str:
    """Bytes with a binary unit and at most four digits.

    Example:
        >>> bytes_text(512), bytes_text(3 << 19), bytes_text(1_234_567_890)
        ('512 B', '1.5 MiB', '1.15 GiB')
    """
    size, unit = in_units(nbytes)
    return f"{size:.4g} {unit}"


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal; a dash for None.

    Example:
        >>> percent(0.1234), percent(None)
        ('12.3%', '-')
    """
    return "-" if share is None else f"{share:.1%}"


def short_count(count: float) -> str:
    """A count with a decimal prefix, for the axis of a chart.

    Example:
        >>> short_count(250_000), short_count(1_500_000), short_count(40)
        ('250k', '1.5M', '40')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:g}{unit}"
    return f"{count:g}"


def in_mebibytes(nbytes: int) -> str:
    """Bytes, rounded up to MiB, as text that ``memory`` takes.

    >>> in_mebibytes(2**20 + 1)
    '2MiB'
    """
    return f"{-(-nbytes // 2**20)}MiB"


def one_line(error: BaseException) -> str:
    """An error's text as part of another error: on one line, of bounded length."""
    return " ".join(str(error).split())[:200]


def shortened(value: object, most: int = 300) -> str:
    """A value as text of bounded length: if it is longer, its start and its number of characters.

    >>> shortened("feat"), shortened("x" * 5000, 5)
    ('feat', 'xxxxx... (5,000 characters)')
    """
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def escaped(text: str) -> str:
    """A text for a terminal, with control characters but line breaks escaped.

    >>> escaped("usé\x1b[2J")
    'usé\\\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode() if _controls(each) and each != "\n" else each
        for each in text
    )


_TURNING = frozenset(["LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"])
"""Classes of the characters that turn the direction of a text."""


def _controls(character: str) -> bool:
    """Whether it moves a cursor, turns the direction of a line, or is no character.

    Joiners of emoji and of Persian words are format characters, too, and stay.
    """
    return bidirectional(character) in _TURNING or category(character) in ("Cc", "Cs")


def printable(text: str) -> str:
    """A name for a terminal, on one line of bounded length, with control characters escaped.

    >>> printable("user\x1b[2J")
    'user\\\\x1b[2J'
    """
    return shortened(escaped(text).replace("\n", "\\n"))


def words_text(words: Sequence[str]) -> str:
    """The number of a field's words, and the first of them.

    >>> words_text(("de", "fr"))
    '2 words: de, fr'
    """
    shown = ", ".join(shortened(printable(word), 40) for word in words[:_SHOWN_WORDS])
    more = ", ..." if len(words) > _SHOWN_WORDS else ""
    return f"{len(words):,} words: {shown}{more}"
