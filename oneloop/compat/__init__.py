"""Compatibility with other trainers: their scripts, names and conventions."""
