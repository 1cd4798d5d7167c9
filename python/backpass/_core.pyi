"""The Backpass engine."""

from collections.abc import Mapping, Sequence
import os
from typing import Annotated, Any

from numpy.typing import NDArray


version: str = '0.1.0'

class Error(RuntimeError):
    pass

class InvalidInput(Error):
    pass

class Unsupported(Error):
    pass

class Cancelled(Error):
    pass

class InternalBug(Error):
    pass

class Tensor:
    """A dense tensor owned by, or lent to, the engine. Supports DLPack."""

    @staticmethod
    def from_array(array: Annotated[NDArray, dict(order='C', device='cpu', writable=False)], dtype: int, dims: Sequence[int]) -> Tensor:
        """
        Shares the memory of a C-contiguous CPU array (numpy, DLPack) read as ONNX element type `dtype`.
        """

    @staticmethod
    def from_strings(items: list, dims: Sequence[int]) -> Tensor:
        """of str or bytes"""

    @property
    def dtype(self) -> int:
        """ONNX code of the element type"""

    @property
    def shape(self) -> tuple: ...

    @property
    def nbytes(self) -> int: ...

    def strings(self) -> list[str]: ...

    def __repr__(self) -> str: ...

    def array(self) -> NDArray:
        """numpy view of the memory"""

    def numpy(self) -> NDArray:
        """the same as array()"""

    def bytes_array(self) -> NDArray:
        """the memory as uint8"""

    def __dlpack__(self, **kwargs: object) -> Any: ...

    def __dlpack_device__(self) -> tuple: ...

class Report:
    """One change that a rewriting pass made."""

    @property
    def pass_name(self) -> str: ...

    @property
    def node(self) -> str:
        """label of the node it is about"""

    @property
    def what(self) -> str: ...

    @property
    def why(self) -> str: ...

    @property
    def operations_saved(self) -> int | str | None:
        """
        operations on elements in one run: a number, an expression over extents, or None where not known
        """

    @property
    def bytes_saved(self) -> int | str | None:
        """bytes that one run need not write any more"""

    def __repr__(self) -> str: ...

class RowDensity:
    """How many rows of a batch a rewriting pass leaves."""

    @property
    def pass_name(self) -> str: ...

    @property
    def node(self) -> str:
        """label of the node that finds them"""

    @property
    def input(self) -> str:
        """of the model that says which"""

    @property
    def needed(self) -> int:
        """rows that something depends on"""

    @property
    def total(self) -> int: ...

    @property
    def ignored(self) -> int | None:
        """the label that stands for none"""

    @property
    def per_sequence(self) -> list[int]:
        """of `needed`, where rows are tokens"""

    @property
    def share(self) -> float: ...

    def __repr__(self) -> str: ...

class ChoiceReport:
    """What steps take with some of the passes that data decide on."""

    @property
    def passes(self) -> list[str]: ...

    @property
    def runs(self) -> int:
        """batches it was chosen for"""

    @property
    def operations(self) -> float:
        """of its latest step; 0 where not known"""

    @property
    def bytes(self) -> int:
        """of its arena"""

    def __repr__(self) -> str: ...

class DataReport:
    """How a session decided by the data of its batches."""

    @property
    def densities(self) -> list[RowDensity]:
        """of the latest batch"""

    @property
    def chosen(self) -> list[str]:
        """passes, for it"""

    @property
    def choices(self) -> list[ChoiceReport]: ...

    @property
    def build_seconds(self) -> float:
        """spent on the graphs so far"""

    def __repr__(self) -> str: ...

class PassTime:
    """Time spent in one pass."""

    @property
    def pass_name(self) -> str: ...

    @property
    def seconds(self) -> float: ...

    def __repr__(self) -> str: ...

def simplify(model: bytes, passes: Sequence[str]) -> tuple[bytes, list[Report]]:
    """
    The model after these passes, still in its opset, without inputs and initializers that nothing reads; and what they did.
    """

class CancelFlag:
    """
    Stops calls of the sessions that have it among their options: they raise Cancelled. Any thread may set it; it stays set until it is cleared.
    """

    def __init__(self) -> None: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    def __repr__(self) -> str: ...

