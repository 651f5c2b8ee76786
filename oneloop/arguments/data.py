"""How the datasets are loaded, batched and ordered."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from . import values
from .fields import Group, declare, declared

if TYPE_CHECKING:
    from .given import Text

arg = declare("Data")


def to_packing(name: str, value: "bool | Text") -> bool | str:
    """True is "end_to_end"."""
    if isinstance(value, str) and value.strip().lower() in ("end_to_end", "best_fit", "wrapped"):
        return value.strip().lower()
    try:
        return "end_to_end" if values.to_bool(name, value) else False  # type: ignore[arg-type]
    except ArgumentError:
        raise values.invalid(name, value, "True, False, 'end_to_end', 'best_fit' or 'wrapped'") from None


def packing_of(args: Any) -> str | None:
    """How documents are packed; None if they are not, or if a subclass has fields of these names for itself."""
    cls: Any = type(args)
    own = declared(cls)
    return str(args.packing) if "packing" in own and "max_length" in own and args.packing else None


@dataclass
class Data(Group):
    per_device_train_batch_size: int = arg(
        8, "Training batch size per device (samples per micro-batch).", aliases=("per_gpu_train_batch_size",), low=1
    )
    per_device_eval_batch_size: int = arg(
        8, "Evaluation batch size per device.", aliases=("per_gpu_eval_batch_size",), low=1
    )
    gradient_accumulation_steps: int = arg(
        1, "Micro-batches per optimizer update; the update equals that of the undivided batch.", low=1
    )
    average_tokens_across_devices: bool = arg(
        True, "With several processes: weight each process's loss by its number of labelled tokens."
    )
    dataloader_drop_last: bool = arg(
        False, "Drop the last batch of an epoch if it is incomplete.", aliases=("dataset_drop_last",)
    )
    dataloader_num_workers: int = arg(
        0,
        "DataLoader worker processes; 0 loads in the main process.",
        aliases=("dataset_num_workers",),
        low=0,
        per_process=True,
    )
    dataloader_pin_memory: bool = arg(
        True, "Pin host memory for faster copies to an accelerator; MindSpore does its own copying.", per_process=True
    )
    dataloader_persistent_workers: bool = arg(
        False, "Keep the DataLoader workers alive between epochs.", per_process=True
    )
    dataloader_prefetch_factor: int | None = arg(
        None,
        "Batches that each DataLoader worker prefetches.",
        aliases=("dataset_prefetch_factor",),
        low=1,
        shown="the framework's",
        per_process=True,
    )
    dataloader_multiprocessing_context: str | None = arg(
        None,
        "Start method of the DataLoader workers.",
        choices=("fork", "spawn", "forkserver"),
        shown="the framework's",
        per_process=True,
    )
    dataloader_in_order: bool = arg(
        True, "False yields batches as soon as any worker has one ready, in no fixed order.", per_process=True
    )
    remove_unused_columns: bool = arg(
        True, "Drop columns that the model's forward does not accept; their names are logged.", none=True
    )
    label_names: list[str] | None = arg(
        None, "Names of the label columns.", shown="from the model: labels, or start_positions and end_positions"
    )
    train_sampling_strategy: str = arg(
        "random",
        "Order of the training data; group_by_length batches samples of similar length, batch_rebalance divides "
        "those of each update into micro-batches of about equal cost.",
        choices=("random", "sequential", "group_by_length", "batch_rebalance"),
    )
    data_order: str = arg(
        "oneloop",
        "The order of shuffled data: oneloop's, or that of transformers' Trainer with the same seeds, which also draws "
        "the random numbers of dropout in its order.",
        choices=("oneloop", "transformers"),
    )
    length_column_name: str = arg(
        "length",
        "Column with each sample's length, for group_by_length, batch_rebalance and max_tokens_per_batch; lengths are "
        "computed if it is missing.",
        none=True,
    )
    max_tokens_per_batch: int | None = arg(
        None,
        "A training micro-batch has as many samples of similar length as fit into this many tokens, padding included, "
        "instead of per_device_train_batch_size samples. Trainer.batch_cost may count something else than tokens.",
        low=1,
    )
    packing: bool = arg(
        False,
        "Lay documents (token ids in `input_ids`) into rows of max_length tokens, kept apart from each other: "
        "end_to_end (True) cuts them where a row is full, best_fit only those longer than a row. wrapped is end_to_end "
        "for documents that may attend to each other: a row is like one document.",
        convert=to_packing,
        hint=bool | str,
        overridable=True,
    )
    max_length: int | None = arg(None, "Tokens in a row of packed documents.", low=1, overridable=True)
    eval_packing: bool | None = arg(
        None,
        "Whether evaluations pack as well; False gives each document a row of its own.",
        shown="as packing",
        overridable=True,
    )
    seed_each_sample: bool = arg(
        False,
        "Seed the dataset's random numbers by sample and epoch, so that they do not depend on the number of processes "
        "and workers. Costs one reseeding per sample, and samples are fetched one by one.",
    )
    stream_sharding: str = arg(
        "samples",
        "On several processes, what each reads of a stream: all of it, keeping its samples, so that the order "
        "is the same for any number of processes; or its own shards (files) only.",
        choices=("samples", "shards"),
    )
    mixture_weights: dict[str, Any] | str | None = arg(
        None,
        "For a train_dataset that is a dict of datasets: the proportion of each, such as wiki=0.7,code=0.3, a dict or "
        "JSON, or a list of [step, weights]. None: by size.",
        convert=values.to_weights,
    )
    mixture_temperature: float = arg(
        1.0,
        "For weights by size: the sizes to the power of 1 / temperature; above 1, small datasets get more.",
        low=0.001,
    )
    mixture_stop: str = arg(
        "first_exhausted",
        "When an epoch of a mixture ends: first_exhausted, all_exhausted, or a number of samples.",
        convert=values.to_stop,
    )
    mixture_metrics: str = arg(
        "loss",
        "What is logged of each dataset of a Mixture: its loss and tokens, its tokens only, or nothing. Losses cost "
        "a second cross entropy of the logits, without gradients.",
        choices=("loss", "tokens", "no"),
    )
    ignore_data_skip: bool = arg(False, "On resume, start the data at the beginning of the epoch.")
    auto_find_batch_size: bool = arg(
        False, "On out-of-memory: retry with a smaller micro-batch and more accumulation, same global batch."
    )

    def _check_batches_by_cost(self) -> None:
        """What decides about batches, too."""
        name, strategies = f"max_tokens_per_batch={self.max_tokens_per_batch}", ["sequential", "batch_rebalance"]
        if self.max_tokens_per_batch is None:
            name, strategies = "train_sampling_strategy='batch_rebalance'", []
            if self.train_sampling_strategy != "batch_rebalance":
                return
        if packing_of(self):
            raise ArgumentError(f"{name} is for batches that are padded; with packing, max_length decides. Remove one.")
        for other, refused in (
            ("train_sampling_strategy", strategies),
            ("data_order", ["transformers"]),
            ("sortish_sampler", [True]),
            ("world_invariant", [True]),
        ):
            value = getattr(self, other, None)
            if value in refused:
                raise ArgumentError(
                    f"{name} decides which samples are in a batch, and so does {other}={value!r}. Remove one of them."
                )

    def check(self) -> None:
        self._check_batches_by_cost()
        if packing_of(self) and self.max_length is None:
            raise ArgumentError(f"packing={self.packing!r} needs max_length, the number of tokens in a row.")
        if self.dataloader_num_workers == 0:
            for name in (
                "dataloader_prefetch_factor",
                "dataloader_persistent_workers",
                "dataloader_multiprocessing_context",
            ):
                if getattr(self, name):
                    raise ArgumentError(
                        f"{name}={getattr(self, name)!r} is for DataLoader workers, but dataloader_num_workers is 0; "
                        f"set dataloader_num_workers to 1 or more, or remove {name}."
                    )
