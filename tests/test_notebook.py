"""The notebook runs from top to bottom, and is kept without outputs."""

import json
from pathlib import Path

import pytest
from fresh_processes import HANGING
from test_readme import in_several_sets

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "first_hour.ipynb"


def test_is_kept_without_outputs():
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == (
            [],
            None,
        )


@pytest.mark.pages
@pytest.mark.filterwarnings("ignore")
def test_runs(tmp_path, tmp_path_factory, monkeypatch):
    for package in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(package, reason=f"needs {package} (pip install nbclient ipykernel)")
    pytest.importorskip("pagraph.pyg", reason="needs PyG")
    import nbclient
    import nbformat

    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=HANGING, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    said = "".join(output.get("text", "") for output in outputs)
    assert "10% of the vertices: " in said
    # A guess is right in 0.2 of the cases.
    assert float(said.split("test accuracy ")[1].split()[0]) > 0.6
    tables = [
        output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})
    ]
    assert (
        len(tables) == 2
        and "<th>hit rate</th>" in tables[0]
        and "<caption>cache on cpu: " in tables[1]
    )
    assert list(tmp_path.iterdir()) == []
    assert list(in_several_sets(temporary).values()) == [0]
