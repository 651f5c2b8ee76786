"""The options of all commands."""

import argparse
from typing import Any

from .. import __version__
from ..compat.redirected_names import LIBRARIES

_NO_OPTIONS = "\0"  # as the first character of options: all words are left to the parser of recipes


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, with all commands."""
    parser = argparse.ArgumentParser(prog="oneloop", description="Tools for training runs.")
    parser.add_argument("--version", action="version", version=f"oneloop {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_recipes(commands)
    _add_reports(commands)
    _add_diff(commands)
    _add_checkpoints(commands)
    _add_doctor(commands)
    _add_accept(commands)
    _add_plan(commands)
    _add_scripts(commands)
    return parser


def _add_recipes(commands: Any) -> None:
    """train, init and predict."""
    train = commands.add_parser(
        "train",
        help="train a model from data files and a recipe, without Python",
        prefix_chars=_NO_OPTIONS,
        add_help=False,
    )
    train.add_argument("words", nargs=argparse.REMAINDER)
    train.set_defaults(failure=2)
    init = commands.add_parser("init", help="write a commented recipe for `oneloop train`")
    init.add_argument("file", nargs="?", default="recipe.yaml", metavar="FILE", help="default: recipe.yaml")
    init.add_argument("--task", required=True, metavar="TASK", help="the task, such as classification or sft")
    init.add_argument("--force", action="store_true", help="replace a file that exists")
    init.set_defaults(failure=2)
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
    predict.set_defaults(failure=2)


def _add_reports(commands: Any) -> None:
    """report, compare and watch."""
    report = commands.add_parser("report", help="write report.png and a self-contained report.html for a run")
    report.add_argument("directory", metavar="DIR", help="the output_dir of a run, or one of its checkpoints; or a URL")
    report.add_argument("--title", help="title of the report; default: the directory's name")
    report.add_argument(
        "--verify", action="store_true", help="verify the checksums of the checkpoints, not only their sizes"
    )
    report.add_argument("--csv", metavar="FILE", help="also write every logged value as CSV, a row for each step")
    report.set_defaults(failure=1)
    compare = commands.add_parser("compare", help="compare several runs on one page")
    compare.add_argument("directories", metavar="DIR", nargs="+", help="runs, or directories that contain runs")
    compare.add_argument(
        "--output", "-o", default="compare.html", metavar="FILE", help="default: compare.html in the current directory"
    )
    compare.add_argument("--title", help="title of the page")
    compare.add_argument("--csv", metavar="FILE", help="also write the table of the runs as CSV")
    compare.set_defaults(failure=1)
    watch = commands.add_parser("watch", help="serve the page of a run on this machine during training")
    watch.add_argument(
        "directory", metavar="DIR", help="the output_dir of a run (it may not exist yet), or a directory with several"
    )
    watch.add_argument("--port", type=int, default=8600, help="default: 8600; 0 selects a free port")
    watch.set_defaults(failure=1)


def _add_diff(commands: Any) -> None:
    diff = commands.add_parser(
        "diff",
        help="find the first layer and step in which two recorded runs differ",
        description="Compare the recordings of two runs (trace_steps): the first layer, and the kind of difference, "
        "that rounding does not explain.",
        epilog="Exit status: 0 if the runs agree, 1 if they differ, 2 if the command failed.",
    )
    diff.add_argument("a", metavar="RUN_A", help="the output_dir of the reference run, or a URL")
    diff.add_argument("b", metavar="RUN_B", help="the output_dir of the other run, or a URL")
    diff.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="NAME_IN_A=NAME_IN_B",
        help="a layer or parameter, or a prefix of names, that has another name in B; or a JSON file",
    )
    diff.add_argument(
        "--follow",
        action="store_true",
        help="compare runs while they train, until they differ or both have ended",
    )
    diff.add_argument("--json", action="store_true", help="print JSON instead of text")
    diff.add_argument("--html", metavar="FILE", help="also write a page")
    diff.set_defaults(failure=2)


def _add_checkpoints(commands: Any) -> None:
    checkpoints = commands.add_parser(
        "checkpoints",
        help="list, verify, prune and export the checkpoints of a run",
        description="List the checkpoints of a run, verify them, delete those that are not needed, and write one for "
        "another trainer.",
        epilog="Exit status: 0 if all checkpoints are complete, 1 if any is damaged, 2 if the command failed.",
    )
    checkpoints.add_argument(
        "directory",
        metavar="DIR",
        help="the output_dir of a run, or a checkpoint, also of another trainer; or a URL",
    )
    checkpoints.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "verify", "prune", "export"),
        help="list (default) compares sizes; verify reads every byte and compares checksums; prune deletes; export "
        "writes the checkpoint, or the newest one of the run, as another trainer resumes from it",
    )
    add = checkpoints.add_argument
    add("--json", action="store_true", help="print JSON instead of text")
    add("--keep", type=int, metavar="N", help="prune: keep the newest N complete checkpoints of each run, and its best")
    add("--damaged", action="store_true", help="prune: also delete damaged checkpoints")
    add(
        "--foreign",
        action="store_true",
        help="prune: also delete checkpoints of transformers' Trainer, as a separate run",
    )
    add("--dry-run", action="store_true", help="prune: only print what would be deleted")
    add(
        "--to",
        choices=("transformers", "dcp"),
        help="export: for transformers' Trainer, or as a folder of torch.distributed.checkpoint",
    )
    add("--output", metavar="DIR", help="export: where to write it (default: CHECKPOINT.transformers, CHECKPOINT.dcp)")
    checkpoints.set_defaults(failure=2)


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help="show the installed frameworks and what each supports on this machine")
    doctor.add_argument("--json", action="store_true", help="print JSON instead of text")
    doctor.set_defaults(failure=1)


def _add_accept(commands: Any) -> None:
    accept = commands.add_parser(
        "accept",
        help="try on this machine, in about 20 minutes, what oneloop promises",
        description="Trains small models on this machine's devices and checks what comes out. Writes a page and a JSON "
        "file, which have no names of hosts or users and no paths, so they can be posted.",
        epilog="Exit status: 0 if no check failed, 1 if one did, 2 if the command failed.",
    )
    accept.add_argument("checks", nargs="*", metavar="CHECK", help="only these checks, such as train or kill_resume")
    accept.add_argument(
        "--framework", default="torch", metavar="NAME", help="torch, paddle or mindspore; default: torch"
    )
    accept.add_argument(
        "--device", metavar="KIND", help="such as cuda, npu or cpu; default: an accelerator if there is one"
    )
    accept.add_argument(
        "--minutes", type=float, default=20.0, metavar="N", help="begin no check after that; default: 20"
    )
    accept.add_argument("--output", "-o", default=".", metavar="DIR", help="where to write; default: here")
    accept.set_defaults(failure=2)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="show what a run will need in memory, steps, disk and messages, without training",
        description="Runs a script until its Trainer would train, and prints a plan of the run instead. On PyTorch, "
        "models are created without allocating their weights.",
        epilog="Exit status: 0, 1 if the script ended without training or with an error, 2 if the command failed.",
    )
    plan.add_argument("--world", type=int, metavar="N", help="the number of processes; default: 1")
    plan.add_argument("--device-memory", metavar="SIZE", help="the memory of a device, such as 80GB or 24GiB")
    plan.add_argument(
        "--per-machine",
        type=int,
        default=8,
        metavar="N",
        help="processes of a machine, for hybrid sharding; default: 8",
    )
    plan.add_argument(
        "--weights", action="store_true", help="create the model with its weights, for scripts that read them"
    )
    plan.add_argument("--json", action="store_true", help="print JSON instead of text")
    plan.add_argument("--page", metavar="FILE", help="also write an HTML page")
    plan.add_argument(
        "--as", dest="library", choices=LIBRARIES, help="the library; default: detected from the script's imports"
    )
    plan.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    plan.add_argument("script", metavar="SCRIPT", help="the path of the script")
    plan.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    plan.set_defaults(failure=2)


def _add_scripts(commands: Any) -> None:
    """run and check."""
    run = commands.add_parser(
        "run",
        help="run an unmodified script written for transformers, PaddleNLP or MindNLP on oneloop",
        description="Run a script with its Trainer imports redirected to oneloop; everything else stays the library's.",
        epilog="Exit status: the script's. Several processes: torchrun --nproc_per_node 2 -m oneloop run script.py",
    )
    run.add_argument(
        "--as", dest="library", choices=LIBRARIES, help="the library; default: detected from the script's imports"
    )
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    run.add_argument("script", metavar="SCRIPT", help="the path of the script, or a command such as trl")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    run.set_defaults(failure=2)
    check = commands.add_parser(
        "check",
        help="check a script for oneloop without running it",
        description="Reads a script, and the modules in its directory that it imports, without running anything. Lists "
        "what works, maps, changes its meaning, depends on the machine, is refused, or cannot be determined.",
        epilog="Exit status: 0 if nothing is refused, 1 if something is, 2 if the script cannot be read.",
    )
    check.add_argument(
        "--as", dest="library", choices=LIBRARIES, help="the library; default: detected from its imports"
    )
    check.add_argument("--json", action="store_true", help="print JSON instead of text")
    check.add_argument("script", metavar="SCRIPT", help="the path of the script")
    check.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- ...", help="arguments to check with it")
    check.set_defaults(failure=2)
