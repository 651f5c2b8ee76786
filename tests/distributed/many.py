"""Many processes of a run, simulated in one: its samplers, messages, heartbeats and commits, with the code of oneloop
and without a network. Times are those of this process alone; messages and bytes are those of a real run."""

import json
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from oneloop.checkpoint import sharded
from oneloop.checkpoint.capture import Contents
from oneloop.data.order import BatchSampler, Order
from oneloop.distributed.collectives import ProcessGroup
from oneloop.distributed.heartbeat import Heartbeat
from oneloop.distributed.mesh import Mesh
from oneloop.distributed.step_sync import StepMessage, StepSummary, StepSync
from oneloop.formats.safetensors_io import from_numpy

MACHINE = 8  # processes of one


# -- data


def epoch(world, length, batch=4, seed=3, drop_last=False):
    """The samples of an epoch, by process; each has a list of micro-batches."""
    orders = partial(Order, length, seed)
    return [list(BatchSampler(orders, batch, world, rank, drop_last)) for rank in range(world)]


# -- messages of a step


class Wire:
    """What all processes send in one collective, and how much that is."""

    def __init__(self, world):
        self.rows = [None] * world
        self.bytes_received = 0  # by each process


class Member(ProcessGroup):
    is_async = True

    def __init__(self, rank, wire):
        self.rank, self.size, self.wire = rank, len(wire.rows), wire

    def all_gather_async(self, numbers):
        self.wire.rows[self.rank] = list(numbers)
        self.wire.bytes_received += 8 * len(numbers)
        return lambda: self.wire.rows


def step(messages):
    """One exchange before an update: (what each process is told, bytes that each receives, seconds of one process)."""
    wire = Wire(len(messages))
    told = []
    for rank, message in enumerate(messages):
        mesh = Mesh.of_batches(len(messages), rank)
        run = SimpleNamespace(core=SimpleNamespace(processes=Member(rank, wire), mesh=mesh, trainer=None))
        told.append(StepSync(run)._send(message))
    return (
        [ask() for ask in told],
        wire.bytes_received,
        best(lambda: StepSummary.of(wire.rows, Mesh.of_batches(len(messages)))),
    )


def best(function):
    """Seconds of the fastest of some calls: others use this machine too."""
    times = []
    for _ in range(7):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def message(rank, items=7, **more):
    facts = {"has_batch": True, "num_micro_batches": 1, "has_dummy_batch": True, "signals": (False, False)}
    return StepMessage(float(items), **(facts | more))


# -- heartbeats


class Store:
    """The store of a launcher, which counts what it is asked."""

    def __init__(self):
        self.notes, self.reads, self.writes = {}, 0, 0
        self.lock = threading.Lock()

    def write(self, key, text):
        with self.lock:
            self.writes += 1
        self.notes[key] = text

    def read(self, key):
        with self.lock:
            self.reads += 1
        return self.notes.get(key)


class Beating(Heartbeat):
    """A process on a machine of its own name, whose beats are given by the simulation."""

    def __init__(self, rank, size, store, timeout=2.0):
        first = rank // MACHINE * MACHINE
        super().__init__(rank, size, timeout, store.write, store.read, range(first, min(size, first + MACHINE)))
        self._stopped.set()  # no thread for each of a thousand
        self._thread.join()
        self._place = {"host": f"machine{rank // MACHINE}", "pid": rank, "space": ""}
        self._note()


def lose(world, dead):
    """(what each survivor says, reads of the store by each of them, seconds) when these processes die at once."""
    store = Store()
    ranks = [Beating(rank, world, store) for rank in range(world)]
    left = [heartbeat for heartbeat in ranks if heartbeat.rank not in dead]
    store.reads = 0
    over = threading.Event()

    def beat():
        while not over.wait(ranks[0].every):
            for heartbeat in left:
                heartbeat._note()

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    began = time.monotonic()
    with ThreadPoolExecutor(len(left)) as pool:
        said = list(pool.map(lambda heartbeat: heartbeat.describe_lost_rank("lost"), left))
    seconds = time.monotonic() - began
    over.set()
    beating.join()
    return said, store.reads / len(left), seconds


# -- a commit


class Writer(ProcessGroup):
    """A process whose others have been asked already."""

    def __init__(self, rank, world):
        self.rank, self.size = rank, world

    def all_gather(self, numbers):
        return [list(numbers)] * self.size

    def gather_object(self, value):
        if self.rank:
            return None
        return [
            [{f"{name}.{rank}": size for name, size in shard.items()} for shard in value] for rank in range(self.size)
        ]


def part(rank, values=16):
    contents = Contents()
    for kind in ("model", "optimizer"):
        tensor = from_numpy(np.full(values, rank, np.float32))
        contents.tensors[f"{kind}.safetensors"] = ({f"layer{rank}": tensor}, {"format": "pt"})
    return contents


def commit(stage, world, stragglers=None, dead=(), timeout=30.0):
    """Write a checkpoint with all processes: (the facts of all files, seconds after the last one has written). A
    straggler begins that many seconds late; one that is dead writes nothing."""
    stragglers = stragglers or {}
    parts = [part(rank) for rank in range(world)]
    for rank, contents in enumerate(parts):
        sharded.number_files(contents, Writer(rank, world))
    facts = parts[0].write(stage)
    ended = [time.monotonic()]

    def write(rank):
        time.sleep(stragglers.get(rank, 0.0))
        sharded.write_part(sharded.OnSharedDisk(stage), rank, parts[rank], 0)
        ended.append(time.monotonic())

    with ThreadPoolExecutor(16) as pool:
        late = [rank for rank in range(1, world) if rank in stragglers]
        others = [rank for rank in range(1, world) if rank not in stragglers and rank not in dead]
        for rank in (*late, *others):
            pool.submit(write, rank)
        facts |= sharded.collect(sharded.OnSharedDisk(stage), range(1, world), timeout, sharded.Waiting())
    return facts, time.monotonic() - max(ended)


def index_of(stage):
    return json.loads((stage / "model.safetensors.index.json").read_text())["weight_map"]


# -- figures for docs/evidence/distributed.md


def figures(world):
    """The row of the table for that many processes."""
    orders = partial(Order, 10**9, 3)

    def position():
        sampler = BatchSampler(orders, 8, world, world - 1)
        sampler.start_at(len(sampler) // 2)
        next(iter(sampler))

    positioned = best(position)
    _, received, told = step([message(rank) for rank in range(world)])
    rows = [message(rank).pack() for rank in range(world)]
    unpacked = best(lambda: [StepMessage.unpack(row) for row in rows])
    _, reads, seconds = lose(world, {world - 2})
    with tempfile.TemporaryDirectory() as folder:
        _, committed = commit(Path(folder), world, stragglers={world // 2: 1.0})
    return [
        str(world), f"{1000 * positioned:.1f} ms", f"{received / 1024:.1f} KB", f"{1e6 * told:.0f} us",
        f"{1e6 * unpacked:.0f} us", f"{reads:.0f}", f"{seconds:.1f} s", f"{1000 * committed:.0f} ms",
    ]  # fmt: skip


HEADER = (
    "processes | position | step message | read by column | read by object | reads when lost | named after | commit"
)


def main():
    print(f"| {HEADER} |", "|---" * 8 + "|", sep="\n")
    for world in (16, 128, 1024):
        print("|", " | ".join(figures(world)), "|", flush=True)


if __name__ == "__main__":
    main()
