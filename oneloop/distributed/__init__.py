"""Distributed runs: ranks, collectives, and how the processes share the model."""
