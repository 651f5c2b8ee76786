"""Checkpoints: where they lie, when they count, and what is in them."""

from .store import get_last_checkpoint

__all__ = ["get_last_checkpoint"]
