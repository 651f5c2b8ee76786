"""What there is to see of a run: one small function each, from a TinyRun to a value that can be compared."""

import contextlib
import itertools
import json
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

from oneloop import EarlyStoppingCallback, Trainer, TrainerCallback
from oneloop.backends import loading
from oneloop.checkpoint import store
from oneloop.checkpoint.checkpointer import Checkpointer
from oneloop.distributed.collectives import ProcessGroup
from oneloop.distributed.preemption import Preempted
from oneloop.errors import OneloopError
from oneloop.integrations.search.trials import compared
from oneloop.trainer.loss_spikes import SpikeGuard
from tests.arguments.started_in import METHODS, Started
from tests.arguments.tiny_runs import SAMPLES, Located, Notes, Plain, Words, samples, sentences
from tests.backends.support import kit_module
from tests.internals import backend_of, set_processes, weight_average


def weights(tiny_run, **parts):
    return tiny_run.weights_of(tiny_run.train(**parts).model)


def average(tiny_run):
    """The average of the weights after a run."""
    trainer = tiny_run.train()
    with weight_average(trainer).in_model():
        return tiny_run.weights_of(trainer.model)


def saved_weights(tiny_run):
    tiny_run.train().save_model(str(tiny_run.folder / "saved"))
    return (tiny_run.folder / "saved" / "model.safetensors").read_bytes()


def figure(key):
    """Whether log.jsonl has a figure."""

    def see(tiny_run):
        tiny_run.train(model=Words, data=sentences(), evaluated=sentences())
        return f'"{key}"' in (tiny_run.output / "log.jsonl").read_text()

    return see


def outcome(tiny_run):
    """trained, or the kind of error."""
    try:
        tiny_run.train()
    except (OneloopError, MemoryError) as error:
        return type(error).__name__
    return "trained"


def compared_figure(tiny_run):
    """What a search on Ray Tune takes of a trial with these results; tests/integrations/search has a real one."""
    results = {"min": 1.0, "max": 5.0, "last": 3.0, "avg": 2.5, "last-5-avg": 2.0, "last-10-avg": 2.25}
    return compared(results, "min", tiny_run.trainer().args.ray_scope)


# -- from the model's notes


def notes(key, training=True):
    """One entry of the notes of each training (or evaluation) batch."""

    def see(tiny_run, **parts):
        return [call[key] for call in tiny_run.train(**parts).model.calls if call["training"] is training]

    return see


def order(tiny_run, **parts):
    return list(itertools.chain(*notes("number")(tiny_run, **parts)))


def draws_of_samples(tiny_run):
    """Whether the numbers that samples draw are the same when the streams of the run are others."""
    drawn = []

    class Noisy(list):
        def __getitem__(self, index):
            drawn[-1][index] = random.random()
            return super().__getitem__(index)

    for seed in (1, 2):
        drawn.append({})
        args = tiny_run.arguments(seed=seed, data_seed=3, max_steps=-1, num_train_epochs=1)
        tiny_run.trainer(data=Noisy(samples()), args=args).train()
    return drawn[0] == drawn[1]


def read_by_the_first_of_two(tiny_run):
    """The samples of a stream of two files that the first of two processes trains on."""
    import datasets

    class Two(ProcessGroup):
        size = 2

    rows = [
        {key: getattr(value, "tolist", lambda value=value: value)() for key, value in row.items()} for row in samples()
    ]
    stream = datasets.Dataset.from_list(rows).to_iterable_dataset(num_shards=2)
    trainer = tiny_run.trainer(data=stream)
    set_processes(trainer, Two())
    return [int(number) for batch in trainer.get_train_dataloader() for number in batch["number"]]


