"""Services and libraries around a run: log writers, the model hub, hyperparameter search."""
