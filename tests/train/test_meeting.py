"""Processes meet before torch joins them, also those of a later attempt; or each says why not."""

import contextlib
import os
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from fresh_processes import HANGING, forked_python
from processes import environment, free_port

from pagraph.train import distributed
from pagraph.train.distributed import World
from pagraph.train.meeting import LostProcessError, meet

pytestmark = pytest.mark.processes


SECONDS = 2.0
# Beyond the timeout, on a machine that has other things to do, or asks a slow server for names.
LATE = 300.0


@pytest.fixture
def place(monkeypatch):
    """An address that is free; rank 0 opens the store."""
    port = free_port()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return port


@pytest.fixture
def kept(place, monkeypatch):
    """A store that outlives the processes, as torchrun's does."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return dist.TCPStore(
        "127.0.0.1",
        place,
        is_master=True,
        timeout=timedelta(seconds=SECONDS),
        wait_for_workers=False,
    )


def together(*ranks, timeout=HANGING, size=None):
    """The stores, or the errors, of these ranks, each in a thread of its own."""

    def one(rank):
        try:
            return meet(rank, size or len(ranks), timeout)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks))


@contextlib.contextmanager
def process(code):
    """A process of rank 1 of 2 that runs this code."""
    text = f"import os\nfrom pagraph.train import meeting\n{code}"
    started = subprocess.Popen(
        [forked_python(), "-c", text], env=environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        yield started
        started.communicate(timeout=HANGING)
    finally:
        started.kill()


@contextlib.contextmanager
def within(seconds):
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_get_one_store(place, size):
    stores = together(*range(size))
    for rank, store in enumerate(stores):
        store.set(f"from {rank}", str(rank))
    for store in stores:
        assert [store.get(f"from {rank}") for rank in range(size)] == [
            str(rank).encode() for rank in range(size)
        ]


def test_a_later_attempt_finds_nothing_of_the_one_before(kept):
    for _ in range(3):
        stores = together(0, 1)
        assert not stores[0].check(["address"])
        stores[1].set("address", "of a process that will be killed")
        assert stores[0].get("address")  # waits until it is written


def test_who_came_to_the_attempt_before_is_missing(kept):
    together(0, 1)
    with (
        within(SECONDS + LATE),
        pytest.raises(LostProcessError, match=r"^rank 0: rank 1 did not join at .* within 2 s$"),
    ):
        meet(0, 2, SECONDS)


@pytest.mark.many
def test_one_is_waited_for_that_ends_while_they_connect_and_is_started_again(kept):
    ends = "meeting._connect = lambda *_: os._exit(9)\nmeeting.meet(1, 2, 30)"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, 0, 2, 60.0)
        with process(ends) as first:
            pass
        assert first.returncode == 9
        assert not waiting.done()
        meet(1, 2, 60.0)
        waiting.result()


def test_a_store_that_is_not_there_yet(place):
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(meet, 1, 2, HANGING)
        time.sleep(1)
        meet(0, 2, HANGING)
        early.result()


def test_nobody_opens_the_store(place):
    with within(SECONDS + LATE), pytest.raises(LostProcessError) as caught:
        meet(1, 2, SECONDS)
    assert str(caught.value).startswith(
        f"rank 1: nothing answers at 127.0.0.1:{place} (MASTER_ADDR and MASTER_PORT), where rank 0 "
        "should be: "
    )


@pytest.mark.many
@pytest.mark.parametrize("answers", [False, True])
def test_a_port_that_another_program_has(place, answers):
    """It says nothing, or something else, to those that take it for the store."""
    with socket.create_server(("127.0.0.1", place)) as server:

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    client.recv(100)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    client.close()

        if answers:
            threading.Thread(target=answer, daemon=True).start()
        with within(SECONDS + LATE):
            first, second = together(0, 1, timeout=SECONDS)
        assert isinstance(first, ValueError)
        assert str(first) == (
            f"MASTER_PORT must be free on the machine of rank 0, got {place}: address already in "
            "use"
        )
        assert isinstance(second, LostProcessError)
        assert str(second).startswith("rank 1: ")
        assert f"127.0.0.1:{place}" in str(second)


@pytest.mark.many
def test_an_address_that_is_none(place, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "no-machine.invalid")
    with within(SECONDS + LATE):
        errors = together(0, 1, timeout=SECONDS)
    for rank, error in enumerate(errors):
        assert isinstance(error, ValueError)
        assert str(error).startswith(
            f"MASTER_ADDR must be a machine that rank {rank}'s machine can resolve, got "
            "'no-machine.invalid': "
        )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MASTER_ADDR", "", "MASTER_ADDR must be the machine of rank 0, got none"),
        ("MASTER_PORT", "", "MASTER_PORT must be a port from 1 to 65535, got ''"),
        ("MASTER_PORT", "65536", "MASTER_PORT must be a port from 1 to 65535, got '65536'"),
        ("MASTER_PORT", "http", "MASTER_PORT must be a port from 1 to 65535, got 'http'"),
    ],
)
def test_variables_that_are_wrong(place, monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as caught:
        meet(0, 2, SECONDS)
    assert str(caught.value) == message


def test_two_processes_of_one_rank(kept):
    errors = together(0, 0, timeout=SECONDS, size=2)
    assert sorted(map(str, errors)) == [
        f"rank 0: another process has joined at 127.0.0.1:{os.environ['MASTER_PORT']} with this rank",
        f"rank 0: rank 1 did not join at 127.0.0.1:{os.environ['MASTER_PORT']} within 2 s",
    ]


def test_two_versions(place):
    from pagraph import __version__

    with process("meeting.__version__ = '0.0.1'\nmeeting.meet(1, 2, 30)") as other:
        with pytest.raises(ValueError) as caught:
            meet(0, 2, HANGING)
        _, errors = other.communicate(timeout=HANGING)
    message = (
        f"pagraph must be the same version in all processes, got ['{__version__}', '0.0.1'] by rank"
    )
    assert str(caught.value) == message
    assert errors.rstrip().endswith(message)


def test_processes_of_one_machine():
    second = World(rank=3, size=6, local_rank=1, local_size=2)
    assert [second.shares_machine(rank) for rank in range(6)] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_processes_of_one_machine_share_its_threads(monkeypatch):
    monkeypatch.setattr(distributed, "default_workers", lambda: 6)
    shares = [World(size=8, local_size=size).loader_threads for size in (1, 2, 4, 8)]
    assert shares == [0, 3, 1, 1]  # alone: the default
