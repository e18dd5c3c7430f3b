"""Verbs that write to a full disk say in one line which file it is."""

import importlib.util
import os

import pytest
from runs import run

from pagraph.datasets import citation, write_graph

QUICK = ["--fanout", "2"]
VERBS = {
    "info": [],
    "profile": [*QUICK, "--policies", "degree", "--budgets", "10%"],
    "train": [*QUICK, "--epochs", "1", "--hidden", "2"],
    "partition": ["-k", "2", "--method", "hash", "--compare", "--cache", "0"],
}


@pytest.mark.every
@pytest.mark.parametrize(
    ("verb", "option"),
    [
        *[(verb, "--json") for verb in VERBS],
        *[("profile", option) for option in ("--html", "--plot", "--trace")],
        *[("train", "--trace"), ("partition", "--plot")],
    ],
)
def test_the_file_is_named(blocks, tmp_path, verb, option):
    path = tmp_path / "full.png"
    path.symlink_to("/dev/full")
    more = ["--measure"] if (verb, option) == ("profile", "--trace") else []
    done = run(verb, blocks, *VERBS[verb], *more, option, path)
    # A trace's path is resolved when the loader is made.
    shown = "/dev/full" if option == "--trace" else path
    assert (done.exit_code, done.stderr) == (
        1,
        f"Error: [Errno 28] No space left on device: '{shown}'\n",
    )


FORMS = {
    "dgl": ("dgl", "whole.bin"),
    "pyg": ("torch_geometric", "whole.pt"),
    "ogb": ("numpy", "whole"),
}


@pytest.mark.every
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("typed", [False, True])
def test_an_export_is_whole_or_one_line(blocks, tmp_path, files_of_at_most, form, typed):
    """DGL says a full disk by a stack of C++ calls, and nothing of the last 4 KiB of a file."""
    package, name = FORMS[form]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    if typed and form == "ogb":
        pytest.skip("OGB's tables have one type")
    folder = blocks
    if typed:
        folder = tmp_path / "typed"
        write_graph(citation(100), folder)
    out = tmp_path / "out"
    out.mkdir()
    whole = out / name
    assert run("export", folder, whole, "--form", form).exit_code == 0
    files = [whole] if whole.is_file() else [path for path in whole.rglob("*") if path.is_file()]
    size = max(path.stat().st_size for path in files)
    for lost in (1, 100, 4095, 5000, size // 2, size - 1):
        with files_of_at_most(max(size - lost, 1)):
            done = run("export", folder, out / f"again{whole.suffix}", "--form", form)
        assert (done.exit_code, done.stdout) == (1, "")
        assert (
            done.stderr.startswith("Error: [Errno 27] File too large: '")
            and str(out) in done.stderr
        )
        assert done.stderr.count("\n") == 1
        assert os.listdir(out) == [name]
