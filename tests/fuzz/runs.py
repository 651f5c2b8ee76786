"""A fuzzer of what users do: runs that are interrupted and moved end as those that are not.

    python -m tests.fuzz.runs [torch|paddle|mindspore] [--seconds N] [--runs N] [--first SEED] [--worlds 1,2,3]

A seed makes a script (users.py), which is played twice: undisturbed, and interrupted up to three times, by signals,
exceptions and SIGKILL, at events, within evaluations and between the writes of a save, and during what a resume still
owes. Each start of it is a process that is forked from this one, which has imported everything. Compared are the
weights, the last checkpoint with its optimizer and all states, the logs and evaluations, the epoch, the samples of each
micro-batch, the files, and what is drawn next; on another number of processes the logs, up to rounding. A finding is
printed with its seed and the smallest script that still shows it.
"""

import argparse
import faulthandler
import gc
import json
import math
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from oneloop.distributed.preemption import Preempted
from tests.backends.support import kit_module
from tests.checkpoint.interrupted_runs import Aborted, comparable, compared, logged, quiet
from tests.checkpoint.job import NoisyTexts, result
from tests.fuzz import users
from tests.fuzz.users import Phase

LONGEST = 120  # seconds of one phase
ADAPTERS = {"torch": ("peft",), "paddle": (), "mindspore": ()}  # what scripts with LoRA import
CLOSE = 2e-3  # how far logged figures of runs on other numbers of processes may be apart, relative


class Broken(Exception):
    """A phase that ended in a way that nobody asked for."""


# -- one process


def _count_writes(places):
    """Renames and removals are places where the process may be killed."""
    for name in ("replace", "rename", "unlink", "rmdir"):
        original = getattr(os, name)

        def counted(*args, _original=original, **kwargs):
            places.at("write")
            return _original(*args, **kwargs)

        setattr(os, name, counted)


