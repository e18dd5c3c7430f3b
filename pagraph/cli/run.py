"""``pagraph run``: run an unchanged DGL or PyG script with our loaders in place of theirs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

_PAGE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    name="run",
    # Everything after SCRIPT is the script's, options too.
    context_settings={"allow_interspersed_args": False},
)
@click.option("-m", "is_module", is_flag=True, help="Run a module, as `python -m` does.")
@click.option(
    "--theirs",
    is_flag=True,
    help="Measure the script's own loaders; replace only what cannot run here.",
)
@click.option(
    "--compare",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run the script N times with its own loaders and N times with ours, in turn.",
)
@click.option("--report", type=_PAGE, metavar="PAGE", help="Also write the table as an HTML page.")
@click.option(
    "--timeline", type=_PAGE, metavar="FILE", help="Write a timeline of our loaders, for Perfetto."
)
@click.option(
    "--cache", metavar="SIZE", help='Cache of each of our loaders, such as "2GiB" or "10%".'
)
@click.option(
    "--memory", metavar="SIZE", help='Host memory of each of our loaders, such as "4GiB".'
)
@click.option(
    "--num-workers",
    type=click.IntRange(min=0),
    metavar="N",
    help="Threads of each of our loaders, unless the script chooses.",
)
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    is_module: bool,
    theirs: bool,
    compare: int | None,
    report: Path | None,
    timeline: Path | None,
    cache: str | None,
    memory: str | None,
    num_workers: int | None,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run an unchanged DGL or PyG script with pagraph's loaders in place of theirs.

    The arguments after SCRIPT are passed to the script, which runs as with `python SCRIPT`. At the
    end, a table on stderr shows for each loader whether it was replaced, and if not, why, and how
    long the script waited for it.
    """
    from ..run.replacing import Settings
    from ..run.script import compare_runs, run_module, run_script
    from ..run.session import Session
    from ..system.atomic import check_writable

    settings = Settings(theirs, cache, memory, num_workers)
    _check(settings, compare, report, timeline)
    if not is_module and not Path(script).exists():
        raise click.ClickException(f"SCRIPT must be a file, {script} does not exist")
    for option, path in {"--report": report, "--timeline": timeline}.items():
        if path is not None:
            check_writable(option, path)
    if compare is not None:
        target = ["-m", script] if is_module else [script]
        sys.exit(compare_runs(compare, settings, [*target, *arguments], report))
    name = f"-m {script}" if is_module else script
    session = Session(name, settings, report, timeline)
    session.begin()
    run = run_module if is_module else run_script
    sys.exit(run(script, arguments, session))


def _check(
    settings: object, compare: int | None, report: Path | None, timeline: Path | None
) -> None:
    """Refuse options that contradict each other, and sizes that no loader accepts."""
    from ..system.budget import Budget, memory_budget

    chosen = dict(vars(settings))
    theirs = chosen.pop("theirs")
    if theirs and compare is not None:
        raise click.UsageError("--theirs must not be given with --compare, which runs both ways")
    if theirs:
        for name, value in {**chosen, "timeline": timeline}.items():
            if value is not None:
                option = name.replace("_", "-")
                raise click.UsageError(
                    f"--{option} must not be given with --theirs, which uses none of pagraph's "
                    "loaders"
                )
    if timeline is not None and compare is not None:
        raise click.UsageError(
            "--timeline must not be given with --compare, which makes several runs"
        )
    Budget.parse(chosen["cache"])
    if chosen["memory"] is not None:
        memory_budget(chosen["memory"])
