"""generate_artifacts: from a forward model to the files that training on a device needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from backpass import _needs_onnx  # noqa: F401

# isort: split

import onnx
from onnx import TensorProto

from backpass import _core, onnxblock
from backpass._choices import LossType, OptimType
from backpass._core import InvalidInput, Unsupported
from backpass._staging import Staging
from backpass._weights import Model, Weights
from backpass.onnxblock import _graph_utils as graph_utils
from backpass.onnxblock.model_accessor import reject_custom_op_library

__all__ = ["LossType", "OptimType", "generate_artifacts"]


def generate_artifacts(
    model: Model,
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | onnxblock.Block | None = None,
    optimizer: OptimType | onnxblock.Block | None = None,
    artifact_directory: str | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | os.PathLike[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
    compute_less: bool = False,
) -> None:
    """Writes ``training_model.onnx``, ``eval_model.onnx``, ``checkpoint``, and what else is asked for.

    ``model``: the forward model, or the path of its file (needed for weights of 2 GiB and more).
    ``requires_grad``: initializers, or inputs, to compute gradients for. ``frozen_params``: initializers that become
    parameters without gradient; names the model does not have are ignored, with a warning. All others stay in the
    models as constants, except the running statistics of batch normalisations in training mode, which training
    updates: they are frozen parameters too.
    ``loss``: stacked on the outputs of the model, or on ``loss_input_names``. None: the first output is the loss.
    ``optimizer``: also writes ``optimizer_model.onnx``. ``nominal_checkpoint``: also writes ``nominal_checkpoint``, the
    parameters without their data.
    ``additional_output_names``: values that training and eval model return after the loss.
    ``compute_less``: the training model leaves out what need not be computed, as a `Module` would on loading it; what
    only data can tell (rows without a label, padding) it finds in every step. Only Backpass can run it then.
    Files go to ``artifact_directory`` (the current one when None), their names preceded by ``prefix``. They replace
    older ones only when all have been written.
    """
    _refuse_unsupported(ort_format, custom_op_library)
    destination = _destination(artifact_directory, prefix)
    chosen_loss = _loss_block(loss)
    chosen_optimizer = _optimizer_block(optimizer)
    trained, frozen = _parameter_names(requires_grad, frozen_params)
    additional = _names("additional_output_names", additional_output_names)
    weights = Weights(model, [*trained, *frozen])
    statistics = _core.running_statistics(weights.model.SerializeToString())
    frozen += [name for name in statistics if name not in (*trained, *frozen)]
    inputs = _loss_inputs(weights.model, loss, _names("loss_input_names", loss_input_names))

    block = _Assembly(chosen_loss, additional, weights)
    for name in trained:
        block.requires_grad(name)
    for name in frozen:
        block.requires_grad(name, False)
    with onnxblock.base(weights.model):
        block(*inputs)
    training, evaluation = block.to_model_proto()
    if compute_less:
        training = _with_less(training, [tensor.name for tensors in block.parameters() for tensor in tensors])
    files = {"training_model.onnx": training, "eval_model.onnx": evaluation}
    if chosen_optimizer is not None:
        with onnxblock.empty_base(graph_utils.opset_of(weights.model)) as accessor:
            chosen_optimizer(block.parameters())
            files["optimizer_model.onnx"] = accessor.model
    _write(destination, files, block.parameters(), nominal_checkpoint)


class _Assembly(onnxblock.TrainingBlock):
    """The loss on top of the model, followed by the additional outputs."""

    def __init__(self, loss: onnxblock.Block, additional: list[str], weights: Weights) -> None:
        super().__init__()
        self._loss = loss
        self._additional = additional
        self._weights = weights

    def build(self, *inputs: str) -> tuple[str, ...]:
        names = graph_utils.names_of(self._loss(*inputs), self._loss)
        return tuple(dict.fromkeys([*names, *self._additional]))

    def _finish(self, outputs: list[str]) -> None:
        super()._finish(outputs)
        chosen = zip(self._choice(), self.parameters(), strict=True)
        trained, frozen = (self._weights.parameters(names, tensors) for names, tensors in chosen)
        self._parameters = trained, frozen
        for model in (self.base, *self.to_model_proto()):
            self._weights.sort_inputs(model)


def _with_less(training: onnx.ModelProto, parameters: list[str]) -> onnx.ModelProto:
    rewritten = _core.rewrite_training_model(training.SerializeToString(), parameters)
    return onnx.load_model_from_string(rewritten)


def _refuse_unsupported(ort_format: bool, custom_op_library: str | os.PathLike[str] | None) -> None:
    if custom_op_library is not None:
        reject_custom_op_library(custom_op_library)
    if ort_format:
        raise Unsupported(
            "ort_format=True: Backpass writes .onnx files only, which it and ONNX Runtime read; where .ort files are "
            "needed, convert them with `python -m onnxruntime.tools.convert_onnx_models_to_ort`"
        )


def _destination(folder: str | os.PathLike[str] | None, prefix: str) -> tuple[Path, str]:
    """The folder, and what names of files in it begin with."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix: got {type(prefix).__name__}, expected str")
    path = Path(os.path.join(folder if folder is not None else "", f"{prefix}checkpoint")).absolute()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"artifact_directory {str(path.parent)!r} is not an existing folder: make it first")
    return path.parent, path.name.removesuffix("checkpoint")


