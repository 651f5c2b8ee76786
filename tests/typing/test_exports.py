"""What a type checker reads of `oneloop` without running it is what it exports."""

import ast
from pathlib import Path

import oneloop
from oneloop.integrations.writers import classes, typing_stub

PACKAGE = Path(oneloop.__file__).parent
TREE = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))


def _type_checking_imports() -> dict[str, str]:
    """Name -> module of every import under `if TYPE_CHECKING:`."""
    blocks = [node for node in TREE.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    statements = [statement for block in blocks for statement in block.body]
    assert all(isinstance(statement, ast.ImportFrom) and statement.level == 1 for statement in statements)
    found = {name.asname or name.name: statement.module for statement in statements for name in statement.names}
    star = found.pop("*")
    return found | dict.fromkeys(classes.__all__, star)


def test_imports_for_type_checkers_are_those_of_the_table():
    assert _type_checking_imports() == oneloop._HOME_OF


def test_all_is_a_literal_list_of_the_table():
    assigned = [
        node.value for node in TREE.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert [ast.literal_eval(value) + classes.__all__ for value in assigned] == [list(oneloop._HOME_OF)]
    assert oneloop.__all__ == list(oneloop._HOME_OF)


def test_every_exported_name_can_be_imported():
    assert [name for name in oneloop.__all__ if not hasattr(oneloop, name)] == []


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_the_stub_of_the_writers_is_up_to_date():
    assert typing_stub.STUB.read_text(encoding="utf-8") == typing_stub.render()
    assert typing_stub.main(["--check"]) == 0
    names = [node.names[0].name for node in ast.parse(typing_stub.render()).body if isinstance(node, ast.ImportFrom)]
    assert sorted(names) == sorted(classes.__all__)
