"""The table of a script's loaders as a self-contained HTML page."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import __version__
from ..system.atomic import new_file
from ..system.tables import Table, page_template
from ..system.units import percent
from .summary import Summary


def write_page(
    path: Path, summary: Summary, others: Sequence[Summary] = (), comparison: Table | None = None
) -> None:
    """Write the page, whole or not at all.

    Args:
        path: The file.
        summary: The run to show.
        others: Runs to show before it.
        comparison: Table of all runs. Its caption then replaces the advice.
    """
    with new_file(path) as file:
        file.write(page_text(summary, others, comparison).encode())


def page_text(
    summary: Summary, others: Sequence[Summary] = (), comparison: Table | None = None
) -> str:
    """The page as HTML, with names escaped."""
    advice = summary.advice
    if comparison is not None:
        advice = comparison.caption
        comparison = _bare(comparison)
    page = page_template("pagraph.run").render(
        summary=summary,
        runs=[*others, summary],
        comparison=comparison,
        advice=advice,
        percent=percent,
        bare=_bare,
        facts=_facts(),
    )
    return f"{page}\n"


def _bare(table: Table) -> Table:
    """A table without title and caption, which the page shows elsewhere."""
    return replace(table, title="", caption="")


def _facts() -> dict[str, str]:
    packages = {}
    for name in ("torch", "dgl", "torch-geometric", "numba"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "waiting": "the clock before and after each next() of a loader's iterator",
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "versions": ", ".join(
            [f"pagraph {__version__}", f"Python {platform.python_version()}"]
            + [f"{name} {number}" for name, number in packages.items()]
        ),
    }
