"""Integrations: log writers, the model hub, hyperparameter search."""
