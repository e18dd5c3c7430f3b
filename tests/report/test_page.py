import dataclasses
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from pagraph.profile import recommend
from pagraph.report.page import html_page
from pagraph.report.times import epoch_bars
from pagraph.report.words import best_of

pytestmark = pytest.mark.pages


VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Checks that tags are balanced; collects the words and the attributes."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def drawings(page):
    """All drawings, as XML."""
    found = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert found
    return [ElementTree.fromstring(text) for text in found]


def test_the_answer_comes_first(curve):
    text = Page(html_page(curve, title="my graph")).text
    best = recommend(curve)
    assert (best.policy, best.budget_rows) == ("auto", 200)
    assert text.index('cache="20%", cache_policy="auto"') < text.index("How much of the reading")
    assert (
        "Give the cache 20.0% of the vertices (200 rows, 11.72 KiB) and let the policy auto choose "
        "them" in text
    )
    assert "it then serves 70.0%. An" in text
    assert (
        "A cache of 10.0% of the vertices serves 50.0% of the rows that training reads. Give the "
        "cache" in text
    )
    assert "An epoch then fetches 23.44 KiB instead of 78.12 KiB, 70.0% less." in text
    assert "knew in advance what will be read would serve 80.0%" in text
    assert "a cache of 50.0% of the vertices would serve 90.0%, 20.0 points more" in text
    assert "Other policies at this budget: degree 50.0%." in text


def test_all_numbers_are_there(curve):
    text = Page(html_page(curve)).text
    for record in curve:
        assert f"{100 * record.hit_rate:.1f}" in text
        assert f"{record.budget_rows:,}" in text
    for words in (
        "Hit rate",
        "Knee",
        "Policy oracle",
        "NeighborSampler([5])",
        "hop 1",
        "training vertices",
        "torch",
    ):
        assert words in text


def test_needs_no_network(curve, loading, spans):
    page = html_page(curve, loading=loading, spans=spans)
    attributes = Page(page).attributes
    assert not {name for name, _ in attributes} & {"src", "srcset", "data", "action"}
    # Drawings refer to their own parts.
    links = [value for name, value in attributes if name == "href"]
    links += re.findall(r"url\((.*?)\)", page)
    assert links and all(link.startswith("#") for link in links)
    assert "http:" not in page and "https:" not in page and "@import" not in page


def chart(page, name):
    """The drawing of a chart, as XML."""
    begin = page.index("<svg", page.index(f'id="{name}"'))
    return ElementTree.fromstring(page[begin : page.index("</svg>", begin) + 6])


def test_drawings_are_xml_with_a_line_for_each_policy(curve, loading, spans):
    page = html_page(curve, loading=loading, spans=spans)
    assert len(drawings(page)) == 4 + len(curve.policies)  # the key has a line each
    rates = chart(page, "rates")
    titled = [g for g in rates.iter("g") if g.find("title") is not None]
    lines = {g.find("title").text: g.find("path") for g in titled if g.find("path") is not None}
    assert sorted(lines) == ["auto", "degree", "oracle"]
    width, height = map(float, rates.get("viewBox").split()[2:])
    for line in lines.values():
        places = [tuple(map(float, p.split())) for p in re.split("[ML]", line.get("d"))[1:]]
        assert len(places) == 5  # no cache, and four budgets
        assert all(0 <= x <= width and 0 <= y <= height for x, y in places)
        xs, ys = zip(*places, strict=True)
        assert list(xs) == sorted(xs) and list(ys) == sorted(ys, reverse=True)


def test_the_script_knows_where_the_budgets_are(curve):
    page = html_page(curve)
    points = json.loads(re.search(r"points=(\[.*?\]),chart", page)[1])
    assert [point["rates"]["auto"] for point in points] == ["50.0%", "70.0%", "90.0%", "100.0%"]
    rates = chart(page, "rates")
    line = next(g.find("path") for g in rates.iter("g") if any(t.text == "auto" for t in g))
    xs = [float(p.split()[0]) for p in re.split("[ML]", line.get("d"))[2:]]
    assert [point["x"] for point in points] == pytest.approx(xs, abs=0.1)
    # The pointer stands at the recommended budget, the second.
    assert [point["dx"] for point in points] == pytest.approx([x - xs[1] for x in xs], abs=0.1)
    (pointer,) = [g for g in rates.iter("g") if g.get("class") == "pointer"]
    assert float(pointer.find("path").get("d")[1:].split()[0]) == pytest.approx(xs[1], abs=0.1)


