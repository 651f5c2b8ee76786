"""PaddlePaddle. The same files and names are in the folders of the other frameworks; backend.py imports them all."""
