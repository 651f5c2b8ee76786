"""The Hub: background uploads, and the model card."""
