"""What all plots share: colours, files, and SVG for a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError, how_to_install
from ..options.names import check_plot_name
from ..system.atomic import new_file
from ..system.checks import StrPath

INK = "#1c2430"
SOFT = "#566072"
RULE = "#d9dee6"
GROUND = "#ffffff"
MARK = "#0a7a4b"
HIT = "#0072b2"
MISS = "#c9d4e0"

# Okabe and Ito's colours, which colour-blind readers tell apart. Their yellow is left out, as it
# vanishes on white. The second of each pair has the same contrast on a dark ground.
DARK = {
    INK: "#e8ecf2",
    SOFT: "#a3adbc",
    RULE: "#333c4a",
    GROUND: "#14181f",
    MARK: "#3ccf8e",
    HIT: "#56b4e9",
    MISS: "#3a4655",
    "#00795a": "#2fd3a4",
    "#d55e00": "#ff9142",
    "#a8467f": "#e69ac4",
    "#9a6a00": "#e6b23a",
    "#8a8a8a": "#8f8f8f",
    "#222222": "#eeeeee",
    "#555555": "#bbbbbb",
    "#3b7dd8": "#8fb8ff",
    "#7a5195": "#c3a1dd",
    "#b3452c": "#ff8f73",
    "#4d6b1f": "#a9d05c",
    "#b9c0ca": "#5c6370",
    "#b58900": "#e6b23a",
    "#7f8794": "#8a93a1",
}
"""Each colour of a plot, to the colour that replaces it on a dark page."""


@dataclass(frozen=True)
class Style:
    """Colour of a line, and the lengths of its strokes and gaps in points if it is dashed."""

    color: str
    dash: tuple[float, ...] = ()


_POLICIES = {
    "auto": Style(HIT),
    "adaptive": Style("#00795a", (9, 3)),
    "presample": Style("#d55e00"),
    "vip": Style("#a8467f", (6, 3)),
    "degree": Style("#9a6a00", (2, 2)),
    "random": Style("#8a8a8a", (1, 3)),
    "oracle": Style("#222222", (7, 4)),
    "ideal": Style("#555555", (3, 4)),
}
_OTHERS = (
    Style("#3b7dd8", (8, 2, 2, 2)),
    Style("#7a5195", (5, 2)),
    Style("#b3452c", (4, 2, 1, 2)),
    Style("#4d6b1f", (8, 4)),
)

STAGE_COLORS = {
    "sampling": HIT,
    "gathering": "#d55e00",
    "filling": "#a8467f",
    "waiting": "#b9c0ca",
    "copying": "#b58900",
    "computing": "#00795a",
    "kernels": "#7a5195",
    "other": "#7f8794",
}
"""Stage of an epoch (see ``pagraph.profile.LOADING_STAGES``) to its colour."""


def policy_styles(policies: Iterable[str]) -> dict[str, Style]:
    """Choose a style for each policy.

    Unknown policies, and a second ``presample:K``, get others in turn.
    """
    styles: dict[str, Style] = {}
    others = cycle(_OTHERS)
    for policy in policies:
        style = _POLICIES.get(policy.partition(":")[0])
        if style is None or style in styles.values():
            style = next(others)
        styles[policy] = style
    return styles


def require_matplotlib() -> None:
    """Raise MissingDependencyError if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != "matplotlib":
            # Matplotlib is installed, and its own message names the missing dependency.
            raise
        raise MissingDependencyError(
            f"a plot needs matplotlib, which is not installed: {how_to_install('plot')}"
        ) from None


def check_plot(path: StrPath, formats: Sequence[str]) -> None:
    """Check before the long work that a plot can be drawn into a file.

    Raises:
        ValueError: The file's ending is not one of ``formats``.
        MissingDependencyError: matplotlib is not installed.
    """
    check_plot_name(path, formats)
    require_matplotlib()


def save_figure(path: StrPath, draw: Callable[[], Any]) -> None:
    """Draw a figure into a file. Equal figures give equal bytes."""
    suffix = Path(path).suffix.lower()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
    with _plain_style():
        figure = draw()
        with new_file(path) as file:
            figure.savefig(file, format=suffix[1:], dpi=150, metadata=metadata)


def lighten(axes: Any) -> None:
    """Hide the frame's upper and right side, and draw the others lightly."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=SOFT, labelcolor=INK)


@contextmanager
def _plain_style(**more: Any) -> Iterator[None]:
    from matplotlib import rc_context

    style = {
        "font.size": 11,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": SOFT,
        "svg.hashsalt": "pagraph",  # without it, ids in the file are random
    }
    with rc_context({**style, **more}):
        yield


_TOOLTIP = "tooltip: "


def add_tooltip(artist: Any, words: str) -> None:
    """Show words where the mouse points at an artist of a figure in a page."""
    artist.set_gid(_TOOLTIP + words)


def svg_figure(draw: Callable[[], Any]) -> tuple[Any, str]:
    """Draw a figure as SVG for a page.

    Text stays text, in the page's font. Colours become the page's variables (see
    :func:`color_rules`), which a dark page changes.

    Returns:
        The figure, laid out, and its ``<svg>`` element.
    """
    with _plain_style(**{"svg.fonttype": "none"}):
        figure = draw()
        file = io.StringIO()
        # Without these there is no metadata, which contains URLs.
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # In HTML, SVG needs no namespaces and no prefix of links.
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'<g id="([^"]*)">', _plain_group, text)
    return figure, re.sub(r"((?:fill|stroke): )(#\w{6})", _variable, text)


def _plain_group(match: re.Match[str]) -> str:
    """Remove a group's id, which several figures of a page would share."""
    name = match[1]
    if name.startswith(_TOOLTIP):
        return f"<g><title>{name[len(_TOOLTIP) :]}</title>"
    return '<g class="pointer">' if name == "pointer" else "<g>"


def _variable(match: re.Match[str]) -> str:
    return match[1] + color_variable(match[2]) if match[2] in DARK else match[0]


def color_variable(color: str) -> str:
    """The CSS variable of a colour, which a dark page changes."""
    return f"var(--c{color[1:]})"


def color_rules() -> tuple[str, str]:
    """CSS that sets all colours' variables, on a light ground and on a dark one."""
    light = "".join(f"--c{color[1:]}:{color};" for color in DARK)
    dark = "".join(f"--c{color[1:]}:{other};" for color, other in DARK.items())
    return light, dark
