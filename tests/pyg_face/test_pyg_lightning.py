"""PyTorch Lightning over our loaders and our sampler: fitting, loaders it makes again, going on in
the middle.

What Lightning does to loaders is tested without it in ``test_pyg_recreation.py``.
"""

import warnings

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from pagraph.pyg import NeighborLoader, NeighborSampler

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip(
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
    from torch_geometric.data.lightning import LightningNodeData

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("no_threads_left"),
]


def make_data():
    generator = torch.Generator().manual_seed(0)
    x, edges = (
        torch.randn(70, 8, generator=generator),
        torch.randint(70, (2, 400), generator=generator),
    )
    return Data(x=x, y=torch.arange(70) % 3, edge_index=edges)


class Model(Remembering):
    """One layer; remembers the seeds it has seen."""

    def __init__(self):
        super().__init__()
        self.layer = SAGEConv(8, 3)

    def training_step(self, batch, index):
        self.trained.append(batch.n_id[: batch.batch_size].tolist())
        out = self.layer(batch.x, batch.edge_index)[: batch.batch_size]
        return torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])

    def validation_step(self, batch, index):
        self.validated.append(batch.n_id[: batch.batch_size].tolist())

    def predict_step(self, batch, index):
        return batch.n_id[: batch.batch_size].tolist()


class Loaders(Hooks):
    def __init__(self, **train):
        super().__init__(make_data(), **train)

    def loader(self, nodes, **options):
        return NeighborLoader(self.graph, [2, 2], nodes, batch_size=8, **options)


@pytest.mark.parametrize("options", [{"seed": 1}, {"num_workers": 2}], ids=str)
def test_fitting_and_validating(options):
    model = Model()
    trainer(max_epochs=2, num_sanity_val_steps=0).fit(model, datamodule=Loaders(**options))
    first, second = sum(model.trained[:5], []), sum(model.trained[5:], [])
    assert len(model.trained) == 10 and first != second
    assert sorted(first) == sorted(second) == TRAIN.tolist()
    assert sum(model.validated, []) == VALIDATION.tolist() * 2


@pytest.mark.parametrize("made", ["in a hook", "by the user"])
def test_predicting_makes_the_loader_again(made):
    data, expected = Loaders(), [OTHERS[:8].tolist(), OTHERS[8:].tolist()]
    if made == "in a hook":
        seen = trainer().predict(Model(), datamodule=data)
    else:
        seen = trainer().predict(Model(), data.predict_dataloader())
    assert seen == expected  # Lightning leaves nothing out when it predicts


def test_overfitting_makes_the_loader_again():
    model = Model()
    trainer(max_epochs=2, overfit_batches=2, limit_val_batches=0).fit(
        model, datamodule=Loaders(seed=1)
    )
    assert [len(seeds) for seeds in model.trained] == [8] * 4


@pytest.mark.parametrize("steps", [5, 7])
def test_a_checkpoint_resumes_with_the_very_next_batch(tmp_path, steps):
    whole, begun, resumed = Model(), Model(), Model()
    train_interrupted(
        [whole, begun, resumed], lambda: Loaders(seed=1), steps, tmp_path / "checkpoint"
    )
    assert begun.trained + resumed.trained == whole.trained


@pytest.mark.parametrize("workers", [0, 1])
def test_our_sampler_in_pygs_data_module(workers):
    data, model = make_data(), Model()
    module = LightningNodeData(
        data,
        input_train_nodes=TRAIN,
        input_val_nodes=VALIDATION,
        node_sampler=NeighborSampler(data, [2, 2]),
        batch_size=8,
        num_workers=workers,
        pin_memory=False,
        eval_loader_kwargs={"num_neighbors": [-1]},
    )
    trainer(max_epochs=2, num_sanity_val_steps=0).fit(model, datamodule=module)
    assert sorted(sum(model.trained[:5], [])) == TRAIN.tolist()
    assert sum(model.validated, []) == VALIDATION.tolist() * 2
    assert len(module.graph_sampler.num_neighbors.values) == 2
    (batch, *_) = module.val_dataloader()
    assert len(batch.num_sampled_edges) == 1
    degrees = torch.bincount(data.edge_index[1], minlength=70)
    assert batch.num_edges == int(degrees[batch.n_id[:8]].sum())
