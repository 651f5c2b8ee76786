"""A storage in memory that fails when a test says so, and keeps what it had after each change."""

import threading
from functools import wraps

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

CHANGES = ("put_file", "pipe_file", "rm_file", "cp_file")


class FaultyFileSystem(MemoryFileSystem):
    """faulty://. Before each request, `fault(operation, path)` is called, which may raise an error."""

    protocol = "faulty"
    store: dict = {}
    pseudo_dirs = [""]
    fault = None
    states = None  # [{path: bytes}] after each change, if they are kept
    requests: list = []
    one_at_a_time = threading.RLock()  # the position in an object is that of all who read it

    @classmethod
    def reset(cls):
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.requests.clear()
        cls.fault = cls.states = None

    @classmethod
    def contents(cls):
        return {path: file.getvalue() for path, file in sorted(cls.store.items())}

    @classmethod
    def restore(cls, contents):
        """Have these objects and no others."""
        cls.reset()
        fs = cls()
        for path, data in contents.items():
            fs.pipe_file(path, data)
        cls.requests.clear()

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("faulty://", "memory://"))


def _watched(operation):
    original = getattr(MemoryFileSystem, operation)

    @wraps(original)  # with its signature, which says whether it can create
    def request(self, *args, **kwargs):
        kind = type(self)
        path = args[1] if operation in ("put_file", "cp_file") else args[0]
        kind.requests.append((operation, path))
        if kind.fault is not None:
            kind.fault(operation, path)
        with kind.one_at_a_time:  # so that a state has whole objects
            result = original(self, *args, **kwargs)
            if kind.states is not None and operation in CHANGES:
                kind.states.append(kind.contents())
        return result

    return request


for name in (*CHANGES, "cat_file", "get_file", "ls"):
    setattr(FaultyFileSystem, name, _watched(name))
fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
