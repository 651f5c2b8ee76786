"""What tests read inside a Trainer, in one place: the rest observes files, logs, events and public names."""


def backend_of(trainer):
    from oneloop.backends import loading

    return loading.of_model(trainer.model)


def wait_for_saves(trainer):
    """Return when the saves that were requested so far are complete, or have failed."""
    trainer._oneloop.run.checkpointer.wait()


def save_now(trainer):
    """As a save that a callback asks for at this step; returns when it is complete, or has failed."""
    checkpointer = trainer._oneloop.run.checkpointer
    checkpointer.request()
    checkpointer.wait()


def run_id(trainer):
    return trainer._oneloop.run.id


def weight_average(trainer):
    """The average (EMA or SWA) of the weights of a run."""
    return part_of(trainer, "average")


def part_of(trainer, name):
    """A part of the current run, or of the last one."""
    return trainer._oneloop.run.parts[name]


def storage_of(trainer):
    """What uploads the output directory of a run, if it is a URL."""
    return trainer._oneloop.run.directory


def full_tensors(trainer):
    """The weights by name, whole also where a process has only a shard of them: a collective."""
    return trainer._oneloop.strategy.model_tensors(trainer.model)[0]


def strategy_of(trainer):
    return trainer._oneloop.strategy


def engine_of(trainer):
    return trainer._oneloop.engine


def processes_of(trainer):
    return trainer._oneloop.processes


def set_processes(trainer, processes):
    """As if the Trainer were one of these processes."""
    from oneloop.distributed.mesh import Mesh

    core = trainer._oneloop
    core.processes, core.mesh = processes, Mesh.of_batches(processes.size, processes.rank)


def extension_of(trainer, kind):
    """The object of a class of extensions that belongs to this Trainer."""
    return trainer._oneloop.extensions.of(kind)


def skipped_updates(trainer):
    """The number of updates that the last run skipped, as its last log says."""
    return trainer.state.log_history[-1].get("skipped_steps", 0)
