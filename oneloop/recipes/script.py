"""The Python script of a job: the same run, written with the public API."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..secrets import clean
from .job import Job
from .tasks.language import shift_labels

_WIDTH = 110


def write(job: Job) -> str:
    """The script."""
    return _of_trl(job) if job.task.trl else _of_oneloop(job)


def _of_oneloop(job: Job) -> str:
    functions: list[Callable[..., Any]] = [job.form.encode]
    functions += [shift_labels] if job.moves_labels else []
    functions += [job.form.compute_metrics] if job.form.compute_metrics else []
    sources = [inspect.getsource(function).rstrip() for function in functions]
    body = "\n\n\n".join(["\n".join(_constants(job)), *sources, "\n".join(_main(job))])
    head = f'"""{job.task.name} with {_plain(job.model)}, as `oneloop train` does it: the weights are the same."""'
    return f'{head}\n\n{_imports(job, body)}\n\n{body}\n\n\nif __name__ == "__main__":\n    main()\n'


def _plain(text: str) -> str:
    """Text that does not end a docstring."""
    return "".join(character if character.isprintable() and character not in '\\"' else "?" for character in text)


def _imports(job: Job, body: str) -> str:
    """Those names that the script uses."""

    def used(names: str) -> str:
        return ", ".join(name for name in names.split() if re.search(rf"\b{name}\b", body))

    standard = ["from functools import partial"] if used("partial") else []
    standard += ["from typing import Any"] if used("Any") else []
    packages = ["import numpy as np"] if used("np") else []
    packages += ["from peft import LoraConfig, get_peft_model"] if job.lora else []
    packages += [f"import {job.library.first}  # before transformers"] if job.library.first else []
    packages.append(f"from {job.library.module} import {used(f'AutoConfig {job.task.auto} AutoTokenizer')}")
    ours = [
        f"from oneloop import {used(f'{job.task.collator} Trainer TrainingArguments set_seed')}",
        f"from oneloop.recipes import {used('read_rows split_rows')}",
    ]
    return "\n\n".join("\n".join(group) for group in (standard, packages, ours) if group)


def _constants(job: Job) -> list[str]:
    found = [f"MODEL = {literal(job.model)}"]
    found += [f"TOKENIZER = {literal(job.tokenizer)}"] if job.tokenizer != job.model else []
    found.append(f"COLUMNS = {literal(job.columns)}")
    if job.labels is not None:
        found.append(_wrapped("LABELS = [", [literal(label) for label in job.labels], "]", 0))
    found += [f"MAX_LENGTH = {job.max_length}"] if job.max_length is not None else []
    return found


def _main(job: Job) -> list[str]:
    return [
        "def main():",
        f"    tokenizer = AutoTokenizer.from_pretrained({'MODEL' if job.tokenizer == job.model else 'TOKENIZER'})",
        *(["    tokenizer.pad_token = tokenizer.eos_token"] if job.pad_token_is_end else []),
        *_data(job),
        "",
        "    args = TrainingArguments(",
        *(f"        {line}" for line in _arguments(job.arguments)),
        "    )",
        "    set_seed(args.seed)",
        *_model(job),
        "    trainer = Trainer(",
        *(f"        {word}," for word in _trainer(job)),
        "    )",
        *_search(job),
        "    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)",
        "    trainer.save_model()",
        *_results(job),
    ]


def _of_trl(job: Job) -> str:
    """For TRL's trainers, which `oneloop run` puts onto oneloop's."""
    config, trainer = f"{job.task.trl}Config", f"{job.task.trl}Trainer"
    constants = "\n".join(_constants(job)[: -1 if job.max_length else None])
    known = f'COLUMNS, bad_rows="{job.bad_rows}"'
    held_out = f"read_rows({literal(job.eval_files)}, {known})" if job.eval_files else "held_out"
    files = literal([file for files in job.sources.values() for file in files])
    adapter = "".join(f", {name}={literal(value)}" for name, value in (job.lora or {}).items())
    main = [
        "def main():",
        f"    tokenizer = AutoTokenizer.from_pretrained({'MODEL' if job.tokenizer == job.model else 'TOKENIZER'})",
        *(["    tokenizer.pad_token = tokenizer.eos_token"] if job.pad_token_is_end else []),
        f"    rows, held_out = split_rows(read_rows({files}, {known}), {job.eval_split})",
        *([f"    held_out = {held_out}"] if job.eval_files else []),
        "",
        f"    args = {config}(",
        *(f"        {line}" for line in _arguments(job.arguments)),
        "    )",
        "    set_seed(args.seed)",
        f"    trainer = {trainer}(",
        f"        {job.task.auto}.from_pretrained(MODEL),",
        "        args=args,",
        "        train_dataset=Dataset.from_list(rows),",
        "        eval_dataset=Dataset.from_list(held_out) if held_out else None,",
        "        processing_class=tokenizer,",
        *([f'        peft_config=LoraConfig(task_type="{job.task.adapter}"{adapter}),'] if job.lora else []),
        "    )",
        "    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)",
        "    trainer.save_model()",
        *_results(job),
        "    return trainer",
    ]
    head = f'"""{job.task.name} with {_plain(job.model)}. `oneloop run` runs it with TRL\'s trainer on oneloop\'s."""'
    packages = ["from datasets import Dataset", *(["from peft import LoraConfig"] if job.lora else [])]
    packages += [f"from transformers import {job.task.auto}, AutoTokenizer", f"from trl import {config}, {trainer}"]
    ours = ["from oneloop import set_seed", "from oneloop.recipes import read_rows, split_rows"]
    imports = "\n\n".join("\n".join(group) for group in (packages, ours))
    body = "\n".join(main)
    return f'{head}\n\n{imports}\n\n{constants}\n\n\n{body}\n\n\nif __name__ == "__main__":\n    main()\n'