def _child(script, phase, folder, resumes, rank, port):
    """Play one process of a phase; its exit status is 0, 75 (a signal) or 3 (an exception)."""
    os.setpgid(0, 0)
    hang = (folder / f"hang-{rank}").open("w")  # open until the process ends
    faulthandler.dump_traceback_later(LONGEST, exit=True, file=hang)
    if phase.processes > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": phase.processes, "LOCAL_WORLD_SIZE": phase.processes}
        os.environ |= {name: str(value) for name, value in names.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    places, output = users.Places(phase if rank == phase.rank else Phase(phase.processes)), folder / "run"
    _count_writes(places)
    is_resumed = resumes and any(output.glob("checkpoint-*/manifest.json"))
    if "storage" in script.traits:
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        output = f"file://{folder}/run"
    NoisyTexts.is_noisy = not script.moves
    with quiet():
        trainer = users.build(script, output, folder / f"samples-{rank}", places, is_resumed)
        trainer.train(resume_from_checkpoint=resumes)
    found = result(trainer, trainer.args.output_dir)
    drawn = [random.random(), np.random.rand(), kit_module(script.framework).Job().draw()]
    found["log.jsonl"] = logged(Path(trainer.args.output_dir) / "log.jsonl", found.pop("run_id"))
    found["weights_norm"] = float(sum(np.abs(np.float64(v)).sum() for v in _weights(script, trainer).values()))
    found["epoch"] = trainer.state.epoch
    found |= _files(Path(trainer.args.output_dir), found["last"])
    (folder / f"result-{rank}.json").write_text(json.dumps(found | {"drawn": drawn, "counts": places.counts}))


def _files(output, last):
    """The names in the last checkpoint, and the remains of saves, of which there should be none."""
    inside = output / last if last is not None else output / "none"
    left = {path.name for pattern in (".checkpoint-*", ".model.*", ".*.partial") for path in output.glob(pattern)}
    return {"files": sorted(path.relative_to(inside).as_posix() for path in inside.rglob("*")), "left": sorted(left)}


def _weights(script, trainer):
    return kit_module(script.framework).Job().weights(trainer.model)


def _run_child(*args):
    """The status of the process. Nothing of the parent's is cleaned up."""
    status, folder, rank = 1, args[2], args[4]
    try:
        _child(*args)
        status = 0
    except Preempted:
        status = 75
    except Aborted:
        status = 3
    except BaseException:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
    os._exit(status)


# -- one run


def play(script, folder):
    """What the run came to, and how each phase ended."""
    ends = []
    folder.mkdir(parents=True)
    for number, phase in enumerate(script.phases):
        if "storage" in script.traits:
            shutil.rmtree(folder / "cache", ignore_errors=True)  # another machine
        if script.moves and not any((folder / "run").glob("checkpoint-*/manifest.json")):
            phase = replace(phase, processes=script.world, rank=0)  # it starts anew, and has nothing to keep
        statuses = _play_phase(script, phase, folder, bool(number))
        ends.append(_end(statuses, phase, folder))
        if ends[-1] == "complete":
            break
    else:
        raise Broken(f"the last phase has not ended: {ends}")
    found = json.loads((folder / "result-0.json").read_text())
    if phase.processes > 1:
        found["drawn"] = None
    found["samples"] = {str(rank): _samples(folder / f"samples-{rank}") for rank in range(phase.processes)}
    return found, ends


def _samples(path):
    """What each micro-batch consisted of, each time that it was trained on."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        place, digest = line.split(" ")
        found.setdefault(place, set()).add(digest)
    return {place: sorted(digests) for place, digests in sorted(found.items())}


def _play_phase(script, phase, folder, resumes):
    """The exit statuses of its processes; those that a dead one leaves behind are killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = {}
    for rank in range(phase.processes):
        pid = os.fork()
        if pid == 0:
            _run_child(script, phase, folder, resumes, rank, port)
        children[pid] = rank
    statuses, deadline = {}, time.monotonic() + LONGEST + 20
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in children:
            statuses[children.pop(pid)] = os.waitstatus_to_exitcode(status)
            if statuses[max(statuses)] not in (0, 75) and children:
                deadline = min(deadline, time.monotonic() + 2.0)
            continue
        if time.monotonic() > deadline:
            for left in children:
                os.killpg(left, signal.SIGKILL)
        time.sleep(0.002)
    return [statuses[rank] for rank in range(phase.processes)]


def _end(statuses, phase, folder):
    if set(statuses) == {0}:
        return "complete"
    asked = {"signal": 75, "abort": 3, "kill": -signal.SIGKILL}[phase.how]
    if phase.where is not None and statuses[phase.rank] == asked:
        return f"{phase.how} at {phase.where}"
    errors = [path.read_text()[-1500:] for path in sorted(folder.glob("error-*"))]
    hangs = [path.read_text()[:1500] for path in sorted(folder.glob("hang-*")) if path.stat().st_size]
    raise Broken(f"statuses {statuses}: {' '.join(errors + hangs)}")


def difference(script):
    """What differs between the undisturbed run and the one of the script, and how the phases of this one ended."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        whole, _ = play(replace(script, phases=(Phase(script.world),)), folder / "whole")
        script = placed(script, whole.pop("counts"))
        broken, ends = play(script, folder / "broken")
        broken.pop("counts")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if whole["last"] != broken["last"]:  # a signal saves steps that were not to be saved
        whole.pop("files"), broken.pop("files")
    for found in (whole, broken):
        for name in script.traits.get("other_rates", ()) if found["contents"] is not None else ():
            del found["contents"]["run.json"]["course"][name]  # what the arguments say
    for found in (whole, broken) if "spikes" in script.traits else ():
        # A run may return to a checkpoint that a signal asked for; and a step that is left out is not compared.
        found.pop("samples")
        if found["contents"] is not None:
            found["contents"]["run.json"].get("spikes", {}).pop("rollbacks", None)
    if script.moves:
        return _apart(whole, broken), ends
    whole.pop("weights_norm"), broken.pop("weights_norm")
    return compared(*comparable(whole, broken)), ends


def placed(script, counts):
    """With numbers in place of shares: how often the undisturbed run got to each place."""
    return replace(script, phases=tuple(phase.placed(counts) for phase in script.phases))


def _apart(whole, broken):
    """What of runs on other numbers of processes differs by more than rounding."""
    found = [] if abs(whole["epoch"] - broken["epoch"]) < 1 else [f"/epoch: {whole['epoch']} != {broken['epoch']}"]
    keys = [sorted(entry) for entry in whole["history"]], [sorted(entry) for entry in broken["history"]]
    found += compared(*keys, "/history")
    for left, right in zip(whole["history"], broken["history"]):
        for name in left.keys() & right.keys():
            # Shares of an epoch are counted in batches of a process, and its FLOPs with their padding.
            near = {"epoch": 0.99, "total_flos": math.inf}.get(name, CLOSE)
            if isinstance(left[name], float) and not np.isclose(left[name], right[name], CLOSE, near, equal_nan=True):
                found.append(f"/history/{name} at step {left.get('step')}: {left[name]} != {right[name]}")
    return found


def shrunk(script, seconds=60):
    """The smallest script that still shows a difference, found by taking things away one at a time."""
    until, is_smaller = time.monotonic() + seconds, True
    while is_smaller and time.monotonic() < until:
        is_smaller = False
        for candidate in _smaller(script):
            try:
                wrong = difference(candidate)[0]
            except Broken as error:
                wrong = [str(error)]
            except Exception:
                continue
            if wrong:
                script, is_smaller = candidate, True
                break
            if time.monotonic() > until:
                break
    return script


def _smaller(script):
    for i in range(len(script.phases) - 1):
        yield replace(script, phases=script.phases[:i] + script.phases[i + 1 :])
    if script.world > 1:
        yield replace(script, phases=tuple(replace(phase, processes=1, rank=0) for phase in script.phases))
    for name in script.traits:
        yield replace(script, traits={key: value for key, value in script.traits.items() if key != name})
    for name in script.options:
        if name not in ("max_steps", "eval_strategy", "load_best_model_at_end"):
            yield replace(script, options={key: value for key, value in script.options.items() if key != name})
    if script.kind != "map":
        yield replace(script, kind="map")
    for i, phase in enumerate(script.phases[:-1]):
        for simpler in (replace(phase, how="signal"), replace(phase, where="on_step_end", number=2, share=None)):
            if simpler != phase and phase.where != "write":
                yield replace(script, phases=(*script.phases[:i], simpler, *script.phases[i + 1 :]))


# -- many


def warm(framework):
    """Import what runs need, so that forked ones have it."""
    kit = kit_module(framework)
    for name in (f"oneloop.backends.{kit.Kit.name}.engine", *kit.Job.warm, *ADAPTERS[framework]):
        import_module(name)
    gc.collect()
    gc.freeze()


def search(framework, runs, seconds, first=0, worlds=(1,), shrinks=True):
    """(seed, script, differences) of each finding; prints them."""
    warm(framework)
    begun, ends, findings, count = time.monotonic(), Counter(), [], 0
    for seed in range(first, first + runs):
        if time.monotonic() - begun > seconds:
            break
        script = users.draw(seed, framework, worlds)
        count += 1
        try:
            wrong, ended = difference(script)
        except Exception as error:
            wrong, ended = [f"{type(error).__name__}: {error}"], []
        ends.update(ended)
        if wrong:
            findings.append((seed, script, wrong))
            small = shrunk(script) if shrinks else script
            print(f"seed {seed}: {small}\n  {', '.join(ended)}", *wrong[:6], sep="\n  ", flush=True)
    parts = ", ".join(f"{number} {name}" for name, number in sorted(ends.items()))
    print(f"{count} scripts on {framework} in {time.monotonic() - begun:.0f} s ({parts}): {len(findings)} differ")
    return findings


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", nargs="?", default="torch")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--runs", type=int, default=10**9)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--worlds", default="1")
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args(argv)
    worlds = tuple(map(int, given.worlds.split(",")))
    return bool(search(given.framework, given.runs, given.seconds, given.first, worlds, not given.no_shrink))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
