"""`oneloop train`, `oneloop init` and `oneloop predict`."""

import argparse
import os
from pathlib import Path
from typing import Any

from ..errors import ArgumentError

_NO_OPTIONS = "\0"  # as the first character of options: all words are left to the parser of recipes


def add(commands: Any) -> None:
    """Add the three subcommands."""
    train = commands.add_parser(
        "train",
        help="train a model from data files and a recipe, without Python",
        prefix_chars=_NO_OPTIONS,
        add_help=False,
    )
    train.add_argument("words", nargs=argparse.REMAINDER)
    train.set_defaults(run=_train, failure=2)
    init = commands.add_parser("init", help="write a commented recipe for `oneloop train`")
    init.add_argument("file", nargs="?", default="recipe.yaml", metavar="FILE", help="default: recipe.yaml")
    init.add_argument("--task", required=True, metavar="TASK", help="the task, such as classification or sft")
    init.add_argument("--force", action="store_true", help="replace a file that exists")
    init.set_defaults(run=_init, failure=2)
    predict = commands.add_parser(
        "predict",
        help="predict with a model that `oneloop train` has trained",
        description="Writes a JSON object for each row: its inputs and the prediction. If the rows have the target "
        "too, metrics are printed to stderr.",
    )
    predict.add_argument(
        "directory", metavar="DIR", help="the output_dir of `oneloop train`, or one of its checkpoints"
    )
    add_option = predict.add_argument
    add_option("--data", nargs="+", required=True, metavar="FILE", help="data files or folders, as for training")
    add_option("--output", "-o", metavar="FILE", help="default: stdout")
    add_option(
        "--columns", nargs="+", default=[], metavar="ROLE=COLUMN", help="columns with other names than in training"
    )
    add_option("--bad_rows", choices=("stop", "skip"), default="stop", help="default: stop")
    add_option("--batch_size", type=int, default=8, metavar="N", help="default: 8")
    add_option("--device", help="default: the best available")
    predict.set_defaults(run=_predict, failure=2)


def _train(options: argparse.Namespace) -> int:
    from ..compat.redirect import redirect
    from ..recipes import job, recipe, script
    from ..recipes.tasks import TASKS

    given = recipe.read(options.words)
    task = TASKS[str(given.recipe.task)]
    if task.trl and not given.script:
        redirect("transformers")  # before TRL imports the Trainer
    found, data, tokenizer = job.resolve(given)
    if given.script:
        print(script.write(found), end="")
        return 0
    from ..recipes import training

    return (training.run_script if task.trl else training.run)(found, data, tokenizer)


def _init(options: argparse.Namespace) -> int:
    from ..formats.durable import replace_file
    from ..parser.options import nearest
    from ..recipes import template
    from ..recipes.tasks import TASKS

    if options.task not in TASKS:
        near = nearest(options.task, TASKS)
        hint = f" Did you mean {near}?" if near else ""
        raise ArgumentError(f"unknown task {options.task!r}: expected one of {', '.join(TASKS)}.{hint}")
    path = Path(options.file)
    if os.path.lexists(path) and not options.force:
        raise ArgumentError(f"{path} exists. Choose another name, or pass --force to replace it.")
    replace_file(path, template.write(options.task).encode())
    print(f"{path}: set model and data, then run `oneloop train {path}`")
    return 0


def _predict(options: argparse.Namespace) -> int:
    from ..recipes import prediction
    from ..recipes.recipe import column_names

    return prediction.run(
        options.directory,
        options.data,
        options.output,
        column_names(options.columns),
        options.bad_rows,
        options.batch_size,
        options.device,
    )
