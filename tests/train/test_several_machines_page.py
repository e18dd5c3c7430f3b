"""The commands of docs/howto/several-machines.md, on two network namespaces of this machine."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from fresh_processes import ended, forked_python
from processes import environment, program
from test_two_machines import Machines, machines  # noqa: F401  # a fixture

from pagraph.cli import main

pytestmark = pytest.mark.pages

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "several-machines.md"
ADDRESS = "10.91.7.1"


def blocks(kind):
    if not PAGE.exists():
        pytest.skip("needs the checkout, not only its tests")
    found = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [block.replace("\\\n", " ") for block in found]


def copied(lines, source, machine):
    """What `rsync` would leave on a machine."""
    (line,) = [line for line in lines if line.split()[-1].startswith(f"{machine.name}:")]
    *paths, target = shlex.split(line)[2:]
    folder = machine / target.partition(":")[2]
    folder.mkdir(parents=True)
    for path in paths:
        copy = shutil.copytree if (source / path).is_dir() else shutil.copy
        copy(source / path, folder / Path(path).name)
    return folder.parent


def test_two_machines_train_with_the_parts_that_were_copied(
    machines: Machines,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    monkeypatch.chdir(tmp_path)
    (script,) = blocks("python")
    exec(compile(script, "page", "exec"), {})
    for line in blocks("console")[0].splitlines():
        result = CliRunner().invoke(main, shlex.split(line)[2:])
        assert result.exit_code == 0, result.output
    shell = blocks("sh")
    (copies,) = [block.splitlines() for block in shell if block.startswith("rsync")]
    launches = [block for block in shell if "torchrun" in block]
    processes = []
    for number, launch in enumerate(launches):
        comment, command = launch.split("\n", 1)
        folder = copied(copies, tmp_path, tmp_path / comment.split()[-1])
        _, *ends = shlex.split(command.replace("node0", ADDRESS))
        place = ends.index("-m")
        assert ends[place : place + 3] == ["-m", "pagraph", "train"]
        arguments = program(ends[place + 3 :])
        agent = [forked_python(), "-m", "torch.distributed.run", *ends[:place], *arguments]
        env = environment() | {"GLOO_SOCKET_IFNAME": machines.links[number]}
        processes.append(
            subprocess.Popen(
                ["ip", "netns", "exec", machines.names[number], *agent],
                env=env,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    found = ended(processes)
    for out, error, code in found:
        assert code == 0, out + error
    (first, _, _), (second, _, _) = found
    assert "4 processes" in first and "epoch 5/5" in first
    assert second == ""
    for node in ("node0", "node1"):
        assert any((tmp_path / node / "site" / "saved").iterdir())