def two_datasets():
    return {"a": samples()[: SAMPLES // 4], "b": samples()[SAMPLES // 4 :]}


def mixed(tiny_run):
    """How many of the first eight samples come from each of two datasets."""
    try:
        numbers = order(tiny_run, data=two_datasets())[:8]
    except OneloopError as error:
        return type(error).__name__
    return [sum(number < SAMPLES // 4 for number in numbers), sum(number >= SAMPLES // 4 for number in numbers)]


def epoch_of_mixture(tiny_run):
    trainer = tiny_run.trainer(data=two_datasets())
    return sum(len(batch["labels"]) for batch in trainer.get_train_dataloader())


def logged_of_datasets(tiny_run):
    entry = tiny_run.train(data=two_datasets()).state.log_history[0]
    return sorted(key for key in entry if "/" in key)


def first_batch(*columns):
    """Which of the samples 0 and 15 are in the first batch, where each is the longest by one column."""

    def see(tiny_run):
        data = samples(**dict.fromkeys(columns, lambda i: i + 1), size=lambda i: SAMPLES - i)
        return sorted({0, SAMPLES - 1} & set(notes("number")(tiny_run, data=data)[0]))

    return see


def rows_of_five_tokens(tiny_run):
    return notes("rows")(tiny_run, data=samples(length=lambda i: 5))


def sortish(tiny_run):
    tiny_run.seq2seq = True
    return first_batch("length")(tiny_run)


def loaders(tiny_run):
    """How many processes other than this one loaded the data."""
    return len(set(itertools.chain(*notes("origin")(tiny_run, data=Located()))) - {os.getpid()})


def pinned(tiny_run):
    """Whether the loader pins memory when there is an accelerator: one is made up, and no batch is read."""
    trainer = tiny_run.trainer()
    tiny_run.monkeypatch.setattr(backend_of(trainer).devices, "kind", lambda device: "cuda")
    tiny_run.monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return trainer.get_train_dataloader().pin_memory


def start_method(tiny_run):
    """How the process that loaded the first batch was started."""
    (kind,) = set(tiny_run.train(data=Started()).model.calls[0]["origin"])
    return METHODS[list(METHODS)[kind]]


def made_ahead(tiny_run):
    """Batches that the loading process has been asked for beyond the first when that arrives."""
    loader, asked = tiny_run.trainer().get_train_dataloader(), []
    cls = type(loader.batch_sampler)
    plain = cls.__iter__

    def counting(sampler):
        for indices in plain(sampler):
            asked.append(indices)
            yield indices

    with tiny_run.monkeypatch.context() as patch:
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


def arrival(tiny_run):
    return order(tiny_run, data=Overtaking())


def extra_columns(tiny_run):
    return notes("rest")(tiny_run, data=samples(extra=float))[0]


def labels_found(tiny_run):
    return tiny_run.trainer().predict(samples()).label_ids.tolist()


class Hungry(Notes):
    """Runs out of memory with more than two samples."""

    def forward(self, x, labels=None):
        if len(x) > 2:
            raise MemoryError("more than two samples")
        return super().forward(x, labels)


def micro_batches(tiny_run):
    trainer = tiny_run.trainer(model=Hungry)
    try:
        trainer.train()
    except MemoryError:
        return "out of memory"
    return [call["rows"] for call in trainer.model.calls]


def precision(tiny_run):
    """The dtypes of outputs and weights, and whether anything was said about the level."""
    tiny_run.listen()
    call = tiny_run.train().model.calls[0]
    said = any("fp16_opt_level" in message for message in tiny_run.messages)
    return str(call["logits"]), str(call["weights"]), said


def evaluated_in(tiny_run):
    trainer = tiny_run.trainer()
    trainer.evaluate()
    return str(trainer.model.calls[0]["weights"])


def computed(tiny_run):
    """How often a block was computed in four steps."""
    return tiny_run.train().model.layers[0].computed


def block_learns(tiny_run):
    """Whether the weights of the recomputed block move; PyTorch warns where its old way of recomputing loses them."""
    trainer = tiny_run.trainer()
    before = trainer.model.layers[0].linear.weight.tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    return trainer.model.layers[0].linear.weight.tolist() != before


def cache_setting(tiny_run):
    return tiny_run.trainer().model.config.use_cache


# -- compilers: one that only notes what it is asked

COMPILED = []


def noting_compiler(graph, inputs, **options):
    COMPILED.append(options.get("mode"))
    return graph.forward


def register_compiler():
    if "noting" not in torch._dynamo.list_backends(None):
        torch._dynamo.register_backend(noting_compiler, name="noting")


def is_compiled(tiny_run):
    trainer = tiny_run.trainer(model=Plain)
    return trainer.model_wrapped is not trainer.model


def compiler_modes(tiny_run, work="train"):
    """What our compiler was asked for; nothing when another one was."""
    register_compiler()
    torch._dynamo.reset()
    COMPILED.clear()
    getattr(tiny_run.trainer(model=Plain), work)()
    return list(dict.fromkeys(COMPILED))


def compiled_evaluation(tiny_run):
    """The same for an evaluation, with our compiler in the place of the framework's own."""
    models = loading.load("torch").models
    plain = models.compiled
    with tiny_run.monkeypatch.context() as patch:
        patch.setattr(models, "compiled", lambda model, backend, mode: plain(model, "noting", mode))
        return compiler_modes(tiny_run, "evaluate")


# -- from the log


def log(key, **parts):
    return lambda tiny_run: [entry[key] for entry in tiny_run.train(**parts).state.log_history if key in entry]


def log_steps(key):
    return lambda tiny_run: [entry["step"] for entry in tiny_run.train().state.log_history if key in entry]


def metric(key):
    return lambda tiny_run: key in tiny_run.trainer().train().metrics


def noisy(tiny_run):
    return log("loss", model=Words, data=sentences(), evaluated=sentences())(tiny_run)


def tokens_seen(tiny_run):
    return tiny_run.train(model=Words, data=sentences(), evaluated=sentences()).state.num_input_tokens_seen


def token_speed(tiny_run):
    return "train_tokens_per_second" in tiny_run.trainer(model=Words, data=sentences()).train().metrics


class Poisoned(Notes):
    """Its loss is not a number when sample 0 is in the batch."""

    def forward(self, x, labels=None, number=None):
        outputs = super().forward(x, labels, number)
        if outputs["loss"] is not None and 0 in number.tolist():
            outputs["loss"] = outputs["loss"] * math.nan
        return outputs


def average_is_finite(tiny_run):
    return [math.isfinite(loss) for loss in log("loss", model=Poisoned)(tiny_run)]


def after_poison(tiny_run):
    """How a run with one bad step ends: its error, or whether the weights are still numbers."""
    trainer = tiny_run.trainer(model=Poisoned)
    try:
        trainer.train()
    except OneloopError as error:
        return type(error).__name__
    return math.isfinite(trainer.model.head.weight.sum().item())


def spikes(tiny_run):
    """What run.jsonl has of the spikes in steps 10 and 11, and the steps left out; or the kind of error."""
    end_update = SpikeGuard.end_update

    def steep(self, step, loss):
        end_update(self, step, loss * (1e4 if step in (10, 11) else 1))

    with tiny_run.monkeypatch.context() as patch:
        patch.setattr(SpikeGuard, "end_update", steep)
        try:
            tiny_run.train(model=Plain)
        except OneloopError as error:
            return type(error).__name__
    lines = map(json.loads, (tiny_run.output / "run.jsonl").read_text().splitlines())
    return [event.get("left_out", "warned") for event in lines if event["event"] in ("loss_spike", "rolled_back")]


class Broken(Notes):
    """Its first layer makes something that is not a number."""

    def forward(self, x, labels=None):
        return super().forward(x * math.inf, labels)


def named_layer(tiny_run):
    try:
        tiny_run.train(model=Broken)
    except OneloopError as error:
        return "layers.0.linear" in str(error)


# -- evaluation


def scripted(**series):
    """A compute_metrics that returns the next number of each series."""
    rows = [dict(zip(series, values)) for values in zip(*series.values())]
    return lambda prediction: rows.pop(0)


def best_step(tiny_run):
    scores = scripted(rising=[1, 2, 3, 4], falling=[4, 3, 2, 1])
    return tiny_run.train(compute_metrics=scores).state.best_global_step


def loaded_step(tiny_run):
    """The step whose weights the model has in the end, when step 2 was the best."""
    found = tiny_run.weights_of(tiny_run.train(compute_metrics=scripted(score=[1, 4, 2, 3])).model)
    return [step for step, each in tiny_run.watch.weights.items() if each == found]


def for_metrics(look, **parts):
    """What compute_metrics gets, at each of its calls."""

    def see(tiny_run):
        seen = []

        def compute(prediction, compute_result=True):
            seen.append(look(prediction))
            return {}

        tiny_run.trainer(compute_metrics=compute, **parts).evaluate()
        return seen

    return see


def moves_to_host(tiny_run):
    """After how many batches outputs are moved to the host."""
    trainer = tiny_run.trainer()
    plain, moved = backend_of(trainer).tensors.to_numpy, []

    def to_numpy(tensor):
        moved.append(len(trainer.model.calls))
        return plain(tensor)

    tiny_run.monkeypatch.setattr(backend_of(trainer).tensors, "to_numpy", to_numpy)
    trainer.evaluate()
    tiny_run.monkeypatch.setattr(backend_of(trainer).tensors, "to_numpy", plain)
    return sorted(set(moved))


def has_predictions(tiny_run):
    return tiny_run.trainer().predict(samples()).predictions is not None


def generated(tiny_run):
    """What the model was asked to generate, batch by batch."""
    tiny_run.seq2seq = True
    trainer = tiny_run.trainer()
    trainer.predict([{"x": row["x"], "labels": row["labels"]} for row in samples()])
    return trainer.model.generated


def generation_settings(tiny_run):
    tiny_run.seq2seq = True
    return vars(tiny_run.trainer().model.generation_config)


# -- files


def folders(tiny_run):
    tiny_run.train()
    return sorted(path.name for path in tiny_run.folder.iterdir())


def uploaded(tiny_run):
    """The runs that a storage has."""
    import fsspec

    fs = fsspec.filesystem("memory")
    try:
        tiny_run.train()
        return sorted(path.rpartition("/")[2] for path in fs.ls("/observed", detail=False) if fs.find(path))
    finally:
        fs.rm("/observed", recursive=True)


def checkpoints(tiny_run):
    tiny_run.train()
    return tiny_run.checkpoints()


def checkpoint_files(tiny_run):
    tiny_run.train()
    return "optimizer.safetensors" in [path.name for path in (tiny_run.output / "checkpoint-4").iterdir()]


def profiled(tiny_run):
    """Names of the traces; a run of four steps."""
    tiny_run.train()
    return [path.name for path in (tiny_run.output / "profile").glob("trace-*")]


def traced(tiny_run):
    """Names of the recordings; a run of four steps."""
    tiny_run.train()
    return sorted(path.name for path in (tiny_run.output / "trace").glob("*"))


def replays(tiny_run):
    """How often an update of a run of four steps is computed again."""
    trainer = tiny_run.trainer()
    compute, calls = trainer.compute_loss, []
    trainer.compute_loss = lambda *args, **kwargs: (calls.append(1), compute(*args, **kwargs))[1]
    trainer.args.replay_overrides = ["compute_loss"]
    trainer.train()
    return len(calls) - 4


def outcome_of_dice(tiny_run):
    """The actions of a run whose loss has random numbers of its own, in its events."""
    trainer, dice = tiny_run.trainer(), random.SystemRandom()
    compute = trainer.compute_loss
    trainer.compute_loss = lambda *args, **kwargs: compute(*args, **kwargs) * (1 + dice.random())
    trainer.args.replay_overrides = ["compute_loss"]
    with contextlib.suppress(OneloopError):
        trainer.train()
    events = [json.loads(line) for line in (tiny_run.output / "run.jsonl").read_text().splitlines()]
    return [event["action"] for event in events if event["event"] == "replay_mismatch"]


def stream_after_a_draw(tiny_run):
    """Whether a number that a callback draws in one step is missing in the next ones."""

    class Drawing(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            random.random()

    found = []
    for callbacks in ((), (Drawing(),)):
        tiny_run.trainer(callbacks=callbacks).train()
        found.append(random.random())
    return "as without it" if found[0] == found[1] else "moved"


def measures_rounding(tiny_run):
    """Whether the steps of a Trainer with its own compute_loss were computed again for their recordings."""
    trainer = tiny_run.trainer()

    class OwnLoss(type(trainer)):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    trainer.__class__ = OwnLoss
    trainer.train()
    recordings = sorted((tiny_run.output / "trace").glob("*"))
    return [json.loads(path.read_text().splitlines()[0])["has_rounding"] for path in recordings]


def writing_threads(tiny_run):
    """The threads that commit checkpoints."""
    plain, names = store.commit, set()

    def commit(*args):
        names.add(threading.current_thread().name)
        return plain(*args)

    with tiny_run.monkeypatch.context() as patch:
        patch.setattr(store, "commit", commit)
        tiny_run.train()
    return sorted(names)


def snapshots(tiny_run):
    """The steps of the snapshots that a run takes."""
    steps, begin = [], Checkpointer.take_snapshot

    def take(checkpointer):
        steps.append(checkpointer.trainer.state.global_step)
        begin(checkpointer)

    with tiny_run.monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "take_snapshot", take)
        tiny_run.train()
    return steps


def snapshot_folder(tiny_run):
    """Whether snapshots are in the directory that was named."""
    folder = tiny_run.output.parent / "here"
    folder.mkdir()
    if tiny_run.given.get("snapshot_dir"):
        tiny_run.given["snapshot_dir"] = str(folder)
    tiny_run.train()
    return any(folder.iterdir())


def event_folders(tiny_run):
    """Where event files of TensorBoard are, below the folder of the test."""
    if "logging_dir" in tiny_run.given:
        tiny_run.given["logging_dir"] = str(tiny_run.folder / tiny_run.given["logging_dir"])
    tiny_run.train()
    return sorted({str(path.parent.relative_to(tiny_run.folder)) for path in tiny_run.folder.rglob("events.out.*")})


def writers(tiny_run):
    """Whose files there are, by the beginning of their names."""
    tiny_run.train()
    return sorted({path.name.split(".")[0] for path in tiny_run.output.glob("runs/*/*")})


def name_in_writers(tiny_run):
    """The text `run_name` in the event file."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    tiny_run.train()
    (path,) = tiny_run.output.rglob("events.out.*")
    values = [value for event in EventFileLoader(str(path)).Load() for value in event.summary.value]
    return [value.tensor.string_val[0].decode() for value in values if value.tag == "run_name/text_summary"]


# -- two runs, one after the other


def first_run(tiny_run, steps=2, **parts):
    tiny_run.train(
        args=tiny_run.arguments(max_steps=steps, save_strategy="steps", resume_from_checkpoint=None), **parts
    )
    tiny_run.watch.steps.clear()


def resumed_steps(tiny_run):
    first_run(tiny_run)
    tiny_run.train()
    return tiny_run.watch.steps


def resumed_rates(tiny_run):
    """The learning rates of a run after its second step, at which it is resumed."""
    first = {"max_steps": 2, "save_strategy": "steps", "resume_from_checkpoint": None, "cooldown_steps": None}
    tiny_run.train(args=tiny_run.arguments(**first))
    history = tiny_run.train().state.log_history
    return [line["learning_rate"] for line in history if "learning_rate" in line and line["step"] > 2]


def resumed_data(tiny_run):
    """The part of the epoch's order that the second half of a run is trained on."""
    whole = order(tiny_run)
    first_run(tiny_run)
    place = whole.index(order(tiny_run)[0])
    return place


def warnings_about_checkpoints(tiny_run):
    tiny_run.listen()
    first_run(tiny_run)
    tiny_run.train()
    return sum("contains checkpoints of an earlier run" in message for message in tiny_run.messages)


def restored_patience(tiny_run):
    first_run(tiny_run, callbacks=[EarlyStoppingCallback(7)])
    stopping = EarlyStoppingCallback(99)
    tiny_run.train(callbacks=[stopping])
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

    def see(tiny_run):
        before = signal.signal(number, lambda *_: None)
        try:
            tiny_run.train(callbacks=[Sends(number)])
        except Preempted:
            pass
        finally:
            signal.signal(number, before)
        return tiny_run.watch.steps

    return see


# -- around the run


def script(tiny_run):
    """What a script does that follows the do_ arguments."""
    args = tiny_run.arguments()
    trainer = tiny_run.trainer(args=args)
    work = {
        "train": trainer.train,
        "eval": trainer.evaluate,
        "predict": lambda: trainer.predict(samples()),
        "export": lambda: trainer.save_model(str(tiny_run.folder / "exported")),
    }
    return [name for name, do in work.items() if getattr(args, f"do_{name}") and (do() or True)]


def deterministic(tiny_run):
    """Whether the framework is told to be so; the setting is put back."""
    tiny_run.monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    kit = kit_module(tiny_run.framework).Kit()
    with kit.undone_determinism():
        tiny_run.train()
        return kit.is_deterministic()


def log_level(tiny_run):
    logger = logging.getLogger("oneloop")
    logger.setLevel(logging.WARNING)
    tiny_run.trainer()
    return logging.getLevelName(logger.level).lower()


def shows_a_bar(tiny_run):
    tiny_run.capsys.readouterr()
    tiny_run.train()
    return "4/4" in tiny_run.capsys.readouterr().err


def cache_emptied(tiny_run):
    trainer, emptied = tiny_run.trainer(), []
    devices = backend_of(trainer).devices
    tiny_run.monkeypatch.setattr(devices, "empty_cache", lambda device: emptied.append(trainer.state.global_step + 1))
    trainer.train()
    return emptied


def tf32_flag(tiny_run):
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, True
    try:
        tiny_run.trainer()
        return matmul.allow_tf32
    finally:
        matmul.allow_tf32 = before


def device_used(tiny_run):
    try:
        return str(next(tiny_run.trainer().model.parameters()).device)
    except OneloopError as error:
        return type(error).__name__


def optimizer(tiny_run):
    return type(tiny_run.train().optimizer).__name__


def generation(**settings):
    """A stand-in for a GenerationConfig, which equals another with the same settings."""
    return SimpleNamespace(**settings)


# -- services


def of_trackio(tiny_run):
    """What trackio was asked for, beside the usual."""
    asked = {}

    class Run:
        name, config = "run", {}

        def log(self, values, step):
            pass

    def init(name, resume, config, embed, **options):
        asked.update(options)
        return Run()

    tiny_run.monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init, finish=lambda: None))
    tiny_run.train()
    return asked if "project" in tiny_run.given else {key: asked[key] for key in asked if key != "project"}


def pushed(tiny_run):
    """What a Hub of this machine has seen of the run; `held`, when it answers no commit before the end of training."""
    from tests.integrations.hub.stand_in import serving

    class Opens(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            hub.gate.set()

    with serving() as hub:
        tiny_run.monkeypatch.setenv("HF_ENDPOINT", hub.url)
        tiny_run.monkeypatch.setenv("HF_TOKEN", "hf_usual")
        if "hub_always_push" in tiny_run.given and "hub_strategy" not in tiny_run.given:
            hub.gate.clear()
        tiny_run.train(callbacks=[Opens()])
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
    wanted = next((known[name] for name in known if name in tiny_run.given), "repositories")
    return {key: value for key, value in every.items() if key == wanted and value}


def rows_of_documents(evaluated=False):
    """The shape of a batch of documents of four tokens."""

    def see(tiny_run):
        ids = [[(i + place) % 10 for place in range(4)] for i in range(SAMPLES)]
        documents = [{"input_ids": each, "labels": each} for each in ids]
        model = kit_module(tiny_run.framework).Kit().language_model
        trainer = Trainer(model(), tiny_run.arguments(), train_dataset=documents, eval_dataset=documents)
        trainer.train()
        loader = trainer.get_eval_dataloader() if evaluated else trainer.get_train_dataloader()
        return list(next(iter(loader))["input_ids"].shape)

    return see
