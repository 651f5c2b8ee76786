"""Checkpoints of other frameworks and of other Trainers, in plain Python: what their files mean."""
