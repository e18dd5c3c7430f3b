"""``pagraph partition verify``: prove that a partition folder is right, or say what is wrong."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .terminal import progress_bar
from .writing import writable_file

if TYPE_CHECKING:
    from ..partition.checking.findings import Verification

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command(name="verify")
@click.argument("out", metavar="OUT", type=_PATH)
@click.option("--source", type=_PATH, help="The whole graph's folder.  [default: the one that OUT names]")
@click.option("--json", "json_file", type=_PATH, callback=writable_file, help="Write what was found here.")
def command(out: Path, source: Path | None, json_file: Path | None) -> None:
    """Prove that the partition folder OUT is right, against the graph that it was made from.

    Every training vertex is in exactly one part, every neighbourhood is complete, ids map back, and fields equal the
    source's. If anything is wrong, that is printed, and the exit code is 1.
    """
    from ..atomic import write_json
    from ..errors import FormatError, PaGraphError
    from ..partition.checking.verify import verify_partition

    try:
        with progress_bar(f"verifying {out.name}") as progress:
            found = verify_partition(out, source=source, progress=progress)
    except FormatError as error:  # what cannot be opened is wrong, too
        raise PaGraphError(str(error)) from error
    if json_file is not None:
        write_json(json_file, {"folder": str(out), "ok": found.ok, **asdict(found)})
    for finding in found.findings:
        click.echo(str(finding))
    if not found.ok:
        count = len(found.findings)
        raise PaGraphError(f"{out} is wrong: {'1 finding' if count == 1 else f'{count} findings'}")
    click.echo(f"{out} is right: {_summary(found)}")


def _summary(found: Verification) -> str:
    without = f"; {found.missing:,} in-edges are missing, because replication was limited" if found.missing else ""
    return (
        f"{found.train:,} training vertices, each in exactly one of {found.num_parts} parts; "
        f"{found.vertices:,} vertices and {found.edges:,} edges equal the source's{without}"
    )
