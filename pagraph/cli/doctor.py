"""``pagraph doctor``: show what is installed, what is native, what falls back, and what to fix."""

from __future__ import annotations

from pathlib import Path

import click

from .terminal import file_option


@click.command(name="doctor")
@click.option(
    "--disk",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Also measure how fast this folder's disk reads, with a file of 64 MiB for a second.",
)
@file_option("--json", "Also write the diagnosis to this file.")
def command(disk: Path | None, json_file: Path | None) -> None:
    """Show what works here, what falls back and why, and what to fix.

    Lists versions, who samples and reads for each loader, the folder of compiled kernels, memory,
    cores and GPUs. Include the output in bug reports.
    """
    from ..doctor import diagnose
    from ..system.atomic import write_json

    diagnosis = diagnose(disk)
    click.echo(str(diagnosis))
    if json_file is not None:
        write_json(json_file, diagnosis.to_json())
