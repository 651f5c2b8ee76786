"""How the data sets are read, batched and ordered."""

from dataclasses import dataclass

from ..errors import ArgumentError
from .fields import Group, declare

arg = declare("Data")


@dataclass
class Data(Group):
    per_device_train_batch_size: int = arg(
        8, "Samples in one micro-batch on one device, in training.", aliases=("per_gpu_train_batch_size",), low=1
    )
    per_device_eval_batch_size: int = arg(
        8, "Samples in one batch on one device, in evaluation.", aliases=("per_gpu_eval_batch_size",), low=1
    )
    gradient_accumulation_steps: int = arg(
        1, "Micro-batches per update; the update equals that of the undivided batch.", low=1
    )
    average_tokens_across_devices: bool = arg(
        True, "With several processes: weigh each one's loss by its number of labelled tokens."
    )
    dataloader_drop_last: bool = arg(
        False, "Leave out the last batch of an epoch when it is not full.", aliases=("dataset_drop_last",)
    )
    dataloader_num_workers: int = arg(
        0, "Processes that load data; 0 loads in the main process.", aliases=("dataset_num_workers",), low=0
    )
    dataloader_pin_memory: bool = arg(
        True, "Page-locked host memory, for faster copies to an accelerator; MindSpore copies in its own way."
    )
    dataloader_persistent_workers: bool = arg(False, "Keep the loading processes alive between epochs.")
    dataloader_prefetch_factor: int | None = arg(
        None,
        "Batches that each loading process prepares in advance.",
        aliases=("dataset_prefetch_factor",),
        low=1,
        shown="the framework's",
    )
    dataloader_multiprocessing_context: str | None = arg(
        None,
        "How loading processes are started.",
        choices=("fork", "spawn", "forkserver"),
        shown="the framework's",
    )
    dataloader_in_order: bool = arg(
        True, "False yields a batch as soon as any loading process has it ready, so in no fixed order."
    )
    remove_unused_columns: bool = arg(
        True, "Drop the columns that the model's forward does not accept, and say which.", none=True
    )
    label_names: list[str] | None = arg(
        None, "The columns that are labels.", shown="by the model: labels, or start_positions and end_positions"
    )
    train_sampling_strategy: str = arg(
        "random",
        "The order of the training data; group_by_length makes batches of like lengths.",
        choices=("random", "sequential", "group_by_length", "batch_rebalance"),
    )
    length_column_name: str = arg(
        "length",
        "The column that holds each sample's length, for group_by_length; measured when it is not there.",
        none=True,
    )
    seed_each_sample: bool = arg(
        False,
        "Random numbers that the data set draws follow from the sample and the epoch alone, so that they are the same "
        "on any number of processes and workers. It costs a reseeding per sample, and samples are fetched one by one.",
    )
    ignore_data_skip: bool = arg(False, "After a resume, start the data from the beginning of the epoch.")
    auto_find_batch_size: bool = arg(
        False, "On out-of-memory: smaller micro-batches and more accumulation, with the same global batch."
    )

    def check(self) -> None:
        if self.dataloader_num_workers == 0:
            for name in (
                "dataloader_prefetch_factor",
                "dataloader_persistent_workers",
                "dataloader_multiprocessing_context",
            ):
                if getattr(self, name):
                    raise ArgumentError(
                        f"{name}={getattr(self, name)!r} is about loading processes, but dataloader_num_workers is 0; "
                        f"set dataloader_num_workers to 1 or more, or leave {name} out."
                    )
