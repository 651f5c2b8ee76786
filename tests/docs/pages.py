"""The code blocks of a page, and what is done with each.

Blocks of a page run in order in one namespace, as a reader who copies them one after the other would run them.

    ```python                       run
    ```bash                         each command is checked: its name, its subcommand and options, the files it names
    <!-- run -->                    before a bash block: it is run as well
    <!-- setup ... -->              code that readers do not see, run in its place; it defines no name that they need
    <!-- raises: text -->           before a python block: it raises an error with this text
    <!-- logs: text -->             before a python block: it logs or warns this text
    <!-- needs: package -->         before a python block: it is run where the package is installed, otherwise compiled
    <!-- not run: why -->           before a block: it is only compiled, or for bash not checked
    <!-- slow -->                   anywhere: the page's blocks run with -m slow only

Blocks in other languages (json, text, html) are data and output.
"""

import builtins
import re
import symtable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_PIECE = re.compile(
    r"^(?P<indent>[ ]*)```(?P<language>\w*)[^\n`]*\n(?P<code>.*?)^(?P=indent)```[ ]*$"
    r"|^[ ]*<!-- (?P<mark>.*?) ?-->[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    language: str  # "setup" for hidden code
    code: str
    line: int
    mark: str = ""  # the comment before it: run, raises, logs, not run
    text: str = ""  # what follows the colon of the mark


def names() -> list[str]:
    """All pages, relative to docs/."""
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def is_slow(text: str) -> bool:
    return "\n<!-- slow -->\n" in text


def missing_names(found: list[Block]) -> list[str]:
    """Names that the python blocks of a page use and none of them defines, such as a hidden import."""
    code = "\n".join(block.code for block in found if block.language == "python" and block.mark != "not run")
    module = symtable.symtable(code, "page", "exec")
    defined = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    defined |= {name for name in module.get_identifiers() if module.lookup(name).is_namespace()}
    return sorted(_global_names(module) - defined - set(dir(builtins)) - {"__name__", "__file__"})


def _global_names(table: symtable.SymbolTable) -> set[str]:
    """Names that are looked up in the module, in this scope and those inside."""
    inside = (_global_names(child) for child in table.get_children())
    is_module = table.get_type() == "module"
    own = (s.get_name() for s in table.get_symbols() if s.is_referenced() and (is_module or s.is_global()))
    return set(own).union(*inside)


def blocks(text: str) -> list[Block]:
    found, mark, marked = [], "", ""
    for piece in _PIECE.finditer(text):
        line = text.count("\n", 0, piece.start()) + 1
        if piece["mark"] is None:
            code = re.sub(rf"^{piece['indent']}", "", piece["code"], flags=re.MULTILINE)
            found.append(Block(piece["language"], code, line + 1, mark, marked))
            mark = marked = ""
        elif piece["mark"].startswith("setup\n"):
            found.append(Block("setup", piece["mark"].removeprefix("setup\n"), line + 1))
        elif piece["mark"] != "slow":
            mark, _, marked = (part.strip() for part in piece["mark"].partition(":"))
    return found
