"""The Hub: uploads in the background, and the model card."""
