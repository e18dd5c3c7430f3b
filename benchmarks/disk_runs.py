"""What ``larger_than_memory.py`` measures, one step at a time: graphs made once, then a process for
each run.

A :class:`Bench` runs steps and keeps what they gave in ``runs.json`` beside the graphs, so that a
run that was broken off goes on where it was.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from disk_rate import DiskWatch, random_reads
from memory_group import run

HERE = Path(__file__).parent
CHECKOUT = HERE.parent
OVER = 1.25
"""A group's limit over the budget that the loader is given: what it promises never to exceed."""
LEAST = 256 << 20
"""Bytes that every loader is given at the least."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run.

    Attributes:
        scale: Of the graph whose rows are read; ``width`` float32 columns.
        width: See ``scale``.
        batches: An epoch's batches there.
        structure_scale: Of the graph that is only sampled, in 20 batches.
        structure_limit: Bytes for that, the interpreter included; None: half of its structure
            beside the interpreter.
        billion_scale: Of the graph that all verbs take.
        billion_memory: Bytes for that.
        all_in: Whether a loader's memory, an eighth of the features, is to hold the interpreter
            too.
        rounds: Runs of each contender; of those that take over ``slow`` seconds one.
        seconds: After which a run is broken off.
    """

    scale: int = 19
    width: int = 256
    batches: int = 20
    structure_scale: int = 21
    structure_limit: int | None = None
    billion_scale: int = 16
    billion_memory: int = 512 << 20
    fanout: str = "10,5"
    batch_size: int = 200
    all_in: bool = False
    rounds: int = 3
    slow: float = 10
    seconds: float = 30


QUICK = Settings()
LARGE = Settings(
    scale=22,
    batches=40,
    structure_scale=25,
    structure_limit=1_200_000_000,
    billion_scale=26,
    billion_memory=4 << 30,
    batch_size=1000,
    slow=100,
    seconds=300,
)


@dataclass(frozen=True)
class Contender:
    """A loader in a process of its own.

    Attributes:
        name: In tables.
        kind: The worker's name for it.
        python: The interpreter.
        paths: ``PYTHONPATH``.
        loader: Arguments for pagraph's loader; "memory" is filled in.
    """

    name: str
    kind: str = "pagraph"
    python: str = sys.executable
    paths: tuple[str, ...] = (str(CHECKOUT),)
    loader: dict = field(default_factory=dict)

    @property
    def script(self):
        """The worker."""
        return HERE / (
            "graphbolt_worker.py" if self.kind == "graphbolt" else "larger_than_memory_worker.py"
        )


class OutOfTimeError(Exception):
    """Ends a run whose time is over; the next one goes on."""


