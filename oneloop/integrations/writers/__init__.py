"""Log writers. Each writer is one small file; only those named in report_to are imported."""

from importlib import import_module
from typing import Any

WRITERS = {
    "tensorboard": ("tensorboard", "TensorBoardCallback"),
    "visualdl": ("visualdl", "VisualDLCallback"),
    "wandb": ("wandb", "WandbCallback"),
    "mlflow": ("mlflow", "MLflowCallback"),
    "comet_ml": ("comet_ml", "CometCallback"),
    "clearml": ("clearml", "ClearMLCallback"),
    "neptune": ("neptune", "NeptuneCallback"),
    "azure_ml": ("azure_ml", "AzureMLCallback"),
    "swanlab": ("swanlab", "SwanLabCallback"),
    "trackio": ("trackio", "TrackioCallback"),
    "codecarbon": ("codecarbon", "CodeCarbonCallback"),
    "dvclive": ("dvclive", "DVCLiveCallback"),
}


def make_writers(names: list[str]) -> list[Any]:
    """A callback for each name in report_to."""
    made = []
    for name in names:
        module, cls = WRITERS[name]
        made.append(getattr(import_module(f"{__name__}.{module}"), cls)())
    return made
