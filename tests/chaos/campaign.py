"""Starts the processes that run trials, waits for each trial, and keeps what failed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from . import BOUNDS_CHECKED

ROOT = Path(__file__).parents[2]
TRIAL_SECONDS = 180  # a trial that takes longer hangs
_TRIALS_OF_A_WORKER = 400
_MOST_FAILURES = 50
_PYTHON = os.environ.get("CHAOS_PYTHON", sys.executable)
"""Of processes without an environment of their own."""
CLEAN_PYTHON = os.environ.get("CHAOS_CLEAN_PYTHON", sys.executable)
"""Of those with kernels of their own, so it must have imported none of ours."""


@dataclass
class Result:
    """Trials of a part; failures by the number of the case."""

    trials: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def figures(self) -> str:
        return ", ".join(f"{name} {value:,.6g}" for name, value in self.sums.items())


class Campaign:
    """Runs parts one after the other on the same sample files."""

    def __init__(self, work: Path, keep: Path) -> None:
        self.work, self.keep, self.failed = work, keep, 0
        command = [_PYTHON, "-m", "tests.chaos.samples", str(work / "samples")]
        subprocess.run(command, cwd=ROOT, check=True, env=_environment())
        self._worker = Worker(work, keep, "")

    def end(self) -> None:
        """End the last process."""
        self._worker.end()

    def run(
        self, part: str, first: int, seconds: float, trials: int | None, least: int = 0
    ) -> Result:
        """Trials from the case ``first`` on, until the time is over and ``least`` are made, or
        ``trials`` are, or too many failed."""
        result, begin = Result(), time.monotonic()
        while (
            (time.monotonic() - begin < seconds or result.trials < least)
            and result.trials != trials
            and len(result.failures) < _MOST_FAILURES
        ):
            if (
                self._worker.is_over
                or self._worker.trials >= _TRIALS_OF_A_WORKER
                or not self._worker.serves(part)
            ):
                self._worker.end()
                self._worker = Worker(self.work, self.keep, part)
            number = first + result.trials
            answer = self._worker.trial(part, number)
            result.trials += 1
            for name, value in answer.get("figures", {}).items():
                result.sums[name] = (
                    max(result.sums[name], value) if "most" in name else result.sums[name] + value
                )
            if answer["failure"] is not None:
                result.failures[number] = answer["failure"]
        result.seconds = time.monotonic() - begin
        return result


class Worker:
    """A process that runs trials of a part, and of others that need no other environment."""

    def __init__(self, work: Path, keep: Path, part: str) -> None:
        self.keep, self.trials, self.is_over = keep, 0, False
        self._is_checked = part in BOUNDS_CHECKED
        keep.mkdir(exist_ok=True)
        self._log = open(work / "worker.log", "w+b")  # noqa: SIM115  (as long as the process)
        python = CLEAN_PYTHON if self._is_checked else _PYTHON
        self._process = subprocess.Popen(
            [python, "-m", "tests.chaos.worker", str(work), str(keep)],
            cwd=ROOT,
            env=_environment() | (_checking_bounds() if self._is_checked else {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def serves(self, part: str) -> bool:
        """Whether the process is such as a part needs."""
        return self._is_checked == (part in BOUNDS_CHECKED)

    def trial(self, part: str, number: int) -> dict:
        """What became of one trial: ``failure``, a line or None, and ``figures``."""
        self.trials += 1
        self._process.stdin.write(f"{part} {number}\n".encode())
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], TRIAL_SECONDS)
        line = self._process.stdout.readline() if ready else b""
        if line:
            return json.loads(line)
        self.end()
        code = self._process.returncode
        failure = f"ended with {code}" if ready else f"did not end in {TRIAL_SECONDS} seconds"
        self._log.seek(0)
        folder = self.keep / f"{part}-{number}"
        folder.mkdir(exist_ok=True)
        (folder / "failure.txt").write_bytes(failure.encode() + b"\n" + self._log.read()[-20000:])
        return {"failure": failure}

    def end(self) -> None:
        """End the process and all that it started."""
        self.is_over = True
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGABRT)  # with the stacks of all threads
        self._process.wait()


def _environment() -> dict[str, str]:
    more = {
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
    }
    return {**os.environ, **more}


def _checking_bounds() -> dict[str, str]:
    """Kernels of their own, compiled once for all runs: numba does not see that those in its cache
    check nothing."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return {
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": "",
        "XDG_CACHE_HOME": f"{home}/pagraph-bounds-checked",
    }