class SessionOptions:
    """How a session runs; every default is automatic."""

    def __init__(self, *, num_threads: int = 0, optimize: bool = True, reference: bool = False, profile: bool = False, binding_cache: int = 16, time_limit: float = 0.0, cancel: CancelFlag | None = None, disabled_passes: Sequence[str] = [], verify_passes: bool = False, max_memory: float = 0.0, recompute: Sequence[str] = [], sparse_threshold: float = 0.9) -> None: ...

    def __repr__(self) -> str: ...

    def __reduce__(self) -> tuple[Any, ...]: ...

    @property
    def num_threads(self) -> int: ...

    @num_threads.setter
    def num_threads(self, arg: int, /) -> None: ...

    @property
    def optimize(self) -> bool: ...

    @optimize.setter
    def optimize(self, arg: bool, /) -> None: ...

    @property
    def reference(self) -> bool: ...

    @reference.setter
    def reference(self, arg: bool, /) -> None: ...

    @property
    def profile(self) -> bool: ...

    @profile.setter
    def profile(self, arg: bool, /) -> None: ...

    @property
    def binding_cache(self) -> int: ...

    @binding_cache.setter
    def binding_cache(self, arg: int, /) -> None: ...

    @property
    def time_limit(self) -> float:
        """seconds that one call may take; 0: no limit"""

    @time_limit.setter
    def time_limit(self, arg: float, /) -> None: ...

    @property
    def cancel(self) -> CancelFlag:
        """a CancelFlag that stops calls, or None"""

    @cancel.setter
    def cancel(self, arg: CancelFlag | None, /) -> None: ...

    @property
    def disabled_passes(self) -> list[str]:
        """names of rewriting passes that do not run"""

    @disabled_passes.setter
    def disabled_passes(self, arg: Sequence[str], /) -> None: ...

    @property
    def verify_passes(self) -> bool:
        """look at every invariant of the graph after each pass"""

    @verify_passes.setter
    def verify_passes(self, arg: bool, /) -> None: ...

    @property
    def max_memory(self) -> float:
        """
        bytes of intermediate values in training, or up to 1 a share of what they would take: what does not fit is made again by the backward pass; 0: no limit
        """

    @max_memory.setter
    def max_memory(self, arg: float, /) -> None: ...

    @property
    def recompute(self) -> list[str]:
        """
        what training computes again however much memory there is: 'cheap', 'blocks', or results of operators as 'Gelu+Dropout:1:2'
        """

    @recompute.setter
    def recompute(self, arg: Sequence[str], /) -> None: ...

    @property
    def sparse_threshold(self) -> float:
        """
        share of a batch's rows that are needed (have a label, are no padding) below which training leaves out the others; 0: never look
        """

    @sparse_threshold.setter
    def sparse_threshold(self, arg: float, /) -> None: ...

class ValueInfo:
    """Name and type of an input or output."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def dtype(self) -> int: ...

    @property
    def extents(self) -> list[str] | None:
        """numbers, or names for what may vary; None when the rank is not known"""

    def __repr__(self) -> str: ...

class StepRecord:
    """One executed step."""

    @property
    def name(self) -> str: ...

    @property
    def op(self) -> str: ...

    @property
    def shapes(self) -> str: ...

    @property
    def start_us(self) -> float: ...

    @property
    def duration_us(self) -> float: ...

    @property
    def bytes(self) -> int:
        """What it has to read and write at least."""

    @property
    def flops(self) -> int:
        """
        Of products, convolutions, attention and recurrent layers; 0 for others.
        """

    @property
    def threads(self) -> int:
        """That it may have used."""

    def __repr__(self) -> str: ...

class PlannedBuffer:
    """A value that lies in the arena while steps first to last run."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...

class HeldBytes:
    """What a training session holds from step to step, beside the arena."""

    @property
    def parameters(self) -> int: ...

    @property
    def gradients(self) -> int: ...

    @property
    def optimizer_state(self) -> int: ...

