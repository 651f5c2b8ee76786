"""docs/architecture.md and docs/internals say what the code has: their tables, paths and names."""

import re

import pytest

from tests.structure import ownership

ROOT = ownership.PACKAGE.parent
PAGES = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "internals").glob("*.md"))]
PAGE = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
PLACES = ("oneloop/", "tests/", "scripts/", "docs/", "benchmarks/")  # other paths are relative to the package


def section(title):
    found = re.search(rf"^##? {title}\n(.*?)(?=^##? |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def table(title, number=0):
    """The rows of a table of a section, without its head."""
    tables = re.findall(r"(?:^\|.*\|\n)+", section(title), re.MULTILINE)
    lines = tables[number].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def quoted(text):
    return re.findall(r"`([^`]+)`", text)


def test_objects_with_state_are_listed_with_their_module():
    listed = {quoted(name)[0]: quoted(module)[0] for name, module, *_ in table("Who owns which state")}
    assert {name: module for name, module in listed.items() if ownership.classes()[name][0] != module} == {}
    assert all(len(row) == 4 and all(row) for row in table("Who owns which state"))


def test_every_folder_and_file_of_the_package_is_listed():
    listed = sorted(path for first, *_ in table("Folders") for path in quoted(first))
    there = [f"{path.name}/" for path in ownership.PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert listed == sorted([*there, *ownership.root_files()])


def test_every_module_of_a_backend_is_listed():
    from oneloop.backends import base

    assert {name for first, *_ in table("A backend") for name in quoted(first)} == set(base.MODULES)


def test_every_attribute_that_overrules_a_decision_is_listed():
    from oneloop import introspect

    listed = {quoted(first)[0] for first, *_ in table("Decisions by introspection")}
    assert listed == set(re.findall(r"^\| `(\w+)` \|", introspect.__doc__, re.MULTILINE))


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:\w+/)+[\w.*]*)`", PAGE))))
def test_every_path_is_there(path):
    base = ROOT if path.startswith(PLACES) else ownership.PACKAGE
    assert list(base.glob(path.rstrip("/"))) != [] or "NAME" in path


@pytest.mark.parametrize(
    ("owner", "name"),
    sorted(set(re.findall(r"\b([A-Z]\w*[a-z])\.([a-z]\w+)\b", PAGE.partition("# Versions that were run")[0]))),
)
def test_every_method_is_there(owner, name):
    if owner == "Engine":  # each framework has its own: the protocol is meant
        from oneloop.backends import base

        assert hasattr(base.Engine, name)
        return
    _, node = ownership.classes()[owner]
    assert name in {getattr(each, "name", None) for each in node.body} | ownership.fields(owner)


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m (oneloop[\w.]+|tests[\w.]+)", PAGE))))
def test_every_command_is_there(module):
    assert (ROOT / f"{module.replace('.', '/')}.py").is_file()


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_files_of_the_package_that_a_page_names_are_there(page):
    folders = [path.name for path in ownership.PACKAGE.iterdir() if path.is_dir()]
    named = set(re.findall(rf"`((?:{'|'.join(folders)})/[\w/]+\.py)`", (ROOT / "docs" / page).read_text("utf-8")))
    assert [path for path in sorted(named) if not (ownership.PACKAGE / path).is_file() and "NAME" not in path] == []
