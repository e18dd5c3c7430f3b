"""Divides a graph folder, writes the parts, and reports."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .partition_options import Outputs, Settings, Source
from .partition_steps import divided, measured
from .terminal import progress_bar

if TYPE_CHECKING:
    from ..graph import Graph
    from ..partition import Partition

__all__ = ["divide"]

_DEFAULT = "auto"


def divide(source: Source, options: Settings, outputs: Outputs, out: Path, *, quiet: bool) -> None:
    """Divide, measure, write. The folder comes after all other work: a run that is stopped leaves nothing.

    Raises:
        FileExistsError, ValueError, OSError: ``out`` cannot be, or the source does not go with the settings.
    """
    _check_out(out, source.folder)
    from ..atomic import write_json
    from ..partition.reporting.plot import save_plot
    from ..partition.reporting.steps import Steps
    from .partition_report import print_partition

    graph, train = source.open()
    options.check_graph(graph, train)
    _check_fields(graph, options.form)
    steps = Steps()
    partition = divided(graph, train, (options.methods or (_DEFAULT,))[0], options, steps)
    report = measured(partition, options, steps)
    with steps("writing"), progress_bar(f"writing {out.name}") as progress:
        _write(partition, out, source, options, progress)
    report = replace(report, seconds=steps.seconds, memory=steps.memory)
    if outputs.plot is not None:
        save_plot(report, outputs.plot, title=source.title)
    if outputs.json is not None:
        places = {**source.to_json(), "out": str(out), "format": options.form, "features": options.features}
        write_json(outputs.json, {**places, **report.to_json()})
    if not quiet:
        print_partition(report, title=str(source.folder), out=out)


def _check_out(out: Path, folder: Path) -> None:
    """Refuse a folder that could not be made, before the long work."""
    from ..atomic import check_absent, check_writable
    from ..partition.parts.writing import check_out

    check_absent(out, name="OUT")
    check_out(out, folder)
    place = out.resolve()
    while not os.path.lexists(place.parent):  # folders above it are created
        place = place.parent
    try:
        check_writable("OUT", place)
    except OSError as error:
        raise click.ClickException(str(error)) from None


def _check_fields(graph: Graph, form: str) -> None:
    """Refuse fields that the form cannot hold, before the long work."""
    from ..partition.formats.dgl_format import check_field_names
    from ..partition.parts.writing import check_fields

    if form == "native":
        check_fields(graph)
    elif form == "dgl":
        check_field_names(graph)


def _write(
    partition: Partition, out: Path, source: Source, options: Settings, progress: Callable[[int, int], None] | None
) -> None:
    """Write the parts in the form that is wanted, whole or not at all."""
    if options.form == "dgl":
        from ..partition.formats.dgl_format import write_dgl

        write_dgl(partition, out, progress=progress)
        return
    if options.form == "pagraph":
        from ..partition.formats.pagraph_format import write_pagraph_partition

        write_pagraph_partition(partition, out, progress=progress)
        return
    from ..partition.parts.writing import write_partition

    write_partition(
        partition,
        out,
        features=options.features,
        source=source.folder,
        split=source.split,
        seed=options.seed,
        max_replication=options.max_replication,
        origin=source.to_json(),
        progress=progress,
    )
