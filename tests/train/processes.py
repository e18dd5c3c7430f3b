"""Starts processes that train together, and is what they run:
``processes.py SCENARIO FOLDER OUT [settings as JSON]``.

Not a test module: tests import :func:`torchrun` and :func:`several`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

# This is also run as a script, from its own folder.
sys.path.append(str(Path(__file__).parents[1]))

from fresh_processes import HANGING, ended, forked_python, torchrun_environment


def program(arguments):
    """``-m pagraph train``, or this script if the first argument is a scenario's name; and the
    arguments."""
    return [
        *([__file__] if arguments[0] in SCENARIOS else ["-m", "pagraph", "train"]),
        *map(str, arguments),
    ]


def torchrun(count, *arguments, restarts=0):
    """Run a program in ``count`` processes."""
    launcher = [
        forked_python(),
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc_per_node={count}",
        f"--max-restarts={restarts}",
    ]
    command = [*launcher, *program(arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=HANGING, env=environment()
    )


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(count, *arguments):
    """Start a program in ``count`` processes that nobody watches over: each must end by itself."""
    port = free_port()
    started = []
    for rank in range(count):
        env = environment() | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
        }
        env |= {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([forked_python(), *program(arguments)], env=env, **pipes))
    return started


def machines(*commands):
    """Run a program on several machines, as it were: a process of each, with its own arguments."""
    port = free_port()
    started = []
    for rank, arguments in enumerate(commands):
        env = environment() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        env |= {"RANK": str(rank), "WORLD_SIZE": str(len(commands))}
        env |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([forked_python(), *program(arguments)], env=env, **pipes))
    return ended(started)


def several(count, *arguments):
    """Run a program in ``count`` processes that nobody watches over."""
    return ended(start(count, *arguments))


def environment():
    """Of one core a process, and of the package that is tested."""
    import pagraph

    paths = [str(Path(pagraph.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    return {
        **torchrun_environment(),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "PYTHONPATH": path,
        "PYTHONFAULTHANDLER": "1",
    }


def train_all(folder, out, settings):
    """Several runs one after the other; the first process writes what came out."""
    from pagraph.train import TrainOptions
    from pagraph.train.assignment import assign
    from pagraph.train.distributed import joined_world
    from pagraph.train.loop import train

    reports = []
    with joined_world(device="cpu") as world:
        for run in settings:
            run = {**run, "fanout": tuple(run["fanout"])}
            options = TrainOptions(device="cpu", **{k: v for k, v in run.items() if k != "folder"})
            work = assign(folder / run["folder"], options, world=world)
            counter = Counter()
            result = train(
                work.task, options, evaluation=work.evaluation, world=world, reporter=counter
            )
            reports.append(result.to_json() | {"batches": world.gather(counter.batches)})
        if world.is_first:
            out.write_text(json.dumps(reports))


def die(folder, out, settings):
    """The process of rank 1 is killed while they train; the others say what they see."""
    from pagraph.train import Reporter, TrainOptions
    from pagraph.train.assignment import assign
    from pagraph.train.distributed import joined_world, naming_lost_processes
    from pagraph.train.loop import train
    from pagraph.train.meeting import LostProcessError

    class Killer(Reporter):
        def batch(self, epoch, done, total):
            if world.rank == 1 and epoch == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        with joined_world(device="cpu") as world, naming_lost_processes(world):
            options = TrainOptions(device="cpu", batch_size=50, fanout=(3, 3))
            work = assign(folder, options, world=world)
            train(work.task, options, evaluation=work.evaluation, world=world, reporter=Killer())
    except LostProcessError as error:
        sys.stdout.write(str(error))


def killed_once(folder, out, settings):
    """The process of one rank is killed in its second epoch, and not again after the restart."""
    from pagraph.train import Reporter, TrainOptions
    from pagraph.train.assignment import assign
    from pagraph.train.distributed import joined_world
    from pagraph.train.loop import train

    class Killer(Reporter):
        def batch(self, epoch, done, total):
            is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
            if is_first and world.rank == settings["rank"] and epoch == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        def resumed(self, epochs):
            sys.stdout.write(f"rank {world.rank} goes on after {epochs}\n")

    with joined_world(device="cpu", timeout=30) as world:
        options = TrainOptions(device="cpu", batch_size=50, fanout=(3, 3), epochs=3)
        work = assign(folder, options, world=world)
        train(
            work.task,
            options,
            evaluation=work.evaluation,
            world=world,
            reporter=Killer(),
            checkpoint=out,
        )


def outlive(folder, out, settings):
    """A model is freed after its process group; says how many of gloo's threads run before and
    after that."""
    import torch

    from pagraph.train.distributed import data_parallel, joined_world

    def running():
        names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
        return sum("gloo" in name for name in names)

    with joined_world(device="cpu") as world:
        model = data_parallel(torch.nn.Linear(2, 1), world)
        model(torch.ones(1, 2)).sum().backward()
    before = running()
    del model
    sys.stdout.write(f"{before} {running()}")


class Counter:
    """Counts batches."""

    def __init__(self):
        self.batches = 0

    def batch(self, epoch, done, total):
        assert 0 < done <= total
        self.batches += 1

    def epoch(self, record):
        assert record.ranks


SCENARIOS = {
    "train_all": train_all,
    "die": die,
    "killed_once": killed_once,
    "outlive": outlive,
}

if __name__ == "__main__":
    name, folder, out, *more = sys.argv[1:]
    SCENARIOS[name](Path(folder), Path(out), json.loads(more[0]) if more else None)
    from pagraph.train.distributed import end_process

    end_process()
