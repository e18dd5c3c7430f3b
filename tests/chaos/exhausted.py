"""Verbs that run out of disk, descriptors or memory: one line that says so, and nothing
half-written."""

import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .kills import run_again
from .verbs import VERBS, Run, arguments_of, check_output
from .worker import Case


def trial(case: Case) -> None:
    verb = case.choose("verb", VERBS)
    out = case.folder / "out"
    out.mkdir()
    arguments = arguments_of(verb, case.samples, out)
    disks = ["disk"] if os.geteuid() == 0 else []  # only root may make a small one
    kind = case.choose("exhausted", [*disks, "descriptors", "memory"])
    amount = case.choose("left", range(1, 100))

    def limit() -> None:
        if kind == "descriptors":
            _set(resource.RLIMIT_NOFILE, 3 + amount // 3)
        elif kind == "memory":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            _set(resource.RLIMIT_AS, pages * resource.getpagesize() + int(2 ** (18 + amount / 8)))

    with small_disk(out, amount if kind == "disk" else 0):
        run_once(case, kind, Run(arguments, limit), out)
        if kind == "disk":
            subprocess.run(["mount", "-o", "remount,size=100m", str(out)], check=True)
        run_again(case, arguments, out)


def run_once(case: Case, kind: str, run: Run, out: Path) -> None:
    code = run.wait()
    case.done.append(f"exit code {code}")
    if kind != "memory":  # out of which C++ libraries may abort
        assert code in (0, 1, 2), f"exit code {code}: {run.text[-1500:]}"
        lines = [line for line in run.text.splitlines() if line.startswith("Error: ")]
        assert len(lines) == bool(code), run.text[-1500:]
        assert "Traceback" not in run.text and "PAGRAPH_TRACEBACK" not in run.text, run.text[-1500:]
        full = os.strerror(errno.ENOSPC) in run.text
        assert not full or str(out) in lines[0], f"the file is not named: {lines[0]}"
    for path in out.iterdir():
        if ".partial" not in path.name:
            check_output(path)
        else:
            assert code < 0, f"left behind: {path.name}"


@contextlib.contextmanager
def small_disk(folder: Path, pages: int) -> Iterator[None]:
    """Let a folder be a disk of so many pages; 0: a folder as it is."""
    if pages:
        size = f"size={pages * resource.getpagesize()}"
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "pagraph-chaos", str(folder)], check=True
        )
    try:
        yield
    finally:
        if pages:
            subprocess.run(["umount", str(folder)], check=True)


def _set(kind: int, amount: int) -> None:
    resource.setrlimit(kind, (amount, resource.getrlimit(kind)[1]))
