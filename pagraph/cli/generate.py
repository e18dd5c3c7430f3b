"""``pagraph generate``: write a generated graph as a native folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..system.atomic import check_absent
from .terminal import progress_bar
from .writing import write_folder

if TYPE_CHECKING:
    from ..graph.graph import Graph


def _numbers(count: int) -> Callable[[click.Context, click.Parameter, str], tuple[float, ...]]:
    def parse(_context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
        try:
            found = tuple(float(part) for part in value.split(","))
        except ValueError:
            found = ()
        if len(found) != count:
            raise click.BadParameter(f"{parameter.name} must be {count} numbers with commas between, got {value!r}")
        return found

    return parse


_OUT = click.argument("out", type=click.Path(path_type=Path))
_SEED = click.option("--seed", default=0, show_default=True, help="Equal seeds give equal graphs.")
_FRACTIONS = click.option(
    "--fractions",
    default="0.6,0.2,0.2",
    show_default=True,
    callback=_numbers(3),
    help="Shares of train, val and test vertices.",
)
_EXPONENT = click.option("--exponent", default=2.5, show_default=True, help="Of the power law of the degrees.")
_FEATURE_NOISE = click.option(
    "--feature-noise",
    default=0.45,
    show_default=True,
    help="Share of vertices that look like a random class.",
)


@click.group(name="generate")
def command() -> None:
    """Generate a graph and write it as the folder OUT, which must not exist yet."""


@command.command("rmat")
@_OUT
@click.option("--scale", default=16, show_default=True, help="Base-2 logarithm of the number of vertices.")
@click.option("--edge-factor", default=16.0, show_default=True, help="Edges drawn per vertex.")
@click.option("--edges", "num_edges", type=int, default=None, help="Edges drawn; replaces --edge-factor.")
@click.option(
    "--probabilities",
    default="0.57,0.19,0.19,0.05",
    show_default=True,
    callback=_numbers(4),
    help="Of the quadrants a, b, c, d.",
)
@click.option("--noise", default=0.0, show_default=True, help="Largest change of b and c at each level.")
@click.option("--undirected", is_flag=True, help="Store both directions of every edge.")
@click.option("--simple", is_flag=True, help="Drop self-loops and repeated edges.")
@click.option("--features", "num_features", default=0, show_default=True, help="Width of random features.")
@click.option("--classes", "num_classes", default=0, show_default=True, help="Number of random labels.")
@_FRACTIONS
@_SEED
def rmat_command(out: Path, **settings: Any) -> None:
    """An RMAT graph: Graph500's parameters, a few vertices of very high degree."""
    from ..datasets import rmat

    _generate("rmat", rmat, out, settings, settings.pop("scale"))


@command.command("sbm")
@_OUT
@click.option("--nodes", "num_nodes", default=100_000, show_default=True, help="Number of vertices.")
@click.option("--edges", "num_edges", type=int, default=None, help="Undirected edges drawn.  [default: 10 each]")
@click.option("--classes", "num_classes", default=10, show_default=True, help="Number of blocks.")
@click.option("--homophily", default=0.55, show_default=True, help="Share of the edges inside a block.")
@_EXPONENT
@click.option("--features", "num_features", default=64, show_default=True, help="Width of the features.")
@_FEATURE_NOISE
@_FRACTIONS
@_SEED
def sbm_command(out: Path, **settings: Any) -> None:
    """A block-model graph with labels and features that a GNN can learn and an MLP cannot."""
    from ..datasets import sbm

    _generate("sbm", sbm, out, settings, settings.pop("num_nodes"))


@command.command("citation")
@_OUT
@click.option("--papers", "num_papers", default=100_000, show_default=True, help="Number of papers.")
@click.option("--authors", "num_authors", type=int, default=None, help="Number of authors.  [default: 3 for 2 papers]")
@click.option(
    "--institutions",
    "num_institutions",
    type=int,
    default=None,
    help="Number of institutions.  [default: 1 for 80 papers]",
)
@click.option("--authorships", default=9.5, show_default=True, help="Authors drawn per paper.")
@click.option("--citations", default=7.5, show_default=True, help="Citations drawn per paper.")
@click.option("--classes", "num_classes", default=10, show_default=True, help="Number of fields of study.")
@click.option("--homophily", default=0.55, show_default=True, help="Share of the edges inside a field of study.")
@_EXPONENT
@click.option("--features", "num_features", default=64, show_default=True, help="Width of the papers' features.")
@click.option(
    "--author-features",
    "num_author_features",
    default=32,
    show_default=True,
    help="Width of the authors' features.",
)
@_FEATURE_NOISE
@_FRACTIONS
@_SEED
def citation_command(out: Path, **settings: Any) -> None:
    """Papers, authors and institutions: 5 edge types, and labels of papers that a relational GNN can learn."""
    from ..datasets import citation

    _generate("citation", citation, out, settings, settings.pop("num_papers"))


def _generate(name: str, generator: Callable[..., Graph], out: Path, settings: dict[str, Any], size: int) -> None:
    check_absent(out, name="OUT")
    with progress_bar("drawing edges") as progress:
        graph = generator(size, **settings, progress=progress)
    given = {key: value for key, value in settings.items() if value is not None}
    write_folder(graph, out, origin={"generator": name, "size": size, **given})
