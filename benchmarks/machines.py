"""Several machines on one host, for DistDGL: each a namespace with an address and shared memory of
its own, with a link between them.

    python benchmarks/machines.py PARTS.json SCRIPT.py [ARGUMENT ...] [--trainers 1] [--samplers 0]
        [--rate MBIT] [--delay MS] [--python PROGRAM]

runs DGL's servers, and SCRIPT as the trainers, one machine for each part of PARTS.json (that
``pagraph partition --format dgl`` or DGL wrote). SCRIPT is run as ``launch.py`` of DGL runs it: the
environment says who it is, and ``IP_CONFIG`` is the file for ``dgl.distributed.initialize``. The
exit code is 0 if all trainers' are. Needs Linux, iproute2 and the right to make namespaces (root,
or user namespaces); exits with 77 and a line where one is missing. The last line of the output is a
JSON object: the bytes that each machine sent, and what limits the link.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MISSING = 77
"""Exit code where this host cannot have such machines."""

_INSIDE = "PAGRAPH_MACHINES"
_NETWORK = "10.77.0"
_PORT = 30050


def reason() -> str | None:
    """Why this host cannot have such machines; None where it can."""
    for tool in ("ip", "tc", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            return f"{tool} is missing: install iproute2 and util-linux"
    # Root makes them in a user namespace as well, so that all of them end with this process.
    tried = subprocess.run(
        ["unshare", "-Urnm", "ip", "link", "add", "one0", "type", "veth", "peer", "name", "two0"],
        capture_output=True,
        text=True,
    )
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


class Machine:
    """A namespace of the network and of mounts, kept by a process that sleeps."""

    def __init__(self, number: int) -> None:
        self.address = f"{_NETWORK}.{number + 1}"
        self.card = f"m{number}"
        self._keeper = subprocess.Popen(["unshare", "-nm", "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self.pid}/ns/net") == own:
            time.sleep(0.01)
        # DGL names shared memory by the graph, so that two machines would have each other's.
        self.run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
        self.run("ip", "link", "set", "lo", "up")

    @property
    def pid(self) -> int:
        """Of the process that keeps the namespace."""
        return self._keeper.pid

    def command(self, *words: str) -> list[str]:
        """A command on this machine."""
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "--", *words]

    def run(self, *words: str) -> str:
        """Run a command to its end; its output."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def connect(self, rate: float | None, delay: float) -> str:
        """Give the card its address and its limits; in words, what limits it."""
        self.run("ip", "address", "add", f"{self.address}/24", "dev", self.card)
        self.run("ip", "link", "set", self.card, "up")
        if rate is None:
            return "none"
        add = ("tc", "qdisc", "add", "dev", self.card, "root")
        try:
            self.run(*add, "netem", "delay", f"{delay}ms", "rate", f"{rate}mbit")
            return f"netem: {rate:g} Mbit/s and {delay:g} ms each way"
        except RuntimeError:  # a kernel without netem, which alone can delay
            self.run(*add, "tbf", "rate", f"{rate}mbit", "burst", "128kb", "latency", "50ms")
            return f"tbf: {rate:g} Mbit/s each way, no delay (this kernel has no netem)"

    def sent(self) -> int:
        """Bytes that it has sent to the others."""
        (link,) = json.loads(self.run("ip", "-s", "-j", "link", "show", self.card))
        return int(link["stats64"]["tx"]["bytes"])

    def end(self) -> None:
        """End the namespace."""
        self._keeper.kill()
        self._keeper.wait()


def build(count: int, rate: float | None, delay: float) -> tuple[list[Machine], str]:
    """Machines on one bridge, and what limits their links, in words."""
    subprocess.run(["ip", "link", "add", "bridge0", "type", "bridge"], check=True)
    subprocess.run(["ip", "link", "set", "bridge0", "up"], check=True)
    machines = []
    limit = "none"
    for number in range(count):
        machine = Machine(number)
        near = f"b{number}"
        subprocess.run(
            ["ip", "link", "add", machine.card, "type", "veth", "peer", "name", near], check=True
        )
        subprocess.run(["ip", "link", "set", machine.card, "netns", str(machine.pid)], check=True)
        subprocess.run(["ip", "link", "set", near, "master", "bridge0", "up"], check=True)
        limit = machine.connect(rate, delay)
        machines.append(machine)
    return machines, limit


