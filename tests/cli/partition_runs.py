"""Runs of ``pagraph partition``."""

import torch
from click.testing import CliRunner

from pagraph.cli import main

HASH = ["--method", "hash"]
QUICK = [*HASH, "--cache", "0"]


def run(*arguments, columns=80):
    result = CliRunner().invoke(main, ["partition", *map(str, arguments)], env={"COLUMNS": str(columns)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def fails(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def first_ones(graph, train, num_parts, hops, *, seed=0, progress=None):
    """The training vertices in the order of their ids, cut into pieces."""
    return (torch.arange(len(train)) * num_parts // len(train)).int()
