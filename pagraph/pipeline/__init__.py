"""The pipeline: stages and the threads between them, epochs, statistics."""

from .epochs import Epochs, PipelineOptions, Steps
from .stage import SerialStage, Stage
from .stats import EpochStats, LoaderStats

__all__ = ["EpochStats", "Epochs", "LoaderStats", "PipelineOptions", "SerialStage", "Stage", "Steps"]
