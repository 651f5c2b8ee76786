"""Several processes as one run: who they are, what they exchange, and how they share the model."""
