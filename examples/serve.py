"""Answer requests for single vertices over HTTP, with a model that was trained on sampled batches.

``loader.batch(seeds)`` makes one batch outside of epochs, in the calling thread, through the same
feature cache as training. Equal seeds get equal neighbours, so an answer does not depend on earlier
requests.

    pip install 'pagraph[pyg]' starlette uvicorn
    python examples/serve.py [--port 8000]
    curl http://127.0.0.1:8000/score/42

The header ``Server-Timing`` says how long the batch and the model took, in milliseconds.
"""

import argparse
import contextlib
import time

import anyio.to_thread
import torch
import torch.nn.functional as F
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from torch_geometric.nn import GraphSAGE

from pagraph.datasets import sbm
from pagraph.pyg import NeighborLoader, to_pyg


def train(model: GraphSAGE, data, options: argparse.Namespace):
    """A few epochs over the training vertices."""
    loader = NeighborLoader(
        data,
        options.fanout,
        input_nodes=data.train_mask,
        batch_size=512,
        shuffle=True,
        seed=options.seed,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(options.epochs):
        total = 0.0
        for batch in loader:
            scores = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(scores, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}  loss {total / len(loader):.4f}", flush=True)


def make_app(data, model: GraphSAGE, options: argparse.Namespace) -> Starlette:
    """The service: one loader and one model, which all threads share."""
    loader = NeighborLoader(data, options.fanout, batch_size=1, seed=options.seed)
    model.eval()
    # The first two requests fill the cache, and compile the kernels on a new machine.
    for vertex in range(2):
        loader.batch([vertex])

    def score(request: Request) -> JSONResponse:
        vertex = request.path_params["vertex"]
        begin = time.perf_counter()
        try:
            batch = loader.batch([vertex])
        except IndexError as error:
            raise HTTPException(404, str(error)) from error
        made = time.perf_counter()
        with torch.inference_mode():
            chances = model(batch.x, batch.edge_index)[0].softmax(0)
        end = time.perf_counter()
        best = int(chances.argmax())
        timing = f"batch;dur={1e3 * (made - begin):.3f}, model;dur={1e3 * (end - made):.3f}"
        answer = {"vertex": vertex, "class": best, "score": round(float(chances[best]), 4)}
        return JSONResponse(answer, headers={"Server-Timing": timing})

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette):
        # Starlette calls `score` in threads. Most of a request holds Python's interpreter, for which
        # threads would wait in the middle of it, half as fast together as one alone; so the others
        # wait before it, in order.
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        yield

    return Starlette(routes=[Route("/score/{vertex:int}", score)], lifespan=lifespan)


def main():
    parser = argparse.ArgumentParser(description="Scores of vertices over HTTP")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    # Requests run side by side: a thread each is enough for a model of one vertex.
    torch.set_num_threads(1)

    data = to_pyg(sbm(options.nodes, num_features=options.features, seed=options.seed))
    classes = int(data.y.max()) + 1
    model = GraphSAGE(options.features, 32, num_layers=len(options.fanout), out_channels=classes)
    train(model, data, options)
    uvicorn.run(make_app(data, model, options), port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
