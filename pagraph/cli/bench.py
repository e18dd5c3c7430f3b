"""``pagraph bench``: what this machine can do at best, and how near pagraph comes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .writing import writable_file

if TYPE_CHECKING:
    from rich.table import Table

    from ..accelerator import Accelerator
    from ..profile.ceilings import Rate
    from ..profile.roofline import Roofline

_INTERPRETER = "interpreter"

TINY: dict[str, Any] = {
    "rows": 256,
    "reads": 40,
    "copy_bytes": 4096,
    "scale": 7,
    "batch_size": 8,
    "fanouts": (3, 2),
    "repeats": 1,
}


@click.group(name="bench")
def command() -> None:
    """Measure what the machine can do at best, and how near pagraph comes to it."""


@command.command("gpu")
@click.option("--device", default="cuda", show_default=True, help="cuda[:N]; interpreter: see below.")
@click.option("--rows", type=int, default=None, help="Rows of the table in host memory.  [default: 4 M]")
@click.option("--row-bytes", type=int, default=512, show_default=True, help="Bytes of a row.")
@click.option("--reads", type=int, default=None, help="Rows read in each run, at random.  [default: 512 K]")
@click.option("--scale", type=int, default=None, help="2**SCALE vertices are sampled from.  [default: 20]")
@click.option("--repeats", type=int, default=None, help="Timed runs; the median counts.  [default: 7]")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    default=None,
    callback=writable_file,
    help="Write the figures here, too.",
)
def gpu_command(device: str, json_file: Path | None, **sizes: Any) -> None:
    """Measure copies to and within a GPU, then each way by which rows and neighbours come, as a share of them.

    "--device interpreter" runs the same code on the CPU, kernels under Triton's interpreter and everything tiny: it
    checks that the code runs; its figures mean nothing.
    """
    given = {name: value for name, value in sizes.items() if value is not None}
    accelerator = _accelerator(device)
    from rich.console import Console

    from ..atomic import write_json
    from ..profile.roofline import RooflineSizes, measure_roofline
    from .terminal import print_whole

    roofline = measure_roofline(accelerator, RooflineSizes(**((TINY if device == _INTERPRETER else {}) | given)))
    console = Console(highlight=False, markup=False)
    print_whole(console, roofline_table(roofline))
    for what, reason in roofline.left_out.items():
        console.print(f"not measured: {what}: {reason}", soft_wrap=True)
    if device == _INTERPRETER:
        console.print("run by the interpreter on the CPU: these figures mean nothing", soft_wrap=True)
    if json_file is not None:
        write_json(json_file, roofline.to_json())


def _accelerator(device: str) -> Accelerator:
    """The device to measure.

    Raises:
        ValueError: It is no GPU, or not there.
    """
    if device == _INTERPRETER:
        os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported
        from ..accelerator import HostAccelerator

        return HostAccelerator()
    if not re.fullmatch("cuda(:[0-9]+)?", device):
        raise ValueError(f"--device must be cuda, cuda:N or {_INTERPRETER}, got {device!r}")
    from ..accelerator import accelerator_for
    from ..device import resolve_device

    accelerator = accelerator_for(resolve_device(device))
    assert accelerator is not None
    return accelerator


def roofline_table(roofline: Roofline) -> Table:
    """Every rate, and which share of its ceiling it is."""
    from .terminal import number_table

    table = number_table(roofline.device, ["", "MiB", "ms", "GB/s", "share", "of", ""])
    for column in (0, -2, -1):
        table.columns[column].justify = "left"
    for rate in roofline.rates:
        table.add_row(*_cells(roofline, rate))
    return table


def _cells(roofline: Roofline, rate: Rate) -> list[str]:
    share = roofline.share(rate)
    figures = [f"{rate.nbytes / 2**20:,.1f}", f"{rate.median * 1e3:.3f}", f"{rate.bytes_per_second / 1e9:,.1f}"]
    return [rate.name, *figures, "" if share is None else f"{share:.1%}", rate.ceiling, rate.note]
