"""SVG and HTML as text: elements, tables, axis ticks, and the colours of policies and stages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import Any

__all__ = ["STAGE_STYLES", "Drawing", "Style", "bar", "element", "policy_styles", "round_ticks", "row", "table"]


def element(tag: str, content: str = "", **attributes: Any) -> str:
    """Format an element.

    Args:
        tag: Name of the element.
        content: Markup inside it: escaped already.
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


def table(head: Iterable[str], rows: Iterable[str], *, caption: str = "", **attributes: Any) -> str:
    """A table of header cells and body rows, each markup already; see :func:`row`."""
    top = element("thead", element("tr", "".join(head)))
    return element("table", caption + top + element("tbody", "".join(rows)), **attributes)


def row(header: str, cells: Iterable[str], *more: str, **attributes: Any) -> str:
    """A body row: its header, plain cells, and cells that are markup already."""
    content = element("th", header, scope="row") + "".join(element("td", cell) for cell in cells) + "".join(more)
    return element("tr", content, **attributes)


def bar(content: str) -> str:
    """A bar as wide as the cell it stands in; ``content`` is drawn on 100 x 10 units."""
    return element("svg", content, viewBox="0 0 100 10", preserveAspectRatio="none", class_="bar")


class Drawing:
    """An SVG drawing; ``str()`` is its markup, to be put into a page.

    Args:
        width, height: Size in the drawing's own coordinates; a page scales it.
        label: Description for screen readers.
        attributes: Attributes of the outer element.
    """

    def __init__(self, width: float, height: float, *, label: str, **attributes: Any) -> None:
        self.width, self.height = width, height
        self._outer = {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria_label": label, **attributes}
        self._elements: list[str] = []

    def add(self, tag: str, content: str = "", **attributes: Any) -> None:
        """Append an element; see :func:`element`."""
        self._elements.append(element(tag, content, **attributes))

    def text(self, x: float, y: float, words: str, **attributes: Any) -> None:
        """Append words, escaped."""
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
        leading = step / 10.0 ** math.floor(math.log10(step) + 1e-9)
        step *= 2.0 if not math.isclose(leading, 2.0) else 2.5
    return [i * step for i in range(math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Style:
    """Colours of a line or an area on a light and on a dark ground; lengths of strokes and gaps of a dashed line."""

    light: str
    dark: str
    dash: tuple[float, ...] = ()


# Okabe and Ito's colours without their yellow, which vanishes on white; darker or lighter where the ground asks for it.
_KNOWN = {
    "auto": Style("#0072b2", "#56b4e9"),
    "adaptive": Style("#00795a", "#2fd3a4", (9, 3)),
    "presample": Style("#d55e00", "#ff9142"),
    "vip": Style("#a8467f", "#e69ac4", (6, 3)),
    "degree": Style("#9a6a00", "#e6b23a", (2, 2)),
    "random": Style("#8a8a8a", "#8f8f8f", (1, 3)),
    "oracle": Style("#222222", "#eeeeee", (7, 4)),
    "ideal": Style("#555555", "#bbbbbb", (3, 4)),
}
_OTHERS = (
    Style("#3b7dd8", "#8fb8ff", (8, 2, 2, 2)),
    Style("#7a5195", "#c3a1dd", (5, 2)),
    Style("#b3452c", "#ff8f73", (4, 2, 1, 2)),
    Style("#4d6b1f", "#a9d05c", (8, 4)),
)

STAGE_STYLES = {
    "sampling": Style("#0072b2", "#4aa3df"),
    "gathering": Style("#d55e00", "#ff9142"),
    "filling": Style("#a8467f", "#e69ac4"),
    "waiting": Style("#b9c0ca", "#5c6370"),
    "copying": Style("#b58900", "#e6b23a"),
    "computing": Style("#00795a", "#2fd3a4"),
    "other": Style("#7f8794", "#8a93a1"),
}
"""Stage of an epoch (see ``pagraph.profile.LOADING_STAGES``) to its style."""


def policy_styles(policies: Iterable[str]) -> dict[str, Style]:
    """Choose a style for each policy; unknown ones, and a second ``presample:K``, get others in turn."""
    styles: dict[str, Style] = {}
    others = cycle(_OTHERS)
    for policy in policies:
        known = _KNOWN.get(policy.partition(":")[0])
        styles[policy] = known if known is not None and known not in styles.values() else next(others)
    return styles
