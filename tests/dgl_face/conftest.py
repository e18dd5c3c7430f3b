"""What tests of the DGL face share."""

import pytest
from cases import dgl


@pytest.fixture
def one_dgl_thread():
    """DGL and torch compute in one thread: their batches are tiny, and threads that wait for each other take longer."""
    before = dgl.utils.get_num_threads()
    dgl.utils.set_num_threads(1)
    yield
    dgl.utils.set_num_threads(before)
