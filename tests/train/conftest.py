"""The small graph that tests of training share."""

import pytest
from community import community_graph


@pytest.fixture
def graph():
    """A fresh graph whose fields a test may change."""
    return community_graph()