# -- the parts of main()


def _given(job: Job, function: Callable[..., Any]) -> str:
    """The constants that a function of the form takes, as keyword arguments."""
    names = {"labels": "LABELS", "max_length": "None" if job.max_length is None else "MAX_LENGTH"}
    return "".join(f", {name}={names[name]}" for name in job.constants(function))


def _data(job: Job) -> list[str]:
    known = ", labels=LABELS" if job.known_labels else ""
    options = f'COLUMNS, bad_rows="{job.bad_rows}"{known}'
    encode = f"{job.form.encode.__name__}({{}}, tokenizer{_given(job, job.form.encode)})"
    encode = f"shift_labels({encode})" if job.moves_labels else encode
    if job.is_mixture:
        found = [
            "    files = {",
            *(f"        {literal(name)}: {literal(files)}," for name, files in job.sources.items()),
            "    }",
            "    train_data, held_out = {}, []",
            "    for name in files:",
            f"        rows, others = split_rows(read_rows(files[name], {options}), {job.eval_split})",
            f"        train_data[name] = {encode.format('rows')}",
            "        held_out += others",
        ]
    else:
        found = [
            _wrapped("    rows = read_rows(", [literal(job.sources[""]), *options.split(", ")], ")", 4),
            f"    rows, held_out = split_rows(rows, {job.eval_split})",
            f"    train_data = {encode.format('rows')}",
        ]
    if job.eval_files:
        found.append(_wrapped("    held_out = read_rows(", [literal(job.eval_files), *options.split(", ")], ")", 4))
    return [*found, f"    eval_data = {encode.format('held_out')}"]


def _arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Keyword arguments, one in a line. Secrets are not written."""
    return [
        f"{name}={literal(value)},"
        if clean(value, name) == value
        else f"# {name}: a secret, which is not written here; read it from the environment"
        for name, value in arguments.items()
    ]


def _model(job: Job) -> list[str]:
    if job.from_scratch:
        lines = [f"model = {job.task.auto}.from_config(AutoConfig.from_pretrained(MODEL))"]
    else:
        indentation = 8 if job.search else 4
        lines = [
            _wrapped(f"model = {job.task.auto}.from_pretrained(", ["MODEL", *_model_options(job)], ")", indentation)
        ]
    lines += ["if model.config.pad_token_id is None:", "    model.config.pad_token_id = tokenizer.pad_token_id"]
    if job.lora is not None:
        options = "".join(f", {name}={literal(value)}" for name, value in job.lora.items())
        lines.append(f'model = get_peft_model(model, LoraConfig(task_type="{job.task.adapter}"{options}))')
    if job.search is None:
        return [f"    {line}" for line in lines]
    return ["", "    def model_init():", *(f"        {line}" for line in lines), "        return model", ""]


def _model_options(job: Job) -> list[str]:
    values = {name: literal(value) for name, value in job.form.model_options.items()}
    if job.labels is not None:
        values["num_labels"] = "len(LABELS)"
        values["id2label"] = "dict(enumerate(LABELS))"
        values["label2id"] = "{label: number for number, label in enumerate(LABELS)}"
    return [f"{job.library.options.get(name, name)}={value}" for name, value in values.items()]


def _trainer(job: Job) -> list[str]:
    words = ["None" if job.search else "model", "args"]
    if not job.packs:
        words.append(f"data_collator={job.task.collator}(tokenizer)")
    words += ["train_dataset=train_data", "eval_dataset=eval_data or None", "processing_class=tokenizer"]
    words += ["model_init=model_init"] if job.search else []
    function = job.form.compute_metrics
    if function is not None:
        given = _given(job, function)
        words.append(f"compute_metrics={f'partial({function.__name__}{given})' if given else function.__name__}")
    return words


def _search(job: Job) -> list[str]:
    if job.search is None:
        return []
    suggested = []
    for name, values in job.search.items():
        if isinstance(values, list):
            suggested.append(f"trial.suggest_categorical({literal(name)}, {literal(values)})")
        else:
            kind = "int" if all(isinstance(values[end], int) for end in ("low", "high")) else "float"
            ends = f"{values['low']!r}, {values['high']!r}, log={values.get('log', False)!r}"
            suggested.append(f"trial.suggest_{kind}({literal(name)}, {ends})")
    return [
        "",
        "    def space(trial):",
        "        return {",
        *(f"            {literal(name)}: {call}," for name, call in zip(job.search, suggested)),
        "        }",
        "",
        "    best = trainer.hyperparameter_search(",
        "        space,",
        f'        compute_objective=lambda metrics: metrics["eval_{job.form.metric}"],',
        f'        direction="{job.form.direction}",',
        f"        n_trials={job.trials},",
        '        backend="optuna",',
        "    )",
        "    for name, value in best.hyperparameters.items():",
        "        setattr(args, name, value)",
    ]


def _results(job: Job) -> list[str]:
    if not job.eval_files and not job.eval_split:
        return []
    return [
        "    metrics = trainer.evaluate()",
        '    trainer.log_metrics("eval", metrics)',
        '    trainer.save_metrics("eval", metrics)',
    ]


# -- text


def literal(value: Any) -> str:
    """A value as Python writes it, with double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=not value.isprintable())
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in value.items())}}}"
    return repr(value)


def _wrapped(start: str, words: list[str], end: str, indentation: int) -> str:
    """A call or a list in one line, or with a line for each word."""
    line = f"{start}{', '.join(words)}{end}"
    if len(line) + indentation <= _WIDTH:
        return line
    inner = "".join(f"\n{' ' * (indentation + 4)}{word}," for word in words)
    return f"{start}{inner}\n{' ' * indentation}{end}"
