"""Checkpoints: where they are stored, when they are complete, and what they contain."""

from .store import get_last_checkpoint

__all__ = ["get_last_checkpoint"]
