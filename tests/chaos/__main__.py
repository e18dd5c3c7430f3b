"""Runs parts of the campaign for a time, and says how many trials failed in each."""

import os
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from . import PARTS, ROUNDS
from .campaign import Campaign


@click.command()
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice([*PARTS]),
    help="Only this part; several times.",
)
@click.option(
    "--seconds",
    default=600.0,
    envvar="CHAOS_SECONDS",
    help="For all parts together, but for those of a number of trials.",
)
@click.option("--trials", type=int, help="At most so many trials a part.")
@click.option("--seed", default=1, envvar="CHAOS_SEED", help="Number of the first case.")
@click.option("--case", type=int, help="Only the trial of this number.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    default=".chaos",
    help="Folder for the failing cases.",
)
def main(
    parts: tuple[str, ...],
    seconds: float,
    trials: int | None,
    seed: int,
    case: int | None,
    keep: Path,
) -> None:
    """Attack pagraph with random trials; exits with 1 if one failed."""
    names = (
        parts or tuple(os.environ.get("CHAOS_PARTS", "").replace(",", " ").split()) or tuple(PARTS)
    )
    if unknown := set(names) - set(PARTS):
        raise click.BadParameter(
            f"parts must be among {', '.join(PARTS)}, got {', '.join(unknown)}"
        )
    if case is not None:
        seed, trials = case, 1
    table = Table("part", "trials", "failures", "seconds", "figures")
    with tempfile.TemporaryDirectory(prefix="pagraph-chaos-") as work:
        campaign = Campaign(Path(work), keep.absolute())
        for name in names:
            result = campaign.run(name, seed, seconds / len(names), trials, ROUNDS.get(name, 0))
            table.add_row(
                name,
                f"{result.trials:,}",
                str(len(result.failures)),
                f"{result.seconds:.0f}",
                result.figures,
            )
            for number, what in result.failures.items():
                click.echo(f"{name} {number}: {what[-300:]}")
            campaign.failed += len(result.failures)
        campaign.end()
    Console().print(table)
    if campaign.failed:
        click.echo(
            f"{campaign.failed} failing cases are in {keep}/PART-NUMBER, again: --part PART --case "
            "NUMBER"
        )
    sys.exit(bool(campaign.failed))


if __name__ == "__main__":
    main()
