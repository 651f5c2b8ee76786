"""What there is to see of a run: one small function each, from a Scene to a value that can be compared."""

import itertools
import logging
import math
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from types import SimpleNamespace

import torch

from oneloop import EarlyStoppingCallback, TrainerCallback, backends
from oneloop.checkpoint import store
from oneloop.distributed.preemption import Preempted
from oneloop.errors import OneloopError
from oneloop.integrations.search.trials import compared
from tests.arguments.scenes import SAMPLES, Located, Notes, Plain, Words, samples, sentences
from tests.arguments.started_in import METHODS, Started
from tests.backends_support import kit_module


def weights(scene, **parts):
    return scene.weights_of(scene.train(**parts).model)


def outcome(scene):
    """trained, or the kind of error."""
    try:
        scene.train()
    except (OneloopError, MemoryError) as error:
        return type(error).__name__
    return "trained"


def compared_figure(scene):
    """What a search on Ray Tune takes of a trial with these results; tests/search has a real one."""
    results = {"min": 1.0, "max": 5.0, "last": 3.0, "avg": 2.5, "last-5-avg": 2.0, "last-10-avg": 2.25}
    return compared(results, "min", scene.trainer().args.ray_scope)


# -- from the model's notes


def notes(key, training=True):
    """One entry of the notes of each training (or evaluation) batch."""

    def see(scene, **parts):
        return [call[key] for call in scene.train(**parts).model.calls if call["training"] is training]

    return see


def order(scene, **parts):
    return list(itertools.chain(*notes("number")(scene, **parts)))


def draws_of_samples(scene):
    """Whether the numbers that samples draw are the same when the streams of the run are others."""
    drawn = []

    class Noisy(list):
        def __getitem__(self, index):
            drawn[-1][index] = random.random()
            return super().__getitem__(index)

    for seed in (1, 2):
        drawn.append({})
        args = scene.arguments(seed=seed, data_seed=3, max_steps=-1, num_train_epochs=1)
        scene.trainer(data=Noisy(samples()), args=args).train()
    return drawn[0] == drawn[1]


def first_batch(*columns):
    """Which of the samples 0 and 15 are in the first batch, where each is the longest by one column."""

    def see(scene):
        data = samples(**dict.fromkeys(columns, lambda i: i + 1), size=lambda i: SAMPLES - i)
        return sorted({0, SAMPLES - 1} & set(notes("number")(scene, data=data)[0]))

    return see


def sortish(scene):
    scene.seq2seq = True
    return first_batch("length")(scene)


def loaders(scene):
    """How many processes other than this one loaded the data."""
    return len(set(itertools.chain(*notes("origin")(scene, data=Located()))) - {os.getpid()})


def pinned(scene):
    """Whether the loader pins memory when there is an accelerator: one is made up, and no batch is read."""
    trainer = scene.trainer()
    scene.monkeypatch.setattr(trainer._oneloop.backend.devices, "kind", lambda device: "cuda")
    scene.monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return trainer.get_train_dataloader().pin_memory


def start_method(scene):
    """How the process that loaded the first batch was started."""
    (kind,) = set(scene.train(data=Started()).model.calls[0]["origin"])
    return METHODS[list(METHODS)[kind]]


def made_ahead(scene):
    """Batches that the loading process has been asked for beyond the first when that arrives."""
    loader, asked = scene.trainer().get_train_dataloader(), []
    cls = type(loader.batch_sampler)
    plain = cls.__iter__

    def counting(sampler):
        for indices in plain(sampler):
            asked.append(indices)
            yield indices

    with scene.monkeypatch.context() as patch:
        patch.setattr(cls, "__iter__", counting)
        batches = iter(loader)
        next(batches)
        found = len(asked) - 1
    for _ in batches:  # so that its process ends
        pass
    return found


class Overtaking(torch.utils.data.Dataset):
    """The first half waits until the second half has been loaded by another process."""

    def __init__(self):
        self.second = multiprocessing.get_context("fork").Event()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 7:
            self.second.set()
        elif index == 3:
            self.second.wait(timeout=60)
            time.sleep(0.5)  # long enough for the other batch to travel
        return samples()[index]


def arrival(scene):
    return order(scene, data=Overtaking())


