"""What other tools name of the faults that `oneloop diff` is tested with; see scripts/difftools.

PaDiff compares a model of torch with one of Paddle, and msProbe one of torch with one of MindSpore. Both get the same
models with the same weights and the same batch as the pairs of `search.py`, and the faults drawn with the same seed:
`python -m tests.divergence.search --pairs torch-paddle --faults 40 --clean 10` and
`python -m tests.divergence.other_tools padiff --faults 40 --clean 10`.
"""

import argparse
import concurrent.futures
import contextlib
import io
import json
import multiprocessing
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np

from tests.divergence import faults, pairs, search
from tests.divergence.faults import options_of, spoil_data, spoil_model

TOOLS = {"padiff": "torch-paddle", "msprobe": "torch-mindspore"}
TOLERANCE = {"atol": 1e-5, "rtol": 1e-4, "compare_mode": "strict"}  # PaDiff's own (1e-7, of means) fails on clean pairs
# Of msProbe: rows are taken for different with a lower cosine, unless all values are 0 but for rounding, or with a
# larger absolute error.
COSINE, ZERO, ERROR = 0.9999, 1e-6, 1e-3


def model_of(framework_name, seed, fault, with_stats=False):
    framework = import_module(f"tests.divergence.{framework_name}_model")
    model = framework.Model()
    model.with_stats = with_stats
    pairs.set_weights(model, framework, seed)
    spoil_model(fault, model, framework)
    return model


def batch_of(seed, fault):
    """The first batch, or another one if the fault is in the data."""
    data = spoil_data(fault, sorted(pairs.samples(seed), key=lambda row: 3 not in row["input_ids"]))
    rows = data[pairs.BATCH :] if fault.name == "other order" else data
    return (np.stack([row["input_ids"] for row in rows[: pairs.BATCH]]),
            np.array([row["labels"] for row in rows[: pairs.BATCH]]))  # fmt: skip


# -- PaDiff


def padiff(chosen, folder, with_update=True):
    """What it names of each (fault, seed): (module, kind), or None if it finds nothing."""
    sys.path.insert(0, str(folder))  # it writes its reports there
    os.environ["PADIFF_API_CHECK"] = "OFF"  # with functions it stops at the model: the frameworks call others
    import paddle
    import padiff
    import torch

    checker = import_module("padiff.trainer.Checker")  # the name of a class, too
    named = []

    def print_info(paddle_item, torch_item, error, step, grad=False, t_root=None, p_root=None):
        node = t_root
        while node is not None and not hasattr(node.net, "padiff_path"):
            node = node.father  # a function that a layer calls: the layer
        path = "" if node is None else node.net.padiff_path.partition(".")[2]
        named.append((path, "gradient" if grad else "activation"))

    checker.print_info = print_info
    found = []
    for fault, seed in chosen:
        named.clear()
        for report in Path(folder).rglob("*.log"):
            report.unlink()
        with contextlib.redirect_stdout(io.StringIO()) as text:
            try:
                _run_padiff(padiff, paddle, torch, fault, seed, with_update)
            except Exception as error:
                named.append((f"{type(error).__name__}: {error}".splitlines()[0], "error"))
        found.append(named[0] if named else _named_in(text.getvalue(), Path(folder)))
    return found


def _run_padiff(padiff, paddle, torch, fault, seed, with_update):
    # Without batch norm: running statistics of Paddle and torch are not the same.
    module, layer = model_of("torch", seed, pairs.CLEAN), model_of("paddle", seed, fault)
    options = options_of(fault)
    rate = options.get("learning_rate", 1e-3)
    adam = {"beta1": options.get("adam_beta1", 0.9), "beta2": options.get("adam_beta2", 0.999)}
    clip = paddle.nn.ClipGradByGlobalNorm(options.get("max_grad_norm", 0.1))
    theirs = paddle.optimizer.AdamW(
        rate, parameters=layer.parameters(), epsilon=options.get("adam_epsilon", 1e-8),
        weight_decay=options.get("weight_decay", 0.0), grad_clip=clip, **adam,
    )  # fmt: skip
    own = torch.optim.AdamW(module.parameters(), 1e-3, weight_decay=0.0)

    def own_step():
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        own.step()
        own.zero_grad()

    def their_step():
        theirs.step()
        theirs.clear_grad()

    (ids, labels), (other_ids, other_labels) = batch_of(seed, pairs.CLEAN), batch_of(seed, fault)
    scale = pairs.BATCH if fault.name == "sum as loss" else 1
    padiff.auto_diff(
        layer, module,
        ({"input_ids": paddle.to_tensor(other_ids), "labels": paddle.to_tensor(other_labels)},
         {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}),
        auto_weights=False, options=dict(TOLERANCE), steps=1 + with_update,
        loss_fn=(lambda out: out["loss"] * scale, lambda out: out["loss"]),
        optimizer=(their_step, own_step) if with_update else None,
    )  # fmt: skip


