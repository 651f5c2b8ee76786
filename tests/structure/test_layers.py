"""Imports go one way: tests/structure/layers.py lists the layers."""

import ast

from tests.structure import figures, layers


def test_no_module_imports_from_a_later_layer():
    assert dict(layers.against_the_order()[False]) == {}


def test_imports_for_type_checkers_against_the_order_become_fewer():
    found = {pair: len(places) for pair, places in layers.against_the_order()[True].items()}
    assert {pair: count for pair, count in found.items() if count > layers.FOR_TYPES.get(pair, 0)} == {}
    assert set(layers.FOR_TYPES) == set(found), "take out what is gone"


def test_no_two_packages_import_each_other():
    assert figures.mutual_imports() == []


def test_the_core_names_no_other_library():
    """Each place that does is about one; figures.py says why."""
    assert figures.core_naming_libraries() == []
    naming = figures.files_naming_libraries()
    assert [each for each in figures.ABOUT_A_LIBRARY if not any(file.startswith(each) for file in naming)] == []


def test_only_the_command_line_and_the_root_import_compat():
    allowed = ("cli/", "public.py", "__init__.py")
    assert [place for place in layers.importers_of("compat") if not place.startswith(allowed)] == []


def test_each_kind_of_import_is_seen(monkeypatch):
    source = """
import oneloop.compat.mode
from oneloop.compat import redirect
from ..compat import mode
from ..compat.mode import follow
from importlib import import_module
import_module("oneloop.compat.mode")
import_module("..compat.redirect", __package__)
if TYPE_CHECKING:
    from ..report import page
def later():
    from .. import report
import json
from .reading import lines
"""
    found = [(module, kind) for module, _, kind in figures.imports("formats/schema.py", ast.parse(source))]
    assert sorted(found) == sorted(
        [
            *(("compat.mode", False), ("compat.redirect", False), ("compat.mode", False), ("compat.mode", False)),
            *(
                ("compat.mode", False),
                ("compat.redirect", False),
                ("report.page", True),
                ("report", False),
                ("formats.reading", False),
            ),
        ]
    )
    assert layers.layer("distributed.world") < layers.layer("data.order") < layers.layer("distributed.step_sync")
    assert set(layers.FOR_TYPES) and figures.trees()
