"""The table of writers, one line each. Arguments, exports, redirected imports and the factory of callbacks read it.

The callback of the writer `name` is in the module `name` beside this one. Nothing is imported to read the table.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class WriterSpec:
    """A destination of logs: its callback here, the module that serves it, the package to install, what it asks for."""

    callback: str  # "" where this release of oneloop has none
    module: str
    package: str
    account: bool = True  # sends data to a service or needs an account: used only if named in report_to
    usual: bool = False  # used by default, since it only writes to logging_dir
    redirected: bool = True  # `oneloop run` puts it in place of the script's callback of that name

    @property
    def released(self) -> bool:
        return bool(self.callback)


WRITERS = {
    "tensorboard": WriterSpec("TensorBoardCallback", "tensorboard", "tensorboard", account=False, usual=True),
    "visualdl": WriterSpec("VisualDLCallback", "visualdl", "visualdl", account=False, usual=True, redirected=False),
    "wandb": WriterSpec("WandbCallback", "wandb", "wandb"),
    "mlflow": WriterSpec("MLflowCallback", "mlflow", "mlflow", account=False),
    "comet_ml": WriterSpec("CometCallback", "comet_ml", "comet-ml"),
    "clearml": WriterSpec("ClearMLCallback", "clearml", "clearml"),
    "neptune": WriterSpec("NeptuneCallback", "neptune", "neptune"),
    "azure_ml": WriterSpec("AzureMLCallback", "azureml.core", "azureml-core"),
    "swanlab": WriterSpec("SwanLabCallback", "swanlab", "swanlab"),
    "trackio": WriterSpec("TrackioCallback", "trackio", "trackio", account=False),
    "codecarbon": WriterSpec("CodeCarbonCallback", "codecarbon", "codecarbon"),
    "dagshub": WriterSpec("", "dagshub", "dagshub"),
    "flyte": WriterSpec("", "flytekit", "flytekit"),
    "dvclive": WriterSpec("DVCLiveCallback", "dvclive", "dvclive", account=False),
    "kubeflow": WriterSpec("", "kubeflow", "kubeflow"),
}
