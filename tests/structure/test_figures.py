"""Contracts among the figures of the structure, and that each figure counts what it says."""

from tests.structure import figures


def test_nothing_below_the_command_line_imports_compat_or_asks_who_is_calling():
    assert figures.compat_imports() == []
    assert figures.asks_who_is_calling() == []


def write(root, **files):
    for name, text in files.items():
        path = root / "oneloop" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_chains_and_imports_inside_functions(tmp_path):
    text = "def f():\n    from ..data import order\n    a.b.c.d.e.f\n    a.b.c.d\n    g().b.c.d.e.f\n"
    text += "    from json import loads\n    import torch.x as t\n    torch.b.c.d.e\n    t.b.c.d.e\n"
    root = write(tmp_path, trainer__loss=text, data__order="")
    assert figures.long_chains(root) == ["trainer/loss.py:3 a.b.c.d.e.f", "trainer/loss.py:8 torch.b.c.d.e"]
    assert figures.imports_inside_functions(root) == ["trainer/loss.py:2"]


def test_imports_of_compat_by_any_way(tmp_path):
    ways = (
        "from ..compat import mode\nimport_module('oneloop.compat.mode')\nimport_module('..compat.mode', __package__)\n"
    )
    root = write(tmp_path, compat__mode="from ..data import order", trainer__loss=ways, cli__main=ways, data__order="")
    assert figures.compat_imports(root) == [f"trainer/loss.py:{line}" for line in (1, 2, 3)]
    assert figures.mutual_imports(root) == []
    write(tmp_path, data__order="def f():\n    from ..compat import mode")
    figures.sources.cache_clear(), figures.trees.cache_clear()
    assert figures.mutual_imports(root) == [("compat", "data")]


def test_touch_points_are_lines_of_code_outside_of_the_own_module(tmp_path):
    text = (
        '"""The curve."""\n# a curve\nfrom .loss_curve import LossCurve\nself.curve = 1; self.curve = 2\nx = "curve"\n'
    )
    root = write(tmp_path, trainer__run=text, trainer__loss_curve=text, report__page=text)
    assert figures.touch_points(root)["loss curve"] == [f"trainer/run.py:{line}" for line in (3, 4, 5)]


def test_files_that_name_libraries_or_ranks(tmp_path):
    files = {"trainer__a": "# as in transformers", "trainer__b": "self.world.rank", "compat__c": "# as in TRL"}
    on_top = {"recipes__e": "import transformers", "public": "# as in PEFT", "cli__main": "# for TRL"}
    mindtorch = {"backends__mindtorch__f": "# as mindnlp.transformers", "backends__mindtorch__g": "# as transformers"}
    root = write(tmp_path, **files, **on_top, **mindtorch, data__d="swiftly = rank", data__h="# as mindnlp")
    named = ["backends/mindtorch/g.py", "data/h.py", "trainer/a.py"]
    assert figures.files_naming_libraries(root) == named
    assert figures.files_knowing_ranks(root) == ["trainer/b.py"]


def test_parameters_of_the_trainer(tmp_path):
    text = "class Trainer:\n    def f(self, a, b: int, *c: Any, d: 'dict[str, Any]', **e: str) -> None: ...\n"
    assert figures.trainer_parameters(write(tmp_path, trainer__trainer=text)) == (["f(a)", "f(d)", "f(c)"], 5)


def test_a_run_is_traced():
    run = figures.traced()
    functions = {function.split(" ")[1] for function in run["update"]}
    assert {"get_batch_samples", "training_step", "compute_loss"} <= functions
    assert "run" not in functions, "the loop had begun before"
    assert {function.split(":")[0] for function in run["update"]} < {f.split(":")[0] for f in run["save"]}
    assert set(run["update"]) <= set(run["save"]) and run["reads"] >= 1
