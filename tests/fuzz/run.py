"""Runs a fuzz target: ``python -m tests.fuzz.run responses [libFuzzer's options] [folders]``.

Needs atheris, which is in no lock file: it has a wheel for some versions of Python only.
"""

import importlib
import sys

_MAX_BYTES = 4096  # beyond that nothing new happens, but slowly
_INSTRUMENTED = ["proxy.upstream.wire", "h11", "tests.fuzz"]


def main() -> None:
    """Imports the target so that atheris sees which lines an input reaches, and starts."""
    atheris = importlib.import_module("atheris")
    target, *options = sys.argv[1:]
    with atheris.instrument_imports(include=_INSTRUMENTED):
        check = importlib.import_module(f"tests.fuzz.{target}").check
    # libFuzzer takes the last of two equal options: a caller's own is behind ours.
    atheris.Setup([sys.argv[0], f"-max_len={_MAX_BYTES}", *options], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
