"""How code blocks and commands are read from a page."""

import pytest

from tests.docs import commands, pages

PAGE = """\
# Title

```python
a = 1
```

<!-- setup
b = 2
-->

=== "Tab"

    <!-- raises: division by zero -->
    ```python
    1 / 0
    ```

<!-- not run: no account -->
```bash
oneloop watch
```

```text
output
```
"""


def test_blocks_with_their_marks_and_lines():
    assert pages.blocks(PAGE) == [
        pages.Block("python", "a = 1\n", 4),
        pages.Block("setup", "b = 2\n", 8),
        pages.Block("python", "1 / 0\n", 15, "raises", "division by zero"),
        pages.Block("bash", "oneloop watch\n", 20, "not run", "no account"),
        pages.Block("text", "output\n", 24),
    ]


@pytest.mark.parametrize(
    "line, said",
    [
        ("oneloop report DIR", ""),
        ("oneloop repart DIR", "invalid choice"),
        ("oneloop report DIR --verbose", "unrecognized arguments"),
        ("OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 -m oneloop run train.py ...", ""),
        ("torchrun -m oneloop walk train.py", "invalid choice"),
        ("pip install 'oneloop[torch, onnx]'", ""),
        ("pip install 'oneloop[tensorflow]'", "no extra tensorflow"),
        ("bash scripts/test tests/report", ""),
        ("bash scripts/tests", "there is no scripts/tests"),
        ("python examples/nothing.py", "there is no examples/nothing.py"),
        ("onelop report DIR", "onelop is no known program"),
    ],
)
def test_commands(line, said):
    (words,) = commands.commands(line)
    problem = commands.problem(words)
    assert (said in problem) if said else problem == ""


def test_commands_of_a_block():
    code = "cd oneloop && bash scripts/test  # a comment\n$ A=1 oneloop report \\\n    DIR | tail\n"
    assert commands.commands(code) == [
        ["cd", "oneloop"],
        ["bash", "scripts/test"],
        ["oneloop", "report", "DIR"],
        ["tail"],
    ]
