"""``pagraph generate``: generate a graph and write it as a native folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..datasets.generators import citation, rmat, sbm, shop
from ..options.names import FEATURE_DTYPES
from ..system.atomic import check_absent
from .options import memory_option, options_of, store_option
from .terminal import print_text, progress_bar, summary_line, write_folder

if TYPE_CHECKING:
    from ..graph.graph import Graph

_OUT = click.argument("out", type=click.Path(path_type=Path))
# Help of parameters that several generators share. Flags are given where the parameter's name
# ("num_edges") is longer than a command line needs.
_SHARED = {
    "num_edges": {"flags": ("--edges",), "help": "Edges drawn; replaces --edge-factor."},
    "num_classes": {"flags": ("--classes",), "help": "Number of blocks."},
    "exponent": "Exponent of the degrees' power law.",
    "num_features": {"flags": ("--features",), "help": "Width of the features."},
    "feature_noise": "Share of vertices with the features of a random class.",
    "fractions": "Shares of train, val and test vertices.",
    "seed": "Random seed; equal seeds give equal graphs.",
}


def _options(generator: Callable[..., Graph], **documented: Any) -> Callable[[Any], Any]:
    """Options of a generator: those ``documented``, and those of ``_SHARED``."""
    given = options_of(generator, **(_SHARED | documented))
    return lambda command: given(store_option(command))


@click.group(name="generate")
def command() -> None:
    """Generate a graph and write it as the folder OUT, which must not exist yet."""


@command.command("rmat")
@_OUT
@_options(
    rmat,
    scale={"default": 16, "help": "Base-2 logarithm of the number of vertices."},
    edge_factor="Edges drawn per vertex.",
    probabilities="Probabilities of the quadrants a, b, c, d.",
    noise="Largest change of b and c at each level.",
    undirected="Store both directions of every edge.",
    simple="Drop self-loops and repeated edges.",
    num_features={"flags": ("--features",), "help": "Width of random features."},
    feature_dtype={"choices": FEATURE_DTYPES, "help": "Dtype of the stored features."},
    num_classes={"flags": ("--classes",), "help": "Number of random labels."},
)
@memory_option
def rmat_command(out: Path, memory: str | None, **settings: Any) -> None:
    """An RMAT graph with Graph500's parameters: a few vertices have a very high degree."""
    # Before the draw, which imports torch.
    check_absent(out, name="OUT")
    size = settings.pop("scale")
    # Written while it is drawn, as it may be larger than the memory.
    with progress_bar("generating") as progress:
        origin = _origin(rmat, size, settings)
        graph = rmat(size, **settings, out=out, memory=memory, origin=origin, progress=progress)
    print_text(summary_line(graph, out))


@command.command("sbm")
@_OUT
@_options(
    sbm,
    num_nodes={"flags": ("--nodes",), "default": 100_000, "help": "Number of vertices."},
    num_edges={"flags": ("--edges",), "help": "Undirected edges drawn.  [default: 10 each]"},
    homophily="Share of the edges inside a block.",
)
def sbm_command(out: Path, **settings: Any) -> None:
    """A block-model graph with labels and features that a GNN can learn and an MLP cannot."""
    _generate(sbm, out, settings, settings.pop("num_nodes"))


@command.command("citation")
@_OUT
@_options(
    citation,
    num_papers={"flags": ("--papers",), "default": 100_000, "help": "Number of papers."},
    num_authors={"flags": ("--authors",), "help": "Number of authors.  [default: 3 for 2 papers]"},
    num_institutions={
        "flags": ("--institutions",),
        "help": "Number of institutions.  [default: 1 for 80 papers]",
    },
    authorships="Authors drawn per paper.",
    citations="Citations drawn per paper.",
    num_classes={"flags": ("--classes",), "help": "Number of fields of study."},
    homophily="Share of the edges inside a field of study.",
    num_features={"flags": ("--features",), "help": "Width of the papers' features."},
    num_author_features={
        "flags": ("--author-features",),
        "help": "Width of the authors' features.",
    },
)
def citation_command(out: Path, **settings: Any) -> None:
    """Papers, authors and institutions with 5 edge types. A relational GNN can learn the papers'
    labels."""
    _generate(citation, out, settings, settings.pop("num_papers"))


@command.command("shop")
@_OUT
@_options(
    shop,
    num_customers={"flags": ("--customers",), "default": 20_000, "help": "Number of customers."},
    num_products={
        "flags": ("--products",),
        "help": "Number of products.  [default: 1 for 10 customers]",
    },
    num_periods={"flags": ("--periods",), "help": "Number of periods of 30 days."},
    persistence="Probability that a customer likes the same kind of product again.",
)
def shop_command(out: Path, **settings: Any) -> None:
    """A database with times: customers, products and purchases. Its task is too easy for a model
    that sees the future."""
    _generate(shop, out, settings, settings.pop("num_customers"))


def _generate(
    generator: Callable[..., Graph], out: Path, settings: dict[str, Any], size: int
) -> None:
    check_absent(out, name="OUT")
    store = settings.pop("store")  # of the writing, not of the generator
    with progress_bar("drawing edges") as progress:
        graph = generator(size, **settings, progress=progress)
    write_folder(graph, out, origin=_origin(generator, size, settings), store=store)


def _origin(generator: Callable[..., Graph], size: int, settings: dict[str, Any]) -> dict[str, Any]:
    # Defaults follow from the generator's version.
    given = {key: value for key, value in settings.items() if value is not None}
    return {"generator": generator.__name__, "size": size, **given}
