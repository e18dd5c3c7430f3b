"""What the tests of loaders under PyTorch Lightning share; needs Lightning."""

import logging
import warnings

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as lightning

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
TRAIN, VALIDATION, OTHERS = torch.arange(37), torch.arange(40, 60), torch.arange(60, 70)


class Remembering(lightning.LightningModule):
    """Base of models that remember the seeds they have seen, by batch."""

    def __init__(self):
        super().__init__()
        self.trained, self.validated = [], []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Hooks(lightning.LightningDataModule):
    """Loaders made in hooks, where Lightning notes their arguments; ``train`` is those of the
    training loader."""

    def __init__(self, graph, **train):
        super().__init__()
        self.graph, self.train = graph, train

    def loader(self, ids, **options):
        raise NotImplementedError

    def train_dataloader(self):
        return self.loader(TRAIN, shuffle=True, **self.train)

    def val_dataloader(self):
        return self.loader(VALIDATION)

    def predict_dataloader(self):
        return self.loader(OTHERS, drop_last=True)


def trainer(**options):
    quiet = dict(
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return lightning.Trainer(accelerator="cpu", **quiet | options)


class Interrupt(lightning.Callback):
    """Saves a checkpoint after a number of steps and ends the training."""

    def __init__(self, steps, path):
        self.steps, self.path = steps, path

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.steps:
            trainer.save_checkpoint(self.path)
            raise RuntimeError("interrupted")


def train_interrupted(models, make_data, steps, path):
    """Train three models for three epochs: one in one go, one up to an interrupt, one from its
    checkpoint on."""
    whole, begun, resumed = models
    trainer(max_epochs=3).fit(whole, datamodule=make_data())
    interrupt = Interrupt(steps, path)
    with pytest.raises(RuntimeError, match="interrupted"):
        trainer(max_epochs=3, callbacks=[interrupt]).fit(begun, datamodule=make_data())
    trainer(max_epochs=3).fit(resumed, datamodule=make_data(), ckpt_path=interrupt.path)
