"""The attributes that the parts of a Trainer share."""

import signal
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..callbacks import CallbackHandler
from ..measuring import LossMeter
from ..preemption import Watch
from ..processes import Team
from ..record import Record
from ..state import TrainerControl, TrainerState


class TrainerParts:
    """Declared once for readers and the type checker; Trainer.__init__ fills them."""

    args: Any
    backend: ModuleType
    model: Any
    model_wrapped: Any  # the model under torch.compile and the like: the one that is called
    model_init: Any
    data_collator: Any
    train_dataset: Any
    eval_dataset: Any
    processing_class: Any
    criterion: Any
    compute_loss_func: Any
    compute_metrics: Any
    preprocess_logits_for_metrics: Any
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: Any
    callback_handler: CallbackHandler
    state: TrainerState
    control: TrainerControl
    engine: Any
    team: Team  # the processes of this run
    strategy: Any  # how they share the work on the model; see backends/*/parallel.py
    accelerator: Any
    label_names: list[str]
    losses: LossMeter
    is_in_train: bool

    _plan: Any
    _watch: Watch  # for signals that ask the run to leave
    _run_id: str
    _last_saved: str | None
    _place: Any  # loop.Position
    _leaving: threading.Event  # the run is on its way out with an error
    _said_no_common_disk: bool
    _told: Any  # what the processes tell each other at the start of a step: a function that waits for it
    _step_began: float
    _agreed: signal.Signals | None  # the signal that several processes have agreed to leave on
    _needs_items: bool  # an override is given the number of items of all processes
    _own_step: bool  # training_step is not overridden
    _closes_early: bool  # the loss of this update goes to the others with its closing backward pass
    _idle: bool  # none of this process's micro-batches counts in this update
    _stand_ins: int  # micro-batches that this process computes only because the others compute that many
    _spare: Any  # the micro-batch that it computes then
    _crosses_from: str | None  # the framework that wrote the checkpoint, where it is another one
    _resume_random: Any  # the checkpoint whose random state is still to be restored
    _epoch_random: dict[str, Any] | None  # the streams at the start of the epoch, for data that cannot be positioned
    _resume_streams: dict[str, Any] | None  # streams to go on with after a pending evaluation
    _tokenizer_files: dict[str, bytes] | None
    _train_batch_size: int
    _accumulation: int  # micro-batches in an update; another number of processes may change it on resume
    _ignore_keys_for_eval: list[str] | None
    _signature_columns: list[str] | None
    _said: set[Any]  # what need not be said again; see first_time
    _has_room: bool  # the memory for copies of the first save has been seen to
    _new_best: bool
    _best_before: tuple[Any, Any]
    _save_for_best: bool

    # The weight of a micro-batch in its update; see losses.py.
    _counts_items: bool
    _micro_items: list[float]
    _ignore_index: int | None  # None: every label counts
    _loss_sums: bool
    _class_weights: Any
    _share: Any
    _own_items: float | None  # of the micro-batch under way, where it is weighed
    _num_items: Any  # of the update: a number, or a function that waits for it
    _sharing: int  # processes whose losses are averaged, and that count their items together
    _step_divides: bool  # training_step is the user's, and divides by the items itself
    _weighed: bool  # whether our compute_loss has put the weight on the last loss, also when an override called it
    _shifts_labels: bool
    _split: int

    # Saves whose end the processes other than the main one have to be told of, and what there is to tell.
    _awaited: list[Any]
    _model_parts: Any  # whole weights by name, and which are tied, while a save is being made
    _work: tuple[int, float, int]  # tokens, operations and unpadded tokens of all processes, when last asked
    _outcomes: list[bool]
    _hears_of_saves: bool

    _rate_used: float  # the learning rate of the last update
    _past: Any
    _compiled_for_eval: Any
    _own_loss: bool
    _half_inputs: str | None  # fp16 or bf16 while the weights are in pure half, which take no float32 inputs
    _counts_tokens: str
    _tokens: int
    _flops: float
    _unpadded: list[Any]
    _unpadded_total: int
    _log_clock: tuple[float, int]

    # For the run's page; see recording.py.
    _recorder: Record
    _is_recorded: bool  # the start of this train() has been noted, and its end not yet
    _parent_id: str | None  # the run that this one branched off from
    _passed_over: list[str]  # checkpoints that were not whole when the run was resumed
    _figures: dict[str, float]  # speed and memory of the log that is being written
    _figures_clock: int  # tokens up to the last log

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A part calls methods of the others; Trainer has them all."""
