"""A first line of words is a header where an option names one of them."""

import pytest

from pagraph import FormatError
from pagraph.datasets import import_graph, read_edge_list


@pytest.fixture
def write(tmp_path):
    def to_file(text, name="a.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return to_file


def words(graph):
    return [bytes(row).rstrip(b"\0").decode() for row in graph.ndata["original_id"].numpy()]


RATINGS = "customer,item,stars\nanna,lamp,4\nbo,lamp,2\nanna,chair,5\n"


def test_a_weight_names_a_word_of_the_first_line(write):
    graph = read_edge_list(write(RATINGS), relabel=True, weight="stars")
    assert words(graph) == ["anna", "bo", "chair", "lamp"]
    assert graph.edata["stars"].tolist() == [4, 2, 5]


def test_with_a_dtype(write):
    graph = read_edge_list(write(RATINGS), relabel=True, weight="stars:float32")
    assert str(graph.edata["stars"].dtype) == "torch.float32"
    assert words(graph) == ["anna", "bo", "chair", "lamp"]


def test_in_files_too(write, tmp_path):
    graph = import_graph(write(RATINGS), tmp_path / "g", relabel=True, weight="stars")
    assert graph.num_nodes == 4 and graph.edata["stars"].tolist() == [4, 2, 5]


def test_any_further_word(write):
    text = "who,what,stars,when\nanna,lamp,4,7\nbo,lamp,2,8\n"
    graph = read_edge_list(write(text), relabel=True, weight="when")
    assert graph.edata["when"].tolist() == [7, 8] and graph.num_nodes == 3


def test_of_blanks_and_of_one_edge(write):
    graph = read_edge_list(
        write("customer item stars\nanna lamp 4\n", "a.txt"), relabel=True, weight="stars"
    )
    assert words(graph) == ["anna", "lamp"] and graph.edata["stars"].tolist() == [4]


def test_no_header_says_that_it_is_none(write):
    # The word "stars" is then no number.
    with pytest.raises(FormatError, match="line 1 must have a number as its third field"):
        read_edge_list(write(RATINGS), relabel=True, weight="stars", header=False)


def test_another_name_leaves_the_question_open(write):
    with pytest.raises(
        FormatError, match="may be a header or an edge|must have a number as its third"
    ):
        read_edge_list(write(RATINGS), relabel=True, weight="price")


def test_a_word_that_names_an_end_is_no_weight(write):
    # Only the words behind the two ends name columns of numbers.
    with pytest.raises(FormatError, match="may be a header or an edge|must have a number"):
        read_edge_list(write(RATINGS), relabel=True, weight="item")


def test_the_first_line_is_an_edge_where_its_ids_come_again(write):
    text = "customer,item,3\nanna,item,4\n"
    graph = read_edge_list(write(text), relabel=True, weight="stars")
    assert words(graph) == ["anna", "customer", "item"]
    assert graph.edata["stars"].tolist() == [3, 4]


def test_integers_are_as_before(write):
    graph = read_edge_list(write("customer,item,stars\n0,1,4\n2,1,3\n"), weight="stars")
    assert graph.num_edges == 2 and graph.edata["stars"].tolist() == [4, 3]
