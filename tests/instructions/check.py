"""Counts the instructions of small steps under valgrind and compares them with counts.json beside this file.

python tests/instructions/check.py build/dev/backpass_steps            the gate: fails where one is above what is kept
python tests/instructions/check.py build/dev/backpass_steps --write    keeps what is counted now

What a step costs whatever its size can be seen in no timing of everyday sizes, and adds up unnoticed. Counts do not
depend on the load of a machine; on its C library and compiler they do a little, hence the tolerance. The instruction
set is capped, for valgrind does not know all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KEPT = Path(__file__).with_name("counts.json")
TOLERANCE = 0.10
SKIPPED = 77  # for ctest
# What one more costs: names of two counts, and how many there are more in the first.
DIFFERENCES = {
    "one parameter more in a module": ("module of 40 parameters", "module of 8 parameters", 32),
    "one weight more in the optimizer": ("optimizer of 40 weights", "optimizer of 8 weights", 32),
}


def counted(program: str) -> dict[str, int]:
    """Instructions of each piece of work that the program names, done once."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [
            "valgrind", "-q", "--tool=callgrind", "--toggle-collect=counted", "--dump-after=counted",
            f"--callgrind-out-file={out}", program,
        ]  # fmt: skip
        environment = {**os.environ, "BACKPASS_MAX_ISA": "avx2", "OMP_NUM_THREADS": "1"}
        text = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = {}
        for number, line in enumerate(text.splitlines(), 1):
            times, _, name = line.partition(" ")
            dump = Path(f"{out}.{number}").read_text()
            total = next(row for row in dump.splitlines() if row.startswith("totals:"))
            found[name] = int(total.split()[1]) // int(times)
    for name, (many, few, more) in DIFFERENCES.items():
        found[name] = (found.pop(many) - found[few]) // more
    for _, few, _ in DIFFERENCES.values():
        del found[few]
    return found


def main() -> int:
    if shutil.which("valgrind") is None:
        print("valgrind is not installed")
        return SKIPPED
    found = counted(sys.argv[1])
    if "--write" in sys.argv:
        KEPT.write_text(json.dumps(found, indent=2) + "\n")
    kept = json.loads(KEPT.read_text())
    if kept.keys() != found.keys():
        print(f"counted {sorted(found)}, but kept are {sorted(kept)}: check.py --write")
        return 1
    worse = 0
    for name, count in found.items():
        share = count / kept[name] - 1
        note = ""
        if share > TOLERANCE:
            note = f": more than {TOLERANCE:.0%} above what is kept. If that is meant, check.py --write and say why"
            worse += 1
        elif share < -TOLERANCE:
            note = ": well done; check.py --write keeps it so"
        print(f"{name}: {count} instructions, kept {kept[name]} ({share:+.1%}){note}")
    return min(worse, 1)


if __name__ == "__main__":
    sys.exit(main())
