"""`oneloop plan`."""

import argparse
import contextlib
import importlib
import json
import sys
import time
from pathlib import Path

from ..backends import registry
from ..compat.run_script import run, run_module
from ..errors import ArgumentError
from ..plan import request, sizes


def command(options: argparse.Namespace) -> int:
    sizes.parse("--device-memory", options.device_memory)  # before the script takes its time
    asked = {"world": options.world, "device_memory": options.device_memory, "per_machine": options.per_machine}
    asked |= {"search": (options.world or 1) > 1 and options.device_memory is not None, "progress": _Progress()}
    output = sys.stdout
    try:
        # What the script prints goes to stderr, so that stdout has the plan alone.
        with (
            request.planning(request.Request(asked)),
            contextlib.redirect_stdout(sys.stderr),
            _without_weights(options),
        ):
            status = (run_module if options.module else run)(options.script, options.arguments, options.library)
    except request.PlanMade as made:
        plan = made.plan
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(bool(left.code))
        return _ended(options, status)
    else:
        return _ended(options, status)
    title = f"Plan of {Path(options.script).name} on {plan.world} process{'es' * (plan.world > 1)}"
    if options.page:
        Path(options.page).write_text(plan.to_html(title), encoding="utf-8")
    print(json.dumps(plan.to_dict(), indent=2) if options.json else f"{title}\n\n{plan.to_text()}", end="", file=output)
    return 0


class _Progress:
    """Says on stderr what takes its time."""

    def __init__(self) -> None:
        self.start, self.count = time.monotonic(), 0

    def __call__(self, text: str) -> None:
        self.count += 1
        print(f"[{time.monotonic() - self.start:4.0f} s] {self.count}: {text}", file=sys.stderr, flush=True)


def _ended(options: argparse.Namespace, status: int) -> int:
    if not status:
        print(f"oneloop plan: {options.script} ended without a call of Trainer.train().", file=sys.stderr)
    elif not options.weights:
        print(
            "oneloop plan: if the error is about a tensor without data (FakeTensor), the script reads weights before "
            "it trains: use --weights.",
            file=sys.stderr,
        )
    return status or 1


def _without_weights(options: argparse.Namespace) -> contextlib.AbstractContextManager:
    """A context for the script in which models have no weights, if it is one of a framework that can do it."""
    if options.weights or options.library in ("paddlenlp", "mindnlp") or not _uses_torch(options):
        return contextlib.nullcontext()
    try:
        return importlib.import_module(registry.get("torch").module).planning.without_weights()
    except ImportError:
        return contextlib.nullcontext()


def _uses_torch(options: argparse.Namespace) -> bool:
    """Whether a script may make models of torch: it is not one of another framework."""
    if options.module:
        return True
    try:
        text = Path(options.script).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ArgumentError(f"script {options.script} not found; pass its path before its arguments.") from error
    others = ("import paddle", "from paddle", "import mindspore", "from mindspore", "import mindnlp", "from mindnlp")
    return not any(line.strip().startswith(others) for line in text.splitlines())