class Bench:
    """Runs steps that have not been run.

    Args:
        folder: Where graphs and raw results are kept.
        settings: Sizes.
        hierarchy: Where groups of memory are made; None: runs are not limited.
        minutes: After which no further step begins.
    """

    def __init__(self, folder, settings, hierarchy, minutes=None):
        self.folder, self.settings, self.hierarchy = folder, settings, hierarchy
        self._end = time.monotonic() + 60 * minutes if minutes else None
        self._file = folder / "runs.json"
        self.runs = json.loads(self._file.read_text()) if self._file.exists() else {}

    def step(self, name, action, *arguments, **settings):
        """What a step gave, now or in an earlier run."""
        if name not in self.runs:
            if self._end is not None and time.monotonic() > self._end:
                raise OutOfTimeError
            print(f"{name} ...", flush=True)
            self.runs[name] = action(*arguments, **settings)
            temporary = self._file.with_suffix(".tmp")
            temporary.write_text(json.dumps(self.runs, indent=1))
            os.replace(temporary, self._file)
        return self.runs[name]

    def graph(self, scale, width=0):
        """The folder of an RMAT graph, generated if it is not there."""
        folder = self.folder / f"rmat-{scale}-{width}"
        if not folder.exists():
            print(f"generating {folder.name} ...", flush=True)
            options = ["--scale", str(scale), "--features", str(width)]
            command = [sys.executable, "-m", "pagraph", "generate", "rmat", folder, *options]
            subprocess.run(
                command,
                check=True,
                env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
                stdout=subprocess.DEVNULL,
            )
        return folder

    def int64(self, folder):
        """Widen a folder's structure for PyG, in pieces."""
        target = folder.with_name(folder.name + "-int64")
        if not target.exists():
            target.mkdir()
            for name in ("indices", "indptr"):
                array = np.load(folder / f"edge-{name}.npy", mmap_mode="r")
                wide = np.lib.format.open_memmap(
                    target / f"{name}.npy", "w+", np.int64, array.shape
                )
                for begin in range(0, len(array), 1 << 22):
                    wide[begin : begin + (1 << 22)] = array[begin : begin + (1 << 22)]
                wide.flush()

    def seeds(self, folder, batches):
        """A file of different seeds, in the order of ``folder``'s graph if it was written in
        another order."""
        wanted = batches * self.settings.batch_size
        file = folder.with_name(f"{folder.name}-seeds-{wanted}.npy")
        if not file.exists():
            count = len(np.load(folder / "edge-indptr.npy", mmap_mode="r")) - 1
            seeds = np.random.default_rng(0).permutation(count)[:wanted]
            original = folder / "node-original_id.npy"
            if original.exists():
                place = np.empty(count, np.int64)
                place[np.load(original)] = np.arange(count)
                seeds = place[seeds]
            np.save(file, seeds)
        return file

    def warm(self, contender):
        """The small graph that loads a contender's kernels."""
        folder = self.graph(14, self.settings.width)
        if contender.kind == "pyg":
            self.int64(folder)
        return folder

    def work(self, contender, folder, *arguments, limit=None):
        """Run a worker; how it ended, and what it told."""
        settings = self.settings
        command = [
            contender.python,
            contender.script,
            contender.kind,
            folder,
            "--fanout",
            settings.fanout,
        ]
        command += ["--batch-size", settings.batch_size, "--seconds", settings.seconds, *arguments]
        # Without a backend DGL may print where the events are told.
        paths = {"PYTHONPATH": os.pathsep.join(contender.paths), "DGLBACKEND": "pytorch"}
        return run(
            [str(part) for part in command],
            limit=limit,
            hierarchy=self.hierarchy,
            timeout=1.5 * settings.seconds + 60,
            env=paths,
        )

    def base(self, contender):
        """Memory of a contender's interpreter, its libraries and kernels, before it opens the
        graph."""
        done = self.work(
            contender, self.warm(contender), "--warm", self.warm(contender), "--features"
        )
        return told(done)["base"]

    def measure(self, contender, folder, batches, *, features, memory=None, limit=None, epochs=1):
        """One run in a group of its own, cold, with the disk watched and its own rate measured
        after it.

        Args:
            contender: What runs.
            folder: Of the graph.
            batches: An epoch's.
            features: Whether rows are read.
            memory: Bytes beside the interpreter, or of all with ``all_in``: the limit is 5/4 of
                both.
            limit: Or the limit of all.
            epochs: Epochs in one process.
        """
        base = self.step(f"base/{contender.name}", self.base, contender)
        if contender.kind == "pyg":
            self.int64(folder)
        # An eighth of a small graph has no room for the batches.
        memory = (
            int(limit / OVER)
            if limit
            else max(LEAST, memory + (0 if self.settings.all_in else base))
        )
        limit = int(OVER * memory)
        loader = {
            name: memory if value == "fill in" else value
            for name, value in contender.loader.items()
        }
        arguments = [
            "--warm",
            self.warm(contender),
            "--seeds",
            self.seeds(folder, batches),
            "--epochs",
            epochs,
        ]
        arguments += ["--features"] * features + ["--loader", json.dumps(loader)]
        with DiskWatch(folder) as watch:
            done = self.work(contender, folder, *arguments, limit=limit if self.hierarchy else None)
        result = told(done) | {
            "memory": memory,
            "limit": limit if self.hierarchy else None,
            "loader": loader,
        }
        result |= {
            "peak": done.peak,
            "out_of_memory": done.out_of_memory,
            "cpu_seconds": done.cpu_seconds,
        }
        if done.code and not (done.out_of_memory or done.timed_out):
            raise RuntimeError(f"{contender.name} failed:\n{done.errors}")
        end = result.get("ends", [result.get("begin", 0) + done.seconds])[0]
        if "begin" in result:
            file = folder / ("node-feat.npy" if features else "edge-indices.npy")
            result["disk"] = watch.total(result["begin"], end)
            result["timeline"] = watch.timeline(result["begin"], end)
            size = min(1 << 20, file.stat().st_size // 200, result["disk"]["request_bytes"])
            result["own_rate"] = random_reads(file, max(512, size))
        result["seconds"] = epoch_seconds(result, batches, done.seconds)
        return result


def told(done):
    """What a worker told: of the first epoch, and of those after it their seconds."""
    result = {"batches": 0, "epochs": [], "ends": []}
    for event in map(json.loads, filter(lambda line: line.startswith("{"), done.output)):
        kind = event.pop("event")
        if kind == "ready":
            result["base"] = event["base"]
        elif kind == "begin":
            result["begin"] = event["at"]
        elif kind == "batch" and event.pop("epoch") == 0:
            result.setdefault("first_batch", event["seconds"])
            result |= event | {"so_far": event["seconds"]}
        elif kind == "epoch":
            result["epochs"].append(event["seconds"])
            result["ends"].append(event["at"])
        elif kind == "told":
            result.setdefault("told", {})[event["name"]] = event["value"]
        elif kind == "needed":
            result.setdefault("needed", []).append(event)
    if not result["ends"]:
        del result["ends"]
    if "base" not in result and "needed" not in result:
        raise RuntimeError(f"the worker failed before it had begun:\n{done.errors}")
    return result


def epoch_seconds(result, batches, wall):
    """Seconds of the first epoch; of one broken off as it went so far; where no batch came, at
    least those."""
    if result["epochs"]:
        return result["epochs"][0]
    return result["so_far"] * batches / result["batches"] if result["batches"] else wall
