"""Times operators against onnxruntime, from the same rows that test them (tests/python/op_rows).

python benchmarks/ops.py --op Relu [--dtype float32] [--threads 1]
python benchmarks/ops.py --all
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))

import backpass
import op_case
import op_oracle


def median_seconds(run: Callable[[], Any], budget: float) -> float:
    """Median of single calls over about `budget` seconds, after a warm-up."""
    run()
    times: list[float] = []
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def rival_seconds(row: op_case.Row, dtype: str, threads: int, budget: float) -> tuple[float | None, str]:
    item = op_case.instance(row, dtype, row.bench_case, min(max(row.opsets), op_oracle.ORT_NEWEST_OPSET))
    try:
        session = op_oracle.ort_session(item.model(), threads)
        return median_seconds(lambda: session.run(None, item.feeds), budget), ""
    except Exception as e:
        return None, str(e).splitlines()[0]


def measure(row: op_case.Row, dtype: str, threads: int, budget: float) -> str:
    item = op_case.instance(row, dtype, row.bench_case, row.opsets[0])
    try:
        session = backpass.InferenceSession(item.model().SerializeToString(), num_threads=threads)
        ours = median_seconds(lambda: session.run(None, item.feeds), budget)
    except backpass.Error as e:
        return f"{row.label:24} {dtype:9} {e}"
    theirs, why = rival_seconds(row, dtype, threads, budget)
    rival = f"{theirs * 1e6:10.1f} {ours / theirs:6.2f}" if theirs else f"{'-':>10} {'-':>6}  onnxruntime: {why[:60]}"
    return f"{row.label:24} {dtype:9} {ours * 1e6:10.1f} {rival}  {item}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--op", action="append", help="operator or row name; may be repeated")
    which.add_argument("--all", action="store_true", help="every row")
    parser.add_argument("--dtype", help="default: the row's first")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="per measurement")
    options = parser.parse_args()

    rows = [r for r in op_case.all_rows() if options.all or {r.op, r.label} & set(options.op)]
    if not rows:
        parser.error(f"no row for {options.op}")
    print(f"{'row':24} {'type':9} {'ours us':>10} {'ort us':>10} {'ratio':>6}  case")
    for row in rows:
        print(measure(row, options.dtype or row.dtypes[0], options.threads, options.seconds))


if __name__ == "__main__":
    main()
