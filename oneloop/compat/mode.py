"""Compatibility mode: where libraries differ, a run follows the library that the script was written for.

`redirect` and `oneloop run` set it; a script that imports oneloop itself follows oneloop.
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
