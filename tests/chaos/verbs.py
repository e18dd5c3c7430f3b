"""The verbs as they are typed, what they write, and how a run of one is started to be killed."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from pagraph import open_partition
from pagraph.cli import main
from pagraph.datasets import open_graph
from pagraph.partition import verify_partition
from pagraph.stats.trace_file import read_trace

_TRAIN = "train {in}/graph --epochs 2 --hidden 4 --fanout 3,3 --batch-size 32"
VERBS = {
    "generate": "generate sbm {out}/g --nodes 3000 --features 8",
    "generate rmat": "generate rmat {out}/g --scale 10",
    "import": "import {in}/edges.csv {out}/g --weight w --undirected",
    "import words": "import {in}/words.csv {out}/g --relabel",
    "import npz": "import {in}/csr.npz {out}/g --weight w",
    "import pyg": "import {in}/graph.pt {out}/g",
    "import mtx": "import {in}/edges.mtx {out}/g --weight w --features {in}/feat.npy --train 0.5 "
    "--test 0.25",
    "import ogb": "import {in}/ogb {out}/g",
    "export": "export {in}/graph {out}/g.pt --form pyg",
    "export ogb": "export {in}/plain {out}/g --form ogb",
    "info": "info {in}/graph --verify --json {out}/a.json",
    "partition": "partition {in}/graph {out}/parts --parts 2 --hops 1 --json {out}/a.json",
    "partition dgl": "partition {in}/graph {out}/g --parts 2 --hops 1 --method hash --format dgl",
    "partition pagraph": "partition {in}/graph {out}/g --parts 2 --hops 1 --method hash --format "
    "pagraph",
    "partition compare": "partition {in}/graph --parts 2 --compare --method hash --method halo "
    "--json {out}/a.json",
    "partition verify": "partition verify {in}/parts",
    "preaggregate": "preaggregate {in}/graph {out}/g --model gcn",
    "profile": "profile {in}/graph --fanout 3,3 --budgets 5%,50% --json {out}/a.json --html "
    "{out}/a.html",
    "profile measure": "profile {in}/graph --fanout 3 --policies degree --measure --trace "
    "{out}/trace.json.gz",
    "reorder": "reorder {in}/graph {out}/g --fanout 3,3 --batch-size 32 --json {out}/a.json",
    "train": _TRAIN + " --json {out}/a.json --trace {out}/trace.json",
    "train links": _TRAIN + " --task links --checkpoint {out}/saved",
    "train pyg": _TRAIN + " --layers pyg --model gcn --cache 50% --json {out}/a.json",
}
"""Each as one line; ``{in}`` is the folder of samples, ``{out}`` an empty one."""
NEW = {"", ".pt"}
"""What the names end in of outputs that must not exist yet, all folders among them."""

BEFORE_MAIN = 99
"""Exit code of a run that was interrupted before the verb began."""


def arguments_of(verb: str, samples: Path, out: Path) -> list[str]:
    return [
        word.replace("{in}", str(samples)).replace("{out}", str(out))
        for word in VERBS[verb].split()
    ]


class Run:
    """A run of a verb in a child of this process, which has imported everything; ``text`` is what
    it printed."""

    def __init__(self, arguments: list[str], before: Callable[[], None] = lambda: None) -> None:
        self._output, output = os.pipe()
        self.pid, self.text = os.fork(), ""
        if self.pid:
            os.close(output)
            return
        code = BEFORE_MAIN
        try:
            os.setsid()
            for number in (1, 2):
                os.dup2(output, number)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            signal.signal(signal.SIGINT, signal.default_int_handler)
            before()
            main(arguments, prog_name="pagraph")
        except SystemExit as error:
            code = error.code
        finally:
            sys.stdout.flush()
            os._exit(code)

    def wait(self, seconds: float = 150) -> int:
        """Exit code of the child, which must end in time."""
        end, code = time.monotonic() + seconds, None
        while code is None and time.monotonic() < end:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if found else time.sleep(0.002)
        if code is None:
            os.killpg(self.pid, signal.SIGABRT)
            os.waitpid(self.pid, 0)
        self.text = os.read(self._output, 2**20).decode(errors="replace")
        os.close(self._output)
        assert code is not None, f"did not end in {seconds} seconds: {self.text[-3000:]}"
        return code


def check_output(path: Path) -> None:
    """What stands at the place of an output is whole."""
    if path.suffix == ".html":
        assert path.read_text().rstrip().endswith("</html>"), path
    elif path.name.startswith("trace"):
        read_trace(path)
    elif path.suffix == ".json":
        json.loads(path.read_text())
    elif path.name == "saved" or path.suffix == ".pt":
        for file in path.iterdir() if path.is_dir() else [path]:
            torch.load(file, weights_only=path.is_dir())
    elif path.name == "parts":
        assert not verify_partition(path).findings, path
        open_partition(path, 0, verify=True)
    elif (path / "manifest.json").is_file():
        open_graph(path, verify=True)
    else:
        assert len([*path.iterdir()]) > 1, path
