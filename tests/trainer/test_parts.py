"""The Trainer is put together from parts in one namespace: no two of them mean different things by a name."""

from collections import defaultdict

from oneloop import Trainer


def test_an_attribute_is_declared_by_one_part():
    found = defaultdict(list)
    for cls in Trainer.__mro__:
        for name in vars(cls).get("__annotations__", {}):
            found[name].append(cls.__name__)
    assert "_own_loss" in found
    assert {name: parts for name, parts in found.items() if len(parts) > 1} == {}
