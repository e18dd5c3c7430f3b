"""Verbs that are killed at any moment: what they write is whole, or as before, and the next run
leaves nothing else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from .verbs import BEFORE_MAIN, NEW, VERBS, Run, arguments_of, check_output
from .worker import Case

_seconds: dict[str, float] = {}  # that a whole run of a verb takes


def trial(case: Case) -> None:
    verb = case.choose("verb", VERBS)
    out = case.folder / "out"
    out.mkdir()
    arguments = arguments_of(verb, case.samples, out)
    if verb not in _seconds:
        begin = time.monotonic()
        first = Run(arguments)
        assert first.wait() == 0, f"the verb itself fails: {first.text}"
        _seconds[verb] = time.monotonic() - begin
        outputs = check_whole(out)
        for path in outputs:  # folders must not exist yet, files are written anew
            subprocess.run(["rm", "-rf", str(path)], check=True)
    files = [
        Path(word) for word in arguments if word.startswith(str(out)) and "." in Path(word).name
    ]
    old = {path for path in files if path.suffix not in NEW}
    old = {path for path in sorted(old) if case.rng.random() < 0.5}
    for path in old:
        path.write_text("old")
    kind = case.choose("signal", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    if case.rng.random() < 0.1:
        code, text = kill_process(case, arguments, kind)
    else:
        run = Run(arguments)
        time.sleep(case.rng.random() * 1.1 * _seconds[verb])
        os.kill(run.pid, kind)
        code, text = run.wait(60), run.text
    case.done.append(f"exit code {code}")
    check_killed(code, kind, text)
    for path in out.iterdir():
        if ".partial" in path.name:
            assert kind != signal.SIGINT, f"left behind: {path.name}"
        elif not (path in old and path.read_text(errors="replace") == "old"):
            check_output(path)
    run_again(case, arguments, out)


def kill_process(case: Case, arguments: list[str], kind: int) -> tuple[int, str]:
    """A real one, imports and all."""
    log = case.folder / "log"
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "pagraph", *arguments], stdout=file, stderr=file
        )
    # Ctrl-C before that ends Python, not the verb.
    while process.poll() is None and not running(process.pid):
        time.sleep(0.02)
    time.sleep(case.rng.random() * 3)
    process.send_signal(kind)
    return process.wait(60), log.read_text()


def running(pid: int) -> bool:
    """Whether a process has imported torch."""
    try:
        return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True


def check_killed(code: int, kind: int, text: str) -> None:
    assert "Traceback" not in text, text[-1500:]
    if kind == signal.SIGINT and code in (BEFORE_MAIN, -kind) and not text:
        return
    if kind == signal.SIGINT:
        assert code in (0, 130), f"exit code {code}: {text[-500:]}"
        assert (code == 130) == text.endswith("Error: interrupted\n"), text[-500:]
    else:
        assert code in (0, -kind), f"exit code {code}: {text[-500:]}"


def run_again(case: Case, arguments: list[str], out: Path) -> None:
    """The next run goes through, and removes what the killed one left."""
    for path in out.iterdir():
        if (path.is_dir() or path.suffix in NEW) and ".partial" not in path.name:
            subprocess.run(["rm", "-rf", str(path)], check=True)
    for left in out.glob(".*.partial"):
        os.utime(left, (0, 0))  # an empty one may be new, and another's
    again = Run(arguments)
    assert again.wait() == 0, again.text
    check_whole(out)


def check_whole(out: Path) -> list[Path]:
    outputs = [*out.iterdir()]
    for path in outputs:
        assert ".partial" not in path.name, f"left behind: {path.name}"
        check_output(path)
    return outputs
