"""The table in ``tests/README.md`` against the tests that it speaks of."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROW = re.compile(r"\| ([A-Z]{2}-\d{2}) \| (.+) \| (`.+`) \| (.+) \|")

BANK = TESTS / "cases"
"""Whose tests are named without their folder, and all belong to a case."""

ELSEWHERE = ("firewall/**/test_*.py", "e2e/**/test_*.py", "unit/test_compose.py")
"""Where else a test may be one of a case: networks and containers are not to be had in the bank."""

CASES = {
    "AU": [1, 2, 3, 4, 7, 9, 10, 11, 12, 13, 15],
    "CC": [1, 2, 4, 5, 6, 8],
    "CP": [1, 2, 3, 5, 7, 8, 9, 10, 11, 13, 15, 16],
    "DC": [1, 2, 5, 6],
    "DK": [1, 2, 3],
    "EN": [1, 2, 3, 5, 6, 8],
    "ER": [1, 2, 3, 5, 7, 9, 10],
    "FW": [1, 2, 3, 4, 5, 7, 8, 12, 14, 15],
    "HD": [1, 2, 3, 4, 5, 6, 8, 10, 11],
    "HF": [1, 2, 4, 5, 7, 9, 11, 12, 13],
    "JF": [1, 3, 4, 5, 6, 8, 10, 12, 13],
    "LM": [1, 2, 4, 6, 8, 9],
    "MT": [1, 2, 3, 6],
    "PL": [1, 2, 3, 4, 7, 9, 11],
    "PT": [1, 3, 4, 6, 7, 8, 9, 10],
    "RL": [1, 2, 5, 6, 7],
    "ST": [1, 2, 3, 5, 7, 8, 9, 11],
}
"""Every case of the bank, in the order of the table."""

NAMES = [f"{tag}-{number:02}" for tag, numbers in CASES.items() for number in numbers]


def rows() -> list[tuple[str, str, list[str], str]]:
    """The table: case, what goes wrong, tests, verdict."""
    lines = (TESTS / "README.md").read_text().splitlines()
    found = [ROW.fullmatch(line) for line in lines if re.match(r"\| [A-Z]{2}-", line)]
    assert all(found), "a row of another form"
    return [(m[1], m[2], re.findall(r"`([^`]+)`", m[3]), m[4]) for m in found if m]


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a module, tests or not."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def cases_of(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The cases that its decorators name, which are of the whole test or of some of its rows."""
    for node in (each for decorator in test.decorator_list for each in ast.walk(decorator)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.case":
            yield ast.literal_eval(node.args[0])


def marked() -> Iterator[tuple[str, str]]:
    """Each test that names a case: the case, and ``module.py::test``, with its folder elsewhere."""
    elsewhere = (path for pattern in ELSEWHERE for path in TESTS.glob(pattern))
    for path in (*BANK.glob("test_*.py"), *elsewhere):
        name = path.name if path.parent == BANK else path.relative_to(TESTS).as_posix()
        for test in functions_of(path):
            cases = sorted(set(cases_of(test)))
            assert test.name.startswith("test_") or not cases, test.name
            yield from ((case, f"{name}::{test.name}") for case in cases)


def test_every_case_has_its_row() -> None:
    """All of them, once each, by tag and then by number."""
    assert [name for name, *_ in rows()] == NAMES


def test_the_rows_name_the_tests_that_there_are() -> None:
    """Each test of a row has that case's marker, and each marker is in its row."""
    told = sorted((name, test) for name, _, tests, _ in rows() for test in tests)
    assert told == sorted(marked())


def test_a_row_is_a_sentence_and_a_verdict() -> None:
    """And whoever overrules says why."""
    for name, wrong, _, verdict in rows():
        assert wrong.lstrip("`")[0].isupper(), name
        assert wrong.endswith("."), name
        assert re.fullmatch(r"holds|(holds; )?overruled: .{10,}", verdict), name


def test_every_test_of_the_bank_belongs_to_a_case() -> None:
    """None is without a marker."""
    for path in BANK.glob("test_*.py"):
        for test in functions_of(path):
            assert not test.name.startswith("test_") or any(cases_of(test)), test.name
