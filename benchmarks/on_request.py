"""Requests for single vertices: ``loader.batch`` in threads, and over HTTP on the loopback.

One seed, fan-out 10,5, 64 float32. The library's part is the call of ``loader.batch``; over HTTP it
is what the server says in its header ``Server-Timing`` (``examples/serve.py``, which needs starlette
and uvicorn; left out without them). Both with 1 client and with 8.

Run: ``python benchmarks/on_request.py`` (about a minute).
"""

import argparse
import http.client
import importlib.util
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from report import write

from pagraph import Loader, NeighborSampler, pyg
from pagraph.datasets import sbm

HERE = Path(__file__).resolve().parent.parent
NODES = 20_000


def percentiles(seconds):
    """Milliseconds."""
    ordered = sorted(seconds)
    of = {"p50": 0.5, "p99": 0.99}
    return {name: 1e3 * ordered[int(part * (len(ordered) - 1))] for name, part in of.items()}


def in_threads(clients, requests, ask):
    """What ``ask(vertex)`` returned, of all threads."""
    found = [[] for _ in range(clients)]

    def run(client):
        for place in range(requests // clients):
            found[client].append(ask((place * 7919 + client * 104_729) % NODES))

    threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begin
    return [each for part in found for each in part], requests / took


def called(loader, clients, requests):
    """Seconds of each call in this process."""

    def ask(vertex):
        begin = time.perf_counter()
        loader.batch([vertex])
        return time.perf_counter() - begin

    seconds, rate = in_threads(clients, requests, ask)
    return {"a second": rate, "batch": percentiles(seconds)}


def served(port, clients, requests):
    """Seconds of each request, and of the batch and the model in it."""
    own = threading.local()

    def ask(vertex):
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection("127.0.0.1", port)
        begin = time.perf_counter()
        own.connection.request("GET", f"/score/{vertex}")
        answer = own.connection.getresponse()
        answer.read()
        took = time.perf_counter() - begin
        assert answer.status == 200, answer.status
        parts = re.findall(r"dur=([\d.]+)", answer.headers["Server-Timing"])
        return took, *(float(part) / 1e3 for part in parts)

    found, rate = in_threads(clients, requests, ask)
    names = ("request", "batch", "model")
    return {"a second": rate} | {
        name: percentiles(seconds)
        for name, seconds in zip(names, zip(*found, strict=True), strict=True)
    }


def over_http(requests):
    """Figures of the example's server, by the number of clients."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, HERE / "examples" / "serve.py", "--port", str(port)]
    server = subprocess.Popen([*command, "--nodes", str(NODES)], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > until or server.poll() is not None:
                    raise
                time.sleep(0.2)
        served(port, 8, 400)  # warm
        return {str(clients): served(port, clients, requests) for clients in (1, 8)}
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=8000)
    options = parser.parse_args()
    graph = sbm(NODES, num_features=64)
    seeds = torch.arange(NODES)
    loaders = {
        "core": Loader(graph, seeds, NeighborSampler([10, 5]), fields=["feat"], labels=["label"]),
        "PyG": pyg.NeighborLoader(pyg.to_pyg(graph), [10, 5]),
    }
    result = {}
    for name, loader in loaders.items():
        called(loader, 1, 400)  # warm
        result[name] = {
            str(clients): called(loader, clients, options.requests) for clients in (1, 8)
        }
    if all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn")):
        result["HTTP, PyG"] = over_http(options.requests // 4)
    for name, by_clients in result.items():
        for clients, figures in by_clients.items():
            words = [f"{figures['a second']:.0f} a second"]
            for part, of in figures.items():
                if part != "a second":
                    words.append(f"{part} p50 {of['p50']:.2f} p99 {of['p99']:.2f} ms")
            print(f"{name}, {clients} clients: {', '.join(words)}")
    write("on_request", {"requests": options.requests, **result})


if __name__ == "__main__":
    main()
