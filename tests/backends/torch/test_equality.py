"""oneloop's loop against one written by hand, to the last bit."""

import copy

import numpy as np
import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from oneloop import Trainer
from oneloop.data.order import Order
from tests.backends.kits.torch_kit import Kit
from tests.backends.support import rows, same_bytes

KIT = Kit()
STEPS, RATE, WARMUP, CLIP, BATCH = 50, 0.05, 6, 0.6, 4
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=RATE),
    "adamw_torch": lambda groups: torch.optim.AdamW(groups, lr=RATE, fused=True),
}


def by_hand(model, data, optim, accumulation, seed, decay=0.0, clip=CLIP):
    """50 updates in plain PyTorch; the norms that the gradients had before clipping."""
    matrices = [p for name, p in model.named_parameters() if "bias" not in name]
    biases = [p for name, p in model.named_parameters() if "bias" in name]
    optimizer = OPTIMIZERS[optim]([{"params": matrices, "weight_decay": decay}, {"params": biases, "weight_decay": 0}])
    schedule = get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    norms, epoch = [], 0
    torch.manual_seed(seed)
    model.train()
    while len(norms) < STEPS:
        order = Order(len(data), seed, epoch)[:].tolist()
        batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
        for start in range(0, len(batches), accumulation):
            if len(norms) == STEPS:
                break
            update = batches[start : start + accumulation]
            samples = sum(map(len, update))
            for indices in update:
                x = torch.from_numpy(np.stack([data[i]["x"] for i in indices]))
                labels = torch.tensor([data[i]["labels"] for i in indices])
                loss = model(x, labels)["loss"]
                if len(update) > 1:
                    loss = loss / (samples / len(indices))
                loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        epoch += 1
    return norms


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("dropout", [0.0, 0.4], ids=["plain", "dropout"])
def test_fifty_steps_give_the_same_bytes(arguments, optim, accumulation, dropout):
    data = rows(43)  # the last of 11 batches has 3 samples, and an accumulated update can be incomplete as well
    model = KIT.classifier(dropout=dropout)
    expected = copy.deepcopy(model)
    norms = by_hand(expected, data, optim, accumulation, seed=42, decay=0.01)
    assert min(norms) < CLIP < max(norms), "clipping should act on some steps and not on others"
    args = arguments(
        optim=optim,
        gradient_accumulation_steps=accumulation,
        learning_rate=RATE,
        weight_decay=0.01,
        warmup_steps=WARMUP,
        max_steps=STEPS,
        max_grad_norm=CLIP,
        per_device_train_batch_size=BATCH,
    )
    trainer = Trainer(model, args, train_dataset=data)
    result = trainer.train()
    assert result.global_step == STEPS
    assert same_bytes(KIT.weights(model), KIT.weights(expected))


@pytest.mark.parametrize("seed, data_seed", [(7, None), (7, 3)])
def test_seed_and_data_seed_are_the_ones_of_dropout_and_of_the_order(arguments, seed, data_seed):
    data, model = rows(43), KIT.classifier()
    expected = copy.deepcopy(model)
    by_hand(expected, data, "sgd", 1, seed=data_seed or seed)
    args = arguments(
        optim="sgd",
        learning_rate=RATE,
        warmup_steps=WARMUP,
        max_steps=STEPS,
        max_grad_norm=CLIP,
        per_device_train_batch_size=BATCH,
        seed=seed,
        data_seed=data_seed,
    )
    Trainer(model, args, train_dataset=data).train()
    assert same_bytes(KIT.weights(model), KIT.weights(expected))


def test_logging_evaluating_and_saving_change_no_bit(arguments):
    data, dropped = rows(43), 0.4
    quiet, busy = KIT.classifier(dropout=dropped), KIT.classifier(dropout=dropped)
    options = {"max_steps": 30, "learning_rate": RATE, "per_device_train_batch_size": BATCH}
    Trainer(quiet, arguments(**options), train_dataset=data).train()
    options |= {"logging_steps": 1, "save_strategy": "steps", "save_steps": 7}
    options |= {"eval_strategy": "steps", "eval_steps": 3}
    Trainer(busy, arguments(**options), train_dataset=data, eval_dataset=rows(9, seed=1)).train()
    assert same_bytes(KIT.weights(quiet), KIT.weights(busy))


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_draw_nothing_from_the_models_randomness(arguments, workers):
    data = rows(24)
    model, expected = KIT.classifier(dropout=0.4), KIT.classifier(dropout=0.4)
    options = {"max_steps": 8, "learning_rate": RATE, "optim": "sgd"}
    Trainer(expected, arguments(**options), train_dataset=data).train()
    Trainer(model, arguments(dataloader_num_workers=workers, **options), train_dataset=data).train()
    assert same_bytes(KIT.weights(model), KIT.weights(expected))
