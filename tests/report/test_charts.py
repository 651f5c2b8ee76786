"""Which figures each chart of a page shows, under which names: of one run, of several, and in the picture."""

import json

import pytest

from oneloop import Trainer
from oneloop.report import LoggedRun, write_comparison, write_page
from tests.backends.support import rows
from tests.report.tiny_runs import write_lines

# All that a run can log, with the chart that it belongs to.
STEP = {"loss": 2.0, "learning_rate": 0.1, "grad_norm": 3.0, "loss_scale": 1024.0, "skipped_steps": 1}
STEP |= {"samples_per_second": 90.0, "steps_per_second": 9.0, "tokens_per_second": 900.0, "num_input_tokens_seen": 70}
STEP |= {"memory_bytes": 5e9, "device_memory_bytes": 6e9, "device_peak_bytes": 7e9, "total_flos": 1e12, "epoch": 0.5}
STEP |= {"entropy_of_routing": 0.25, "own_time": 3.0}
EVALUATION = {"eval_loss": 2.5, "eval_dev_loss": 2.75, "eval_accuracy": 0.5, "eval_dev_f1": 0.25}
EVALUATION |= {"eval_perplexity": 12.0, "eval_runtime": 1.0, "eval_samples_per_second": 50.0}
END = {"train_loss": 2.25, "train_runtime": 60.0, "test_accuracy": 0.5}
HISTORY = [
    {"step": 1} | STEP,
    {"step": 1} | EVALUATION,
    {"step": 2} | STEP,
    {"step": 2} | EVALUATION,
    {"step": 2} | END,
]

CHARTS = {
    "loss": {"loss": "training", "eval_loss": "evaluation", "eval_dev_loss": "evaluation dev"},
    "evaluation": {"eval_accuracy": "accuracy", "eval_dev_f1": "dev f1"},
    "perplexity (evaluation)": {"eval_perplexity": "perplexity"},
    "learning rate": {"learning_rate": "learning rate"},
    "gradient norm": {"grad_norm": "gradient norm"},
    "samples per second": {"samples_per_second": "samples per second"},
    "tokens per second": {"tokens_per_second": "tokens per second"},
    "memory": {
        "memory_bytes": "process",
        "device_memory_bytes": "device",
        "device_peak_bytes": "device, peak",
    },
    "loss scale": {"loss_scale": "loss scale"},
    "entropy of routing": {"entropy_of_routing": "entropy_of_routing"},
}
FROM_ZERO = {"learning rate", "gradient norm", "samples per second", "tokens per second", "memory", "loss scale"}


