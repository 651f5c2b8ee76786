"""File formats in plain Python, read as if an enemy had written the files: JSON, safetensors, checkpoints."""