class PlanReport:
    """What planning decided for one set of input extents."""

    @property
    def peak_bytes(self) -> int: ...

    @property
    def lower_bound_bytes(self) -> int: ...

    @property
    def constant_bytes(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def views(self) -> int: ...

    @property
    def in_place(self) -> int: ...

    @property
    def late_steps(self) -> int: ...

    @property
    def buffers(self) -> list[PlannedBuffer]: ...

    @property
    def live_bytes(self) -> list[int]:
        """Of buffers, while each step runs."""

    @property
    def held(self) -> HeldBytes:
        """Bytes of a training session; 0 elsewhere."""

    def svg(self) -> str:
        """A picture: steps to the right, places in the arena upwards."""

    def __repr__(self) -> str: ...

class Problem:
    """One thing wrong with a model."""

    @property
    def kind(self) -> str: ...

    @property
    def node(self) -> str: ...

    @property
    def op(self) -> str: ...

    @property
    def text(self) -> str: ...

    def __repr__(self) -> str: ...

class ArenaNeed:
    """What intermediate values take."""

    @property
    def expression(self) -> str:
        """bytes of values needed at once, by the model's symbols"""

    @property
    def unknown(self) -> list[str]:
        """values whose size the model does not say"""

    @property
    def bytes(self) -> int | None:
        """for the sizes given, scratch memory of kernels included"""

    def __repr__(self) -> str: ...

class MemoryCheck:
    """What a model takes, before anything runs."""

    @property
    def inference(self) -> ArenaNeed: ...

    @property
    def training(self) -> ArenaNeed | None: ...

    @property
    def constant_bytes(self) -> int: ...

    @property
    def gradient_bytes(self) -> int: ...

    @property
    def optimizer_bytes(self) -> int: ...

    def __repr__(self) -> str: ...

def check_memory_path(path: str | os.PathLike, trainable: Sequence[str], sizes: Mapping[str, int]) -> MemoryCheck: ...

def check_memory_bytes(model: bytes, trainable: Sequence[str], sizes: Mapping[str, int]) -> MemoryCheck: ...

class Session:
    """A loaded model."""

    @staticmethod
    def from_path(path: str | os.PathLike, options: SessionOptions) -> Session: ...

    @staticmethod
    def from_bytes(model: bytes, options: SessionOptions) -> Session: ...

    def inputs(self) -> list[ValueInfo]: ...

    def outputs(self) -> list[ValueInfo]: ...

    def run(self, names: Sequence[str], feeds: dict) -> list: ...

    def plan(self, feeds: dict) -> PlanReport: ...

    def arena_need(self, sizes: Mapping[str, int]) -> ArenaNeed: ...

    def rewrites(self) -> list[str]: ...

    def pass_reports(self) -> list[Report]: ...

    def pass_times(self) -> list[PassTime]: ...

    def graph_text(self) -> str: ...

    def execution_model(self) -> bytes:
        """
        The model after rewriting, before it is laid out for running: an ONNX model, which a session can load.
        """

    def take_profile(self) -> list[StepRecord]: ...

def model_bytes(path: str | os.PathLike) -> bytes:
    """A model and its weights, wherever they lie, in one piece."""

def check_path(path: str | os.PathLike) -> list[Problem]: ...

def check_bytes(model: bytes) -> list[Problem]: ...

class MemoryRate:
    """How fast so many bytes are read and written."""

    @property
    def bytes(self) -> int: ...

    @property
    def gbs(self) -> float: ...

    def __repr__(self) -> str: ...

class MachineLimits:
    """What a machine can do with some number of threads."""

    @property
    def threads(self) -> int:
        """0: not measured, but told."""

    @property
    def gflops(self) -> float:
        """10^9 operations a second, of float32 products."""

    @property
    def memory(self) -> list[MemoryRate]:
        """From few bytes, which stay in a cache, to many."""

    def gbs(self, bytes: int) -> float:
        """10^9 bytes a second, for a step that moves so many."""

    def arithmetic_us(self, flops: int) -> float: ...

    def memory_us(self, bytes: int) -> float: ...

    def __repr__(self) -> str: ...

def machine_limits(threads: int = 0) -> MachineLimits:
    """
    Measures this machine, once per number of threads and process: about 0.2 s. 0: as many as a session uses.
    """

def told_limits(gflops: float = 0.0, gbs: float = 0.0, threads: int = 0) -> MachineLimits:
    """The limits of a machine that somebody knows; what is 0 is measured."""

class ProfileRow:
    """What steps of one kind come to."""

    @property
    def op(self) -> str: ...

    @property
    def shapes(self) -> str:
        """Empty for rows by operator."""

    @property
    def calls(self) -> int: ...

    @property
    def duration_us(self) -> float: ...

    @property
    def arithmetic_us(self) -> float:
        """What the arithmetic alone takes at least."""

    @property
    def memory_us(self) -> float:
        """What reading and writing alone take at least."""

    @property
    def limit_us(self) -> float:
        """The longer of the two, step by step."""

    @property
    def flops(self) -> float: ...

    @property
    def bytes(self) -> float: ...

    def __repr__(self) -> str: ...

class ProfileSummary:
    """Recorded steps against the limits of a machine."""

    @property
    def rows(self) -> list[ProfileRow]:
        """What takes longest first."""

    @property
    def duration_us(self) -> float:
        """Of all steps."""

    @property
    def limit_us(self) -> float:
        """What they would take if each reached its limit."""

def summarize(records: Sequence[StepRecord], limits: MachineLimits, by_shapes: bool = False) -> ProfileSummary: ...

class GradientRequest:
    """What to differentiate with respect to what."""

    def __init__(self) -> None: ...

    @property
    def wrt(self) -> list[str]: ...

    @wrt.setter
    def wrt(self, arg: Sequence[str], /) -> None: ...

    @property
    def outputs(self) -> list[str]: ...

    @outputs.setter
    def outputs(self, arg: Sequence[str], /) -> None: ...

    @property
    def seeds_as_inputs(self) -> bool: ...

    @seeds_as_inputs.setter
    def seeds_as_inputs(self, arg: bool, /) -> None: ...

    @property
    def standard_only(self) -> bool: ...

    @standard_only.setter
    def standard_only(self, arg: bool, /) -> None: ...

    def __repr__(self) -> str: ...

def grad_path(path: str | os.PathLike, request: GradientRequest) -> bytes: ...

def grad_bytes(model: bytes, request: GradientRequest) -> bytes: ...

def check_gradients_path(path: str | os.PathLike, request: GradientRequest) -> list[Problem]: ...

def check_gradients_bytes(model: bytes, request: GradientRequest) -> list[Problem]: ...

def build_training_model(model: bytes, requires_grad: list[str], frozen: list[str], outputs: list[str]) -> tuple[bytes, bytes]:
    """
    The training and the eval model of a model whose first output is the loss.
    """

def rewrite_training_model(model: bytes, parameters: list[str]) -> bytes:
    """The training model with everything left out that need not be computed."""

def autocast_model(model: bytes) -> bytes:
    """
    The model with casts, so that matrix products, convolutions and attention run in bfloat16.
    """

def inference_form(model: bytes) -> bytes:
    """The model as it evaluates: without dropout, with running statistics."""

def running_statistics(model: bytes) -> list[str]:
    """Initializers that batch normalisations in training mode update."""

class ParallelOptions:
    """How training is shared out."""

    def __init__(self) -> None: ...

    @property
    def bucket_bytes(self) -> int: ...

    @bucket_bytes.setter
    def bucket_bytes(self, arg: int, /) -> None: ...

    @property
    def overlaps(self) -> bool: ...

    @overlaps.setter
    def overlaps(self, arg: bool, /) -> None: ...

    @property
    def averages_statistics(self) -> bool: ...

    @averages_statistics.setter
    def averages_statistics(self, arg: bool, /) -> None: ...

    @property
    def zero_stage(self) -> int: ...

    @zero_stage.setter
    def zero_stage(self, arg: int, /) -> None: ...

    @property
    def adasum(self) -> bool: ...

    @adasum.setter
    def adasum(self, arg: bool, /) -> None: ...

    def __repr__(self) -> str: ...

class Communicator:
    """What processes that train together exchange tensors by."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def broadcast(self, values: Tensor, root: int) -> None: ...

    def start_allreduce(self, values: Tensor) -> None: ...

    def wait(self) -> None: ...

    def allreduce(self, values: Tensor) -> None: ...

    def allgather(self, mine: Tensor, all: Tensor) -> None: ...

    def reduce_scatter(self, all: Tensor, mine: Tensor) -> None: ...

    def subgroup(self, kind: int) -> Communicator | None: ...

    def send(self, values: Tensor, to: int, tag: int) -> None: ...

    def receive(self, values: Tensor, from_: int, tag: int) -> None: ...

class PythonCommunicator(Communicator):
    """
    Any object with rank, size, broadcast(array, root), allreduce(array) and reduce_scatter(all, mine), which return None or a handle with wait(), allgather(mine, all), send(array, to, tag), recv(array, source, tag), and, where collective operators name groups, subgroup(kind), which returns None or another such object.
    """

    def __init__(self, object: object) -> None: ...

    @property
    def object(self) -> object: ...

class CommunicatorScope:
    """The communicator of this thread while `with` lasts."""

    def __init__(self, communicator: Communicator | None) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...

def communicator() -> Communicator | None:
    """That of this thread, otherwise of the process, otherwise None."""

def set_communicator(communicator: Communicator | None) -> None:
    """That of the process."""

class TrainingSession:
    """A training model, with an eval model and an optimizer if wanted."""

    def __init__(self, state: CheckpointState, training: object, eval: object | None, options: SessionOptions) -> None: ...

    def add_optimizer(self, model: object) -> None: ...

    @property
    def has_eval_model(self) -> bool: ...

    @property
    def has_optimizer(self) -> bool: ...

    def inputs(self, training: bool = True) -> list[ValueInfo]: ...

    def outputs(self, training: bool = True) -> list[ValueInfo]: ...

    def train_step(self, inputs: list) -> list[Tensor]: ...

    def train_and_update(self, inputs: list) -> list[Tensor]: ...

    def eval_step(self, inputs: list) -> list[Tensor]: ...

    def lazy_reset_grad(self) -> None: ...

    def gradient(self, parameter: str) -> Tensor | None: ...

    def optimizer_step(self) -> None: ...

    @property
    def optimizer_steps(self) -> int: ...

    @property
    def learning_rate(self) -> float: ...

    @learning_rate.setter
    def learning_rate(self, arg: float, /) -> None: ...

    def register_linear_scheduler(self, warmup: int, total: int, initial_rate: float) -> None: ...

    def scheduler_step(self) -> None: ...

    def set_communicator(self, communicator: Communicator, options: ParallelOptions) -> None: ...

    def set_exchanges(self, exchanges: bool) -> None: ...

    def gradient_buckets(self) -> list[Tensor]: ...

    def gather_optimizer_state(self) -> None: ...

    def parameters_size(self, trainable_only: bool = True) -> int: ...

    def contiguous_parameters(self, trainable_only: bool = False) -> Tensor: ...

    def copy_to_parameters(self, buffer: Tensor, trainable_only: bool = True) -> None: ...

    def export_model_for_inferencing(self, path: str | os.PathLike, outputs: Sequence[str]) -> None: ...

    def export_model_for_training(self, path: str | os.PathLike) -> None: ...

    def plan(self, inputs: list) -> PlanReport: ...

    def plan_update(self, inputs: list) -> PlanReport: ...

    def pass_reports(self) -> list[Report]: ...

    def data_report(self) -> DataReport: ...

    def execution_model(self) -> bytes:
        """
        The training model after rewriting: parameters are inputs, gradients follow the outputs.
        """

    def take_profile(self) -> list[StepRecord]: ...

def set_seed(seed: int) -> None:
    """
    Restarts the random numbers of everything that was not restored from a checkpoint.
    """

def is_seeded() -> bool:
    """Whether set_seed was called."""

class WeightSettings:
    """How one weight is updated."""

    def __init__(self) -> None: ...

    @property
    def rate_scale(self) -> float: ...

    @rate_scale.setter
    def rate_scale(self, arg: float, /) -> None: ...

    @property
    def alpha(self) -> float: ...

    @alpha.setter
    def alpha(self, arg: float, /) -> None: ...

    @property
    def beta(self) -> float: ...

    @beta.setter
    def beta(self, arg: float, /) -> None: ...

    @property
    def epsilon(self) -> float: ...

    @epsilon.setter
    def epsilon(self, arg: float, /) -> None: ...

    @property
    def weight_decay(self) -> float: ...

    @weight_decay.setter
    def weight_decay(self, arg: float, /) -> None: ...

    @property
    def correct_bias(self) -> bool: ...

    @correct_bias.setter
    def correct_bias(self, arg: bool, /) -> None: ...

    @property
    def decays_after(self) -> bool: ...

    @decays_after.setter
    def decays_after(self, arg: bool, /) -> None: ...

    @property
    def decays_gradient(self) -> bool: ...

    @decays_gradient.setter
    def decays_gradient(self, arg: bool, /) -> None: ...

    @property
    def max_norm(self) -> float: ...

    @max_norm.setter
    def max_norm(self, arg: float, /) -> None: ...

    @property
    def ratio_min(self) -> float: ...

    @ratio_min.setter
    def ratio_min(self, arg: float, /) -> None: ...

    @property
    def ratio_max(self) -> float: ...

    @ratio_max.setter
    def ratio_max(self, arg: float, /) -> None: ...

    def __repr__(self) -> str: ...

class TrainerOptions:
    def __init__(self) -> None: ...

    @property
    def algorithm(self) -> str: ...

    @algorithm.setter
    def algorithm(self, arg: str, /) -> None: ...

    @property
    def defaults(self) -> WeightSettings: ...

    @defaults.setter
    def defaults(self, arg: WeightSettings, /) -> None: ...

    @property
    def by_weight(self) -> dict[str, WeightSettings]: ...

    @by_weight.setter
    def by_weight(self, arg: Mapping[str, WeightSettings], /) -> None: ...

    @property
    def accumulation_steps(self) -> int: ...

    @accumulation_steps.setter
    def accumulation_steps(self, arg: int, /) -> None: ...

    @property
    def clips_gradients(self) -> bool: ...

    @clips_gradients.setter
    def clips_gradients(self, arg: bool, /) -> None: ...

    @property
    def skips_non_finite(self) -> bool: ...

    @skips_non_finite.setter
    def skips_non_finite(self, arg: bool, /) -> None: ...

    @property
    def scales_loss(self) -> bool: ...

    @scales_loss.setter
    def scales_loss(self, arg: bool, /) -> None: ...

    @property
    def communicator(self) -> Communicator | None: ...

    @communicator.setter
    def communicator(self, arg: object | None, /) -> None: ...

    @property
    def parallel(self) -> ParallelOptions: ...

    @parallel.setter
    def parallel(self, arg: ParallelOptions, /) -> None: ...

    @property
    def zero_stage(self) -> int: ...

    @zero_stage.setter
    def zero_stage(self, arg: int, /) -> None: ...

    @property
    def session(self) -> SessionOptions: ...

    @session.setter
    def session(self, arg: SessionOptions, /) -> None: ...

    def __repr__(self) -> str: ...

class Trainer:
    """
    Forward, loss, backward, accumulation, clipping and optimizer in one call.
    """

    def __init__(self, state: CheckpointState, options: TrainerOptions) -> None: ...

    @staticmethod
    def state_of(model: object, loss: str, frozen: Sequence[str] = []) -> CheckpointState:
        """The weights of a model, those that its loss depends on."""

    def add_model(self, model: object, loss: str, outputs: Sequence[str], assigned: Mapping[str, str] = {}) -> int: ...

    def add_eval_model(self, model: object, outputs: Sequence[str], to_inference: bool = True) -> int: ...

    def inputs(self, program: int) -> list[ValueInfo]: ...

    def eval_inputs(self, program: int) -> list[ValueInfo]: ...

    @property
    def trained(self) -> list[str]: ...

    def train_step(self, program: int, inputs: list, rate: float) -> tuple[list[Tensor], bool, bool]:
        """
        Outputs, whether weights were updated, whether all gradients were finite.
        """

    def eval_step(self, program: int, inputs: list) -> list[Tensor]: ...

    @property
    def steps(self) -> int: ...

    @steps.setter
    def steps(self, arg: int, /) -> None: ...

    @property
    def updates(self) -> int: ...

    @updates.setter
    def updates(self, arg: int, /) -> None: ...

    @property
    def loss_scale(self) -> float: ...

    @loss_scale.setter
    def loss_scale(self, arg: float, /) -> None: ...

    @property
    def last_norm(self) -> float: ...

    def drop_gradients(self) -> None: ...

    def resume_random(self) -> None: ...

    def gather_optimizer_state(self) -> None: ...

    def plan(self, program: int, inputs: list) -> PlanReport: ...

    def pass_reports(self, program: int) -> list[Report]: ...

    def take_profile(self, program: int) -> list[StepRecord]: ...

def ops() -> list:
    """One dict per registered operator."""

def tensors_from_torch(tensors: list) -> list[Tensor]:
    """
    The memory of torch tensors, which they share; what is not contiguous is copied.
    """

def tensors_to_torch(tensors: list[Tensor]) -> list:
    """torch tensors over the same memory."""

class Pending:
    """A forward pass whose backward pass is still to come."""

    @property
    def graph(self) -> int:
        """Which of the session's graphs it runs."""

    def read_by_backward(self) -> tuple[list[int], list[int]]:
        """
        Numbers of the inputs and outputs whose contents backward() reads, also through views of them: the same of all passes of one graph.
        """

class ModuleSession:
    """
    Runs the graph of a torch module on torch tensors, forward now and backward later.
    """

    @staticmethod
    def from_bytes(model: bytes, requires_grad: Sequence[str], options: SessionOptions, constant_outputs: Sequence[str] = [], steady_inputs: Sequence[str] = []) -> ModuleSession:
        """
        `requires_grad`: names of graph inputs whose gradients backward() gives. `constant_outputs`: names of outputs that are not to be differentiated, such as new values of buffers. `steady_inputs`: names of inputs that backward() may read even where it need not, parameters.
        """

    def is_random(self) -> bool:
        """Whether a pass draws random numbers."""

    def forward(self, inputs: list, keep: bool, seed: int | None = None) -> tuple[list, Pending | None]:
        """
        Outputs as new tensors, and with `keep` what backward() needs. `seed`: of the random numbers of this pass.
        """

    def backward(self, pending: Pending, seeds: list, keep: bool = False) -> list:
        """
        One gradient per name of requires_grad, None where nothing flows back. `seeds`: one per output or None. With `keep` it may be called again, repeating the forward pass.
        """

    def memory_excess(self) -> int:
        """
        Bytes that passes take which max_memory turned out not to suffice for after their forward pass; 0 when it does.
        """

    def repeats(self, pending: Pending, seeds: list) -> bool:
        """
        Whether backward() would repeat the forward pass and so read all of its inputs again.
        """

    def read_by_backward(self) -> tuple[list[int], list[int]]:
        """
        Numbers of the inputs and outputs whose contents backward() reads after the latest pass, or one whose data are dense.
        """

    def inputs(self) -> list[ValueInfo]: ...

    def outputs(self) -> list[ValueInfo]: ...

    def requires_grad(self) -> list[str]: ...

    def differentiable_outputs(self) -> list[bool]: ...

    def depends_on(self, output: str) -> list[str]:
        """
        Names among requires_grad that an output depends on differentiably, be it constant or not.
        """

    def plan(self, inputs: list) -> PlanReport: ...

    def training_model(self) -> bytes:
        """The ONNX model with gradients and YieldOp, before optimisation."""

    def execution_model(self) -> bytes:
        """
        The same after optimisation, before it is laid out for running: an ONNX model, which backpass can load again.
        """

    def graph_text(self) -> str: ...

    def rewrites(self) -> list[str]: ...

    def pass_reports(self) -> list[Report]: ...

    def pass_times(self) -> list[PassTime]: ...

    def densities(self) -> DataReport:
        """
        What the latest batch is like, and how often which passes were chosen by the data of batches.
        """

    def data_report(self) -> DataReport:
        """
        The same with operations and bytes of a step, building what has to be known for that.
        """

    def take_profile(self) -> list[StepRecord]: ...

def tensor_to_torch(tensor: Tensor) -> object:
    """A torch.Tensor over the same memory."""

def tensor_from_torch(tensor: object) -> Tensor:
    """The memory of a torch.Tensor, kept alive."""

class Extent:
    """An extent that is not known before running: an expression of names."""

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

    def __add__(self, arg: object, /) -> Extent: ...

    def __radd__(self, arg: object, /) -> Extent: ...

    def __sub__(self, arg: object, /) -> Extent: ...

    def __rsub__(self, arg: object, /) -> Extent: ...

    def __mul__(self, arg: object, /) -> Extent: ...

    def __rmul__(self, arg: object, /) -> Extent: ...

    def __floordiv__(self, arg: object, /) -> Extent: ...

    def __rfloordiv__(self, arg: object, /) -> Extent: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class GraphValue:
    """A value of the graph in which a gradient rule writes; valid inside it."""

    def input_count(self) -> int: ...

    def output_count(self) -> int: ...

    def has_input(self, arg: int, /) -> bool: ...

    def has_output(self, arg: int, /) -> bool: ...

    def x(self, arg: int, /) -> GraphValue: ...

    def y(self, arg: int, /) -> GraphValue: ...

    def has_dy(self, arg: int, /) -> bool: ...

    def dy(self, arg: int, /) -> GraphValue: ...

    def wants(self, arg: int, /) -> bool: ...

    def set(self, i: int, gradient: object | None) -> None: ...

    def nodes(self, op: str, inputs: list, attributes: dict, domain: str, outputs: int) -> list[GraphValue]: ...

    def constant(self, arg: Tensor, /) -> GraphValue: ...

    def number(self, value: float, like: object | None) -> GraphValue: ...

    def like(self, arg0: str, arg1: object, arg2: object, /) -> GraphValue: ...

    def shape(self) -> GraphValue: ...

    def zeros(self) -> GraphValue: ...

    def type(self) -> object: ...

def register_operator(domain: str, name: str, number: int, since: int, inputs: tuple[int, int], outputs: tuple[int, int], has_types: bool, is_pure: bool, replace: bool) -> None: ...

def register_gradient(domain: str, name: str, number: int, by_numbers: bool, replace: bool) -> None: ...

def unregister(domain: str, name: str) -> None: ...

class OptimizerGroup:
    """What an optimizer remembers about the parameters it trains together."""

    def __init__(self) -> None: ...

    @property
    def name(self) -> str: ...

    @name.setter
    def name(self, arg: str, /) -> None: ...

    @property
    def step(self) -> int:
        """completed updates"""

    @step.setter
    def step(self, arg: int, /) -> None: ...

    @property
    def initial_lr(self) -> float: ...

    @initial_lr.setter
    def initial_lr(self, arg: float, /) -> None: ...

    @property
    def momentums(self) -> dict[str, dict[str, Tensor]]:
        """{parameter: {'momentum0': Tensor}}: a copy holding the same tensors"""

    @momentums.setter
    def momentums(self, arg: Mapping[str, Mapping[str, Tensor]], /) -> None: ...

    def __repr__(self) -> str: ...

class ResumeState:
    """What else a run needs to go on exactly where it stopped."""

    def __init__(self) -> None: ...

    @property
    def learning_rate(self) -> float | None: ...

    @learning_rate.setter
    def learning_rate(self, arg: float | None, /) -> None: ...

    @property
    def seed(self) -> int | None: ...

    @seed.setter
    def seed(self, arg: int | None, /) -> None: ...

    @property
    def random_counter(self) -> int | None: ...

    @random_counter.setter
    def random_counter(self, arg: int | None, /) -> None: ...

    @property
    def scheduler(self) -> str: ...

    @scheduler.setter
    def scheduler(self, arg: str, /) -> None: ...

    @property
    def scheduler_state(self) -> dict[str, int | float | str]: ...

    @scheduler_state.setter
    def scheduler_state(self, arg: Mapping[str, int | float | str], /) -> None: ...

    def __repr__(self) -> str: ...

class CheckpointState:
    """Parameters, optimizer state and properties of a training run."""

    def __init__(self) -> None: ...

    @staticmethod
    def load(path: str | os.PathLike) -> CheckpointState: ...

    @staticmethod
    def load_bytes(data: bytes) -> CheckpointState: ...

    def save(self, path: str | os.PathLike, include_optimizer_state: bool = False) -> None: ...

    def to_bytes(self, include_optimizer_state: bool = False) -> bytes: ...

    @property
    def uses_external_data(self) -> bool:
        """larger tensors live in <path>.data"""

    @uses_external_data.setter
    def uses_external_data(self, arg: bool, /) -> None: ...

    @property
    def parameter_names(self) -> list[str]:
        """in order"""

    def has_parameter(self, name: str) -> bool: ...

    def parameter(self, name: str) -> Tensor:
        """the tensor itself: its array() is a view that training writes to"""

    def requires_grad(self, name: str) -> bool: ...

    def dtype(self, name: str) -> int:
        """ONNX code of the element type, known for nominal parameters too"""

    def add_parameter(self, name: str, values: Tensor, requires_grad: bool = True) -> None:
        """copies the values"""

    def add_nominal(self, name: str, dtype: int, requires_grad: bool = True) -> None: ...

    def set_parameter(self, name: str, values: Tensor) -> None:
        """copies values of the same dtype and shape"""

    def share_parameter(self, name: str, values: Tensor, requires_grad: bool = True) -> None:
        """adds or replaces a parameter by this memory, which training writes to"""

    @property
    def is_nominal(self) -> bool: ...

    @property
    def is_half_updated(self) -> bool: ...

    def complete(self, tensors: Sequence[Tensor]) -> None:
        """copies one tensor per parameter, in order"""

    def parameter_count(self, trainable_only: bool = True) -> int: ...

    @property
    def resume(self) -> ResumeState: ...

    @resume.setter
    def resume(self, arg: ResumeState, /) -> None: ...

    @property
    def optimizer_groups(self) -> list[OptimizerGroup]:
        """copies holding the same tensors"""

    def set_group(self, group: OptimizerGroup) -> None:
        """adds a group, or replaces the one of its name"""

    def clear_groups(self) -> None: ...

    @property
    def properties(self) -> dict[str, int | float | str]:
        """a copy, sorted by name"""

    def has_property(self, name: str) -> bool: ...

    def property(self, name: str) -> int | float | str: ...

    def set_property(self, name: str, value: int | float | str) -> None:
        """whole numbers are kept with 64 bits, others as float32"""

    def remove_property(self, name: str) -> None: ...

def export_parameters(state: CheckpointState, path: str | os.PathLike) -> None:
    """writes all parameters to a safetensors file"""

def import_parameters(state: CheckpointState, path: str | os.PathLike) -> None:
    """
    copies a safetensors file into the parameters: all of them or, when anything does not fit, none
    """

class AtomicFile:
    """
    A file beside its destination, whose place it takes with publish(), and not without.
    """

    def __init__(self, path: str | os.PathLike) -> None: ...

    def write(self, content: object) -> None: ...

    def publish(self) -> None:
        """On the disk, whole, under its own name."""

    def close(self) -> None:
        """Removes what was not published."""

def adam_tensors(parameters: list[Any], states: dict[Any, Any], start: Any) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """
    Those parameters that have a gradient, the gradients, and the moments of `states` in two lists; start(parameter) makes what a parameter's state holds where there is none.
    """

def adam_step(parameters: list[Any], gradients: list[Any], first: list[Any], second: list[Any], rate: float, step: int, alpha: float, beta: float, epsilon: float, weight_decay: float, mode: int, correct_bias: bool, gradient_scale: float = 1.0, num_threads: int = 0) -> list[int]:
    """
    One step of Adam on tensors of torch, in place and in one pass. Mode: 0 decay is added to the gradient, 1 after the step, 2 before it. Left as they were: weights whose numbers are returned, since their four tensors do not lie alike in memory or have no common floating point type.
    """

def all_as_noted(sizes: list[tuple[dict, int]], same: list[tuple[dict, str, Any]], equal: list[tuple[dict, str, Any]], given: list[tuple[dict, str]]) -> bool:
    """
    Whether dictionaries have these sizes, hold the same objects, equal ones of the same type, and any but None.
    """

def kinds_of(tensors: tuple) -> bytes | None:
    """
    Element types and extents of torch tensors, to be compared; None where something is not a plain one on the CPU.
    """