def _named_in(text, folder):
    """What is in its reports: the first weight of which the gradient or the value after the step differs."""
    for word, kind, name in (("loss", "activation", "Diff found in loss"),
                             ("grad_diff.log", "gradient", "Diff found in model grad"),
                             ("weight_diff.log", "update", "Diff found in model weights")):  # fmt: skip
        if name not in text:
            continue
        if word == "loss":
            return "(loss)", kind
        report = next(folder.rglob(word)).read_text()
        places = [lines.splitlines()[1].strip() for lines in report.split("torch path:")[1:]]
        names = {place.partition(".")[2].rpartition(".")[0] for place in places}
        return (names.pop() if len(names) == 1 else faults.ALL), kind
    return None


# -- msProbe


def msprobe_dump(framework, chosen, folder):
    """Record each (fault, seed) in a step of its own. Faults are put into MindSpore's model alone."""
    folder = Path(folder, framework)
    folder.mkdir()
    config = {
        "task": "tensor", "dump_path": str(folder), "rank": [], "step": [], "level": "L0", "async_dump": False,
        "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    with contextlib.redirect_stdout(io.StringIO()):
        {"torch": _dump_torch, "mindspore": _dump_mindspore}[framework](chosen, str(folder / "config.json"))


def _dump_torch(chosen, config):
    import torch
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=config)
    for _, seed in chosen:
        model = model_of("torch", seed, pairs.CLEAN, with_stats=True)
        ids, labels = batch_of(seed, pairs.CLEAN)
        debugger.start(model)
        model(torch.from_numpy(ids), torch.from_numpy(labels))["loss"].backward()
        debugger.stop()
        debugger.step()


def _dump_mindspore(chosen, config):
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    # Its statistics need a kernel that MindSpore has on Ascend alone.
    ms.mint.norm = lambda tensor: ms.Tensor(np.float32(np.linalg.norm(tensor.asnumpy())))
    from msprobe.mindspore import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=config)
    for fault, seed in chosen:
        model = model_of("mindspore", seed, fault, with_stats=True).set_train()
        ids, labels = (ms.Tensor(each.astype(np.int32)) for each in batch_of(seed, fault))
        debugger.start(model)
        ms.value_and_grad(lambda *given, model=model: model(*given)["loss"], None, model.trainable_params())(
            ids, labels
        )
        debugger.stop()
        debugger.step()


def msprobe_compare(count, folder):
    """What its table says of each: the layer and pass of the first row that differs."""
    import pandas
    from msprobe.mindspore.compare.ms_compare import ms_compare

    mapping = Path(folder, "layers.yaml")
    mapping.write_text("".join(f"{name}.Dense: {name}.Linear\n" for name in faults.LINEAR))
    found = []
    for step in range(count):
        out = Path(folder, f"compared-{step}")
        paths = {name: next(Path(folder, name, f"step{step}").glob("*/dump.json")) for name in ("torch", "mindspore")}
        given = {
            "npu_path": str(paths["mindspore"]),
            "bench_path": str(paths["torch"]),
            "stack_path": str(paths["mindspore"].with_name("stack.json")),
            "is_print_compare_log": False,
        }
        with contextlib.redirect_stdout(io.StringIO()):
            ms_compare(given, str(out), cell_mapping=str(mapping))
        found.append(_first_of(pandas.read_csv(next(out.glob("*.csv")))))
    return found


def _first_of(table):
    for _, row in table.iterrows():
        try:
            error = float(row["MaxAbsErr"])
            differs = error > ERROR or (error > ZERO and float(row["Cosine"]) < COSINE)
        except ValueError:  # a row of one framework alone
            continue
        if not differs:
            continue
        words = str(row["NPU Name"]).split(".")  # Cell.blocks.0.norm1.LayerNorm.forward.0.output.0
        phase = next((word for word in ("forward", "backward", "parameters_grad") if word in words), "")
        module = ".".join(words[1 : words.index(phase) - 1]) if phase else ""
        return module, "activation" if phase == "forward" else "gradient"
    return None


# -- side by side


def others(options, chosen, folder):
    if options.tool == "padiff":
        return _in_own_process(padiff, chosen, folder, not options.without_update)
    for framework in ("torch", "mindspore"):
        _in_own_process(msprobe_dump, framework, chosen, folder)
    return _in_own_process(msprobe_compare, len(chosen), folder)


def _in_own_process(function, *given):
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", choices=list(TOOLS))
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--clean", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-update", action="store_true", help="PaDiff compares no weights after the update")
    options = parser.parse_args(argv)
    pair = TOOLS[options.tool]
    seed = options.seed
    drawn = faults.draw(options.faults, seed, search.without(pair))
    clean = [(pairs.CLEAN, seed + 1 + each) for each in range(options.clean)]
    with tempfile.TemporaryDirectory() as folder:
        found = others(options, [*((fault, seed) for fault in drawn), *clean], folder)
    both = modules = 0
    for fault, got in zip(drawn, found):
        module, kind = (None, None) if got is None else got
        both += (module, kind) == fault.expected
        modules += module == fault.expected[0]
        print(f"{fault.name} at {fault.place or '-'}: {got}; expected {fault.expected}")
    alarms = sum(got is not None for got in found[len(drawn) :])
    print(
        f"{options.tool}: {both} of {len(drawn)} named with module and kind, {modules} with the module; "
        f"{sum(got is not None for got in found[: len(drawn)])} noticed; {alarms} alarms in {options.clean} clean pairs"
    )


if __name__ == "__main__":
    main()
