"""Runs of oneloop in transformers' order, and of transformers' Trainer itself. Needs torch and transformers."""

import torch

import oneloop
from tests.backends.kits.torch_kit import Kit

KIT = Kit()
RUN = {"per_device_train_batch_size": 4, "logging_steps": 1, "report_to": "none", "save_strategy": "no", "seed": 11}
RUN |= {"learning_rate": 0.01, "weight_decay": 0.01, "max_grad_norm": 0.6, "disable_tqdm": True, "use_cpu": True}
RUN |= {"max_steps": 50, "remove_unused_columns": False}


def mlp(dropout=0.0):
    return KIT.classifier(dropout=dropout)


def texts(count=40, longest=6):
    """Token ids and labels; with `longest` above 6 of different lengths."""
    draw = torch.Generator().manual_seed(5)
    samples = []
    for _ in range(count):
        length = int(torch.randint(6, longest + 1, (), generator=draw))
        ids = torch.randint(5, 40, (length,), generator=draw).tolist()
        samples.append({"input_ids": ids, "labels": int(ids[0] > 20)})
    return samples


def divided(outputs, labels, num_items_in_batch=None):
    """With accumulation or several processes, transformers does not divide the loss of a BERT, which ignores
    num_items_in_batch."""
    return torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


def padded(samples):
    width = max(len(sample["input_ids"]) for sample in samples)
    ids = [sample["input_ids"] + [0] * (width - len(sample["input_ids"])) for sample in samples]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor([sample["labels"] for sample in samples])}


class Seen:
    """Data that notes which samples were asked for."""

    def __init__(self, data):
        self.data, self.indices = data, []

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        self.indices.append(index)
        return self.data[index]


class Run:
    """A finished run of one of the two libraries."""

    def trainer_class(self, library):
        return library.Trainer

    def __init__(self, library, folder, make, data, resume=None, **given):
        order = {"data_order": "transformers"} if library is oneloop else {}
        args = library.TrainingArguments(output_dir=str(folder), **RUN | given | order)
        plain = getattr(data, "data", data)
        options = {"data_collator": padded} if isinstance(plain, list) and "input_ids" in plain[0] else {}
        if options and (args.gradient_accumulation_steps > 1 or args.world_size > 1):
            options["compute_loss_func"] = divided
        self.model = make()
        if args.eval_strategy != "no":
            options["eval_dataset"] = plain
        trainer = self.trainer_class(library)(self.model, args, train_dataset=data, **options)
        trainer.train(resume_from_checkpoint=resume)
        self.losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        self.weights = KIT.weights(self.model)
