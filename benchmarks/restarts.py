"""Restarts by torchrun: a process is killed while all train, and the run is to go on and end.

Two processes train on two parts under ``torchrun --max-restarts 3`` with checkpoints; after a random
epoch one of them, drawn at random, gets SIGKILL. A trial recovers if the run goes on from its
checkpoint and ends with exit code 0. Printed are the restarts that it took and the seconds from the
kill until the run went on. ``--agents 2``: an agent for each process, which meet over c10d as those
of two machines do.

Run: ``python benchmarks/restarts.py [--trials 20] [--agents 1]`` (a quarter of a minute a trial).
"""

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from report import write

from pagraph.datasets import sbm, write_graph
from pagraph.partition import partition_graph, write_partition

PROCESSES = 2
TIMEOUT = 30
TRAINING = (
    *("--epochs", "40", "--hidden", "8", "--fanout", "4,4"),
    *("--batch-size", "10", "--device", "cpu", "--timeout", str(TIMEOUT)),
)
RESTARTS = 3
LONGEST = 600


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(agents, parts, checkpoint, log):
    """Start the agents, each with its share of the processes."""
    meeting = ["--standalone"]
    if agents > 1:
        endpoint = f"--rdzv_endpoint=127.0.0.1:{free_port()}"
        meeting = [f"--nnodes={agents}", "--rdzv_backend=c10d", endpoint]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", *meeting),
        *(f"--nproc_per_node={PROCESSES // agents}", f"--max-restarts={RESTARTS}"),
        *("-m", "pagraph", "train", str(parts), *TRAINING, "--checkpoint", str(checkpoint)),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        for _ in range(agents)
    ]


def workers(agents):
    """Ids of the processes that train, by rank."""
    found = {}
    for children in [Path(f"/proc/{agent.pid}/task/{agent.pid}/children") for agent in agents]:
        for pid in map(int, children.read_text().split()):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            ranks = [int(text[5:]) for text in variables if text.startswith(b"RANK=")]
            found |= dict.fromkeys(ranks, pid)
    return found


def trial(number, agents, parts, folder):
    """Kill one process of a run, and see what becomes of it."""
    draw = random.Random(number)
    rank = draw.randrange(PROCESSES)
    epoch = draw.randint(2, 10)
    times = {}

    def read(lines):
        for line in lines:
            shown = re.match(r"epoch +(\d+)/", line)
            if shown and int(shown[1]) >= epoch and "kill" not in times:
                times["kill"] = time.perf_counter()
                os.kill(workers(started)[rank], signal.SIGKILL)
            if line.startswith("resuming after epoch"):
                times.setdefault("on", time.perf_counter())

    log = folder / f"log-{number}"
    with log.open("w") as errors:
        started = launch(agents, parts, folder / f"saved-{number}", errors)
        # The one whose process has rank 0 prints.
        readers = [threading.Thread(target=read, args=(agent.stdout,)) for agent in started]
        for reader in readers:
            reader.start()
        codes = [agent.wait(timeout=LONGEST) for agent in started]
        for reader in readers:
            reader.join()
    # An agent says so for each attempt that failed.
    failures = len(re.findall(r"failed \(exitcode", log.read_text()))
    recovered = not any(codes) and "on" in times
    return {
        "rank": rank,
        "epoch": epoch,
        "recovered": recovered,
        "failed_attempts": failures,
        "seconds": times["on"] - times["kill"] if recovered else None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--agents", type=int, default=1, choices=(1, 2))
    options = parser.parse_args()
    trials = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = sbm(600, num_edges=2400, num_features=8, seed=0)
        write_graph(graph, folder / "graph")
        partition = partition_graph(graph, PROCESSES, hops=2, method="hash")
        write_partition(partition, folder / "parts", source=folder / "graph")
        for number in range(options.trials):
            found = trial(number, options.agents, folder / "parts", folder)
            trials.append(found)
            said = f"went on after {found['seconds']:.1f} s" if found["recovered"] else "failed"
            print(
                f"trial {number}: rank {found['rank']} killed after epoch {found['epoch']}, {said}, "
                f"{found['failed_attempts']} failed attempts",
                flush=True,
            )
    recovered = [found["seconds"] for found in trials if found["recovered"]]
    print(f"{len(recovered)} of {len(trials)} recovered")
    name = "restarts" if options.agents == 1 else "restarts_two_agents"
    write(name, {"torch": torch.__version__, "timeout": TIMEOUT, "trials": trials})


if __name__ == "__main__":
    main()
