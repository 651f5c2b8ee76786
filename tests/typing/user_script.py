"""What a user's script looks like to a type checker. It is checked, never run.

A line that ends in `# error: words` has to be an error whose message contains these words; no other line may be one.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import assert_type

import oneloop
from oneloop import (
    CompressionArguments,
    EvalPrediction,
    HfArgumentParser,
    IntervalStrategy,
    PredictionOutput,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    TrainOutput,
    WandbCallback,
)

args = TrainingArguments(
    Path("output"),
    learning_rate="1e-4",
    max_steps=1e3,
    eval_strategy="steps",
    report_to="none",
    fp16=False,
    lr_scheduler_kwargs='{"min_lr": 1e-6}',
    resume_from_checkpoint=True,
    save_total_limit=None,
)

# What is stored, whatever was given.
assert_type(args, TrainingArguments)
assert_type(args.output_dir, str)
assert_type(args.learning_rate, float)
assert_type(args.max_steps, int)
assert_type(args.eval_strategy, IntervalStrategy | Any)  # a derived dataclass may declare it as a str
assert_type(args.report_to, list[str] | Any)
assert_type(args.save_total_limit, int | None)
assert_type(args.lr_scheduler_kwargs, dict[str, Any] | Any | None)
assert_type(args.world_size, int)
assert_type(args.set_training(learning_rate=1e-3), TrainingArguments)

# Other spellings, of transformers and of PaddleNLP, in the constructor and as attributes.
TrainingArguments("output", evaluation_strategy="epoch", per_gpu_train_batch_size=4, no_cuda=True, fsdp="full_shard")
TrainingArguments("output", recompute=True, sharding_parallel_degree=2, tensor_parallel_degree=1, num_cycles=2)
assert_type(args.evaluation_strategy, IntervalStrategy | Any)
assert_type(args.no_cuda, bool)
args.eval_strategy = "epoch"

# Mistakes.
print(oneloop.Traner)  # error: Traner
print(oneloop.WandBCallback)  # error: WandBCallback
TrainingArguments("output", learnin_rate=1e-4)  # error: learnin_rate
TrainingArguments("output", evaluation_stategy="epoch")  # error: evaluation_stategy
TrainingArguments("output", learning_rate=[1e-4])  # error: learning_rate
TrainingArguments("output", fp16="maybe")  # error: fp16
TrainingArguments("output", predict_with_generate=True)  # error: predict_with_generate
TrainingArguments("output", True)  # error: positional
args.learnin_rate = 1e-4  # error: learnin_rate
print(args.num_epochs)  # error: num_epochs


# Dataclasses that are derived: fields of their own, other defaults, every spelling.
@dataclass
class MyArguments(TrainingArguments):
    my_field: int = 3
    learning_rate: float = 1e-3
    remove_unused_columns: bool = field(default=False)


mine = MyArguments(output_dir="output", my_field=4, evaluation_strategy="steps", report_to="none")
assert_type(mine.my_field, int)
assert_type(mine.warmup_ratio, float | None)
assert_type(MyArguments.from_dict({"output_dir": "output"}), MyArguments)
MyArguments(output_dir="output", my_feld=4)  # error: my_feld
MyArguments(output_dir="output", my_field="4")  # error: my_field

seq2seq = Seq2SeqTrainingArguments("output", predict_with_generate=True, generation_max_length="20", use_cpu=True)
assert_type(seq2seq.generation_max_length, int | None)
assert_type(CompressionArguments("output", strategy="dynabert", warmup_ratio="0.2").warmup_ratio, float | None)
Seq2SeqTrainingArguments("output", generation_num_beam=4)  # error: generation_num_beam

parsed, ours = HfArgumentParser((MyArguments, Seq2SeqTrainingArguments)).parse_args_into_dataclasses()
assert_type(parsed, MyArguments)
assert_type(ours, Seq2SeqTrainingArguments)


class Stopping(TrainerCallback):
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> TrainerControl:
        assert_type(state.global_step, int)
        assert_type(state.best_metric, float | None)
        control.should_training_stop = state.global_step > 10
        control.should_stop = True  # error: should_stop
        return control


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


assert_type(WandbCallback().run_id(), str)
trainer = Trainer(None, args, callbacks=[Stopping(), WandbCallback()], compute_metrics=accuracy)
assert_type(trainer.train(), TrainOutput)
assert_type(trainer.evaluate(), dict[str, float])
assert_type(trainer.predict([]), PredictionOutput)
assert_type(trainer.train().training_loss, float)
assert_type(trainer.state, TrainerState)
trainer.trian()  # error: trian
