"""Two processes on machines that share no disk, as threads: what the writers of their Checkpointers do in a save."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from oneloop.checkpoint import sharded, store
from oneloop.checkpoint.capture import Contents
from oneloop.formats.safetensors_io import from_numpy
from oneloop.storage.mirror import Mirror
from oneloop.storage.multi_node_upload import MultiNodeUpload
from oneloop.storage.remote import RemoteDirectory

SHARDS = [f"model-0000{rank + 1}-of-00002.safetensors" for rank in range(2)]
# Of a checkpoint of both.
FILES = {"trainer_state.json", "manifest.json", "model.safetensors.index.json", *SHARDS}


class Pair:
    """Two processes as threads, each with its own disk."""

    def __init__(self, folder, url):
        self.disks = [folder / f"machine{rank}" for rank in range(2)]
        self.mirror = Mirror(url, self.disks[0])

    def parts(self, step, place=None):
        name = f"checkpoint-{step}"
        mirrors = [self.mirror, None]
        return [
            MultiNodeUpload(
                RemoteDirectory(self.mirror.remote.url), store.open_stage(disk, step), name, place or name, mirror
            )
            for disk, mirror in zip(self.disks, mirrors)
        ]

    def save(self, step, value=0, place=None, other=sharded.write_part, timeout=10.0, unsealed=False, best=None):
        """The main process writes, collects and commits; `other` is what the other one does."""
        main, apart = self.parts(step, place)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(other, apart, 1, contents(1, step, value), 0)
            try:
                facts = main.send(contents(0, step, value, best).write(main.stage))
                facts |= sharded.collect(main, range(1, 2), timeout, sharded.Waiting())
                store.commit(main.stage, step, "run", "save", facts, unsealed, publish=main.publish)
            except BaseException:
                main.abort(range(1, 2))
                store.discard(main.stage)
                raise
            finally:
                writing.exception()
        return main.stage


def contents(rank, step, value, best=None):
    made = Contents()
    made.tensors[SHARDS[rank]] = ({f"layer{rank}": from_numpy(np.full(4, value + rank, np.float32))}, {"format": "pt"})
    if rank == 0:
        made.texts["trainer_state.json"] = json.dumps(
            {"global_step": step, "best_model_checkpoint": best and f"elsewhere/checkpoint-{best}"}
        ).encode()
        index = {"metadata": {"total_size": 32}, "weight_map": {f"layer{i}": SHARDS[i] for i in range(2)}}
        made.add_json("model.safetensors.index.json", index)
    return made
