"""Whose ways a run keeps where libraries differ and both cannot be had: those of the library that a script is for.

`redirect` and `oneloop run` say which; a script that imports oneloop itself has oneloop's ways.
"""

_followed: set[str] = set()


def follow(library: str) -> None:
    _followed.add(library)


def follows(library: str) -> bool:
    """Whether this process runs a script for that library."""
    return library in _followed


def follows_only(library: str) -> bool:
    """Whether it is for that library and for no other."""
    return _followed == {library}
