"""The tasks of recipes."""

from . import classification, language, preferences, regression, seq2seq, tokens
from .base import Form, Task

__all__ = ["TASKS", "Form", "Task"]

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        classification.TASK,
        regression.TASK,
        tokens.TASK,
        language.PRETRAIN,
        language.SFT,
        seq2seq.TASK,
        preferences.TASK,
    )
}
