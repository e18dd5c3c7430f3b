"""Machines for tests of DistDGL: namespaces of this one, each with its own network address and
shared memory."""

import contextlib
import subprocess

from fresh_processes import HANGING

_PREPARE = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo ready && exec sleep 120"


class Machine:
    """A namespace that lasts as long as its first process."""

    def __init__(self) -> None:
        command = ["unshare", "--net", "--mount", "--ipc", "sh", "-c", _PREPARE]
        self.holder = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if self.holder.stdout.readline() != "ready\n":
            raise OSError(self.holder.communicate()[1])

    def start(self, *command, **options):
        """A process on this machine."""
        enter = ["nsenter", "--target", str(self.holder.pid), "--net", "--mount", "--ipc"]
        return subprocess.Popen([*enter, *command], **options)


@contextlib.contextmanager
def two_machines():
    """Two machines with a cable between their interfaces ``cable0`` (10.77.0.1) and ``cable1``
    (10.77.0.2).

    Raises:
        OSError: This system or this user may not make any.
    """
    machines = []
    try:
        for _ in range(2):
            machines.append(Machine())
        ends = [
            ["name", f"cable{i}", "netns", str(machine.holder.pid)]
            for i, machine in enumerate(machines)
        ]
        _run("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for i, machine in enumerate(machines):
            for command in (
                ["addr", "add", f"10.77.0.{i + 1}/24", "dev", f"cable{i}"],
                ["link", "set", f"cable{i}", "up"],
            ):
                if machine.start("ip", *command).wait(HANGING):
                    raise OSError(f"ip {' '.join(command)}")
        yield machines
    finally:
        for machine in machines:
            machine.holder.kill()
            machine.holder.communicate()


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING)
    if done.returncode:
        raise OSError(done.stderr)
