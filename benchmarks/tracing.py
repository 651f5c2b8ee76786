"""What a recorded step (`trace_steps`) and a verified one (`verify_steps`) cost: BERT of 110 million parameters.

`python benchmarks/tracing.py [--rounds 4]`: every other step is recorded or verified; the processor time from the
beginning of each step to that of the next is compared with that of its neighbours.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from common import print_table, silence

CONFIGURATIONS = ((2, 64), (8, 128))  # rows of a batch, tokens of a row


def seconds_of_steps(model, data, folder, batch, steps, **given):
    """Processor time of each step."""
    from oneloop import Trainer, TrainerCallback, TrainingArguments

    times = []

    class Clock(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            times.append(time.process_time())

        def on_train_end(self, args, state, control, **kwargs):
            times.append(time.process_time())

    args = TrainingArguments(
        str(folder), per_device_train_batch_size=batch, max_steps=steps, report_to="none", save_strategy="no",
        disable_tqdm=True, logging_strategy="no", use_cpu=True, **given,
    )  # fmt: skip
    with silence():
        Trainer(model, args, train_dataset=data, callbacks=[Clock()]).train()
    return np.diff(times)


def measure(batch, length, rounds, layers):
    """A row of the table, and the median size of a recording."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(num_hidden_layers=layers))
    random = np.random.default_rng(0)
    data = [{"input_ids": ids, "labels": ids} for ids in random.integers(0, 30000, (64, length))]
    steps = 2 * rounds + 3  # the first one is slower: the state of the optimizer is made
    chosen = range(2, steps - 1, 2)
    row = [f"{batch} x {length}"]
    with tempfile.TemporaryDirectory() as folder:
        for given in ({"trace_steps": ",".join(map(str, chosen))}, {"verify_steps": 2}):
            every = seconds_of_steps(model, data, folder, batch, steps, **given)
            # Steps count from 0 in trace_steps, and from 1 in verify_steps.
            special = chosen if "trace_steps" in given else range(3, steps - 1, 2)
            plain = [(every[i - 1] + every[i + 1]) / 2 for i in special]
            ratios = [every[i] / each for i, each in zip(special, plain, strict=True)]
            if "trace_steps" in given:
                row.append(f"{median(plain):.2f}")
            row += [f"{median(every[i] for i in special):.2f}", f"{median(ratios):.1f}x"]
        sizes = [path.stat().st_size for path in Path(folder, "trace").iterdir()]
    return row, median(sizes)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="a smoke run whose figures mean nothing")
    options = parser.parse_args(argv)
    rounds, layers, configurations = (
        (1, 1, CONFIGURATIONS[:1]) if options.quick else (options.rounds, 12, CONFIGURATIONS)
    )
    header = ["rows x tokens", "a step, s of CPU", "recorded", "to a step", "verified", "to a step"]
    rows, sizes = zip(*(measure(*each, rounds, layers) for each in configurations), strict=True)
    print_table("BERT, 109.5 million parameters, AdamW, one thread", header, rows)
    print(f"A recording has {max(sizes):,.0f} bytes; the weights, gradients and states of the step, 1.75 GB.")


if __name__ == "__main__":
    main()
