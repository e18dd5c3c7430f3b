"""The commands and scripts of README.md and of pages of docs/ run as they stand, from top to bottom of the page."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pagraph.cli import main

ROOT = Path(__file__).resolve().parent.parent
DOCS = ("formats", "gpu", "pyg", "train", "profile", "policies", "partition")
NAMES = ("README.md", *(f"docs/{name}.md" for name in DOCS))
PAGES = [page for page in NAMES if (ROOT / page).exists()]


def blocks(page: str) -> list[tuple[str, str]]:
    """The fenced ``console`` and ``python`` blocks of a page, in order."""
    return re.findall(r"^```(console|python)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_pagraph(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, f"{arguments}\n{result.output}"


def run_console(line: str, folder: Path) -> None:
    """Run one shown command; those that build or install are checked as far as a test can."""
    program, *arguments = shlex.split(line)
    if program == "pagraph":
        run_pagraph(arguments)
    elif program == "python":
        run([sys.executable, *arguments], folder)
    elif program == "torchrun":
        run([sys.executable, "-m", "torch.distributed.run", *arguments], folder)
    elif program == "make":
        if (ROOT / "Makefile").exists() and shutil.which("make"):
            run(["make", "--dry-run", "--directory", str(ROOT), *arguments], folder)
    else:
        assert line in ('pip install "pagraph[dgl]"', 'pip install "pagraph[pyg]"'), f"no way to test {line!r}"


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """The current folder: empty but for the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.slow
def test_page_runs(page, empty_folder):
    if page == "docs/train.md":  # it speaks of a graph that the reader has
        run_pagraph(["generate", "sbm", "blocks", "--nodes", "2000"])
    found = blocks(page)
    assert found
    for language, text in found:
        if language == "python":
            run([sys.executable, "-c", text], empty_folder)
        else:
            for line in text.splitlines():
                if line.startswith("$ "):
                    run_console(line.removeprefix("$ "), empty_folder)


def test_links_lead_somewhere():
    if not (ROOT / "docs").is_dir():
        pytest.skip("needs the checkout, not only its tests")
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.skipif(not (ROOT / "Makefile").exists(), reason="needs the checkout, not only its tests")
@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_targets_exist(page):
    targets = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([\w-]+)`|^\$ make ([\w-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert {"".join(pair) for pair in named} <= targets


def test_the_script_is_short():
    language, text = next(block for block in blocks("README.md") if block[0] == "python")
    assert language == "python"
    assert len([line for line in text.splitlines() if line.strip()]) <= 22
