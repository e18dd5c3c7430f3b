"""Imports torch, DGL and PyG once, then forks a Python process for each client that asks for one.

``python fork_server.py BARE_ADDRESS ADDRESS`` is two servers, each of which listens at a Unix
socket until the standard input ends: one that has imported torch and numba, and a fork of it that
went on to import pagraph, DGL and PyG. Nothing runs in them but imports, so a fork finds what it
would find in an interpreter of its own. It ends as an interpreter does, without taking its modules
apart. Tests start them through ``fresh_processes``.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import marshal
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
import types
import warnings
from pathlib import Path

import quick_interpreter

BARE = ("torch", "numba", "scipy.sparse", "networkx", "click", "rich")
"""Slow ones that import none of ours, nor DGL, PyG, pandas, PyArrow, matplotlib or Triton."""
# Those of the verbs too: a tenth of a second each.
MODULES = (
    "pagraph.dgl",
    "pagraph.pyg",
    "pagraph.datasets",
    "pagraph.cli.train_run",
)

_PR_SET_PDEATHSIG = 1  # of prctl(2)


class Server:
    """Forks, and tells each client the number of its process and then its exit code."""

    def __init__(self, listener):
        self._listener = listener
        # A process that ends writes a byte here, which ends the wait for clients.
        self._ended, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Ctrl-C reaches all processes of a terminal; this one ends with the tests.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._clients = {}
        self._events = selectors.DefaultSelector()
        for source in (self._listener, self._ended, 0):
            self._events.register(source, selectors.EVENT_READ)

    def serve(self):
        """Returns in the forks alone: arguments, folder and environment of what they are to run."""
        while True:
            for key, _ in self._events.select():
                if key.fileobj == 0:
                    self._end()
                elif key.fileobj == self._ended:
                    self._tell_ends()
                elif key.fileobj is self._listener:
                    job = self._fork()
                    if job is not None:
                        return job
                elif key.data in self._clients:  # one that was killed: so is what it stands for
                    self._events.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)

    def _end(self):
        for pid in self._clients:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)

    def _tell_ends(self):
        os.read(self._ended, 4096)
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                client = self._clients.pop(found[0], None)
                if client is None:  # the other server
                    continue
                with contextlib.suppress(KeyError):  # of one that was killed
                    self._events.unregister(client)
                _tell(client, os.waitstatus_to_exitcode(found[1]))
                client.close()

    def _fork(self):
        """What to run, in the fork; None in the server."""
        client, _ = self._listener.accept()
        head, descriptors, _, _ = socket.recv_fds(client, 8, 253)
        asked = _read(client, int.from_bytes(head, "little"))
        if not asked:  # it was killed already
            for held in descriptors:
                os.close(held)
            client.close()
            return None
        *job, numbers = marshal.loads(asked)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._events.close()
            _join_namespaces(client)
            for held in (self._listener, client, *self._clients.values()):
                held.close()
            os.close(self._ended)
            os.close(self._wake)
            # Away from all targets first, each of which may be the number of another.
            away = [fcntl.fcntl(held, fcntl.F_DUPFD, 1000) for held in descriptors]
            for held in descriptors:
                os.close(held)
            for target, held in zip((0, 1, 2, *numbers), away, strict=True):
                os.dup2(held, target)
                os.close(held)
            return job
        for descriptor in descriptors:
            os.close(descriptor)
        self._clients[pid] = client
        self._events.register(client, selectors.EVENT_READ, pid)
        _tell(client, pid)
        return None


def _listening(address):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    return listener


def _imported(names):
    """Import what there is: without DGL or PyG that is less."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _join_namespaces(client):
    """Go where the client is: machines of tests are namespaces of the user, mounts and network."""
    pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    # Before any is entered: another ``/proc`` may number the processes otherwise.
    found = [
        (kind, os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY))
        for kind in ("user", "mnt", "net", "ipc", "pid")
        if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    ]
    system = ctypes.CDLL(None, use_errno=True)
    for kind, descriptor in found:
        if system.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the {kind} namespace")
        os.close(descriptor)
    if any(kind == "pid" for kind, _ in found):  # which only children are in
        _go_on_in_a_child(system)


def _go_on_in_a_child(system):
    """Return in a child; this process ends with it, and as it does."""
    pid = os.fork()
    if pid == 0:
        system.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        with contextlib.suppress(OSError):  # that of SIGKILL cannot be set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _read(client, size):
    """So many bytes, or none where the other end is closed before."""
    read = b""
    while len(read) < size:
        part = client.recv(size - len(read))
        if not part:
            return b""
        read += part
    return read


def _tell(client, number):
    with contextlib.suppress(OSError):  # killed meanwhile
        client.sendall(number.to_bytes(8, "little", signed=True))


def run(arguments, folder, environment):
    """What ``python ARGUMENTS`` does in a folder."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = [
        path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path
    ]
    while (flag := arguments[0])[:2] in ("-u", "-B", "-W"):
        arguments.pop(0)
        if flag == "-u":
            environment["PYTHONUNBUFFERED"] = "1"
        elif flag != "-B":
            option = flag[2:] or arguments.pop(0)
            sys.warnoptions.append(option)  # multiprocessing passes it on
            warnings._processoptions([option])
    if environment.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(line_buffering=True)
    multiprocessing.set_executable(PYTHON)
    # What an import has made of the environment, or drawn at random.
    import numpy
    import torch

    if "pagraph" not in sys.modules:  # whose kernels know their cache
        import numba

        numba.core.config.reload_config()

    numpy.random.seed()
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    if "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    first, *rest = arguments
    if first == "-m":
        sys.path[0] = folder
        sys.argv = rest
        runpy._run_module_as_main(rest[0])
        return
    if first == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *rest[1:]]
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.path[0] = str(Path(first).resolve().parent)
        sys.argv = arguments
        main.__file__ = first
        code = compile(Path(first).read_bytes(), first, "exec")
    exec(code, vars(main))


def end_of(job):
    """Runs it, and ends this process as its interpreter would."""
    code = 0
    try:
        run(*job)
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)  # noqa: T201
            code = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    # What an interpreter does first. Taking half a million objects apart would then be half a
    # second for a process that ran for a tenth.
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 255)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    addresses = sys.argv[1:]
    listeners = [_listening(address) for address in addresses]
    _imported(BARE)
    which = int(os.fork() == 0)
    listeners.pop(1 - which).close()
    PYTHON = addresses[which] + ".python"
    """Starts a process here: what is spawned is a fork too."""
    if which:
        _imported(MODULES)
        if os.environ.get("TRITON_INTERPRET") == "1":
            quick_interpreter.quicken()
    gc.collect()
    gc.freeze()  # pages that no collection writes to stay shared
    end_of(Server(*listeners).serve())
