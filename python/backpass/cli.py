"""The command line: ``backpass check model.onnx``, ``backpass artifacts model.onnx``; also ``python -m backpass``."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path

import backpass
from backpass import _core
from backpass._choices import LossType, OptimType
from backpass._core import InvalidInput


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the status for the shell."""
    options = _parser().parse_args(arguments)
    try:
        return 0 if options.run(options) else 1
    except _failures() as error:
        print(f"backpass: {error}", file=sys.stderr)
        return 1


def _failures() -> tuple[type[Exception], ...]:
    """What is wrong with a model or an argument; anything else is a mistake in Backpass, and shows where."""
    always = (backpass.Error, OSError, TypeError)
    if "onnx" not in sys.modules:
        return (*always, ModuleNotFoundError)
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx.checker import ValidationError
    from onnx.shape_inference import InferenceError

    return (*always, DecodeError, ValidationError, InferenceError)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="backpass", description="Train ONNX models.")
    parser.add_argument("--version", action="version", version=f"backpass {backpass.__version__}")
    parser.add_argument(
        "--cmake-dir", action=_CMakeDir, nargs=0, help="print where find_package(backpass) looks, and exit"
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_check(commands)
    _add_artifacts(commands)
    return parser


class _CMakeDir(argparse.Action):
    """``cmake -Dbackpass_DIR=$(python -m backpass --cmake-dir)``: headers and library of the installed wheel."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        folder = Path(_core.__file__).parent / "lib" / "cmake" / "backpass"
        if not folder.exists():
            parser.error(
                f"no {folder}: an editable installation has no headers; "
                "use cmake --install <build> --component development --prefix <prefix>"
            )
        print(folder)
        parser.exit()


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "check",
        help="list everything that keeps a model from running or from being trained",
        description="Lists every problem of a model, by node. The status is 1 if there is one. Names of parameters may "
        "be patterns: '*' is every float initializer except running statistics.",
    )
    command.set_defaults(run=_check)
    command.add_argument("model", type=Path, help="an .onnx file")
    command.add_argument("--trainable", nargs="+", default=[], metavar="NAME", help="also check these gradients")


def _add_artifacts(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "artifacts",
        help="write training, eval and optimizer model and checkpoint of a forward model",
        description="Writes training_model.onnx, eval_model.onnx, checkpoint and optimizer_model.onnx. "
        "Names of parameters may be patterns: '*' is every float initializer except running statistics.",
    )
    command.set_defaults(run=_artifacts)
    command.add_argument("model", type=Path, help="the forward model, an .onnx file")
    command.add_argument("--loss", choices=[loss.name for loss in LossType], help="default: first output")
    command.add_argument("--optimizer", choices=[kind.name for kind in OptimType], help="default: none")
    command.add_argument("--requires-grad", nargs="+", default=[], metavar="NAME", help="parameters to train")
    command.add_argument("--frozen", nargs="+", default=[], metavar="NAME", help="parameters to keep as they are")
    command.add_argument("--loss-inputs", nargs="+", metavar="NAME", help="what the loss is put on; default: outputs")
    command.add_argument("--outputs", nargs="+", metavar="NAME", help="values to return after the loss")
    command.add_argument("--out", type=Path, default=Path(), help="existing folder for the files; default: this one")
    command.add_argument("--prefix", default="", help="what the names of the files begin with")
    command.add_argument("--nominal-checkpoint", action="store_true", help="also write parameters without data")
    command.add_argument(
        "--compute-less", action="store_true", help="training leaves out rows without labels and padding; ours alone"
    )


def _check(options: argparse.Namespace) -> bool:
    trainable = _chosen(options.trainable, _parameters(options.model)) if options.trainable else None
    report = backpass.check(options.model, trainable)
    print(report)
    return report.ok


def _parameters(path: Path) -> list[str]:
    """What can be trained in a model."""
    from backpass import _needs_onnx  # noqa: F401, I001
    import onnx
    from onnx import TensorProto

    floats = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
    model = onnx.load(path, load_external_data=False)
    untrained = _core.running_statistics(model.SerializeToString())
    return [t.name for t in model.graph.initializer if t.data_type in floats and t.name not in untrained]


def _artifacts(options: argparse.Namespace) -> bool:
    from backpass import artifacts

    known = _parameters(options.model)
    frozen = _chosen(options.frozen, known)
    # `--requires-grad '*' --frozen 'encoder.*'` trains the rest; a name in both lists is refused further down.
    trained = [n for n in _chosen(options.requires_grad, known) if n in options.requires_grad or n not in frozen]
    artifacts.generate_artifacts(
        options.model,
        requires_grad=trained,
        frozen_params=frozen,
        loss=None if options.loss is None else LossType[options.loss],
        optimizer=None if options.optimizer is None else OptimType[options.optimizer],
        artifact_directory=options.out,
        prefix=options.prefix,
        additional_output_names=options.outputs,
        nominal_checkpoint=options.nominal_checkpoint,
        loss_input_names=options.loss_inputs,
        compute_less=options.compute_less,
    )
    print(f"{len(trained)} parameters to train, {len(frozen)} frozen; files in {options.out.resolve()}")
    return True


def _chosen(patterns: list[str], known: list[str]) -> list[str]:
    """Names as they are, patterns replaced by what they match."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = [pattern] if not set(pattern) & set("*?[") or pattern in known else fnmatch.filter(known, pattern)
        if not matches:
            raise InvalidInput(f"pattern {pattern!r}: no float initializer of the model matches it")
        found |= dict.fromkeys(matches)
    return list(found)
