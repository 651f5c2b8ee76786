"""`oneloop train`: train a model from data files and a recipe."""

import argparse

from ..compat.redirect import redirect
from ..recipes import job, recipe, script
from ..recipes.tasks import TASKS


def command(options: argparse.Namespace) -> int:
    given = recipe.read(options.words)
    task = TASKS[str(given.recipe.task)]
    if task.trl and not given.script:
        redirect("transformers")  # before TRL imports the Trainer
    found, data, tokenizer = job.resolve(given)
    if given.script:
        print(script.write(found), end="")
        return 0
    from ..recipes import training  # after the redirection

    return (training.run_script if task.trl else training.run)(found, data, tokenizer)