def data_of(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(text.split('<script type="application/json" id="data">')[1].split("</script>")[0])


def keys(charts):
    return {chart["title"]: dict(chart["keys"]) for chart in charts}


def test_the_page_of_a_run(tmp_path):
    data = data_of(write_page(tmp_path, HISTORY))
    assert list(keys(data["charts"]).items()) == list(CHARTS.items()), "the figures, their labels and their order"
    assert {chart["title"] for chart in data["charts"] if chart["zero"]} == FROM_ZERO
    assert {chart["title"]: chart["unit"] for chart in data["charts"] if chart["unit"]} == {"memory": "bytes"}
    shown = [key for chart in data["charts"] for key, _ in chart["keys"]]
    assert len(shown) == len(set(shown)) and set(shown) <= data["runs"][0]["points"].keys()


@pytest.mark.parametrize(
    ("metrics", "charts"),
    [
        ({"eval_f1": 0.5}, {"f1 (evaluation)": {"eval_f1": "f1"}}),  # alone, its title says what it is
        ({"eval_f1": 0.5, "eval_bleu": 30.0}, {"f1 (evaluation)": ["eval_f1"], "bleu (evaluation)": ["eval_bleu"]}),
        ({"eval_f1": 0.5, "eval_em": 1.0}, {"evaluation": ["eval_f1", "eval_em"]}),
        ({"eval_f1": 0.5, "eval_em": -0.1}, {"f1 (evaluation)": ["eval_f1"], "em (evaluation)": ["eval_em"]}),
        ({"eval_f1": float("nan")}, {"f1 (evaluation)": ["eval_f1"]}),
    ],
)
def test_metrics_between_zero_and_one_share_a_chart(tmp_path, metrics, charts):
    found = keys(data_of(write_page(tmp_path, [{"step": 1} | metrics]))["charts"])
    assert {title: list(of) for title, of in found.items()} == {title: list(of) for title, of in charts.items()}


def test_the_page_of_several_runs_has_a_chart_for_each_figure(tmp_path):
    """One line a run; a figure that only one run has is shown too."""
    first = [{key: value for key, value in entry.items() if key != "loss_scale"} for entry in HISTORY]
    second = [{key: value for key, value in entry.items() if key != "eval_perplexity"} for entry in HISTORY]
    for name, history in (("first", first), ("second", second)):
        write_lines(tmp_path / name / "log.jsonl", [{"run": name, "time": 1e9} | entry for entry in history])
    data = data_of(write_comparison([tmp_path], tmp_path / "compare.html"))
    titles = {
        "loss": "loss",
        "eval_loss": "loss (evaluation)",
        "eval_dev_loss": "dev loss (evaluation)",
        "eval_accuracy": "accuracy (evaluation)",
        "eval_dev_f1": "dev f1 (evaluation)",
        "eval_perplexity": "perplexity (evaluation)",
        "learning_rate": "learning rate",
        "grad_norm": "gradient norm",
        "samples_per_second": "samples per second",
        "tokens_per_second": "tokens per second",
        "memory_bytes": "memory",
        "device_memory_bytes": "device memory",
        "device_peak_bytes": "device peak",
        "loss_scale": "loss scale",
        "entropy_of_routing": "entropy of routing",
    }
    assert [(chart["keys"], chart["title"]) for chart in data["charts"]] == [
        ([[key, key]], title) for key, title in titles.items()
    ]
    units = {chart["keys"][0][0] for chart in data["charts"] if chart["unit"] == "bytes"}
    assert units == {"memory_bytes", "device_memory_bytes", "device_peak_bytes"}
    assert data["metrics"] == [
        ["loss", False],
        ["eval_loss", False],
        ["eval_dev_loss", False],
        ["eval_accuracy", True],
        ["eval_dev_f1", True],
        ["eval_perplexity", False],
    ]


def test_the_picture():
    charts = LoggedRun(HISTORY).charts()
    assert [(chart.title, {line.name: line.values[-1] for line in chart.lines}) for chart in charts] == [
        ("loss", {"training": 2.0, "evaluation": 2.5, "evaluation dev": 2.75}),
        ("evaluation", {"accuracy": 0.5, "dev_f1": 0.25}),
        ("learning rate", {"learning rate": 0.1}),
        ("samples per second", {"training": 90.0}),
        ("tokens per second", {"training": 900.0}),
        ("gradient norm", {"gradient norm": 3.0}),
        ("perplexity", {"perplexity": 12.0}),
    ]
    assert {chart.title for chart in charts if chart.zero} == FROM_ZERO - {"memory", "loss scale"}


def test_what_a_trainer_logs(backend, arguments, tmp_path):
    args = arguments(max_steps=4, logging_steps=1, eval_strategy="steps", eval_steps=2, max_grad_norm=1.0)
    trainer = Trainer(
        backend.classifier(),
        args,
        train_dataset=rows(16),
        eval_dataset=rows(8),
        compute_metrics=lambda prediction: {"accuracy": 0.5, "perplexity": 12.0},
    )
    trainer.train()
    found = keys(data_of(write_page(tmp_path / "out"))["charts"])
    expected = ["loss", "accuracy (evaluation)", "perplexity (evaluation)", "learning rate", "gradient norm"]
    assert list(found)[:5] == expected
    assert list(found["loss"]) == ["loss", "eval_loss"]
    assert found.keys() - set(expected) == {"samples per second", "waiting for data", "memory"}, (
        "it has no tokens to count"
    )
