"""MindSpore. The folders of the other frameworks have the same files and names; backend.py imports them all."""
