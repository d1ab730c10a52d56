"""The mutants that a tool makes of the flows and the guards' decisions: Cosmic Ray's operators, and one of our own.

Promise: the tool makes every change once that these operators can make to a file of SELECTIONS; two changes with the
same meaning count as one. The listed operators do not touch error messages (they are not decisions) or annotations.
This module uses Cosmic Ray as a library, because its runner allows only one selection of tests and one worker.
"""

import ast
import tomllib
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import parso
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

from fencelock_lab.mutants.trial import PACKAGE, Trial

SURVIVORS = Path(__file__).with_name("survivors.toml")
LEAST_KILLED = 0.9
"""The share of the mutants that the tests must notice."""


def _tests(names: tuple[str, ...]) -> str:
    return " ".join(f"tests/rules/test_{name}.py" for name in names)


_MEMORY = "tests/conformance/test_memory.py"
_SIMULATED = "tests/lab/simulator/test_simulation.py::test_fixed_seeds_break_no_rule[0]"
_RULES = ("guard_seals", "guard_ends", "guard_marks", "guard_operators", "guard_observe", "guard_enforcement")
_FILES = ("guard_own_transactions", "guard_blocks", "guard_files", "guard_threads", "guard_tasks")
_SOURCE_FLOWS = ("tests/unit/test_flows.py", f"{_MEMORY} {_SIMULATED}")
_GUARD_FLOWS = (
    "tests/unit/test_guard_flows.py tests/unit/test_admit.py",
    f"{_tests(('guards', *_RULES))} {_SIMULATED}",
)
_GUARD_STORE = (f"tests/unit/test_admit.py {_tests(('guards',))}", _tests((*_RULES, *_FILES)))
SELECTIONS = {
    "_flows/acquire.py": _SOURCE_FLOWS,
    "_flows/retry.py": _SOURCE_FLOWS,
    "_flows/renewal.py": _SOURCE_FLOWS,
    "_flows/admit.py": _GUARD_FLOWS,
    "_flows/tenure.py": _GUARD_FLOWS,
    "_flows/guarding.py": _GUARD_FLOWS,
    "_flows/admin.py": _GUARD_FLOWS,
    "stores/sqlite/guard/marks.py": _GUARD_STORE,
    "stores/sqlite/guard/connection.py": _GUARD_STORE,
    "stores/sqlite/guard/caller.py": _GUARD_STORE,
}
"""The files, and the runs of tests for the mutants of each file."""

_OPERATORS = (
    *("AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceUnaryOperator_Delete_Not", "NumberReplacer", "ZeroIterationForLoop", "ExceptionReplacer"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
    *("ReplaceBinaryOperator_Add_Sub", "ReplaceBinaryOperator_Sub_Add", "ReplaceBinaryOperator_Mul_FloorDiv"),
    *("ReplaceBinaryOperator_FloorDiv_Mul", "ReplaceComparisonOperator_Is_IsNot", "ReplaceComparisonOperator_IsNot_Is"),
    *("ReplaceComparisonOperator_Eq_NotEq", "ReplaceComparisonOperator_Eq_LtE", "ReplaceComparisonOperator_Eq_GtE"),
    *("ReplaceComparisonOperator_NotEq_Eq", "ReplaceComparisonOperator_NotEq_Lt", "ReplaceComparisonOperator_NotEq_Gt"),
    *("ReplaceComparisonOperator_Lt_LtE", "ReplaceComparisonOperator_Lt_GtE"),
    *("ReplaceComparisonOperator_LtE_Lt", "ReplaceComparisonOperator_LtE_Gt"),
    *("ReplaceComparisonOperator_Gt_GtE", "ReplaceComparisonOperator_Gt_LtE"),
    *("ReplaceComparisonOperator_GtE_Gt", "ReplaceComparisonOperator_GtE_Lt"),
)


class RemoveStatement(Operator):
    """Replaces a statement inside a function by `pass`."""

    _KEPT = ("string", "strings", "keyword", "import_from", "import_name")

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the positions of statements that have an effect."""
        is_inside = node.type == "simple_stmt" and node.parent.type == "suite" and node.parent.parent.type != "classdef"
        if is_inside and node.children[0].type not in self._KEPT:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the replacement of the statement."""
        nothing = parso.parse("pass\n").children[0]
        nothing.get_first_leaf().prefix = node.get_first_leaf().prefix
        return nothing

    @classmethod
    def examples(cls) -> tuple[()]:
        """Return no examples, because only the tool's own tests use them."""
        return ()


class Change(NamedTuple):
    """The change of a mutant, identified by its content, so that it stays known when the lines around it move."""

    file: str
    where: str
    was: str
    becomes: str

    def __str__(self) -> str:
        return f"{self.file}: {self.where}: {self.was}  ->  {self.becomes}"


def known_survivors() -> dict[Change, str]:
    """Return the known survivors, each with the reason why no test can or need notice it."""
    listed = tomllib.loads(SURVIVORS.read_text()).get("survivor", ())
    return {Change(one["file"], one["where"], one["was"], one["becomes"]): one["reason"] for one in listed}


def entry(change: Change) -> str:
    """Return the change as an entry of `survivors.toml`, with an empty reason."""
    lines = (f"{name} = '''{value}'''" for name, value in change._asdict().items())
    return "\n".join(("[[survivor]]", *lines, "reason = ''''''"))


def trials(file: str) -> dict[Change, Trial]:
    """Return every mutant of a file, by its change."""
    code = (PACKAGE / file).read_text()
    found: dict[Change, Trial] = {}
    for text in _mutated(code):
        change = _change(file, code, text)
        while change in found:
            change = change._replace(where=f"{change.where}, again")
        found[change] = Trial(str(change), file, text, SELECTIONS[file])
    return found


def _mutated(code: str) -> Iterator[str]:
    """Yield every mutated text that is valid Python and has another meaning."""
    operators = [get_operator(f"core/{name}")() for name in _OPERATORS]
    seen = {ast.dump(ast.parse(code))}
    for operator in (*operators, RemoveStatement()):
        for occurrence in count():
            text = mutate_code(code, operator, occurrence)
            if text is None:
                break
            if (meaning := _meaning(text)) and meaning not in seen:
                seen.add(meaning)
                yield text


def _meaning(text: str) -> str:
    """Return the meaning of a text; empty if it is not valid Python (AddNot does not support `:=`)."""
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return ""


def _change(file: str, before: str, after: str) -> Change:
    old, new = before.splitlines(), after.splitlines()
    steps = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    first, *_, last = [step for step in steps if step[0] != "equal"] * 2
    was, becomes = old[first[1] : last[2]], new[first[3] : last[4]]
    return Change(file, _function_at(before, first[1] + 1), _in_one_line(was), _in_one_line(becomes))


def _in_one_line(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)


def _function_at(code: str, line: int) -> str:
    """Return the innermost function around a line, with its class, or "module" outside any function."""
    names = [
        node.name
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return ".".join(names) or "module"
