"""What tests of the DGL face share; they run where DGL is installed."""

import importlib.util

import pytest

pytest.register_assert_rewrite("comparing", "distributions")
if importlib.util.find_spec("dgl") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from cases import dgl
    from worlds import make_world


@pytest.fixture
def one_dgl_thread():
    """DGL and torch compute in one thread: their batches are tiny, and threads that wait for each
    other take longer."""
    before = dgl.utils.get_num_threads()
    dgl.utils.set_num_threads(1)
    yield
    dgl.utils.set_num_threads(before)


@pytest.fixture
def fresh_worlds():
    """No graph that another test has used: DGL changes graphs while it computes."""
    make_world.cache_clear()
    yield
    make_world.cache_clear()
