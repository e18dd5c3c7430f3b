"""Commands under a limit of memory: a control group of version 1 or 2, made for one command and
removed after it.

The limit counts everything that the command has: its own memory and the pages of files that it
brought into the page cache. A command that needs more is killed by the system, which
:class:`Outcome` says. Making a group takes the rights to write into the mounted hierarchy, usually
those of root; without them :func:`find_hierarchy` says why not.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
ENTER = 'echo $$ > "$0" && exec "$@"'


class NoGroupError(RuntimeError):
    """Says why this machine's memory cannot be limited from here."""


@dataclass(frozen=True)
class Hierarchy:
    """Where groups are made, and the names of a group's files."""

    root: Path
    version: int
    limit: str
    peak: str

    def kills(self, group):
        """How many processes of a group the system killed for memory."""
        file = "memory.oom_control" if self.version == 1 else "memory.events"
        for line in (group / file).read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0


def find_hierarchy(root=CGROUPS):
    """The hierarchy in which groups can be made; NoGroupError says why there is none."""
    reasons = []
    for hierarchy in (
        Hierarchy(root, 2, "memory.max", "memory.peak"),
        Hierarchy(root / "unified", 2, "memory.max", "memory.peak"),
        Hierarchy(root / "memory", 1, "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    ):
        try:
            with new_group(hierarchy, 2**30):
                return hierarchy
        except OSError as error:
            reasons.append(
                f"version {hierarchy.version} in {hierarchy.root}: {error.strerror or error}"
            )
    raise NoGroupError("no control group of memory can be made here: " + "; ".join(reasons))


@contextlib.contextmanager
def new_group(hierarchy, limit):
    """A group with a limit in bytes, removed at the end."""
    if hierarchy.version == 2:
        controllers = (hierarchy.root / "cgroup.subtree_control").read_text().split()
        if "memory" not in controllers:
            (hierarchy.root / "cgroup.subtree_control").write_text("+memory")
    group = Path(tempfile.mkdtemp(prefix="pagraph-", dir=hierarchy.root))
    try:
        (group / hierarchy.limit).write_text(str(limit))
        if hierarchy.version == 2 and (group / "memory.swap.max").exists():
            (group / "memory.swap.max").write_text("0")
        yield group
    finally:
        _remove(group)


def _remove(group):
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:  # a process that was killed has not left yet
            time.sleep(0.1)
    group.rmdir()


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        code: Its exit status; negative: the signal that ended it.
        seconds: From its start to its end.
        timed_out: Whether it was ended for taking longer than it may.
        out_of_memory: Whether the system killed it, or a process of its, at the limit.
        peak: Most bytes that its group had, page cache included; None without a group.
        resident: Most bytes that one of its processes had in memory.
        cpu_seconds: Of all its processes, in user code and in the system's.
        read_bytes, written_bytes: From and to disks.
        output: What it wrote to its standard output, by line.
        errors: The end of what it wrote to its standard error.
    """

    code: int
    seconds: float
    timed_out: bool
    out_of_memory: bool
    peak: int | None
    resident: int
    cpu_seconds: tuple[float, float]
    read_bytes: int
    written_bytes: int
    output: list[str]
    errors: str


def run(command, *, limit=None, hierarchy=None, timeout=None, env=None, cwd=None):
    """Run a command to its end, under a limit of memory if one is given.

    Args:
        command: The program and its arguments.
        limit: Bytes of memory; None for no limit.
        hierarchy: Where to make the group.
        timeout: Seconds after which it is ended.
        env: Environment variables, added to this process's.
        cwd: The folder to run it in.
    """
    command = [os.fspath(part) for part in command]
    environment = os.environ | (env or {})
    if limit is None:
        return _run(command, None, hierarchy, timeout, environment, cwd)
    with new_group(hierarchy, limit) as group:
        entered = ["sh", "-c", ENTER, str(group / "cgroup.procs"), *command]
        return _run(entered, group, hierarchy, timeout, environment, cwd)


def _run(command, group, hierarchy, timeout, environment, cwd):
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, env=environment, cwd=cwd, start_new_session=True
        )
        late = threading.Event()

        def end():
            late.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(timeout, end) if timeout else None
        if timer:
            timer.start()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        if timer:
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind would keep the group
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read())
        return Outcome(
            code=process.returncode,
            seconds=seconds,
            timed_out=late.is_set(),
            out_of_memory=group is not None and hierarchy.kills(group) > 0,
            peak=int((group / hierarchy.peak).read_text()) if group is not None else None,
            resident=used.ru_maxrss * 1024,
            cpu_seconds=(used.ru_utime, used.ru_stime),
            read_bytes=used.ru_inblock * 512,
            written_bytes=used.ru_oublock * 512,
            output=texts[0].splitlines(),
            errors=texts[1][-4000:],
        )
