"""Which parameters were in which group of an optimizer that transformers' Trainer created.

Its state is numbered by position in the groups with and without weight decay. Which parameters were in which follows
from a rule that has changed over the releases; it is found again by the sizes of the groups and the shapes of the
state.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import CheckpointError

Groups = list[list[str]]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Parameter:
    """A parameter as the rules see it: its name, and whether a module around it is the framework's LayerNorm or has a
    class whose name ends in norm."""

    name: str
    trainable: bool
    in_layer_norm: bool = False
    in_norm: bool = False


@dataclass
class Loaded:
    """How the optimizer state was matched: the rule; for each group of the run's optimizer, the groups of the file that
    its parameters were in; and the parameters whose weight decay has changed."""

    rule: str
    sources: list[set[int]]
    decay: dict[str, tuple[float, float]]


def candidates(parameters: list[Parameter], keep_empty: bool) -> list[tuple[str, Groups]]:
    """Every known rule for groups, newest first: (its name, names by group).

    transformers keeps empty groups; `keep_empty` is for a file that has two groups.
    """
    found: list[tuple[str, Groups]] = []
    chosen = [("", [p.name for p in parameters if p.trainable])]
    if len(chosen[0][1]) < len(parameters):  # releases before 4.24 handed frozen parameters to the optimizer
        chosen.append((", frozen ones too", [p.name for p in parameters]))
    for suffix, names in chosen:
        for rule, undecayed in _rules(parameters):
            two = [[n for n in names if n not in undecayed], [n for n in names if n in undecayed]]
            found.append((rule + suffix, two if keep_empty else [group for group in two if group]))
        found.append((f"one group{suffix}", [names]))
    return found


def _rules(parameters: list[Parameter]) -> list[tuple[str, set[str]]]:
    """(releases, names without weight decay)."""
    names = [p.name for p in parameters]

    def matching(*patterns: str) -> set[str]:
        return {n for n in names if any(re.search(pattern, n.lower()) for pattern in patterns)}

    layer_norms = {p.name for p in parameters if p.in_layer_norm}
    norms = layer_norms | {p.name for p in parameters if p.in_norm}
    biases = {n for n in names if "bias" in n}
    spelled = matching("bias", "layernorm", "rmsnorm")
    # Between 4.24 and 4.52 models could name classes of their own as norms, and some did.
    return [
        ("transformers 4.53 to 5", layer_norms | spelled | matching(r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")),
        ("transformers 4.49 to 4.52", layer_norms | spelled),
        ("transformers 4.49 to 4.52 with the model's own norms", norms | spelled),
        ("transformers 4.5 to 4.48", layer_norms | biases),
        ("transformers 4.5 to 4.48 with the model's own norms", norms | biases),
        ("transformers before 4.5", biases | {n for n in names if "LayerNorm.weight" in n}),
    ]


def choose(
    tried: Iterable[tuple[str, Groups]],
    numbers: list[list[int]],
    kept: dict[int, dict[str, Shape]],
    shapes: dict[str, Shape],
    source: str,
) -> tuple[str, Groups]:
    """The only rule for groups that matches the numbers in each group and the shapes of their state."""
    fitting: list[tuple[str, Groups]] = []
    refused = []
    for rule, named in tried:
        wrong = _mismatch(named, numbers, kept, shapes)
        if wrong is not None:
            refused.append(f"{rule}: {wrong}")
        elif named not in [other for _, other in fitting]:
            fitting.append((rule, named))
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise CheckpointError(
            f"the optimizer state in {source} matches several rules that disagree on which parameter is which: "
            f"{'; '.join(rule for rule, _ in fitting)}. Start a new run from the weights."
        )
    raise CheckpointError(
        f"the optimizer state in {source} does not fit this model. Tried: {'; '.join(refused)}. Use the same model, "
        "the same frozen layers and the same optimizer as the run that wrote it, or start a new run from its weights."
    )


def _mismatch(
    named: Groups, numbers: list[list[int]], kept: dict[int, dict[str, Shape]], shapes: dict[str, Shape]
) -> str | None:
    """Why the state cannot be that of these names; None if it can."""
    sizes, stored = [len(group) for group in named], [len(group) for group in numbers]
    if sizes != stored:
        return f"groups of {' and '.join(map(str, sizes))} parameters, the file has {' and '.join(map(str, stored))}"
    for names, group in zip(named, numbers):
        for name, number in zip(names, group):
            for key, shape in kept.get(number, {}).items():
                if shape != shapes.get(name):
                    return f"{key} of {name} would be {shape}, the parameter is {shapes.get(name)}"
    return None
