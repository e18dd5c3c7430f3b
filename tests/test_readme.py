"""The commands and scripts of README.md and of the pages of docs/ run as they stand, from top to
bottom of the page.

What cannot run here, or is a part of a script, stands in blocks of other languages: ``sh``, ``py``,
``text``.
"""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from fresh_processes import HANGING, forked_python, run_script, run_text, torchrun_environment
from torch import Tensor

import pagraph.datasets
import pagraph.partition.methods.auto
from pagraph.cli import main
from pagraph.partition import partition_graph
from pagraph.system import budget

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]
# Shown and not run here; `make test-wheel` builds the wheel and installs it.
WHEEL = f"dist/pagraph-{pagraph.__version__}-py3-none-any.whl"
INSTALLATIONS = (
    *(
        f'pip install "{source}[{extra}]"'
        for source in (".", WHEEL)
        for extra in ("dgl", "pyg", "metis", "plot", "databases")
    ),
    "pip wheel --no-deps --wheel-dir dist .",
)
CLIENTS = {
    "docs/howto/frames.md": ("torch_frame",),
    "docs/howto/trainers.md": ("accelerate", "lightning", "torchdata.nodes"),
}
"""Pages to packages that they are about, which nothing else here needs."""
SETS = ("train_mask", "val_mask", "test_mask")
OWN_WORDS = re.compile(r"\b(rooms|faces?|promis(?:es|ed|e)|tells?)\b", re.IGNORECASE)


