"""Which form a folder has, and what is said about folders that have none."""

import numpy as np
import pytest
import scipy.sparse

from pagraph import FormatError, Graph
from pagraph.datasets import open_graph, write_graph
from pagraph.datasets.opening import folder_form


@pytest.fixture
def native(tmp_path):
    write_graph(Graph.from_coo([0], [1], ndata={"train_mask": [True, False]}), tmp_path / "native")
    return tmp_path / "native"


@pytest.fixture
def pagraph(tmp_path):
    (tmp_path / "pagraph").mkdir()
    scipy.sparse.save_npz(tmp_path / "pagraph" / "adj.npz", scipy.sparse.csr_matrix(np.eye(2)))
    return tmp_path / "pagraph"


def test_both_forms_open(native, pagraph):
    assert folder_form(native) == "native"
    assert folder_form(str(pagraph)) == "pagraph"
    assert open_graph(native).num_edges == 1
    assert open_graph(pagraph, verify=True).num_edges == 2
    assert Graph.open(pagraph).num_edges == 2


def test_native_wins_where_both_are(native, pagraph):
    (pagraph / "adj.npz").rename(native / "adj.npz")
    assert folder_form(native) == "native"


def test_what_is_no_graph_folder(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=f"folder must exist, got '{tmp_path}/none'"):
        open_graph(tmp_path / "none")
    with pytest.raises(NotADirectoryError, match=f"must be a folder, got the file '{tmp_path}/file'"):
        open_graph(tmp_path / "file")
    with pytest.raises(FormatError, match=r"must hold manifest\.json .* or adj\.npz .* with neither"):
        open_graph(tmp_path / "empty")


def test_split_of_a_native_folder(native):
    with pytest.raises(ValueError, match=r"split must be one of \[''\], got 'pub_'"):
        open_graph(native, split="pub_")
