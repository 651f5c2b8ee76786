"""Every state that a power failure during a recorded save can leave on the disk.

The record has the calls to the file system in order. A failure may come after each of them. What is certain then:

- data of a file up to its last fsync;
- names in a directory (created, removed, renamed) up to the last fsync of that directory; a rename is atomic.

Of the rest, anything may be there or not: each later change of a name alone, in any combination (ext4 would keep their
order, others need not), and of a file's later data all, nothing, a first part, a last part, or zeros.
"""

import hashlib
import itertools
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

ALL_SUBSETS = 9  # pending changes of names of which all combinations are tried; of more, a sample
SAMPLE = 150
FLUSH = "flush"  # the first word of a mark before an fsync, which names the calls that led to it


@dataclass(eq=False)
class Node:
    """A file or a directory, whatever its name."""

    is_directory: bool
    durable: bytes = b""
    pending: list = field(default_factory=list)  # (offset, data), or (size, None) for a truncation

    def contents(self):
        """What the data may be after a failure: all, nothing, and parts."""
        if not self.pending:
            return [self.durable]
        whole = _apply(self.durable, self.pending)
        torn = _apply(self.durable, self.pending[: len(self.pending) // 2])
        half = len(whole) // 2
        found = [whole, self.durable, torn, whole[:half], bytes(half) + whole[half:], bytes(len(whole))]
        return list(dict.fromkeys(found))


def _apply(data, changes):
    made = bytearray(data)
    for place, block in changes:
        if block is None:
            del made[place:]
            made.extend(bytes(place - len(made)))
        else:
            made.extend(bytes(max(0, place - len(made))))
            made[place : place + len(block)] = block
    return bytes(made)


@dataclass(eq=False)
class Change:
    """Of names: (directory, name, node or None) each; all of them or none."""

    parts: list
    is_durable: bool = False


@dataclass(frozen=True)
class State:
    """Files by path and empty directories, as they may be found after the failure, and the marks that were passed."""

    files: tuple  # (path, bytes)
    directories: tuple
    marks: frozenset


class Record:
    """The calls of a save, as calls.c has written them, and the directory as it was before."""

    def __init__(self, before, inodes, calls, order=None):
        """`before`: a copy of the directory; `inodes`: JSON file {path: inode}; `calls`: the record; `order`: puts the
        calls of several processes into another order, see in_order()."""
        self.known = {}  # node by inode
        self.root = Node(True)
        self.base = {}  # (directory, name) -> node before the save
        self.changes = []
        self.marks = set()
        self.first = 0  # failures before so many calls are left out
        self.paths = {}  # live directories by path
        self._load(Path(before), json.loads(Path(inodes).read_text()))
        self.calls, self.flushes = _with_flushes(_parse(Path(calls).read_bytes()))
        if order is not None:
            self.calls = in_order(self.calls, order)

    def _load(self, before, inodes):
        self.top = next(path for path, _ in inodes)
        self.live = {}
        for path, inode in inodes:
            relative = Path(path).relative_to(self.top)
            copy = before / relative
            node = self.root if path == self.top else Node(copy.is_dir(), b"" if copy.is_dir() else copy.read_bytes())
            self.known[inode] = node
            if node is not self.root:
                self.base[self._place(path)] = node
                self.live[self._place(path)] = node

    def _place(self, path):
        """The directory node and the name of a path, in the directory as the process sees it."""
        *folders, name = Path(path).relative_to(self.top).parts
        node = self.root
        for folder in folders:
            node = self.live[node, folder]
        return node, name

    def _change(self, *parts):
        self.changes.append(Change(list(parts)))
        for directory, name, node in parts:
            if node is None:
                self.live.pop((directory, name), None)
            else:
                self.live[directory, name] = node

    def play(self):
        """Go through the calls; yields after each, and before the first, for the states of a failure there."""
        yield
        for kind, inode, _, offset, path, target, data in self.calls:
            if kind == "mark":
                self.marks.add(path)
            elif kind in ("create", "mkdir"):
                self.known[inode] = node = Node(kind == "mkdir")
                self._change((*self._place(path), node))
            elif kind == "write":
                self.known[inode].pending.append((offset, data))
            elif kind == "truncate":
                self.known[inode].pending.append((offset, None))
            elif kind == "remove":
                self._change((*self._place(path), None))
            elif kind == "rename":
                node = self.live[self._place(path)]
                self._change((*self._place(path), None), (*self._place(target), node))
            elif kind == "link":
                self._change((*self._place(target), self.known[inode]))
            elif kind == "fsync":
                self._flush(self.known[inode])
            else:
                raise AssertionError(kind)
            yield

    def _flush(self, node):
        if not node.is_directory:
            node.durable, node.pending = _apply(node.durable, node.pending), []
        for change in self.changes:
            if any(directory is node for directory, _, _ in change.parts):
                change.is_durable = True

    def states(self, chance):
        """The states that a failure now may leave."""
        pending = [change for change in self.changes if not change.is_durable]
        for kept in _subsets(pending, chance):
            names = dict(self.base)
            for change in self.changes:
                if change.is_durable or change in kept:
                    for directory, name, node in change.parts:
                        if node is None:
                            names.pop((directory, name), None)
                        else:
                            names[directory, name] = node
            yield from self._with_data(names, chance)

    def _with_data(self, names, chance):
        files, directories = [], []

        def walk(directory, path):
            inside = [(name, node) for (of, name), node in names.items() if of is directory]
            if not inside and path:
                directories.append(path)
            for name, node in sorted(inside, key=lambda pair: pair[0]):
                below = f"{path}/{name}" if path else name
                if node.is_directory:
                    walk(node, below)
                else:
                    files.append((below, node))

        walk(self.root, "")
        options = [node.contents() for _, node in files]
        choices = itertools.product(*options)
        if sum(len(each) > 1 for each in options) > 3:  # all, nothing, and a sample
            choices = [[each[0] for each in options], [each[min(1, len(each) - 1)] for each in options]]
            choices += [[chance.choice(each) for each in options] for _ in range(30)]
        for data in choices:
            found = tuple((path, block) for (path, _), block in zip(files, data))
            yield State(found, tuple(directories), frozenset(self.marks))


def _subsets(pending, chance):
    """Combinations of pending changes: all if they are few; else those in order, those without one or two, with one
    alone, and a sample."""
    count = len(pending)
    if count <= ALL_SUBSETS:
        for size in range(count + 1):
            yield from map(set, itertools.combinations(pending, size))
        return
    for i in range(count + 1):
        yield set(pending[:i])
    for i, one in enumerate(pending):
        yield {one}
        yield set(pending) - {one}
        for other in pending[i + 1 :]:
            yield set(pending) - {one, other}
    for _ in range(SAMPLE):
        yield {change for change in pending if chance.random() < 0.5}


def _parse(text):
    start = 0
    while start < len(text):
        end = text.index(b"\0", start)
        kind, inode, process, offset, length, path = text[start:end].decode().split(" ", 5)
        stop = text.index(b"\0", end + 1)
        target, begin = text[end + 1 : stop].decode(), stop + 1
        start = begin + int(length)
        yield kind, int(inode), int(process), int(offset), path, target, text[begin:start]


def _with_flushes(calls):
    """The calls without the marks that name flushes; and the places in oneloop that led to each fsync, as
    ("checkpoint/store.py", 222) from the innermost, by the number of the call."""
    kept, flushes, places = [], {}, {}
    for call in calls:
        kind, _, process, _, path, _, _ = call
        if kind == "mark" and path.startswith(FLUSH):
            names = (place.rsplit(":", 1) for place in path.split(" ")[1:])
            places[process] = tuple((file, int(line)) for file, line in names)
            continue
        if kind == "fsync":
            flushes[len(kept)] = places.pop(process, ())
        kept.append(call)
    return kept, flushes


def in_order(calls, order):
    """Calls of two processes as they may have followed each other just as well: the second one's come after the staged
    directory was created, and before the first removes its note. "first" and "last": all of them as early or as late as
    that; a number: at random."""
    main = calls[0][2]
    own, others = ([call for call in calls if (call[2] == main) == is_main] for is_main in (True, False))
    start = 1 + next(i for i, call in enumerate(own) if call[0] == "mkdir" and call[4].endswith(".partial"))
    end = next(i for i, call in enumerate(own) if call[0] == "remove" and "/.part-" in call[4])
    chance = random.Random(order)
    places = {
        "first": lambda: [start] * len(others),
        "last": lambda: [end] * len(others),
    }.get(order, lambda: sorted(chance.randint(start, end) for _ in others))()
    merged = []
    for i in range(len(own) + 1):
        merged += [call for call, place in zip(others, places) if place == i]
        merged += own[i : i + 1]
    return merged


def digest_of(state):
    digest = hashlib.sha256(repr((state.directories, sorted(state.marks))).encode())
    for path, block in state.files:
        digest.update(path.encode() + b"\0" + hashlib.sha256(block).digest())
    return digest.digest()


def all_states(*records, seed=0, seen=()):
    """Every different state of a failure after any call, once; not those whose digests were `seen`."""
    chance, seen = random.Random(seed), set(seen)
    for record in records:
        for number, _ in enumerate(record.play()):
            for state in record.states(chance) if number >= record.first else ():
                digest = digest_of(state)
                if digest not in seen:
                    seen.add(digest)
                    yield state


def materialize(state, folder):
    for path in state.directories:
        (folder / path).mkdir(parents=True, exist_ok=True)
    for path, block in state.files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(block)


def snapshot(folder):
    """{relative path: bytes} of all files."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
