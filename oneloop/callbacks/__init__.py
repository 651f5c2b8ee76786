"""Callback events and the callbacks that come with oneloop."""

from .base import EVENTS, FINER_EVENTS, CallbackHandler, TrainerCallback
from .flow import DefaultFlowCallback, EarlyStoppingCallback
from .progress import NotebookProgressCallback, PrinterCallback, ProgressCallback, in_notebook, tell

__all__ = [
    "EVENTS",
    "FINER_EVENTS",
    "CallbackHandler",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "NotebookProgressCallback",
    "PrinterCallback",
    "ProgressCallback",
    "TrainerCallback",
    "in_notebook",
    "tell",
]
