"""Import paths of 0.1 that have moved. They work for one more release, with a DeprecationWarning."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "accelerator": "compat.accelerator",
    "callbacks.asking": "compat.introspect",
    "callbacks.foreign": "compat.service_callbacks",
    "capabilities": "arguments.capabilities",
    "checkpoint.crossing": "checkpoint.convert.framework_layout",
    "checkpoint.foreign": "checkpoint.convert.transformers_checkpoint",
    "checkpoint.grouping": "checkpoint.convert.parameter_groups",
    "checkpoint.holding": "checkpoint.directory_lock",
    "checkpoint.optimizer_state": "checkpoint.convert.optimizer_state",
    "checkpoint.parts": "checkpoint.sharded",
    "checkpoint.saver": "checkpoint.async_writer",
    "checkpoint.tensors": "checkpoint.safetensors_io",
    "data.dealing": "data.process_sharding",
    "data.lengths": "data.length_grouping",
    "data.loading": "data.loader_options",
    "data.permutation": "data.feistel",
    "data.seeding": "data.worker_seeding",
    "data.streams": "data.iterable",
    "data.workers": "data.worker_pool",
    "doctor": "cli.doctor",
    "evaluation": "trainer.evaluation",
    "gathering": "trainer.gathering",
    "gathering_processes": "distributed.gather",
    "generated": "arguments.generated_page",
    "hf_utilities": "compat.transformers_utils",
    "hub": "integrations.hub",
    "hub.card": "integrations.hub.card",
    "hub.uploads": "integrations.hub.uploads",
    "lifesigns": "distributed.heartbeat",
    "lockstep": "distributed.even_batches",
    "losses": "trainer.loss",
    "manners": "compat.mode",
    "measuring": "trainer.meter",
    "metric_schedules": "optim.plateau",
    "migration": "compat.check",
    "migration.arguments": "compat.check.arguments",
    "migration.checking": "compat.check.script",
    "migration.classes": "compat.check.classes",
    "migration.code": "compat.check.code",
    "migration.commands": "compat.commands",
    "migration.findings": "compat.check.findings",
    "migration.names": "compat.redirected_names",
    "migration.parsers": "compat.check.parsers",
    "migration.reading": "compat.check.syntax",
    "migration.redirect": "compat.redirect",
    "migration.running": "compat.run_script",
    "optimization": "optim.scheduler",
    "parser": "cli.parser",
    "parser.files": "cli.parser.files",
    "parser.help": "cli.parser.help",
    "parser.options": "cli.parser.options",
    "parser.values": "cli.parser.values",
    "preemption": "distributed.preemption",
    "processes": "distributed.world",
    "profiling": "trainer.profiling",
    "record": "trainer.event_log",
    "report.comparing": "report.comparison",
    "report.contents": "report.page_data",
    "report.facts": "report.summary",
    "report.following": "report.follow",
    "report.lines": "report.json_lines",
    "report.reading": "report.log_reader",
    "report.sampling": "report.log_sampling",
    "report.thinning": "report.downsample",
    "report.watching": "report.server",
    "schedules": "optim.schedules",
    "search": "integrations.search",
    "search.on_optuna": "integrations.search.optuna_search",
    "search.on_ray": "integrations.search.ray_search",
    "search.packing": "integrations.search.packing",
    "search.ray_worker": "integrations.search.ray_worker",
    "search.trials": "integrations.search.trials",
    "utilities": "compat.trainer_utils",
    "writers": "integrations.writers",
    "writers.azure_ml": "integrations.writers.azure_ml",
    "writers.base": "integrations.writers.base",
    "writers.clearml": "integrations.writers.clearml",
    "writers.codecarbon": "integrations.writers.codecarbon",
    "writers.comet_ml": "integrations.writers.comet_ml",
    "writers.dvclive": "integrations.writers.dvclive",
    "writers.jsonlines": "integrations.writers.json_log",
    "writers.logfiles": "integrations.writers.offline_files",
    "writers.marks": "integrations.writers.progress_marks",
    "writers.mlflow": "integrations.writers.mlflow",
    "writers.neptune": "integrations.writers.neptune",
    "writers.swanlab": "integrations.writers.swanlab",
    "writers.tensorboard": "integrations.writers.tensorboard",
    "writers.trackio": "integrations.writers.trackio",
    "writers.visualdl": "integrations.writers.visualdl",
    "writers.wandb": "integrations.writers.wandb",
}
PACKAGE = __name__.partition(".")[0]


class _Alias:
    """An empty module: every name is looked up in the module at its new path."""

    def __init__(self, path: str) -> None:
        self.path = f"{PACKAGE}.{path}"

    def create_module(self, spec: ModuleSpec) -> None:
        """Use a plain module."""

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        warnings.warn(
            f"{old} has moved to {self.path}; the old path will be removed.", DeprecationWarning, stacklevel=2
        )
        new = importlib.import_module(self.path)
        module.__doc__ = new.__doc__
        module.__path__ = []  # submodules are also found by this finder
        module.__getattr__ = lambda name: getattr(new, name)  # type: ignore[method-assign]


class OldPaths:
    """A finder that is last in the list: it is only asked for modules that no other finder has."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        package, _, module = name.partition(".")
        if package != PACKAGE or module not in MOVED:
            return None
        return ModuleSpec(name, _Alias(MOVED[module]))  # type: ignore[arg-type]


def install() -> None:
    """Once per process."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(OldPaths())
