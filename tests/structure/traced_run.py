"""Traces a tiny run on a checkout, given as an argument, and prints JSON: python tests/structure/traced_run.py CHECKOUT

One process, a list of rows, an MLP on torch, no log. A function is one that has a name in a module of oneloop and was
called from the request for the batches of an update to the next request, by sys.setprofile; lambdas count, frames of
comprehensions do not. For a step with a save, what its writer calls in other threads counts too.
"""

import json
import os
import sys
import tempfile
import threading

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def main(checkout):
    import torch

    import oneloop

    class MLP(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

        def forward(self, x, labels):
            return {"loss": torch.nn.functional.cross_entropy(self.layers(x), labels)}

    base = os.path.join(os.path.realpath(checkout), "oneloop", "")
    assert os.path.realpath(oneloop.__file__).startswith(base), f"{oneloop.__file__} is not of {checkout}"
    rows = [{"x": [float(i % 7)] * 4, "labels": i % 3} for i in range(64)]
    tracing, called = False, set()

    def note(frame, event, _):
        code = frame.f_code
        if tracing and event == "call" and code.co_filename.startswith(base) and code.co_name not in COMPREHENSIONS:
            called.add(f"{code.co_filename.removeprefix(base)}:{code.co_firstlineno} {code.co_name}")

    class Traced(oneloop.Trainer):
        updates = 0

        def get_batch_samples(self, *args, **kwargs):
            nonlocal tracing
            self.updates += 1
            if self.updates == 3:
                tracing = True
                sys.setprofile(note)
            elif self.updates == 4:
                sys.setprofile(None)
                for thread in threading.enumerate():  # the writer of this step, not that of the last one
                    if thread.name == "oneloop-save":
                        thread.join()
                tracing = False
            return super().get_batch_samples(*args, **kwargs)

    def train(output_dir, resume=None, trainer_class=oneloop.Trainer, **given):
        torch.manual_seed(0)
        options = {"max_steps": 5, "save_strategy": "no", "report_to": "none", "disable_tqdm": True} | given
        args = oneloop.TrainingArguments(
            output_dir=output_dir, per_device_train_batch_size=4, logging_steps=100, use_cpu=True, **options
        )
        called.clear()
        trainer_class(MLP(), args, train_dataset=rows).train(resume_from_checkpoint=resume)
        return sorted(called)

    opened = []
    sys.addaudithook(lambda event, given: opened.append(given[0]) if event == "open" else None)
    with tempfile.TemporaryDirectory() as folder:
        update = train(f"{folder}/update", trainer_class=Traced)
        threading.setprofile(note)
        saving = {"save_strategy": "steps", "save_steps": 3}
        save = train(f"{folder}/save", trainer_class=Traced, **saving)
        threading.setprofile(None)
        opened.clear()
        train(f"{folder}/save", resume=True, max_steps=8)
        names = [os.path.basename(os.fsdecode(path)) for path in opened if isinstance(path, (str, bytes))]
    reads = names.count("run.json")
    print(json.dumps({"update": update, "save": save, "reads": reads}))


if __name__ == "__main__":
    main(sys.argv[1])
