"""A run in a bucket, in a process that may be killed: forked for each request from one that has imported everything."""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

from tests.internals import storage_of


def train(url, result, waits=False, **given):
    """Resume or begin, to the end; writes the digest of the weights. `waits`: after each save for its upload."""
    from oneloop import Trainer, TrainerCallback, TrainingArguments
    from oneloop.checkpoint import store
    from tests.backends.support import available, rows
    from tests.storage.support import RUN

    class Waits(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            mirror = storage_of(trainer).mirror
            for each in store.find(Path(args.output_dir)):
                mirror._queue.wait_for(each.path.name)

    kit = available()[0]
    args = TrainingArguments(url, **RUN | ({"save_async": False} if waits else {}) | given)
    callbacks = [Waits()] if waits else []
    trainer = Trainer(kit.classifier(dropout=0.2), args, train_dataset=rows(16), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=True)
    digest = hashlib.sha256()
    for name, value in sorted(kit.weights(trainer.model).items()):
        digest.update(name.encode() + value.tobytes())
    Path(result).write_text(json.dumps({"digest": digest.hexdigest(), "step": trainer.state.global_step}))


def upload(url, folder, name):
    """One checkpoint, from a local directory."""
    from oneloop.storage import remote_checkpoints
    from oneloop.storage.remote import RemoteDirectory

    remote_checkpoints.put(RemoteDirectory(url), Path(folder), name)


def serve():
    """Each line: {"call": ..., "given": {...}, "environment": {...}, "output": ...}; prints the pid, and the status."""
    import aiobotocore.session  # noqa: F401
    import s3fs  # noqa: F401

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        train(f"{folder}/run", f"{folder}/result", max_steps=2)  # imports the rest
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.environ.update(request["environment"])
                output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(output, 1)
                os.dup2(output, 2)
                {"train": train, "upload": upload}[request["call"]](**request["given"])
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
