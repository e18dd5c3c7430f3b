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
    of this user, in NUMBA_CACHE_DIR, XDG_CACHE_HOME or ~/.cache. Run this when a container image is
    built, or in a CI job that caches that folder.
    """
    from .._jit import NOT_KEPT, cache_state
    from ..warmup import warm_up

    begin = time.perf_counter()
    with progress_bar("compiling kernels") as progress:
        count = warm_up(faces or None, jobs=jobs, progress=progress)
    seconds = time.perf_counter() - begin
    folder, kept, compiled = cache_state()
    click.echo(f"{count} kinds of loaders, {compiled} kernels, {seconds:.0f} s: {folder}")
    if not kept:
        raise click.ClickException(f"the kernels are not kept: {NOT_KEPT}")