def extra_columns(scene):
    return notes("rest")(scene, data=samples(extra=float))[0]


def labels_found(scene):
    return scene.trainer().predict(samples()).label_ids.tolist()


class Hungry(Notes):
    """Runs out of memory with more than two samples."""

    def forward(self, x, labels=None):
        if len(x) > 2:
            raise MemoryError("more than two samples")
        return super().forward(x, labels)


def micro_batches(scene):
    trainer = scene.trainer(model=Hungry)
    try:
        trainer.train()
    except MemoryError:
        return "out of memory"
    return [call["rows"] for call in trainer.model.calls]


def precision(scene):
    """The dtypes of outputs and weights, and whether anything was said about the level."""
    scene.listen()
    call = scene.train().model.calls[0]
    said = any("fp16_opt_level" in message for message in scene.messages)
    return str(call["logits"]), str(call["weights"]), said


def evaluated_in(scene):
    trainer = scene.trainer()
    trainer.evaluate()
    return str(trainer.model.calls[0]["weights"])


def computed(scene):
    """How often a block was computed in four steps."""
    return scene.train().model.layers[0].computed


def block_learns(scene):
    """Whether the weights of the recomputed block move; PyTorch warns where its old way of recomputing loses them."""
    trainer = scene.trainer()
    before = trainer.model.layers[0].linear.weight.tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    return trainer.model.layers[0].linear.weight.tolist() != before


def cache_setting(scene):
    return scene.trainer().model.config.use_cache


# -- compilers: one that only notes what it is asked

COMPILED = []


def noting_compiler(graph, inputs, **options):
    COMPILED.append(options.get("mode"))
    return graph.forward


def register_compiler():
    if "noting" not in torch._dynamo.list_backends(None):
        torch._dynamo.register_backend(noting_compiler, name="noting")


def is_compiled(scene):
    trainer = scene.trainer(model=Plain)
    return trainer.model_wrapped is not trainer.model


def compiler_modes(scene, work="train"):
    """What our compiler was asked for; nothing when another one was."""
    register_compiler()
    torch._dynamo.reset()
    COMPILED.clear()
    getattr(scene.trainer(model=Plain), work)()
    return list(dict.fromkeys(COMPILED))


def compiled_evaluation(scene):
    """The same for an evaluation, with our compiler in the place of the framework's own."""
    models = backends.load("torch").models
    plain = models.compiled
    with scene.monkeypatch.context() as patch:
        patch.setattr(models, "compiled", lambda model, backend, mode: plain(model, "noting", mode))
        return compiler_modes(scene, "evaluate")


# -- from the log


def log(key, **parts):
    return lambda scene: [entry[key] for entry in scene.train(**parts).state.log_history if key in entry]


def log_steps(key):
    return lambda scene: [entry["step"] for entry in scene.train().state.log_history if key in entry]


def metric(key):
    return lambda scene: key in scene.trainer().train().metrics


def noisy(scene):
    return log("loss", model=Words, data=sentences(), evaluated=sentences())(scene)


def tokens_seen(scene):
    return scene.train(model=Words, data=sentences(), evaluated=sentences()).state.num_input_tokens_seen


def token_speed(scene):
    return "train_tokens_per_second" in scene.trainer(model=Words, data=sentences()).train().metrics


class Poisoned(Notes):
    """Its loss is not a number when sample 0 is in the batch."""

    def forward(self, x, labels=None, number=None):
        outputs = super().forward(x, labels, number)
        if outputs["loss"] is not None and 0 in number.tolist():
            outputs["loss"] = outputs["loss"] * math.nan
        return outputs


def average_is_finite(scene):
    return [math.isfinite(loss) for loss in log("loss", model=Poisoned)(scene)]


def after_poison(scene):
    """How a run with one bad step ends: its error, or whether the weights are still numbers."""
    trainer = scene.trainer(model=Poisoned)
    try:
        trainer.train()
    except OneloopError as error:
        return type(error).__name__
    return math.isfinite(trainer.model.head.weight.sum().item())


class Broken(Notes):
    """Its first layer makes something that is not a number."""

    def forward(self, x, labels=None):
        return super().forward(x * math.inf, labels)


def named_layer(scene):
    try:
        scene.train(model=Broken)
    except OneloopError as error:
        return "layers.0.linear" in str(error)


