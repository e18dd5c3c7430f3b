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


def main(address, *arguments):
    """Ends as the process does."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    job = marshal.dumps((list(arguments), os.getcwd(), dict(os.environ)))
    socket.send_fds(server, [len(job).to_bytes(8, "little")], [0, 1, 2])
    server.sendall(job)
    pid = _number(server)
    for number in FORWARDED:
        signal.signal(number, lambda caught, _: os.kill(pid, caught))
    code = _number(server)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _number(server):
    """What the server tells; its end is a failure."""
    told = server.recv(8)
    if len(told) < 8:
        sys.exit("the fork server has ended")
    return int.from_bytes(told, "little", signed=True)


main(*sys.argv[1:])
