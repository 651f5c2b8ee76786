"""What is written down while a run goes on: events, calls, host reads, collectives, warnings.

Only oneloop's public names are used, and those of transformers' Trainer: the same file looks at both trees.
"""

import functools
import importlib
import inspect
import logging
import math
import os
import threading
import time
import warnings
from collections import Counter

EVENTS = """on_init_end on_train_begin on_train_end on_epoch_begin on_epoch_end on_step_begin on_pre_optimizer_step
on_optimizer_step on_substep_end on_step_end on_evaluate on_predict on_save on_log on_prediction_step on_push_begin
on_load_data_end on_optimizer_begin on_optimizer_end""".split()

# Methods of transformers' Trainer that people override, in so far as the Trainer has them.
METHODS = """_evaluate _get_collator_with_removed_columns _get_eval_sampler _get_learning_rate _get_output_dir
_get_train_sampler _load_best_model _load_from_checkpoint _prepare_input _prepare_inputs _remove_unused_columns
_report_to_hp_search _save _save_checkpoint _set_signature_columns_if_needed autocast_smart_context_manager
call_model_init compute_loss compute_loss_context_manager create_accelerator_and_postprocess create_model_card
create_optimizer create_optimizer_and_scheduler create_scheduler evaluate evaluation_loop floating_point_ops
get_batch_samples get_decay_parameter_names get_eval_dataloader get_learning_rates get_num_trainable_parameters
get_optimizer_cls_and_kwargs get_optimizer_group get_test_dataloader get_total_train_batch_size get_train_dataloader
hyperparameter_search is_local_process_zero is_world_process_zero log num_examples predict prediction_loop
prediction_step save_model save_state set_initial_training_values store_flos train training_step""".split()

FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")


class Steps:
    """Counts by name, apart for each step: from one on_step_begin to the next, with what is before and after them.

    Only the main thread counts: what heartbeats and background saves do depends on the clock.
    """

    def __init__(self):
        self.steps, self.pid = [Counter()], os.getpid()

    def add(self, name, amount=1):
        if threading.current_thread() is threading.main_thread() and os.getpid() == self.pid:
            self.steps[-1][name] += amount

    def next_step(self):
        self.steps.append(Counter())

    def patch(self, owner, name, label=None, size=None):
        """Count the calls of a function or method, as `label`; `size(args)` is a second count, of bytes."""
        label = label or name
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original, assigned=("__name__", "__doc__"), updated=())
        def counted(*args, **kwargs):
            self.add(label)
            if size is not None:
                self.add(f"{label} bytes", size(args))
            return original(*args, **kwargs)

        setattr(owner, name, counted)


class Journal:
    """All that one process of a run writes down."""

    def __init__(self):
        self.events, self.late_saves, self.given, self.calls = [], [], {}, []
        self.reads, self.collectives = Steps(), Steps()
        self.warned, self.texts = Counter(), []

    def event(self, name, args, state, flags, kwargs):
        if name == "on_step_begin":
            self.reads.next_step()
            self.collectives.next_step()
        self.given[name] = sorted(kwargs)
        if name == "on_save" and args.save_async:  # it comes when the thread is done, at this step or a later one
            self.late_saves.append(f"{name} {state.global_step}")
        else:
            self.events.append(" ".join([name, str(state.global_step), repr(state.epoch), *flags]))

    def record(self):
        return {
            "events": self.events,
            "late_saves": self.late_saves,
            "given": self.given,
            "calls": self.calls,
            "reads": self.reads.steps,
            "collectives": self.collectives.steps,
            "warnings": dict(self.warned),
            "texts": self.texts,
        }


def callback(base, journal, sees_control):
    """A callback that writes every event down. One that touches `control` makes several processes compare their wishes
    after each step, so there is one that does not."""

    def looking_on(name):
        def event(self, args, state, control, **kwargs):
            journal.event(name, args, state, (), kwargs)

        return event

    def with_control(name):
        def event(self, args, state, control, **kwargs):
            journal.event(name, args, state, [flag for flag in FLAGS if getattr(control, flag)], kwargs)

        return event

    make = with_control if sees_control else looking_on
    return type("Witness", (base,), {name: make(name) for name in EVENTS})()


