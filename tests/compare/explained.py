"""Differences that are meant: (pattern of run names, pattern of fields, reason). Patterns are those of fnmatch.

A field is what stands before the first colon of a difference: events, reads, files, history, ...
"""

EXPLAINED: list[tuple[str, str, str]] = []