@pytest.mark.pages
def test_colours_follow_the_ground(curve, loading, spans):
    page = html_page(curve, loading=loading, spans=spans)
    used = set(re.findall(r"(?:fill|stroke): ?var\(--c(\w+)\)", page))
    light, dark = re.findall(r":root\{ (.*?)--ink", page)
    assert used and used <= set(re.findall(r"--c(\w+):", light))
    assert re.findall(r"--c(\w+):", light) == re.findall(r"--c(\w+):", dark)


def test_hop_bars_are_as_long_as_the_rows(curve):
    pytest.importorskip("matplotlib")
    from pagraph.report.plot import hop_figure

    (axes,) = hop_figure(curve, curve.at("auto", 200)).axes
    # 400 and 1,600 rows; 20 and 70 % hits
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([80, 1120, 320, 480])
    text = Page(html_page(curve)).text
    assert "training vertices 400 20.0% 320 hop 1 1,600 70.0% 480 all 2,000 70.0% 600" in text


@pytest.mark.pages
def test_time_and_timeline_only_where_measured(curve, loading, spans):
    assert "Where the time of an epoch goes" not in html_page(curve)
    with_bars = html_page(curve, loading=loading)
    assert "Where the time of an epoch goes" in with_bars and 'id="timeline"' not in with_bars
    text = Page(html_page(curve, loading=loading, spans=spans)).text
    assert "waits for batches 50.0% of it" in text
    assert "Most of the loader's time goes into gathering" in text
    assert "MainThread" in text and "worker-1" in text


def test_bars_of_an_epoch_add_up_to_it(loading):
    seconds = [sum(stages.values()) for stages in epoch_bars(loading).values()]
    # The training loop's bar is as long as the epoch with its kernels, the threads' as sampling and
    # gathering.
    assert seconds == pytest.approx([1.5 + 2, 1.5, 1.0, 1.5])


def test_without_matplotlib_it_has_its_tables(curve, loading, spans, monkeypatch):
    with_charts = Page(html_page(curve, loading=loading, spans=spans))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = html_page(curve, loading=loading, spans=spans)
    parsed = Page(page)
    assert "Charts need matplotlib: pip install 'pagraph[plot]'" in parsed.text
    assert "Point at the chart" not in parsed.text and 'class="chart' not in page
    assert parsed.tags.count("table") == with_charts.tags.count("table") > 4
    assert "Charts need" not in with_charts.text


def test_without_features_bytes_are_left_out(make_curve):
    text = Page(html_page(make_curve(features=False))).text
    assert "An epoch reads 2,000 rows; 600 of them still have to be fetched." in text
    assert "bytes of a row" not in text and "kB" not in text


def test_names_are_shown_as_text(make_curve):
    evil = '<script>alert("1")</script>&amp;'
    rates = {evil: (0.5, 0.7, 0.9, 1.0), "oracle": (0.6, 0.8, 1.0, 1.0)}
    page = html_page(make_curve(rates=rates), title=evil, facts={evil: evil})
    parsed = Page(page)
    assert parsed.tags.count("script") == 1
    assert evil in parsed.text
    drawings(page)


def test_one_budget_and_one_policy(make_curve):
    curve = make_curve(rates={"random": (0.1, 0.2, 0.5, 1.0)})
    curve = dataclasses.replace(curve, records=curve.records[:1])
    text = Page(html_page(curve)).text
    assert "A cache of 10.0% of the vertices serves 10.0%" in text
    assert "none measured" in text
    assert "Other policies" not in text and "oracle is the limit" not in text


def test_nothing_to_use_is_refused(make_curve):
    with pytest.raises(ValueError, match="curve must have a policy that training can use"):
        html_page(make_curve(rates={"oracle": (0.6, 0.8, 1.0, 1.0)}))


