"""Verbs that write to a full disk say in one line which file it is."""

import pytest
from runs import run

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
