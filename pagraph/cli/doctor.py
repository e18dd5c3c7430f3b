"""``pagraph doctor``: what is installed, what is native, what falls back, and what to mend."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="doctor")
@click.option(
    "--disk",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Also measure how fast the disk of this folder reads; writes 64 MiB there for a second.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    default=None,
    help="Write the same here, too.",
)
def command(disk: Path | None, json_file: Path | None) -> None:
    """Say what works here, what falls back and why, and what to mend: a text for bug reports.

    Lists versions, who samples and reads for each loader, the folder of compiled kernels, memory,
    cores and GPUs.
    """
    from ..doctor import diagnose
    from ..system.atomic import check_writable, write_json

    if json_file is not None:
        check_writable("--json", json_file)
    diagnosis = diagnose(disk)
    click.echo(str(diagnosis))
    if json_file is not None:
        write_json(json_file, diagnosis.to_json())
