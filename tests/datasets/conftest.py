"""What tests of readers share."""

import contextlib

import pytest

from pagraph.datasets.tables import text
from pagraph.datasets.tables.connection import Connection


@pytest.fixture(scope="module")
def kept_connection():
    """All text is read through one connection to DuckDB: a new one takes 30 ms, which is most of
    the time of a file of few lines. Nothing is kept in it."""
    with Connection(0) as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "Connection", lambda room: contextlib.nullcontext(connection))
        yield


@pytest.fixture(scope="module", autouse=True)
def _unsynced(unsynced):
    """All of these tests write folders."""