def blocks(page: str) -> list[tuple[str, str]]:
    """The fenced ``console`` and ``python`` blocks of a page, in order."""
    return re.findall(
        r"^```(console|python)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def run(command: list[str], folder: Path) -> str:
    options = {"cwd": folder, "env": torchrun_environment(), "timeout": HANGING}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_pagraph(arguments: list[str]) -> str:
    # Typed, it is a process of its own, and not one that ran tests before.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "held_by_process", lambda: 200 << 20)
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, f"{arguments}\n{result.output}"
    return result.output


def run_console(line: str, folder: Path) -> str:
    """Run one shown command and get what it prints; those that build or install are checked as far
    as a test can."""
    program, *arguments = shlex.split(line)
    if program == "pagraph" and arguments[0] == "run":  # ends its process as the script does
        return run([forked_python(), "-m", "pagraph", *arguments], folder)
    if program == "pagraph":
        return run_pagraph(arguments)
    if program == "python" and arguments[0].endswith(".py"):
        return run_script(folder / arguments[0], arguments[1:], folder)
    if program == "python":
        return run([forked_python(), *arguments], folder)
    if program == "torchrun":
        return run([forked_python(), "-m", "torch.distributed.run", *arguments], folder)
    if program == "make":
        if (ROOT / "Makefile").exists() and shutil.which("make"):
            run(["make", "--dry-run", "--directory", str(ROOT), *arguments], folder)
        return ""
    assert line in INSTALLATIONS, f"no way to test {line!r}"
    return ""


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """The current folder: empty but for the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_several_sets(folder: Path) -> dict[str, int]:
    """Number of vertices that are in more than one set, by graph folder within a folder."""
    found = {}
    for manifest in folder.rglob("manifest.json"):
        if json.loads(manifest.read_text())["format"] != "pagraph-graph":
            continue
        graph = pagraph.datasets.open_graph(manifest.parent)
        fields = [graph.node_fields(ntype) for ntype in graph.node_types]
        masks = [[each[name] for name in SETS if name in each] for each in fields]
        repeated = [int((sum(map(Tensor.int, sets)) > 1).sum()) for sets in masks if sets]
        found[str(manifest.parent.relative_to(folder))] = sum(repeated)
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
@pytest.mark.pages
def test_page_runs(page, empty_folder):
    if page == "docs/train.md":  # it speaks of a graph that the reader has
        run_pagraph(["generate", "sbm", "blocks", "--nodes", "2000"])
    for package in CLIENTS.get(page, ()):
        pytest.importorskip(package, reason=f"needs {package} (pip install '.[dev-clients]')")
    for language, text in blocks(page):
        if language == "python":
            run_text(text, empty_folder)
        elif page != "README.md":  # whose commands .ci/readme runs
            for line in text.replace("\\\n", " ").splitlines():
                if line.startswith("$ "):
                    run_console(line.removeprefix("$ "), empty_folder)
    assert not any(in_several_sets(empty_folder).values())


@pytest.mark.parametrize("page", PAGES)
def test_what_is_typed_fits_the_sites_column(page):
    typed = [
        line
        for language, text in blocks(page)
        for line in text.splitlines()
        if language == "python" or line.startswith("$ ")
    ]
    assert [line for line in typed if len(line) > 100] == []


def test_links_lead_somewhere():
    if not (ROOT / "docs").is_dir():
        pytest.skip("needs the checkout, not only its tests")
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose(page)):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_pictures_are_drawn_by_a_command_that_a_page_states():
    text = "".join(prose(ROOT / page) + "".join(code for _, code in blocks(page)) for page in PAGES)
    for picture in ROOT.glob("docs/pictures/*.svg"):
        by_a_script = f"docs/pictures/{picture.name}`" in text
        assert f"--plot {picture.name}" in text or by_a_script


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", sorted(set(PAGES) - {"docs/design.md"}))
def test_pages_for_users_keep_to_the_words_of_the_trade(page):
    assert OWN_WORDS.findall(prose(ROOT / page)) == []


def parts_on_readme() -> list[str]:
    """The commands of README.md's example of parts: generate, partition, train."""
    [text] = [text for _, text in blocks("README.md") if "pagraph partition groups" in text]
    return [line.removeprefix("$ ") for line in text.splitlines()]


def said_on_readme(words: str, **figures: float) -> bool:
    """Whether README.md says this, wherever its lines end, rounded as it says."""
    return words.format(**figures) in " ".join((ROOT / "README.md").read_text().split())


def percents_of(report: str) -> list[float]:
    """Hit rate of the parts, and of one process without parts, in what ``pagraph partition``
    prints."""
    found = re.search(
        r"hit rate +(\S+)% with a cache of 10% of .* and no parts (\S+)%", " ".join(report.split())
    )
    assert found is not None
    return [float(figure) for figure in found.groups()]


def largest_of(report: str) -> float:
    found = re.search(r"largest part +(\S+) of the graph", report)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("with_metis", [False, True], ids=["alone", "with METIS"])
def test_the_figures_of_the_parts_on_readme(with_metis, empty_folder, monkeypatch):
    if with_metis:
        pytest.importorskip("pymetis")
    else:  # as after the README's own installation
        monkeypatch.setattr(pagraph.partition.methods.auto, "has_pymetis", lambda: False)
    generate, partition, _ = parts_on_readme()
    run_console(generate, empty_folder)
    report = run_console(partition, empty_folder)
    largest, (hits, whole) = largest_of(report), percents_of(report)
    if with_metis:
        assert said_on_readme("(with METIS {largest:.2f},", largest=largest)
        return
    graph, others = pagraph.datasets.open_graph("groups"), {}
    for method in ("pagraph", "hash"):
        parts = partition_graph(graph, 4, hops=2, method=method)
        others[method] = max(len(parts.vertices(part).ids) for part in range(4)) / graph.num_nodes
    of_parts = "the largest part holds {auto:.2f} of its vertices (with METIS"
    assert said_on_readme(of_parts, auto=largest)
    assert said_on_readme("by PaGraph's score {pagraph:.2f}, at random {hash:.2f})", **others)
    of_hits = (
        "10 % of the rows for each serves {hits:.0f} % of the reads instead of {whole:.0f} % "
        "on the whole graph"
    )
    assert said_on_readme(of_hits, hits=hits, whole=whole)


def test_the_figures_of_the_demo_on_readme():
    recorded = ROOT / "benchmarks" / "results" / "demo.json"
    if not recorded.is_file():
        pytest.skip("needs the checkout, not only its tests")
    found = json.loads(recorded.read_text())
    for stage in ("loading", "epoch"):
        medians = [found["loaders"][name][stage]["median"] for name in ("dgl", "pagraph")]
        row = "".join(f"| {median:.2f} " for median in medians)
        assert said_on_readme(row + "| {ratio}x", ratio=f"{found['ratios'][stage]:.2g}")


@pytest.mark.learning
def test_the_parts_on_readme_are_learned(empty_folder):
    *prepare, train = parts_on_readme()
    for line in prepare:
        run_console(line, empty_folder)
    accuracy = re.search(r"pagraph: test accuracy (\S+)% ", run_console(train, empty_folder))
    assert accuracy is not None
    assert said_on_readme("ends at a test accuracy of {percent:.0f} %", percent=float(accuracy[1]))


needs_checkout = pytest.mark.skipif(
    not (ROOT / "Makefile").exists(), reason="needs the checkout, not only its tests"
)


def targets_on(page: str) -> set[str]:
    """The targets of ``make`` that a page names."""
    named = re.findall(
        r"`make ([\w-]+)`|^\$ make ([\w-]+)", (ROOT / page).read_text(), re.MULTILINE
    )
    return {"".join(pair) for pair in named}


@needs_checkout
@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_targets_exist(page):
    targets = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets_on(page) <= targets


@needs_checkout
def test_ci_runs_every_command_of_readme():
    ci = (ROOT / ".ci" / "run").read_text()
    assert ".ci/readme" in ci
    text = (ROOT / "README.md").read_text()
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    # What is run elsewhere, or is none: Python by test_page_runs.
    shown = [block for language, block in fences if language not in ("python", "diff", "text")]
    listed = subprocess.run(
        [ROOT / ".ci" / "readme", "--list"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    lines = "".join(shown).replace("\\\n", " ").splitlines()
    # In a console block what is not behind a $ is output.
    assert [line.removeprefix("$ ") for line in lines if line] == listed
    elsewhere = {"test": "make test-all", "docs": "tests/test_site.py"}
    for target in targets_on("README.md"):
        assert f"make {target}\n" in ci or target in elsewhere
    assert elsewhere["test"] in ci and (ROOT / elsewhere["docs"]).is_file()


def test_the_script_is_short():
    language, text = next(block for block in blocks("README.md") if block[0] == "python")
    assert language == "python"
    assert len([line for line in text.splitlines() if line.strip()]) <= 22


def test_the_tests_that_the_security_page_names_are_there():
    text = (ROOT / "SECURITY.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert len(named) > 5
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
