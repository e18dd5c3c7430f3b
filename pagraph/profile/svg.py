"""Drawings as SVG text: elements, and the round numbers on an axis. No library is needed to draw or to see them."""

from __future__ import annotations

import math
from html import escape
from typing import Any

__all__ = ["Drawing", "element", "round_ticks"]


def element(tag: str, content: str = "", **attributes: Any) -> str:
    """An element as text.

    Args:
        tag: Its name.
        content: What it holds, as markup: escaped already.
        attributes: ``class_`` becomes ``class``, ``stroke_width`` becomes ``stroke-width``; numbers are written with
            two decimals at most; None leaves the attribute out.

    Example:
        >>> element("rect", x=1.5, stroke_width=2, class_="a<b")
        '<rect x="1.5" stroke-width="2" class="a&lt;b"></rect>'
    """
    parts = [tag]
    for name, value in attributes.items():
        if value is not None:
            text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
            parts.append(f'{name.rstrip("_").replace("_", "-")}="{escape(text)}"')
    return f"<{' '.join(parts)}>{content}</{tag}>"


class Drawing:
    """Collects the elements of one drawing; ``str()`` is its markup, to be put into a page.

    Args:
        width: Of the drawing's own coordinates; what shows it scales it.
        height: As ``width``.
        label: What it shows, for people who cannot see it.
        attributes: Of the outer element.
    """

    def __init__(self, width: float, height: float, *, label: str, **attributes: Any) -> None:
        self.width, self.height = width, height
        self._outer = {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria_label": label, **attributes}
        self._elements: list[str] = []

    def add(self, tag: str, content: str = "", **attributes: Any) -> None:
        """Append an element; see :func:`element`."""
        self._elements.append(element(tag, content, **attributes))

    def text(self, x: float, y: float, words: str, **attributes: Any) -> None:
        """Append words, whatever is in them."""
        self.add("text", escape(words), x=x, y=y, **attributes)

    def __str__(self) -> str:
        return element("svg", "\n".join(self._elements), **self._outer)


def round_ticks(high: float, *, most: int = 6) -> list[float]:
    """Round numbers from 0 to ``high``, at most ``most`` of them (4 or more).

    Example:
        >>> round_ticks(37.0)
        [0.0, 10.0, 20.0, 30.0]
    """
    if high <= 0:
        return [0.0]
    step = 10.0 ** math.floor(math.log10(high / most))
    while high / step > most - 1 + 1e-9:
        step *= 2.0 if not math.isclose(_leading(step), 2.0) else 2.5
    return [i * step for i in range(math.floor(high / step + 1e-9) + 1)]


def _leading(number: float) -> float:
    return number / 10.0 ** math.floor(math.log10(number) + 1e-9)
