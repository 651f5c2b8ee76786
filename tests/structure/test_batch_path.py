"""The way of a batch, traced: the functions that docs/architecture.md names, in their order."""

import sys
from fnmatch import fnmatch

from oneloop import Trainer
from tests.backends.support import rows
from tests.structure.ownership import PACKAGE
from tests.structure.test_architecture import quoted, table

TITLE = "How a batch becomes an update"


def traced(backend, trained):
    """(file, function) of every call in one update, from its get_batch_samples to the next one's."""
    calls, root = [], f"{PACKAGE}/"

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(root):
            calls.append((frame.f_code.co_filename.removeprefix(root), frame.f_code.co_name))

    class Traced(Trainer):
        updates = 0

        def get_batch_samples(self, *args, **kwargs):
            self.updates += 1
            sys.setprofile(note if self.updates == 3 else None)
            return super().get_batch_samples(*args, **kwargs)

    run = {"max_steps": 5, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "logging_steps": 100}
    try:
        trained(backend.classifier(), rows(64), Traced, **run)
    finally:
        sys.setprofile(None)
    return calls


def test_the_steps_of_an_update_come_in_the_order_of_the_page(backend, trained):
    calls = traced(backend, trained)
    first = []
    for _, function, file in table(TITLE):
        (name,), (pattern,) = quoted(function), quoted(file)
        places = [i for i, (path, called) in enumerate(calls) if called == name and fnmatch(path, pattern)]
        assert places, f"{name} in {pattern} is not called"
        first.append(places[0])
    assert first == sorted(first)
