"""``pagraph warmup``: compile the loaders' kernels ahead of time."""

from __future__ import annotations

import time

import click

from ..warmup import FACES
from .terminal import progress_bar


@click.command(name="warmup")
@click.argument("faces", nargs=-1, type=click.Choice(list(FACES)))
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=None,
    help="Number of processes.  [default: the cores that this process may use]",
)
def command(faces: tuple[str, ...], jobs: int | None) -> None:
    """Compile the kernels that loaders need, so that no first batch waits for them.

    Name any of core (pagraph.Loader), dgl and pyg. Default: all whose packages are installed.

    Every kind of loader reads a few batches of a tiny graph. Kernels are kept in a private folder
    of this user, in NUMBA_CACHE_DIR, XDG_CACHE_HOME, ~/.cache or /var/tmp; where none can be made,
    nothing is compiled. Run this when a container image is built, or in a CI job that caches that
    folder.
    """
    from .._kernel_folder import kernel_folder
    from ..warmup import warm_up

    begin = time.perf_counter()
    with progress_bar("compiling kernels") as progress:
        count = warm_up(faces or None, jobs=jobs, progress=progress)
    seconds = time.perf_counter() - begin
    folder = kernel_folder()
    click.echo(
        f"{count} kinds of loaders, {folder.count()} kernels, {seconds:.0f} s: {folder.path}"
    )
