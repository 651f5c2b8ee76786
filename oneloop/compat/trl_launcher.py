"""TRL's command line starts its training script in new processes: here they are started under `oneloop run`."""

from importlib import resources
from typing import Any


def launch_training_script(
    script_name: str, launch_args: list[str], training_script_args: list[str], **functions: Any
) -> None:
    """In place of TRL's function of that name: `accelerate launch ... -m oneloop run SCRIPT ...`."""
    from accelerate.commands.launch import launch_command, launch_command_parser

    script = str(resources.files("trl.scripts").joinpath(script_name))
    parser = functions.get("launch_parser_fn", launch_command_parser)()
    words = [*launch_args, "--module", "oneloop", "run", "--as", "transformers", script, *training_script_args]
    functions.get("launch_command_fn", launch_command)(parser.parse_args(words))
