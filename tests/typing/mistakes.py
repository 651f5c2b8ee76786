"""What must be an error to a type checker. It is checked, never run.

Each line that ends in `# error: words` has to be an error whose message contains these words; no other line may be one.
"""

from torch import nn
from torch.utils.data import Dataset

from oneloop import EvalPrediction, Seq2SeqTrainer, Trainer, TrainerCallback, TrainingArguments

model, args, rows = nn.Linear(2, 2), TrainingArguments("output"), [{"x": 1}]
name: str = input()

# The Trainer's parameters.
Trainer(3, 5, compute_metrics="f1")  # error: compute_metrics
Trainer(3)  # error: Model
Trainer("bert-base-uncased", args)  # error: Model
Trainer(model, "output")  # error: TrainingArguments
Trainer(model, {"output_dir": "output"})  # error: TrainingArguments
Trainer(model, TrainingArguments)  # error: TrainingArguments
Trainer(model, args, train_dataset=5)  # error: train_dataset
Trainer(model, args, eval_dataset=5)  # error: eval_dataset
Trainer(model, args, train_data=rows)  # error: train_data
Trainer(model, args, data_collator=rows)  # error: data_collator
Trainer(model, args, compute_metrics=0.5)  # error: compute_metrics
Trainer(model, args, callbacks=["early stopping"])  # error: Callback
Trainer(model, args, optimizers="adamw")  # error: optimizers
Trainer(model, args, optimizer_cls_and_kwargs=("adamw", {}))  # error: optimizer_cls_and_kwargs
Trainer(model, args, model_init=model.training)  # error: model_init
Trainer(model, args, criterion="cross entropy")  # error: criterion
Seq2SeqTrainer(3, args)  # error: Model
Seq2SeqTrainer(model, args, train_dataste=rows)  # error: train_dataste

# Its attributes and methods.
trainer = Trainer(model, args, train_dataset=rows)
trainer.args.learnin_rate  # error: learnin_rate
trainer.args.learning_rate.value  # error: value
trainer.args.eval_strategy.valu  # error: valu
trainer.compute_metrics = "f1"  # error: assign
trainer.eval_datset  # error: eval_datset
trainer.train(resume_from_chekpoint=True)  # error: resume_from_chekpoint
trainer.train(resume_from_checkpoint=3)  # error: resume_from_checkpoint
trainer.train().loss  # error: loss
trainer.evaluate(3)  # error: evaluate
trainer.predict(3)  # error: predict
trainer.predict(rows).prediction  # error: prediction
trainer.save_model(3)  # error: save_model
trainer.state.global_stpe  # error: global_stpe
trainer.add_callback("progress")  # error: add_callback
trainer.get_eval_dataloader(3)  # error: get_eval_dataloader
trainer.hyperparameter_search(direction=3)  # error: direction
trainer.push_to_hub(blocking="yes")  # error: blocking
trainer.plan(device_memory=[80])  # error: device_memory

# Choices, switches and numbers of the arguments.
TrainingArguments("output", eval_strategy="epochs")  # error: eval_strategy
TrainingArguments("output", eval_strategy=name)  # error: eval_strategy
TrainingArguments("output", evaluation_strategy="epochs")  # error: evaluation_strategy
TrainingArguments("output", save_strategy="never")  # error: save_strategy
TrainingArguments("output", optim="adm")  # error: optim
TrainingArguments("output", lr_scheduler_type="cosin")  # error: lr_scheduler_type
TrainingArguments("output", nonfinite="raise")  # error: nonfinite
TrainingArguments("output", include_num_input_tokens_seen="some")  # error: include_num_input_tokens_seen
TrainingArguments("output", fp16="true")  # error: fp16
TrainingArguments("output", bf16="no")  # error: bf16
TrainingArguments("output", no_cuda=2)  # error: no_cuda
args.eval_strategy = "epochs"  # error: assign
args.optim = "adm"  # error: assign
args.fp16 = "true"  # error: bool


def metrics_of(prediction: EvalPrediction) -> float:
    return prediction.metric  # error: metric


Trainer(model, args, compute_metrics=metrics_of)  # error: compute_metrics


class OwnTrainer(Trainer):
    def compute_loss(self, model: nn.Module, inputs: dict[str, object], return_outputs: bool = False) -> object:
        self.args.learnin_rate  # error: learnin_rate
        return super().compute_losses(model, inputs)  # error: compute_losses

    def evaluate(self, eval_dataset: Dataset | None = None) -> str:  # error: evaluate
        return ""


class Callback(TrainerCallback):
    def on_lgo(self) -> None:
        self.on_log(3)  # error: control
