"""Processes that measure, one for each setting of ``OMP_WAIT_POLICY``.

Threads of OpenMP that wait spin by default, and sleep with "passive". Spinning takes processors
from a loader's threads and processes, sleeping threads take time to wake up: which one is faster
depends on the work and on the machine. So a contender is measured in both settings, and the faster
one counts (``report.counted``). libgomp reads the variable when it is loaded, hence the processes.

Loads nothing that loads libgomp.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

VARIABLE = "OMP_WAIT_POLICY"
SETTINGS = {"default": {}, "passive": {VARIABLE: "passive"}}
"""Setting to what it adds to an environment without the variable."""


def environment(setting, *paths):
    """This process's environment in a setting, with more folders to import from."""
    own = {name: value for name, value in os.environ.items() if name != VARIABLE}
    found = [*map(str, paths), *filter(None, [own.get("PYTHONPATH")])]
    return own | {"PYTHONPATH": os.pathsep.join(found)} | SETTINGS[setting]


class Side:
    """A process in one setting that calls methods of an object of its own.

    Args:
        setting: A name of ``SETTINGS``.
        made_by: What makes the object there, as "module:name".
        paths: More folders to import from, another checkout's say.
        arguments: For the call of ``made_by``, as JSON can hold them.
    """

    def __init__(self, setting, made_by, paths=(), **arguments):
        self._what = f"{made_by}, {setting}"
        self._process = subprocess.Popen(
            [sys.executable, __file__, made_by],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(setting, *paths),
        )
        self._answer_to(arguments)

    def ask(self, method, **arguments):
        """What a method returns, as JSON can hold it."""
        return self._answer_to([method, arguments])

    def close(self):
        """End the process."""
        self._process.communicate()

    def _answer_to(self, request):
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError) as error:
            self._process.kill()
            raise RuntimeError(f"{self._what}: the process ended over {request}") from error


class Sides:
    """The same process in each setting. They answer in turn, so that only one of them works.

    Args:
        made_by, paths, arguments: As of :class:`Side`.
    """

    def __init__(self, made_by, paths=(), **arguments):
        # One after the other: what makes graphs may need much memory for a while.
        self.by_setting = {
            setting: Side(setting, made_by, paths, **arguments) for setting in SETTINGS
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for side in self.by_setting.values():
            side.close()

    def ask(self, method, **arguments):
        """Setting to the method's answer."""
        return {setting: side.ask(method, **arguments) for setting, side in self.by_setting.items()}


def trained(setting, folder, *options):
    """The report of ``pagraph train`` on a folder, in one setting."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place, "report.json")
        command = [sys.executable, "-m", "pagraph", "train", folder, *options, "--json", report]
        subprocess.run([*map(str, command)], check=True, env=environment(setting))
        return json.loads(report.read_text())


def _serve(made_by):
    # Before anything is imported: DGL prints a line on its first import, which is no answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, name = made_by.split(":")
    made = getattr(importlib.import_module(module), name)(**json.loads(sys.stdin.readline()))
    print("null", file=answers)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        print(json.dumps(getattr(made, method)(**arguments)), file=answers)


if __name__ == "__main__":
    _serve(sys.argv[1])
