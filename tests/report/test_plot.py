import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from fresh_processes import HANGING, bare_python

from pagraph.options.names import PLOT_FORMATS
from pagraph.profile import recommend
from pagraph.report.plot import profile_figure, save_plot
from pagraph.report.style import DARK, MARK, SOFT, STAGE_COLORS, check_plot, policy_styles

pytestmark = pytest.mark.pages


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


@pytest.mark.pages
def test_svg_is_xml_and_repeatable(curve, tmp_path, matplotlib):
    for name in ("a.svg", "b.svg"):
        save_plot(curve, tmp_path / name, title="my <graph>")
    text = (tmp_path / "a.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert text == (tmp_path / "b.svg").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.svg", "b.svg"]


@pytest.mark.pages
def test_png_is_an_image(curve, tmp_path, matplotlib):
    from matplotlib.image import imread

    save_plot(curve, tmp_path / "a.PNG")
    image = imread(tmp_path / "a.PNG")
    assert image.shape[0] > 500 and image.shape[1] > 1000
    assert image[..., :3].std() > 0.05  # something is drawn


@pytest.mark.statistics
def test_what_is_drawn(curve, matplotlib):
    assert recommend(curve).budget_rows == 200
    left, right = profile_figure(curve, recommend(curve), "").axes
    lines = {line.get_label(): line for line in left.lines}
    assert lines["auto"].get_ydata() == pytest.approx([0, 50, 70, 90, 100])
    assert lines["degree"].get_xdata() == pytest.approx([0, 10, 20, 50, 100])
    assert [text.get_text() for text in left.get_legend().get_texts()] == [
        "80.0%  oracle",
        "70.0%  auto",
        "50.0%  degree",
    ]
    assert [bar.get_width() for bar in right.patches] == pytest.approx([80, 1120, 320, 480])


def test_a_cache_that_is_not_advised_is_drawn_as_none(make_curve, matplotlib):
    straight = make_curve(rates={"auto": (0.12, 0.23, 0.55, 1.0)})
    for of, title, colour in (
        (make_curve(), "Hit rate by budget", MARK),
        (straight, "Hit rate by budget: no cache is advised", SOFT),
    ):
        left, _ = profile_figure(of, recommend(of), "").axes
        [mark] = [line for line in left.lines if line.get_marker() == "o"]
        assert left.get_title("left") == title and mark.get_color() == colour


def test_policies_look_different():
    names = [
        "auto",
        "degree",
        "presample",
        "presample:5",
        "vip",
        "random",
        "oracle",
        "ideal:10",
        "mine",
        "yours",
    ]
    styles = policy_styles(names)
    assert [*styles] == names
    assert len(set(styles.values())) == len(names)


def test_every_colour_has_one_for_a_dark_ground(curve):
    styles = policy_styles([*curve.policies, "mine", "yours", "theirs", "ours"])
    assert {style.color for style in styles.values()} <= set(DARK)
    assert set(STAGE_COLORS.values()) <= set(DARK)


def test_without_features(make_curve, tmp_path, matplotlib):
    save_plot(make_curve(features=False), tmp_path / "a.svg")
    assert "KiB" not in (tmp_path / "a.svg").read_text()


def test_other_endings_are_refused(curve, tmp_path):
    for name in ("a.pdf", "a", "a.png.txt"):
        with pytest.raises(ValueError, match=r"plot must end in \.png or \.svg, got"):
            save_plot(curve, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_missing_matplotlib_is_said_before_the_work(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('no', name='matplotlib')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pagraph import MissingDependencyError\n"
        "from pagraph.report.style import check_plot\n"
        "try: check_plot('a.png', ['.png'])\n"
        "except MissingDependencyError as error: print(error)\n"
    )
    done = subprocess.run(
        [bare_python(), "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=HANGING
    )
    assert (
        done.stdout
        == "a plot needs matplotlib, which is not installed: pip install 'pagraph[plot]'\n"
    ), done.stderr


def test_accepted_endings(matplotlib):
    for name in ("a.png", "b.svg", "C.SVG"):
        check_plot(name, PLOT_FORMATS)
