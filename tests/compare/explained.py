"""Differences that are meant: (pattern of run names, pattern of fields, reason). Patterns are those of fnmatch.

A field is what stands before the first colon of a difference: events, reads, files, history, ...
"""

EXPLAINED: list[tuple[str, str, str]] = [
    ("*", "new arguments", "arguments that the commit does not have are stored too"),
    ("*-nonfinite_stop", "files", "run.jsonl quotes the error, whose text was changed"),
    ("*watched*", "warnings", "overrides that oneloop never calls are named, all of them instead of four"),
    *(
        (
            runs,
            fields,
            "before the first update, processes of a sharded model agree on how its labels count",
        )
        for runs in ("*two_stage[23]*", "*two_few_left")
        for fields in ("reads", "collectives")
    ),
    ("*two_*", "warnings", "what was decided by the code of callbacks, data and overrides is shown"),
    *(
        (runs, "warnings", "what was decided by the code of compute_loss is shown")
        for runs in ("*loss_of_*", "*overrides.compute_loss", "*one_then_two")
    ),
    ("*two_stage1", "reads", "at a save, the mesh says which processes write; torch's reads its ranks from a tensor"),
    ("*two_tokens", "reads", "before the first update, it is computed whether the labels are shifted"),
    *(
        (runs, fields, "before the first update, processes compare arguments, lengths of data and learning rates")
        for runs in ("*two_*", "*one_then_two")
        for fields in ("reads", "collectives")
    ),
    ("*-nonfinite_skip", "files", "checkpoints store how many updates were skipped in a row"),
    ("torch-nonfinite_skip", "reads", "at a log or a save, one value less is read from the device"),
]