def watched(base, names, journal):
    """A subclass of the Trainer whose methods of these names write down that they are called, then do what they did."""

    def wrapper(name, original):
        @functools.wraps(original)
        def method(self, *args, **kwargs):
            step = getattr(getattr(self, "state", None), "global_step", None)
            journal.calls.append(f"{name} {step}")
            return original(self, *args, **kwargs)

        return method

    def static_wrapper(name, original):
        @functools.wraps(original)
        def method(*args, **kwargs):
            journal.calls.append(name)
            return original(*args, **kwargs)

        return staticmethod(method)

    methods = {}
    for name in names:
        if hasattr(base, name):
            static = isinstance(inspect.getattr_static(base, name), staticmethod)
            methods[name] = (static_wrapper if static else wrapper)(name, getattr(base, name))
    return type("Watched", (base,), methods)


def catch_warnings(journal):
    """Levels and categories are counted; the words are kept to be shown."""

    class Handler(logging.Handler):
        def emit(self, record):
            journal.warned[record.levelname] += 1
            journal.texts.append(f"{record.levelname}: {record.getMessage()}")

    def show(message, category, *place, **kwargs):
        journal.warned[category.__name__] += 1
        journal.texts.append(f"{category.__name__}: {message}")

    logging.getLogger("oneloop").addHandler(Handler(logging.WARNING))
    warnings.simplefilter("default")
    warnings.simplefilter("ignore", ResourceWarning)  # it comes when the collector does
    warnings.showwarning = show


READS = "item tolist numpy asnumpy cpu __bool__ __float__ __int__ __index__ __array__".split()


def count_reads(journal, framework):
    for name in READS:
        journal.reads.patch(importlib.import_module(framework).Tensor, name)


def count_collectives(journal, framework):
    """On torch at the dispatcher, where DDP's own collectives pass too; elsewhere where Python calls them."""
    counts = journal.collectives

    def size(args):
        tensors = [value for value in args if hasattr(value, "shape")]
        widths = [t.element_size() if hasattr(t, "element_size") else t.itemsize for t in tensors]
        return sum(math.prod(t.shape) * width for t, width in zip(tensors, widths))

    if framework == "paddle":
        import paddle.distributed as dist

        names = "all_reduce all_gather all_gather_object broadcast broadcast_object_list barrier reduce reduce_scatter"
        for name in names.split():
            counts.patch(dist, name, size=size)
    elif framework == "mindspore":
        from mindspore import ops

        for name in ("AllReduce", "AllGather", "Broadcast", "ReduceScatter"):
            counts.patch(getattr(ops, name), "__call__", name, size)
    else:
        import torch.distributed as dist
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                if "c10d" in function.namespace:
                    counts.add(function.__name__)
                    counts.add(f"{function.__name__} bytes", size(tree_leaves(args)))
                return function(*args, **(kwargs or {}))

        for store in (dist.TCPStore, dist.PrefixStore):
            for name in ("set", "get", "add", "wait", "check"):
                counts.patch(store, name)
        Mode().__enter__()  # as long as the process lives


def slow_clocks(factor=50):
    """Nothing that the main thread measures takes long: several processes say more to each other after a step of more
    than half a second, and a save that is waited for is told of. Returns a function that puts the clocks right."""
    real = {name: getattr(time, name) for name in ("monotonic", "perf_counter")}

    def slowed(clock):
        start = clock()

        def read():
            now = clock()
            return start + (now - start) / factor if threading.current_thread() is threading.main_thread() else now

        return read

    for name, clock in real.items():
        setattr(time, name, slowed(clock))
    return lambda: [setattr(time, name, clock) for name, clock in real.items()]