def _loss_block(loss: object) -> onnxblock.Block:
    if loss is None:
        return onnxblock.blocks.PassThrough()
    if isinstance(loss, LossType):
        block: onnxblock.Block = getattr(onnxblock.loss, loss.name)()
        return block
    if isinstance(loss, onnxblock.Block):
        return loss
    raise InvalidInput(f"loss: {_got(loss)}, expected a LossType, an instance of onnxblock.Block, or None")


def _optimizer_block(optimizer: object) -> onnxblock.Block | None:
    if optimizer is None or isinstance(optimizer, onnxblock.Block):
        return optimizer
    if isinstance(optimizer, OptimType):
        block: onnxblock.Block = getattr(onnxblock.optim, optimizer.name)()
        return block
    raise TypeError(f"optimizer: {_got(optimizer)}, expected an OptimType, an instance of onnxblock.Block, or None")


def _got(value: object) -> str:
    if isinstance(value, type):
        return f"got the class {value.__name__} (did you mean {value.__name__}()?)"
    return f"got {value!r}"


def _names(what: str, names: object) -> list[str]:
    if names is None:
        return []
    if isinstance(names, str) or not isinstance(names, list | tuple | set | frozenset):
        raise InvalidInput(f"{what}: got {names!r}, expected a list of names")
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"{what}: got {names!r}, expected names only")
    return list(dict.fromkeys(names))


def _parameter_names(requires_grad: object, frozen_params: object) -> tuple[list[str], list[str]]:
    trained, frozen = _names("requires_grad", requires_grad), _names("frozen_params", frozen_params)
    both = [name for name in trained if name in frozen]
    if both:
        raise InvalidInput(f"in requires_grad and in frozen_params: {', '.join(both)}; expected each in one of them")
    return trained, frozen


def _loss_inputs(model: onnx.ModelProto, loss: object, chosen: list[str]) -> list[str]:
    if chosen:
        return chosen
    outputs = [output.name for output in model.graph.output]
    if isinstance(loss, LossType) and len(outputs) != 1:
        raise InvalidInput(
            f"{loss.name} needs one output of the model: got {len(outputs)} ({', '.join(outputs)}); "
            "say which one with loss_input_names=[...]"
        )
    return outputs


def _write(
    destination: tuple[Path, str],
    files: dict[str, onnx.ModelProto],
    parameters: tuple[Sequence[TensorProto], Sequence[TensorProto]],
    nominal: bool,
) -> None:
    folder, prefix = destination
    with Staging(folder) as staging:
        for name, model in files.items():
            staging.write(prefix + name, model.SerializeToString())
        staging.make(f"{prefix}checkpoint", lambda path: onnxblock.save_checkpoint(parameters, path))
        if nominal:
            target = f"{prefix}nominal_checkpoint"
            staging.make(target, lambda path: onnxblock.save_checkpoint(parameters, path, nominal_checkpoint=True))
