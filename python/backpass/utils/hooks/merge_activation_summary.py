"""Joins what StatisticsSubscriber wrote in two runs, file by file for each step, in one order, to be compared.

::

    python -m backpass.utils.hooks.merge_activation_summary --pt_dir torch --ort_dir backpass --output_dir merged
"""

from __future__ import annotations

import argparse
import logging
import shutil
from pathlib import Path

logger = logging.getLogger(__name__)


def merge(order: list[str], source: Path, target: Path) -> None:
    """For each step of ``source`` a file ``target/step_<n>_.txt``; what a run has not written is left out."""
    target.mkdir(parents=True)
    for step in sorted(folder for folder in source.iterdir() if folder.is_dir()):
        missing = [name for name in order if not (step / name).exists()]
        if missing:
            logger.warning("%s has no %s", step, ", ".join(missing))
        texts = [(step / name).read_text(encoding="utf-8") + "\n" for name in order if name not in missing]
        (target / f"{step.name}_.txt").write_text("".join(texts), encoding="utf-8")


def generate_summaries_per_step(args: argparse.Namespace) -> None:
    """Joins both runs in the order in which the first step of the one in PyTorch wrote."""
    target = Path(args.output_dir)
    order = Path(args.pt_dir, "step_0", "order.txt").read_text(encoding="utf-8").splitlines()
    merge(order, Path(args.pt_dir), target / "merge_pt")
    merge(order, Path(args.ort_dir), target / "merge_ort")
    logger.warning("joined files are in %s and %s", target / "merge_pt", target / "merge_ort")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pt_dir", required=True, help="what a run in PyTorch wrote")
    parser.add_argument("--ort_dir", required=True, help="what a run in ORTModule wrote")
    parser.add_argument("--output_dir", required=True, help="where the joined files go")
    parser.add_argument("--overwrite", action="store_true", help="remove output_dir if it exists")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    if Path(args.output_dir).exists():
        if not args.overwrite:
            raise FileExistsError(f"--output_dir: {args.output_dir} already exists; --overwrite has it removed")
        shutil.rmtree(args.output_dir)
    generate_summaries_per_step(args)


if __name__ == "__main__":
    main()
