"""Colours and dashes of policies and stages: the same in the plot and on the page, told apart by colour-blind eyes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle

__all__ = ["STAGE_STYLES", "Style", "policy_styles"]


@dataclass(frozen=True)
class Style:
    """How a line or an area is drawn.

    Attributes:
        light: Colour on a light ground, ``#rrggbb``.
        dark: Colour on a dark ground.
        dash: Lengths of strokes and gaps; empty: a full line.
    """

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
"""Stage of an epoch (see ``pagraph.profile.loading.LOADING_STAGES``) to how it is drawn."""


def policy_styles(policies: Iterable[str]) -> dict[str, Style]:
    """A style for each policy; those that are not ours get others in turn, as does ``presample:5`` behind another."""
    styles: dict[str, Style] = {}
    others = cycle(_OTHERS)
    for policy in policies:
        known = _KNOWN.get(policy.partition(":")[0])
        styles[policy] = known if known is not None and known not in styles.values() else next(others)
    return styles
