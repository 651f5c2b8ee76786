"""Faults that can be planted in a module, found in its syntax tree.

Each is a small change of the text, so that the rest of the file, and its line numbers, stay as they are.
"""

import ast
from dataclasses import dataclass

SWAPPED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and", ast.Add: "-", ast.Sub: "+",
    ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "//",
}  # fmt: skip
QUIET = ("debug", "info", "warning", "error", "exception")  # of a logger
KINDS = (
    "condition", "comparison", "boundary", "operator", "constant", "call", "assignment", "arguments", "finally",
    "return",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A change of `file`: the text from `start` to `end` becomes `text`."""

    file: str
    function: str  # the qualified name of the function that has it
    line: int
    kind: str
    start: int
    end: int
    text: str
    before: str = ""

    def planted(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {_short(self.before)} -> {_short(self.text)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 80 else f"{text[:38]} ... {text[-38:]}"


def faults(file: str, source: str) -> list[Fault]:
    """All faults of a module, in the functions that it defines."""
    finder = _Finder(file, source)
    finder.visit(ast.parse(source))
    return finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, source: str) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.lines = source.splitlines(keepends=True)
        self.names: list[str] = []
        self.depth = 0  # of functions around
        self.found: list[Fault] = []

    # -- where

    def place(self, line: int, column: int) -> int:
        """The index in the text; columns of the tree count bytes."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def add(self, kind: str, node: ast.AST, text: str, span: tuple[int, int] | None = None) -> None:
        start, end = span or self.span(node)
        if self.depth and text != self.source[start:end]:
            name = ".".join(self.names)
            self.found.append(Fault(self.file, name, node.lineno, kind, start, end, text, self.source[start:end]))

    # -- what is not looked at: annotations, decorators and defaults of parameters, docstrings, messages of errors

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()

    def _function(self, node: ast.FunctionDef, body: list[ast.stmt]) -> None:
        self.names.append(node.name)
        self.depth += 1
        for statement in body:
            self.visit(statement)
        self.depth -= 1
        self.names.append("<locals>")
        self.names.pop()
        self.names.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Whether an error is raised is the condition's matter, and its words are compared elsewhere."""

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    # -- conditions

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in self.text(node.test):
            self._negated(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negated(test)
        self.generic_visit(node)

    def _negated(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Constant):
            self.add("condition", test, f"(not ({self.text(test)}))")

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:]):
            between = (self.span(left)[1], self.span(right)[0])
            words = self.source[slice(*between)]
            if words.strip(" \n\\") in ("<", "<=", ">", ">=", "==", "!=", "is", "is not", "in", "not in"):
                kind = "boundary" if isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) else "comparison"
                self.add(kind, node, words.replace(words.strip(), SWAPPED[type(operator)]), between)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = SWAPPED[type(node.op)]
        self.add("operator", node, "(" + f" {other} ".join(f"({self.text(value)})" for value in node.values) + ")")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = any(isinstance(side, (ast.JoinedStr, ast.Constant)) and "\"" in self.text(side)
                      for side in (node.left, node.right))  # fmt: skip
        if type(node.op) in SWAPPED and not is_text:
            between = (self.span(node.left)[1], self.span(node.right)[0])
            words = self.source[slice(*between)]
            if words.strip(" \n\\") in ("+", "-", "*", "//", "/", "%"):
                self.add("operator", node, words.replace(words.strip(), SWAPPED[type(node.op)]), between)
        self.generic_visit(node)

    # -- values

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add("constant", node, str(not value))
        elif isinstance(value, int):
            self.add("constant", node, str(value + 1))
        elif isinstance(value, float):
            self.add("constant", node, repr(value * 2 + 1))
        elif isinstance(value, str) and value and "\n" not in value:
            self.add("constant", node, repr(value + "x"))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and self.text(node.value) != "None":
            self.add("return", node, "return None")
            self.generic_visit(node)

    # -- statements

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):  # a docstring
            return
        if isinstance(node.value, ast.Call) and not self._is_message(node.value):
            self.add("call", node, "pass")
        self.generic_visit(node)

    def _is_message(self, call: ast.Call) -> bool:
        named = call.func
        return isinstance(named, ast.Attribute) and named.attr in QUIET and self.text(named.value) == "logger"

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
            self.add("assignment", node, "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("assignment", node, "pass")
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if self._is_message(node):
            return
        first = node.args[:2]
        if len(first) == 2 and not any(isinstance(each, ast.Starred) for each in first):
            span = (self.span(first[0])[0], self.span(first[1])[1])
            gap = self.source[self.span(first[0])[1] : self.span(first[1])[0]]
            self.add("arguments", node, self.text(first[1]) + gap + self.text(first[0]), span)
        self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        if node.finalbody:
            span = (self.span(node.finalbody[0])[0], self.span(node.finalbody[-1])[1])
            self.add("finally", node.finalbody[0], "pass", span)
        self.generic_visit(node)