def run(options: argparse.Namespace) -> int:
    """Start servers and trainers, and wait for these; the highest of their exit codes."""
    parts = Path(options.parts)
    count = int(json.loads(parts.read_text())["num_parts"])
    machines, limit = build(count, options.rate, options.delay)
    folder = Path(tempfile.mkdtemp())
    addresses = folder / "ip_config.txt"
    addresses.write_text("".join(f"{m.address} {_PORT}\n" for m in machines))
    clients = count * options.trainers * (1 + options.samplers)
    common = {
        "DGL_DIST_MODE": "distributed",
        "DGL_IP_CONFIG": str(addresses),
        "IP_CONFIG": str(addresses),
        "DGL_NUM_SERVER": "1",
        "DGL_NUM_CLIENT": str(clients),
        "DGL_NUM_SAMPLER": str(options.samplers),
        "DGL_CONF_PATH": str(parts),
        "DGL_GRAPH_FORMAT": "csc",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": machines[0].address,
        "MASTER_PORT": "29500",
        "WORLD_SIZE": str(count * options.trainers),
    }
    script = [options.python, options.script, *options.arguments]
    servers = []
    trainers = []
    for number, machine in enumerate(machines):
        own = {"DGL_ROLE": "server", "DGL_SERVER_ID": str(number)}
        servers.append(
            subprocess.Popen(
                machine.command(*script),
                env=os.environ | common | own,
                stdout=subprocess.DEVNULL,
                stderr=None,
            )
        )
    for number, machine in enumerate(machines):
        for local in range(options.trainers):
            own = {
                "DGL_ROLE": "client",
                "RANK": str(number * options.trainers + local),
                "LOCAL_RANK": str(local),
                "GLOO_SOCKET_IFNAME": machine.card,
            }
            trainers.append(
                subprocess.Popen(machine.command(*script), env=os.environ | common | own)
            )
    code = _wait(trainers, servers, options.timeout)
    sent = [machine.sent() for machine in machines]
    for process in [*trainers, *servers]:
        if process.poll() is None:
            process.kill()
        process.wait()
    for machine in machines:
        machine.end()
    shutil.rmtree(folder)
    sys.stdout.write(json.dumps({"sent": sent, "link": limit}) + "\n")
    return code


def _wait(
    trainers: list[subprocess.Popen[Any]], servers: list[subprocess.Popen[Any]], seconds: float
) -> int:
    """Wait for all trainers, or until a process fails: the others would wait for it for ever."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        codes = [process.poll() for process in trainers]
        failed = [code for code in [*codes, *(server.poll() for server in servers)] if code]
        if failed:
            return max(abs(code) for code in failed)
        if None not in codes:
            return 0
        time.sleep(0.1)
    sys.stderr.write(f"trainers did not end in {seconds:g} s\n")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("parts", help="the JSON file of the parts")
    parser.add_argument("script", help="the trainers' script")
    parser.add_argument("arguments", nargs="*", help="its arguments, after --")
    parser.add_argument("--trainers", type=int, default=1, help="on each machine")
    parser.add_argument("--samplers", type=int, default=0, help="of each trainer")
    parser.add_argument("--rate", type=float, help="Mbit/s of each link")
    parser.add_argument("--delay", type=float, default=0.0, help="ms of each link")
    parser.add_argument("--python", default=sys.executable, help="what runs the script")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds")
    options = parser.parse_args()
    if _INSIDE in os.environ:
        return run(options)
    missing = reason()
    if missing is not None:
        sys.stderr.write(missing + "\n")
        return MISSING
    # As the first process of a namespace: whatever it started ends with it.
    command = ["unshare", "-Urnmpf", "--mount-proc", "--kill-child", sys.executable, *sys.argv]
    process = subprocess.Popen(command, env=os.environ | {_INSIDE: "1"})
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
