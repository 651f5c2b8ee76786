"""The commented recipe that `oneloop init` writes."""

from .roles import ROLES
from .tasks import TASKS

_MORE = (
    "# A mixture: data as a mapping, and the share of each dataset.",
    "# data: {reviews: reviews.jsonl, posts: posts.csv}",
    "# mixture_weights: {reviews: 0.7, posts: 0.3}",
    "",
    "# A search before training, and the number of its trials.",
    "# search: {learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}, per_device_train_batch_size: [8, 16]}",
    "# trials: 10",
    "",
)


def write(task: str) -> str:
    """The text of a recipe for a task."""
    found = TASKS[task]
    forms = " or ".join(" and ".join(form.required) for form in found.forms)
    roles = list(dict.fromkeys(role for form in found.forms for role in form.roles))
    lines = [
        f"# {task}: {found.summary}. Train it with: oneloop train FILE",
        f"task: {task}",
        "model: path/to/model        # a folder with a model and its tokenizer, or a name on the Hub",
        "data: data.jsonl            # or .csv, .tsv, .json, .parquet, a folder; several as a list",
        "output_dir: outputs/" + task,
        "",
        f"# The data has columns for {forms}. Those with usual names are recognised; name the others:",
        "# columns:",
        *(f"#   {role}: NAME{' ' * (14 - len(role))}# {ROLES[role].says}" for role in roles),
        "# eval_data: test.jsonl      # default: a part of the data, by a hash of the input",
        "# eval_split: 0.1            # that part; 0: no evaluation",
        "# bad_rows: stop             # or skip: leave out rows that cannot be used",
    ]
    if any(form.has_labels for form in found.forms):
        lines.append("# labels: [a, b]             # default: those of the model, or those in the data")
    if found.generates:
        lines.append("# samples: 3                 # texts that the model writes after training")
        lines.append("# max_new_tokens: 64         # and their length")
        lines += [] if found.trl else ["# packing: true              # several short texts in a row"]
        lines += ["# trl: {beta: 0.1}           # more arguments of TRL's configuration"] if found.trl else []
    lines += [
        "# lora: true                 # an adapter instead of all weights; or {r: 8, alpha: 16}",
        "",
        *([] if found.trl else _MORE),
        "# Any training argument by its name. These are the defaults of the task:",
        *(f"# {name}: {_yaml(default.value)}" for name, default in found.defaults.items()),
        "# max_length: 128            # default: that of the longest row, up to what the model accepts",
        "# seed: 42",
    ]
    return "\n".join(lines) + "\n"


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # YAML reads 3e-05 as text: a number needs a dot.
    return f"{value:.1e}" if isinstance(value, float) and value < 1e-3 else str(value)
