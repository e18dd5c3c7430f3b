"""``%load_ext pagraph`` in IPython's own shell."""

import pytest
from watching import DATA


@pytest.fixture
def shell():
    interactive = pytest.importorskip("IPython.core.interactiveshell", reason="needs IPython")
    pytest.importorskip("torch_geometric", reason="needs PyG")
    shell = interactive.InteractiveShell()
    shell.history_manager.enabled = False
    yield shell
    shell.run_cell("%unload_ext pagraph")
    interactive.InteractiveShell.clear_instance()


def ran(shell, cell):
    done = shell.run_cell(cell)
    done.raise_error()
    return done.result


@pytest.mark.filterwarnings("ignore")
def test_loaders_of_a_notebook(shell, capsys, monkeypatch):
    # Bound before the extension is loaded.
    ran(shell, f"{DATA}from torch_geometric.loader import NeighborLoader")
    ran(shell, "%load_ext pagraph")
    ran(shell, "for batch in NeighborLoader(data, [3], batch_size=25): pass")
    summary = ran(shell, "get_ipython().run_line_magic('pagraph', '')")
    ((key, line),) = summary.lines.items()
    assert (key.kind, key.place, key.ran) == ("NeighborLoader", "cell:1", "pagraph")
    assert (line.epochs, line.batches) == (1, 4)
    assert "<table>" in summary._repr_html_()
    ran(shell, "%load_ext pagraph")  # again
    # As if PyG's own could run here.
    monkeypatch.setattr("torch_geometric.typing.WITH_PYG_LIB", True)
    ran(shell, "%pagraph theirs")
    ran(shell, "loader = NeighborLoader(data, [3])")
    assert type(shell.user_ns["loader"]) is shell.user_ns["NeighborLoader"]
    ran(shell, "%pagraph reset")
    ran(shell, "%pagraph ours")
    assert ran(shell, "get_ipython().run_line_magic('pagraph', '')").lines == {}
    capsys.readouterr()
    shell.run_cell("%pagraph nonsense")
    said = capsys.readouterr()
    assert "%pagraph takes ours, theirs, reset or nothing, got 'nonsense'" in said.err + said.out
    ran(shell, "%unload_ext pagraph")
    ran(shell, "loader = NeighborLoader(data, [3])")
    assert type(shell.user_ns["loader"]) is shell.user_ns["NeighborLoader"]
    assert "pagraph" not in shell.magics_manager.magics["line"]
