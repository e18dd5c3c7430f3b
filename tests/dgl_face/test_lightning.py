"""PyTorch Lightning over our loader: fitting, loaders it makes again, resuming in the middle,
several processes.

What Lightning does to loaders is tested without it in ``test_recreation.py``.
"""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from cases import dgl, make_graph, ours
from fresh_processes import HANGING, forked_python

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip(
        "lightning.pytorch", reason="needs PyTorch Lightning (pip install lightning)"
    )
    from lightning_runs import (
        OTHERS,
        TRAIN,
        VALIDATION,
        Hooks,
        Remembering,
        train_interrupted,
        trainer,
    )

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("no_threads_left"),
]


class Model(Remembering):
    """Two layers; remembers the seeds it has seen."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [dgl.nn.SAGEConv(16, 8, "mean"), dgl.nn.SAGEConv(8, 5, "mean")]
        )

    def training_step(self, batch, index):
        _, output_nodes, blocks = batch
        self.trained.append(output_nodes.tolist())
        hidden = blocks[0].srcdata["feat"]
        for layer, block in zip(self.layers, blocks, strict=True):
            hidden = layer(block, hidden)
        return torch.nn.functional.cross_entropy(hidden, blocks[-1].dstdata["label"])

    def validation_step(self, batch, index):
        self.validated.append(batch[1].tolist())

    def predict_step(self, batch, index):
        return batch[1].tolist()


class Data(Hooks):
    def __init__(self, **train):
        super().__init__(make_graph(), **train)

    def loader(self, ids, **options):
        sampler = dgl.dataloading.NeighborSampler(
            [2, 2], prefetch_node_feats=["feat"], prefetch_labels=["label"]
        )
        return ours(self.graph, ids, sampler, batch_size=8, **options)


def test_fitting_and_validating():
    model = Model()
    trainer(max_epochs=2, num_sanity_val_steps=0).fit(model, datamodule=Data(seed=1))
    first, second = sum(model.trained[:5], []), sum(model.trained[5:], [])
    assert len(model.trained) == 10 and first != second
    assert sorted(first) == sorted(second) == TRAIN.tolist()
    assert sum(model.validated, []) == VALIDATION.tolist() * 2


@pytest.mark.parametrize("made", ["in a hook", "by the user"])
def test_predicting_makes_the_loader_again(made):
    data, whole_batches = Data(), [OTHERS[:8].tolist()]
    if made == "in a hook":
        assert trainer().predict(Model(), datamodule=data) == whole_batches
    else:
        assert trainer().predict(Model(), data.predict_dataloader()) == whole_batches


def test_overfitting_makes_the_loader_again():
    model = Model()
    trainer(max_epochs=2, overfit_batches=2, limit_val_batches=0).fit(
        model, datamodule=Data(seed=1)
    )
    assert [len(seeds) for seeds in model.trained] == [8] * 4


@pytest.mark.parametrize("steps", [5, 7])
def test_a_checkpoint_resumes_with_the_very_next_batch(tmp_path, steps):
    whole, begun, resumed = Model(), Model(), Model()
    train_interrupted([whole, begun, resumed], lambda: Data(seed=1), steps, tmp_path / "checkpoint")
    assert begun.trained + resumed.trained == whole.trained


class Report(lightning.Callback):
    """Writes what each rank has trained with."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_end(self, trainer, model):
        seen = {
            "trained": model.trained,
            "weights": float(sum(p.detach().sum() for p in model.parameters())),
        }
        Path(self.folder, f"{trainer.global_rank}.json").write_text(json.dumps(seen))


def test_two_processes(tmp_path):
    """With Lightning's own ``use_distributed_sampler``, its default."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment["OMP_NUM_THREADS"] = "1"  # no pool of threads, which a fork would lose
    command = [forked_python(), "-W", "ignore", __file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING, env=environment)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["weights"] == second["weights"]
    for epoch in (slice(0, 3), slice(3, 6)):
        parts = [sum(seen["trained"][epoch], []) for seen in (first, second)]
        assert [len(part) for part in parts] == [19, 19] and set(sum(parts, [])) == set(
            TRAIN.tolist()
        )


if __name__ == "__main__":
    options = dict(max_epochs=2, devices=2, strategy="ddp_fork", callbacks=[Report(sys.argv[1])])
    trainer(**options).fit(Model(), datamodule=Data(use_ddp=True))
