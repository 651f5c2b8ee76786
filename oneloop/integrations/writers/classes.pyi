# Written by `python -m oneloop.integrations.writers.typing_stub`; change table.py, not this file.
# fmt: off

from .azure_ml import AzureMLCallback
from .clearml import ClearMLCallback
from .codecarbon import CodeCarbonCallback
from .comet_ml import CometCallback
from .dvclive import DVCLiveCallback
from .mlflow import MLflowCallback
from .neptune import NeptuneCallback
from .swanlab import SwanLabCallback
from .tensorboard import TensorBoardCallback
from .trackio import TrackioCallback
from .visualdl import VisualDLCallback
from .wandb import WandbCallback

__all__ = [
    "TensorBoardCallback",
    "VisualDLCallback",
    "WandbCallback",
    "MLflowCallback",
    "CometCallback",
    "ClearMLCallback",
    "NeptuneCallback",
    "AzureMLCallback",
    "SwanLabCallback",
    "TrackioCallback",
    "CodeCarbonCallback",
    "DVCLiveCallback",
]
