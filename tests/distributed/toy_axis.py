"""An axis from outside: processes along it compute the same batch and average nothing.

As a program: `toy_axis.py FOLDER NAME TOY_SIZE [CHECKPOINT]` trains, evaluates, predicts and saves, or resumes from a
checkpoint; each process writes what it had to FOLDER/NAME-rankN.json. The framework is that of the variable FRAMEWORK.
"""

import hashlib
import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.backends import registry
from oneloop.data.collators import DefaultDataCollator
from oneloop.data.collators.language import RandomCollator
from oneloop.distributed import mesh
from oneloop.distributed.world import world
from tests.backends.support import rows
from tests.distributed.cases import KIT, Seen

mesh.register(
    mesh.AxisKind(
        "toy",
        splits=lambda args: mesh.Splits.NOTHING,
        size=mesh.from_argument("toy_size"),
        strategy=lambda strategy, framework: strategy,  # what one batch has, or those that split the batch
    )
)


@dataclass
class ToyArguments(TrainingArguments):
    toy_size: int = 1


class Augmented:
    """Samples with noise from the streams of the process, which notes what was asked for."""

    def __init__(self, samples):
        self.samples, self.asked = samples, []

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.asked.append(index)
        noise = np.random.rand(6).astype(np.float32) * 0.1 + random.random() * 0.1
        return self.samples[index] | {"x": self.samples[index]["x"] + noise}


class Noisy(RandomCollator):
    """A collator with a stream of its own."""

    seed = 5

    def __call__(self, samples):
        drawn = self._generator().random((len(samples), 6)).astype(np.float32)
        moved = [sample | {"x": sample["x"] + noise * 0.1} for sample, noise in zip(samples, drawn)]
        return DefaultDataCollator(return_tensors=registry.tensor_format(KIT.name))(moved)


class Drawn:
    """A sampler that draws its order from the streams of the process."""

    def __iter__(self):
        return iter(np.random.permutation(29).tolist())

    def __len__(self):
        return 29


class DrawnTrainer(Trainer):
    def _get_train_sampler(self, dataset=None):
        return Drawn()


class LoaderTrainer(Trainer):
    """Its loader yields the same batches in each process, which take them in turn."""

    def get_train_dataloader(self):
        import torch

        given = {"sampler": Drawn(), "collate_fn": self.data_collator, "drop_last": True}
        return torch.utils.data.DataLoader(self.train_dataset, self.args.train_batch_size, **given)


TRAINERS = {"drawn": DrawnTrainer, "loader": LoaderTrainer}


class Asking(TrainerCallback):
    """The last process alone asks for a save, and notes those that were made; or it dies."""

    def __init__(self, dies):
        self.saved, self.dies = [], dies

    def on_step_end(self, args, state, control, **kwargs):
        if self.dies and state.global_step == 3 and world().rank == world().size - 1:
            os._exit(1)
        control.should_save = control.should_save or (state.global_step == 2 and world().rank == world().size - 1)

    def on_save(self, args, state, control, **kwargs):
        self.saved.append(state.global_step)


def accuracy(prediction):
    METRICS.append(len(prediction.label_ids))
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


METRICS = []  # the numbers of samples that this process has computed metrics of


def digest(arrays):
    hashed = hashlib.sha256()
    for name in sorted(arrays):
        hashed.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return hashed.hexdigest()


def weights(model):
    """By name; those that are sharded are gathered."""
    if KIT.name != "torch":
        return KIT.weights(model)
    full = {name: getattr(value, "full_tensor", lambda v=value: v)() for name, value in model.state_dict().items()}
    return {name: value.detach().numpy() for name, value in full.items()}


def groups(trainer):
    """What processes along each axis tell each other: their ranks, by every collective."""
    core, found = trainer._oneloop, {}
    for name in ("data", "toy"):
        group = core.processes.along(core.mesh, name)
        found[name] = [
            [int(rank) for (rank,) in group.all_gather([world().rank])],
            [int(rank) for (rank,) in group.all_gather_async([world().rank])()],
            group.all_gather_object(world().rank),
            group.gather_object(world().rank),
            group.broadcast_object(world().rank),
            group.rank,
        ]
        group.barrier()
    if KIT.name == "torch":
        found["gathered"] = trainer.accelerator.gather(torch_rank()).tolist()
    return found


def torch_rank():
    import torch

    return torch.tensor([world().rank])


def main(folder, name, toy_size, checkpoint=None, *options):
    seen, asking, data = Seen(), Asking(dies=name == "dying"), Augmented(rows(29))
    toy_size = int(toy_size)
    replicas = world().size // toy_size
    args = ToyArguments(
        str(Path(folder) / name),
        toy_size=toy_size,
        per_device_train_batch_size=8 // replicas,
        per_device_eval_batch_size=3,
        max_steps=6,
        learning_rate=0.01,
        logging_steps=1,
        max_grad_norm=0.5,
        save_strategy="steps",
        save_steps=4,
        include_num_input_tokens_seen=True,
        report_to="none",
        disable_tqdm=True,
        log_level="warning",
        device="cpu",
        ddp_timeout=60,
        **dict(option.split("=") for option in options),
    )
    model = KIT.classifier(dropout=0.2, norm=True, seed=world().rank)  # the weights of the main process are broadcast
    trainer = TRAINERS.get(name.partition("_")[0], Trainer)(
        model,
        args,
        data_collator=Noisy(),
        train_dataset=data,
        eval_dataset=rows(7, seed=1),
        compute_metrics=accuracy,
        callbacks=[seen] if name.startswith("plain") else [seen, asking],  # nobody asks: news travel with messages
    )
    if not checkpoint or checkpoint == "-":
        trainer.train()
    else:
        trainer.train(resume_from_checkpoint=checkpoint)
    evaluated = trainer.evaluate()
    predicted = trainer.predict(rows(7, seed=2))
    found = {
        "place": trainer._oneloop.mesh.describe(),
        "weights": digest(weights(trainer.model)),
        "losses": [loss.hex() for loss in seen.losses],
        "norms": [float(norm).hex() for norm in seen.norms],
        "asked": data.asked,
        "saved": asking.saved,
        "metrics": {key: value for key, value in evaluated.items() if key in ("eval_loss", "eval_accuracy")},
        "predictions": digest({"all": predicted.predictions, "labels": predicted.label_ids}),
        "samples": len(predicted.label_ids),
        "computed": METRICS,
        "drawn": [random.random(), float(np.random.rand())],
        "tokens": trainer.state.num_input_tokens_seen,
        "groups": groups(trainer),
        "buffers": digest({name: value for name, value in weights(trainer.model).items() if "running" in name}),
    }
    (Path(folder) / f"{name}-rank{world().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
