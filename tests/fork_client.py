"""Stands for a process that ``fork_server.py`` forks: passes on streams, signals and exit code.

``python -I -S fork_client.py ADDRESS ARGUMENTS`` runs ``python ARGUMENTS`` there. It imports little,
since each such process waits for it.
"""

import marshal
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGABRT)


MOST_DESCRIPTORS = 250  # that a message over a socket can hold


def main(address, *arguments):
    """Ends as the process does."""
    held = _inherited()
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    job = marshal.dumps((list(arguments), os.getcwd(), dict(os.environ), held))
    socket.send_fds(server, [len(job).to_bytes(8, "little")], [0, 1, 2, *held])
    server.sendall(job)
    for descriptor in held:  # or those at the other ends would wait for this process too
        os.close(descriptor)
    pid = _number(server)
    for number in FORWARDED:
        signal.signal(number, lambda caught, _: os.kill(pid, caught))
    code = _number(server)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _inherited():
    """Descriptors beside the three streams: those by which multiprocessing speaks to its own."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:  # that of the listing
            continue
        found.append(int(name))
    return sorted(number for number in found if number > 2)[:MOST_DESCRIPTORS]


def _number(server):
    """What the server tells; its end is a failure."""
    told = server.recv(8)
    if len(told) < 8:
        sys.exit("the fork server has ended")
    return int.from_bytes(told, "little", signed=True)


main(*sys.argv[1:])
