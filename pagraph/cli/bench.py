"""``pagraph bench``: bandwidth ceilings of a GPU, and the shares of them that loading reaches."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from ..accelerator import Accelerator, HostAccelerator, accelerator_for
from ..accelerator.cuda import resolve_device
from ..profile.roofline import Roofline, RooflineSizes, measure_roofline
from ..system.atomic import write_json
from .options import options_of
from .terminal import file_option, number_table, print_whole

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
@options_of(
    RooflineSizes,
    rows="Rows of the table in host memory.",
    row_bytes="Bytes of a row.",
    reads="Rows read in each run, at random.",
    scale="2**SCALE vertices are sampled from.",
    repeats="Timed runs; the median counts.",
)
@file_option("--json", "Write the figures here, too.")
@click.pass_context
def gpu_command(context: click.Context, /, device: str, json_file: Path | None, **sizes: Any) -> None:
    """Measure copies to and within a GPU, then each way by which rows and neighbours come, as a share of them.

    "--device interpreter" runs the same code on the CPU, kernels under Triton's interpreter and everything tiny: it
    checks that the code runs; its figures mean nothing.
    """
    if device == _INTERPRETER:
        untold = [name for name in TINY if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE]
        sizes |= {name: TINY[name] for name in untold}
    roofline = measure_roofline(_accelerator(device), RooflineSizes(**sizes))
    console = Console(highlight=False, markup=False)
    print_whole(console, roofline_table(roofline))
    for what, reason in roofline.left_out.items():
        console.print(f"not measured: {what}: {reason}", soft_wrap=True)
    if device == _INTERPRETER:
        console.print("run by the interpreter on the CPU: these figures mean nothing", soft_wrap=True)
    if json_file is not None:
        write_json(json_file, roofline.to_json())


def _accelerator(device: str) -> Accelerator:
    """Open the device to measure; ValueError unless it is a GPU and there."""
    if device == _INTERPRETER:
        os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported
        return HostAccelerator()
    if not re.fullmatch("cuda(:[0-9]+)?", device):
        raise ValueError(f"--device must be cuda, cuda:N or {_INTERPRETER}, got {device!r}")
    accelerator = accelerator_for(resolve_device(device))
    assert accelerator is not None
    return accelerator


def roofline_table(roofline: Roofline) -> Table:
    """Tabulate every rate and its share of its ceiling."""
    table = number_table(roofline.device, ["", "MiB", "ms", "GB/s", "share", "of", ""])
    for column in (0, -2, -1):
        table.columns[column].justify = "left"
    for rate in roofline.rates:
        share = roofline.share(rate)
        figures = [f"{rate.nbytes / 2**20:,.1f}", f"{rate.median * 1e3:.3f}", f"{rate.bytes_per_second / 1e9:,.1f}"]
        table.add_row(rate.name, *figures, "" if share is None else f"{share:.1%}", rate.ceiling, rate.note)
    return table
