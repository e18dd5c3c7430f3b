"""The process of trials: reads their parts and numbers, answers each with a line of JSON."""

from __future__ import annotations

import contextlib
import importlib
import json
import linecache
import os
import random
import resource
import shutil
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MEMORY = 24 * 2**30  # of addresses, of which imports and threads take a good part
_ARGUMENT_ERRORS = (ValueError, KeyError, IndexError, OverflowError, OSError)


@dataclass
class Case:
    """One trial: its number and random numbers, a folder that is kept if it fails, the sample files, and what
    was done."""

    number: int
    rng: random.Random
    folder: Path
    samples: Path
    done: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def choose(self, what: str, choices: Any) -> Any:
        """One of the choices, told in the report."""
        found = self.rng.choice(list(choices))
        self.done.append(f"{what}: {found!r}"[:500])
        return found

    @contextlib.contextmanager
    def refusing(self, *homes: str, quoted: str = "") -> Iterator[None]:
        """A block that works or says clearly what is wrong, perhaps in the words of the packages
        ``homes``.

        Python's own TypeError will do for an object of another kind. ``quoted`` may be in the
        message, however long.
        """
        try:
            yield
        except Exception as error:
            if why := unclear(error, homes, quoted):
                raise AssertionError(f"{why}: {type(error).__name__}: {error}"[:1000]) from error
            self.done.append(f"refused: {error!r}"[:500])


def unclear(error: Exception, homes: tuple[str, ...], quoted: str) -> str | None:
    """Why an error is none that a user should see, or None: it has to be raised on purpose, in one
    line, with words."""
    from pagraph.errors import PaGraphError

    text = str(error).replace(quoted, "") or "nothing else" if quoted else str(error)
    if not text.strip() or (
        "\n" in text.strip() and "tensor(" not in text and "array(" not in text
    ):
        return "no message of one line"
    if isinstance(error, OSError) and error.errno is not None:
        return None if error.filename is not None else "an error of the system without a file"
    if isinstance(error, (PaGraphError, TypeError, AttributeError)):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    files = [type(error).__module__, *(frame.filename for frame in frames)]
    if any(home in file for home in homes for file in files):
        return None
    if not isinstance(error, _ARGUMENT_ERRORS):
        return "an unexpected kind of error"
    last = frames[-1]
    if (
        "/pagraph/" not in last.filename
        and "/partition/" not in last.filename
        and "/datasets/" not in last.filename
    ):
        return "raised by another package"
    line = linecache.getline(last.filename, last.lineno or 0).strip()
    return (
        None
        if line.startswith(("raise ", "operator.index"))
        else f"not raised on purpose, in {line!r}"
    )


def run_trial(module: Any, part: str, number: int, samples: Path, keep: Path) -> dict[str, Any]:
    """Run one trial; its folder stays if it fails."""
    folder = keep / f"{part}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)  # a word may be taken for a path
    case = Case(number, random.Random(f"{part} {number}"), folder, samples)
    failure = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module.trial(case)
    except BaseException as error:
        failure = (
            f"{'; '.join(case.done)}: {' '.join(traceback.format_exception_only(error)).strip()}"[
                -1500:
            ]
        )
        (folder / "failure.txt").write_text("\n".join([*case.done, traceback.format_exc()]))
    os.chdir(keep)
    if failure is None:
        shutil.rmtree(folder)
    return {"failure": failure, "figures": case.figures}


def main(work: str, keep: str) -> None:
    """Answer until the input ends."""
    kept, samples = Path(keep).absolute(), Path(work, "samples").absolute()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        part, number = line.split()
        module = importlib.import_module(f".{part}", __package__)
        answer = run_trial(module, part, int(number), samples, kept)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