# -- evaluation


def scripted(**series):
    """A compute_metrics that returns the next number of each series."""
    rows = [dict(zip(series, values)) for values in zip(*series.values())]
    return lambda prediction: rows.pop(0)


def best_step(scene):
    scores = scripted(rising=[1, 2, 3, 4], falling=[4, 3, 2, 1])
    return scene.train(compute_metrics=scores).state.best_global_step


def loaded_step(scene):
    """The step whose weights the model has in the end, when step 2 was the best."""
    found = scene.weights_of(scene.train(compute_metrics=scripted(score=[1, 4, 2, 3])).model)
    return [step for step, each in scene.watch.weights.items() if each == found]


def for_metrics(look, **parts):
    """What compute_metrics gets, at each of its calls."""

    def see(scene):
        seen = []

        def compute(prediction, compute_result=True):
            seen.append(look(prediction))
            return {}

        scene.trainer(compute_metrics=compute, **parts).evaluate()
        return seen

    return see


def moves_to_host(scene):
    """After how many batches outputs are moved to the host."""
    trainer = scene.trainer()
    plain, moved = trainer._oneloop.backend.tensors.to_numpy, []

    def to_numpy(tensor):
        moved.append(len(trainer.model.calls))
        return plain(tensor)

    scene.monkeypatch.setattr(trainer._oneloop.backend.tensors, "to_numpy", to_numpy)
    trainer.evaluate()
    scene.monkeypatch.setattr(trainer._oneloop.backend.tensors, "to_numpy", plain)
    return sorted(set(moved))


def has_predictions(scene):
    return scene.trainer().predict(samples()).predictions is not None


def generated(scene):
    """What the model was asked to generate, batch by batch."""
    scene.seq2seq = True
    trainer = scene.trainer()
    trainer.predict([{"x": row["x"], "labels": row["labels"]} for row in samples()])
    return trainer.model.generated


def generation_settings(scene):
    scene.seq2seq = True
    return vars(scene.trainer().model.generation_config)


# -- files


def folders(scene):
    scene.train()
    return sorted(path.name for path in scene.folder.iterdir())


def checkpoints(scene):
    scene.train()
    return scene.checkpoints()


def checkpoint_files(scene):
    scene.train()
    return "optimizer.safetensors" in [path.name for path in (scene.output / "checkpoint-4").iterdir()]


def profiled(scene):
    """Names of the traces; a run of four steps."""
    scene.train()
    return [path.name for path in (scene.output / "profile").glob("trace-*")]


def writing_threads(scene):
    """The threads that commit checkpoints."""
    plain, names = store.commit, set()

    def commit(*args):
        names.add(threading.current_thread().name)
        return plain(*args)

    with scene.monkeypatch.context() as patch:
        patch.setattr(store, "commit", commit)
        scene.train()
    return sorted(names)


def event_folders(scene):
    """Where event files of TensorBoard are, below the folder of the test."""
    if "logging_dir" in scene.given:
        scene.given["logging_dir"] = str(scene.folder / scene.given["logging_dir"])
    scene.train()
    return sorted({str(path.parent.relative_to(scene.folder)) for path in scene.folder.rglob("events.out.*")})


def writers(scene):
    """Whose files there are, by the beginning of their names."""
    scene.train()
    return sorted({path.name.split(".")[0] for path in scene.output.glob("runs/*/*")})


def name_in_writers(scene):
    """The text `run_name` in the event file."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    scene.train()
    (path,) = scene.output.rglob("events.out.*")
    values = [value for event in EventFileLoader(str(path)).Load() for value in event.summary.value]
    return [value.tensor.string_val[0].decode() for value in values if value.tag == "run_name/text_summary"]


# -- two runs, one after the other


def first_run(scene, steps=2, **parts):
    scene.train(args=scene.arguments(max_steps=steps, save_strategy="steps", resume_from_checkpoint=None), **parts)
    scene.watch.steps.clear()


def resumed_steps(scene):
    first_run(scene)
    scene.train()
    return scene.watch.steps


def resumed_data(scene):
    """The part of the epoch's order that the second half of a run is trained on."""
    whole = order(scene)
    first_run(scene)
    place = whole.index(order(scene)[0])
    return place


