"""Runs of a verb in this process."""

import importlib.util

import pytest
from click.testing import CliRunner

from pagraph.cli import main


def run(verb, *arguments, columns=80):
    result = CliRunner().invoke(main, [verb, *map(str, arguments)], env={"COLUMNS": str(columns)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if importlib.util.find_spec("dgl") is None and "pagraph.dgl needs DGL" in result.output:
        pytest.skip("needs DGL")
    return result


def fails(verb, *arguments):
    """The one line of a run that refuses its input."""
    result = run(verb, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line