def test_a_cache_that_is_not_worth_it(make_curve):
    words = "That is not worth it: the curve hardly bends"
    assert words not in Page(html_page(make_curve())).text
    straight = {"auto": (0.12, 0.23, 0.55, 1.0), "oracle": (0.6, 0.8, 1.0, 1.0)}
    text = Page(html_page(make_curve(rates=straight))).text
    assert (
        f"A cache of 10.0% of the vertices serves 12.0% of the rows that training reads. {words}"
        in text
    )
    assert (
        'sampler, ..., cache="0")' in text
        and "Give the cache" not in text
        and "recommended: " not in text
    )
    assert "No cache is advised, unless the memory is free anyway." in text
    assert (
        "With the small one, an epoch would fetch" in text and "An epoch then fetches" not in text
    )
    assert "> a small cache, though none is advised" in text and "the advised budget" not in text


def test_mark_and_box_are_green_only_where_a_cache_is_advised(make_curve):
    advised, none = (
        html_page(make_curve()),
        html_page(make_curve(rates={"auto": (0.12, 0.23, 0.55, 1.0)})),
    )
    for page, box, mark, words in (
        (advised, "answer", "recommended", "auto is recommended."),
        (none, "answer none", "a small cache, not advised", "no cache is advised."),
    ):
        assert f'<div class="{box}">' in page and f"<title>{mark}</title>" in page
        assert words in page
    assert "<title>recommended" not in none and "is recommended" not in none


def test_a_better_policy_that_is_not_recommended_is_explained(make_curve):
    words = "at most 0.2 points behind and the default, or takes less to compute"
    close = {
        "auto": (0.5, 0.7, 0.9, 1.0),
        "degree": (0.5, 0.702, 0.9, 1.0),
        "oracle": (0.6, 0.8, 1.0, 1.0),
    }
    assert words in Page(html_page(make_curve(rates=close))).text
    assert words not in Page(html_page(make_curve())).text


def test_the_recommended_budget_is_in_the_table_even_if_nobody_asked_for_it(make_curve):
    whole = make_curve()
    few = dataclasses.replace(
        whole, records=[r for r in whole if r.budget_rows in (100, 1000)], grid=whole.records
    )
    assert recommend(few).budget_rows == 200
    page = Page(html_page(few))
    assert "> 20.0% 200 11.72 KiB 70.0* 50.0 80.0" in page.text


@pytest.mark.pages
def test_says_what_was_computed(curve, loading):
    told = dataclasses.replace(loading, settings={"computes": True, "step": "a <small> step"})
    assert (
        "Computing is a <small> step, a stand-in for your model"
        in Page(html_page(curve, loading=told)).text
    )
    assert "stand-in" not in Page(html_page(curve, loading=loading)).text


@pytest.mark.pages
def test_a_command_is_shown_as_text(curve):
    page = html_page(curve, command="pagraph train '<a b>' --cache=20%")
    assert "pagraph train '<a b>' --cache=20%" in Page(page).text and page.count("<pre>") == 2
    assert html_page(curve).count("<pre>") == 1


@pytest.mark.pages
def test_of_rows_of_several_widths_the_policy_that_saves_most_bytes_is_marked(make_curve):
    measured = make_curve(rates={"auto": (0.3, 0.5, 0.9, 1.0), "degree": (0.4, 0.5, 0.8, 1.0)})
    records = [
        dataclasses.replace(r, bytes_moved=40_000) if r.policy == "auto" else r
        for r in measured.records[:1]
    ]
    records += measured.records[1:]
    typed = dataclasses.replace(
        measured, records=records, row_bytes={"paper/feat": 64, "author/feat": 8}
    )
    assert best_of(typed, [typed.at("auto", 100), typed.at("degree", 100)]) == {"auto"}
    assert best_of(measured, [measured.at("auto", 100), measured.at("degree", 100)]) == {"degree"}
    text = Page(html_page(typed)).text
    assert (
        "* the policy that saves most bytes" in text
        and "Shares and hit rates are of the bytes" in text
    )
    assert (
        "Hit rate in bytes with" in text
        and "Hit rate in rows with" in Page(html_page(measured)).text
    )
    assert "Shares and hit rates" not in Page(html_page(measured)).text
