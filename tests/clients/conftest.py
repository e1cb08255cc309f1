"""What the tests with real clients have in common: the tables printed at the end."""

from tests.harness.figures import figures, pytest_terminal_summary

__all__ = ["figures", "pytest_terminal_summary"]
