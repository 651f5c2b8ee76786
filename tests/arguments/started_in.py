"""A data set whose samples know how the process that loads them was started; it imports little, for new processes."""

import multiprocessing

import numpy as np

METHODS = {"ForkProcess": "fork", "SpawnProcess": "spawn", "ForkServerProcess": "forkserver"}


class Started:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        kind = type(multiprocessing.current_process()).__name__
        return {"x": np.ones(4, np.float32), "labels": index % 3, "origin": list(METHODS).index(kind)}
