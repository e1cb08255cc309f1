"""``make bench-instructions``: counts, compares with ``budgets.json``, and says what has grown.

Instructions are counted by valgrind, so that neither the load of the machine nor its speed matter. What
is kept is how many times a bare uvicorn's request one of ours is: another build of Python makes both
longer or shorter. ``--update`` keeps what it has counted.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.counting import callgrind
from bench.counting.budgets import TOLERANCE, TOLERANCE_ELSEWHERE, Cost, costs, judge
from bench.dataplane import programs

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent.parent
_BUDGETS = _HERE / "budgets.json"
_MODULE = "bench.counting.counted"
_SECONDS = 600
_SHOWN = 12


class NotCountedError(Exception):
    """It cannot be counted here; the text says why."""


def main() -> int:
    """Counts and judges; gives the exit status."""
    arguments = _arguments()
    try:
        with tempfile.TemporaryDirectory(prefix="bulwark-count-") as folder:
            counted = costs(_instructions(Path(folder)), _calls(Path(folder)))
    except (NotCountedError, programs.NoCompilerError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    if arguments.json:
        arguments.json.write_text(_text(counted))
    for name, cost in counted.items():
        sys.stdout.write(
            f"{name}: {cost.instructions:,.0f} instructions, {cost.ratio:.3f} of a bare request, "
            f"{cost.calls:,.1f} calls\n"
        )
        for library, count in Counter(cost.libraries).most_common(_SHOWN):
            sys.stdout.write(f"  {count:>12,.0f}  {library}\n")
    if arguments.update:
        _BUDGETS.write_text(_text(counted))
        return 0
    stored = json.loads(_BUDGETS.read_text())
    kept = {name: Cost(**fields) for name, fields in stored["costs"].items()}
    same = stored["python"] == _python()
    tolerance = TOLERANCE if same else TOLERANCE_ELSEWHERE
    if not same:
        sys.stdout.write(f"counted under Python {stored['python']}, this is {_python()}\n")
    complaints, remarks = judge(counted, kept, tolerance)
    sys.stdout.write("".join(f"{line}\n" for line in (*remarks, *complaints)))
    return int(bool(complaints))


def _instructions(folder: Path) -> dict[str, callgrind.Cut]:
    """What each part has taken, by its name."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise NotCountedError("no valgrind: apt-get install valgrind")
    library = programs.compiled(_HERE / "marks.c", "-shared", "-fPIC")
    options = ["--tool=callgrind", "--instr-atstart=no", "--dump-line=no", "--quiet"]
    options.append(f"--callgrind-out-file={folder / 'out'}")
    _run([valgrind, *options, sys.executable, "-m", _MODULE, str(library), str(folder)])
    cuts: dict[str, callgrind.Cut] = {}
    for path in folder.glob("out*"):
        with path.open(encoding="utf-8", errors="replace") as lines:
            cut = callgrind.parse(lines)
        cuts[cut.name] = cut
    return cuts


def _calls(folder: Path) -> dict[str, Counter[str]]:
    """How often each part calls functions of each module."""
    _run([sys.executable, "-m", _MODULE, "calls", str(folder)])
    parts: dict[str, dict[str, int]] = json.loads((folder / "calls.json").read_text())
    return {name: Counter(calls) for name, calls in parts.items()}


def _run(command: list[str]) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROXY_")}
    # Strings hash the same in every run, so that dicts and sets take the same steps; memory comes from
    # where valgrind's own allocator does not change what is asked of it.
    env = {**kept, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=_ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise NotCountedError(f"not done after {_SECONDS} s") from exc
    if done.returncode:
        raise NotCountedError(
            f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-3000:]}"
        )


def _text(counted: Mapping[str, Cost]) -> str:
    plain: dict[str, Any] = {name: cost.plain() for name, cost in counted.items()}
    return json.dumps({"python": _python(), "costs": plain}, indent=2) + "\n"


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-instructions")
    parser.add_argument("--update", action="store_true", help="keep what is counted as the budget")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to store it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