def warnings_about_checkpoints(scene):
    scene.listen()
    first_run(scene)
    scene.train()
    return sum("holds checkpoints" in message for message in scene.messages)


def restored_patience(scene):
    first_run(scene, callbacks=[EarlyStoppingCallback(7)])
    stopping = EarlyStoppingCallback(99)
    scene.train(callbacks=[stopping])
    return stopping.early_stopping_patience


# -- signals


class Sends(TrainerCallback):
    """A signal to this process in the middle of step 2."""

    def __init__(self, number):
        self.number = number

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            os.kill(os.getpid(), self.number)


def left_on(number):
    """The steps that are done of a run that gets a signal. Whoever else would catch it does nothing."""

    def see(scene):
        before = signal.signal(number, lambda *_: None)
        try:
            scene.train(callbacks=[Sends(number)])
        except Preempted:
            pass
        finally:
            signal.signal(number, before)
        return scene.watch.steps

    return see


# -- around the run


def script(scene):
    """What a script does that follows the do_ arguments."""
    args = scene.arguments()
    trainer = scene.trainer(args=args)
    work = {
        "train": trainer.train,
        "eval": trainer.evaluate,
        "predict": lambda: trainer.predict(samples()),
        "export": lambda: trainer.save_model(str(scene.folder / "exported")),
    }
    return [name for name, do in work.items() if getattr(args, f"do_{name}") and (do() or True)]


def deterministic(scene):
    """Whether the framework is told to be so; the setting is put back."""
    scene.monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    kit = kit_module(scene.framework).Kit()
    with kit.undone_determinism():
        scene.train()
        return kit.is_deterministic()


def log_level(scene):
    logger = logging.getLogger("oneloop")
    logger.setLevel(logging.WARNING)
    scene.trainer()
    return logging.getLevelName(logger.level).lower()


def shows_a_bar(scene):
    scene.capsys.readouterr()
    scene.train()
    return "4/4" in scene.capsys.readouterr().err


def cache_emptied(scene):
    trainer, emptied = scene.trainer(), []
    devices = trainer._oneloop.backend.devices
    scene.monkeypatch.setattr(devices, "empty_cache", lambda device: emptied.append(trainer.state.global_step + 1))
    trainer.train()
    return emptied


def tf32_flag(scene):
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, True
    try:
        scene.trainer()
        return matmul.allow_tf32
    finally:
        matmul.allow_tf32 = before


def device_used(scene):
    try:
        return str(next(scene.trainer().model.parameters()).device)
    except OneloopError as error:
        return type(error).__name__


def optimizer(scene):
    return type(scene.train().optimizer).__name__


def generation(**settings):
    """A stand-in for a GenerationConfig, which equals another with the same settings."""
    return SimpleNamespace(**settings)


# -- services


def of_trackio(scene):
    """What trackio was asked for, beside the usual."""
    asked = {}

    class Run:
        name, config = "run", {}

        def log(self, values, step):
            pass

    def init(name, resume, config, embed, **options):
        asked.update(options)
        return Run()

    scene.monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init, finish=lambda: None))
    scene.train()
    return asked if "project" in scene.given else {key: asked[key] for key in asked if key != "project"}


def pushed(scene):
    """What a Hub of this machine has seen of the run; `held`, when it answers no commit before the end of training."""
    from tests.hub.stand_in import serving

    class Opens(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            hub.gate.set()

    with serving() as hub:
        scene.monkeypatch.setenv("HF_ENDPOINT", hub.url)
        scene.monkeypatch.setenv("HF_TOKEN", "hf_usual")
        if "hub_always_push" in scene.given and "hub_strategy" not in scene.given:
            hub.gate.clear()
        scene.train(callbacks=[Opens()])
        messages = [commit.message for commit in hub.commits]
        every = {
            "repositories": hub.repositories,
            "commits": messages,
            "held": messages,
            "tokens": hub.tokens,
            "revisions": {commit.revision for commit in hub.commits},
        }
    known = {"hub_model_id": "repositories", "hub_strategy": "commits", "hub_token": "tokens"}
    known |= {"hub_private_repo": "repositories", "hub_revision": "revisions", "hub_always_push": "held"}
    wanted = next((known[name] for name in known if name in scene.given), "repositories")
    return {key: value for key, value in every.items() if key == wanted and value}
