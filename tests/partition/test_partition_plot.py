"""Pictures of partitions."""

import re
import sys
from dataclasses import replace

import pytest

from pagraph import MissingDependencyError
from pagraph.datasets import rmat
from pagraph.partition import CacheTrial, describe, partition_graph
from pagraph.partition.plot import save_comparison_plot, save_plot

pytest.importorskip("matplotlib")

pytestmark = pytest.mark.pages


def report(num_parts=3, hops=2, cache=None, **changes):
    graph = rmat(7, num_classes=2)
    return replace(
        describe(partition_graph(graph, num_parts, hops=hops, method="hash"), cache=cache),
        **changes,
    )


def texts(path):
    """The words of an SVG, which matplotlib keeps in comments beside their outlines."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())


@pytest.mark.many
def test_parts(tmp_path):
    one = report()
    save_plot(one, tmp_path / "p.svg", title="g")
    found = texts(tmp_path / "p.svg")
    assert "g: 3 parts of 2 hops by hash" in found
    assert [text for text in found if text.startswith(("found", "training"))] == [
        *("found by hop 2", "found by hop 1", "training vertices"),
    ]
    assert [str(part.vertices) for part in one.parts] == [
        text for text in found if text.isdigit() and int(text) > 40
    ][-3:]


def test_later_hops_are_one_layer_and_the_evaluated_have_their_own(tmp_path):
    deep = report(hops=6)
    parts = tuple(replace(part, evaluated=4) for part in deep.parts)
    save_plot(replace(deep, parts=parts), tmp_path / "p.svg")
    found = texts(tmp_path / "p.svg")
    assert "found by hops 4 to 6" in found and "found by hop 4" not in found
    assert "validation and test" in found


@pytest.mark.every
@pytest.mark.parametrize("num_parts", [1, 17, 50])
@pytest.mark.parametrize(
    ("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_any_number_of_parts_in_every_format(tmp_path, num_parts, suffix, begins):
    save_plot(report(num_parts, hops=1), tmp_path / f"p.{suffix}")
    assert (tmp_path / f"p.{suffix}").read_bytes().startswith(begins)


def test_comparison_is_sorted_and_labelled(tmp_path):
    trial = CacheTrial("10%", policy="degree")
    worse, better = report(cache=trial), report(cache=trial, hops=1, method="other")
    save_comparison_plot([worse, better], tmp_path / "p.svg", title="g")
    found = texts(tmp_path / "p.svg")
    assert found.index("other") < found.index("hash")
    for one in (worse, better):
        assert f"{one.replication_factor:.2f}, hit rate {one.caches.hit_rate:.0%}" in found
    save_comparison_plot([report(), report(method="other")], tmp_path / "p.svg")
    assert not any("hit rate" in text or "lost" in text for text in texts(tmp_path / "p.svg"))


def test_comparison_of_limited_parts_says_what_is_lost(tmp_path):
    save_comparison_plot([report(lost=0.25), report(method="other", lost=0.5)], tmp_path / "p.svg")
    found = texts(tmp_path / "p.svg")
    assert sum(", 25% of neighbours lost" in text for text in found) == 1
    assert sum(", 50% of neighbours lost" in text for text in found) == 1


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_the_same_report_is_the_same_file(tmp_path, suffix):
    one, files = report(), [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for file in files:
        save_plot(one, file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"plot must end in \.png or \.svg or \.pdf, got 'p.gif'"):
        save_plot(report(), "p.gif")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match="a plot needs matplotlib"):
        save_plot(report(), tmp_path / "p.png")
    assert list(tmp_path.iterdir()) == []
