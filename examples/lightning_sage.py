"""Node classification with PyTorch Lightning: GraphSAGE on sampled neighbours, with the loader's
statistics in Lightning's log.

A data module for PyG's own loader only has to change one import:

    -from torch_geometric.loader import NeighborLoader
    +from pagraph.pyg import NeighborLoader

Needs Lightning (pip install lightning) and PyG. Run it on a graph folder, or without arguments on a
generated block-model graph:

    python examples/lightning_sage.py [FOLDER] [--epochs 5]
"""

import argparse

import lightning.pytorch as lightning
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from pagraph.datasets import open_graph, sbm
from pagraph.pyg import NeighborLoader, to_pyg


class Data(lightning.LightningDataModule):
    """Loaders of the three vertex sets; Lightning saves the training loader's position in its
    checkpoints."""

    def __init__(self, data, fanout, batch_size):
        super().__init__()
        self.data, self.fanout, self.batch_size = data, fanout, batch_size

    def loader(self, mask, fanout, **options):
        return NeighborLoader(
            self.data, fanout, input_nodes=mask, batch_size=self.batch_size, **options
        )

    def train_dataloader(self):
        return self.loader(self.data.train_mask, self.fanout, shuffle=True, seed=0)

    def val_dataloader(self):
        return self.loader(self.data.val_mask, [-1] * len(self.fanout))

    def test_dataloader(self):
        return self.loader(self.data.test_mask, [-1] * len(self.fanout))


class Model(lightning.LightningModule):
    def __init__(self, in_size, hidden, classes, hops):
        super().__init__()
        self.sage = GraphSAGE(in_size, hidden, num_layers=hops, out_channels=classes, dropout=0.5)

    def forward(self, batch):
        """Scores of the seeds, which are a batch's first vertices."""
        sizes = {"num_sampled_nodes_per_hop": batch.num_sampled_nodes}
        sizes |= {"num_sampled_edges_per_hop": batch.num_sampled_edges}
        return self.sage(batch.x, batch.edge_index, **sizes)[: batch.batch_size]

    def training_step(self, batch, index):
        loss = F.cross_entropy(self(batch), batch.y[: batch.batch_size])
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=batch.batch_size)
        return loss

    def on_train_epoch_end(self):
        """All numbers of the epoch by flat names: "loader/seconds/waiting", "loader/hit_rate" and
        so on."""
        numbers = self.trainer.train_dataloader.stats.epochs[-1].to_dict()
        self.log_dict({f"loader/{name}": float(value) for name, value in numbers.items()})

    def validation_step(self, batch, index):
        self.log_accuracy("validation accuracy", batch)

    def test_step(self, batch, index):
        self.log_accuracy("test accuracy", batch)

    def log_accuracy(self, name, batch):
        right = (self(batch).argmax(dim=1) == batch.y[: batch.batch_size]).float().mean()
        self.log(name, right, batch_size=batch.batch_size)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01, weight_decay=5e-4)


def main():
    parser = argparse.ArgumentParser(description="GraphSAGE with PyTorch Lightning")
    parser.add_argument(
        "folder", nargs="?", help="graph folder; default: a generated graph of 20 000 vertices"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    lightning.seed_everything(args.seed, verbose=False)

    data = to_pyg(open_graph(args.folder) if args.folder else sbm(20_000, num_features=32))
    module = Data(data, [10, 10], batch_size=1024)
    model = Model(data.num_features, args.hidden, int(data.y.max()) + 1, hops=2)
    trainer = lightning.Trainer(
        max_epochs=args.epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(model, datamodule=module)
    seconds, waited = (
        trainer.callback_metrics[f"loader/{name}"]
        for name in ("seconds/sampling", "seconds/waiting")
    )
    print(
        f"last epoch: {seconds:.2f} s of sampling in threads, {waited:.2f} s of waiting for batches"
    )
    print(trainer.train_dataloader.stats)
    (results,) = trainer.test(model, datamodule=module, verbose=False)
    print(f"test accuracy {results['test accuracy']:.4f}")


if __name__ == "__main__":
    main()
