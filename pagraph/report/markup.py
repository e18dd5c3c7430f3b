"""SVG as text: drawings, bars, axis ticks, and the colours of policies and stages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import Any

from ..system.tables import element

__all__ = ["STAGE_STYLES", "Drawing", "Style", "bar", "policy_styles", "round_ticks"]


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
        self._outer = {
            "viewBox": f"0 0 {width:g} {height:g}",
            "role": "img",
            "aria_label": label,
            **attributes,
        }
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
    """Colours of a line or an area on a light and on a dark ground; lengths of strokes and gaps of
    a dashed line."""

    light: str
    dark: str
    dash: tuple[float, ...] = ()


# Okabe and Ito's colours without their yellow, which vanishes on white; darker or lighter where the
# ground asks for it.
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
    """Choose a style for each policy; unknown ones, and a second ``presample:K``, get others in
    turn."""
    styles: dict[str, Style] = {}
    others = cycle(_OTHERS)
    for policy in policies:
        known = _KNOWN.get(policy.partition(":")[0])
        styles[policy] = (
            known if known is not None and known not in styles.values() else next(others)
        )
    return styles
