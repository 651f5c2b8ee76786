"""Checkpoints of other frameworks and other trainers."""
