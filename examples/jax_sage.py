"""GraphSAGE in plain JAX, fed by pagraph's loader: compiled once, for all batches of all epochs.

JAX recompiles a function for every new shape, and sampled batches all differ in shape. With
`shapes="fixed"` they have the same one. Batches are torch tensors and are passed to JAX through
DLPack, without a copy on the CPU. Padding has separate edges and the label -100, which the loss
ignores.

Run it on a graph folder, or without arguments on a generated block-model graph:

    pip install pagraph jax
    python examples/jax_sage.py [FOLDER] [--epochs 5]
"""

import argparse
import time

import jax
import jax.numpy as jnp

from pagraph import Loader, NeighborSampler
from pagraph.datasets import open_graph, sbm

compiled = []
"""The shapes of the rows that a step was compiled for."""


def initial(sizes, key):
    """Weights of a layer for a vertex itself, and for the mean of its neighbours."""
    layers = []
    for rows, columns in zip(sizes, sizes[1:], strict=False):
        key, own, neighbours = jax.random.split(key, 3)
        scale = (2 / (rows + columns)) ** 0.5
        shape = rows, columns
        layers.append(
            {
                "own": scale * jax.random.normal(own, shape),
                "mean": scale * jax.random.normal(neighbours, shape),
                "bias": jnp.zeros(columns),
            }
        )
    return layers


def forward(layers, x, edges, counts):
    """Outputs of the seeds; `counts` are the destinations of each layer, known when compiling."""
    for place, (layer, (src, dst), num_dst) in enumerate(zip(layers, edges, counts, strict=True)):
        total = jax.ops.segment_sum(x[src], dst, num_dst, indices_are_sorted=True)
        degree = jax.ops.segment_sum(jnp.ones(len(dst)), dst, num_dst, indices_are_sorted=True)
        mean = total / jnp.maximum(degree, 1)[:, None]
        x = x[:num_dst] @ layer["own"] + mean @ layer["mean"] + layer["bias"]
        if place + 1 < len(layers):
            x = jax.nn.relu(x)
    return x


def loss_of(layers, x, edges, counts, labels):
    """Mean cross-entropy of the seeds, and how many of them are classified correctly."""
    logits = forward(layers, x, edges, counts)
    is_seed = labels >= 0
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(labels, 0)[:, None], 1)
    right = jnp.sum((logits.argmax(1) == labels) & is_seed)
    return -jnp.sum(chosen[:, 0] * is_seed) / jnp.sum(is_seed), right


def adam(layers, gradients, state, rate=0.01):
    """A step of Adam."""
    step, first, second = state
    step = step + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    fix = rate * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    layers = jax.tree.map(lambda w, m, v: w - fix * m / (jnp.sqrt(v) + 1e-8), layers, first, second)
    return layers, (step, first, second)


def train_step(layers, state, x, edges, counts, labels):
    compiled.append(x.shape)  # runs when JAX traces the function, and never again for these shapes
    gradient = jax.value_and_grad(loss_of, has_aux=True)
    (loss, _), gradients = gradient(layers, x, edges, counts, labels)
    return *adam(layers, gradients, state), loss


train_step = jax.jit(train_step, static_argnames="counts")
evaluate_step = jax.jit(loss_of, static_argnames="counts")


def arrays_of(batch):
    """A batch as JAX's arrays, in 32 bits, as JAX has integers."""
    edges = [tuple(jnp.from_dlpack(end) for end in block.to_pyg().int()) for block in batch.blocks]
    counts = tuple(block.num_dst for block in batch.blocks)
    labels = jnp.from_dlpack(batch.labels["label"].int())
    return jnp.from_dlpack(batch.features["feat"]), edges, counts, labels


def load(graph, ids, options, shuffle=False):
    return Loader(
        graph,
        ids,
        NeighborSampler([10, 10]),
        fields=["feat"],
        labels=["label"],
        batch_size=options.batch_size,
        shuffle=shuffle,
        shapes="fixed",
        seed=options.seed,
    )


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE in plain JAX")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 20 000 vertices"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    graph = open_graph(options.folder) if options.folder else sbm(20_000, num_features=32)
    ids = {part: graph.ndata[f"{part}_mask"].nonzero().squeeze(1) for part in ("train", "test")}
    sizes = [graph.ndata["feat"].shape[1], options.hidden, int(graph.ndata["label"].max()) + 1]
    layers = initial(sizes, jax.random.key(options.seed))
    zeros = jax.tree.map(jnp.zeros_like, layers)
    state = jnp.zeros((), jnp.int32), zeros, zeros

    loader = load(graph, ids["train"], options, shuffle=True)
    for epoch in range(options.epochs):
        begin = time.time()
        losses = []
        for batch in loader:
            layers, state, loss = train_step(layers, state, *arrays_of(batch))
            losses.append(loss)
        mean = float(jnp.stack(losses).mean())
        print(f"epoch {epoch}  loss {mean:.4f}  {time.time() - begin:.2f} s")
    print(loader.envelope)
    print(f"compilations of the step: {len(compiled)}, steps: {options.epochs * len(loader)}")

    right = 0
    for batch in load(graph, ids["test"], options):
        right += int(evaluate_step(layers, *arrays_of(batch))[1])
    print(f"test accuracy {right / len(ids['test']):.4f}")


if __name__ == "__main__":
    main()
