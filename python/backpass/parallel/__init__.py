"""Training by several processes: what they exchange tensors by, and modules that do so.

::

    from backpass import parallel

    communicator = parallel.TorchCommunicator(timeout=60)      # torchrun; or MPICommunicator() under mpirun
    module = parallel.DataParallel(Module(...), communicator)

Any object will do that has ``rank``, ``size``, ``broadcast(array, root)``, ``allreduce(array)`` and
``reduce_scatter(all, mine)`` (which return None or a handle with ``wait()``), ``allgather(mine, all)``,
``send(array, to, tag)`` and ``recv(array, source, tag)``. All work in place on numpy views of the engine's memory.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from backpass import _core
from backpass.parallel.errors import CommunicationError
from backpass.parallel.single import SingleCommunicator
from backpass.parallel.threads import ThreadCommunicator, run_threads

if TYPE_CHECKING:
    from backpass.parallel.data_parallel import DataParallel
    from backpass.parallel.mpi_communicator import MPICommunicator
    from backpass.parallel.torch_communicator import TorchCommunicator

__all__ = [
    "CommunicationError",
    "DataParallel",
    "MPICommunicator",
    "SingleCommunicator",
    "ThreadCommunicator",
    "TorchCommunicator",
    "as_communicator",
    "communicator",
    "communicator_of",
    "find_communicator",
    "run_threads",
    "set_communicator",
]

_LAZY = {
    "DataParallel": "backpass.parallel.data_parallel",
    "MPICommunicator": "backpass.parallel.mpi_communicator",
    "TorchCommunicator": "backpass.parallel.torch_communicator",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def as_communicator(communicator: Any) -> _core.Communicator:
    """The engine's own form of any communicator."""
    if isinstance(communicator, _core.Communicator):
        return communicator
    return _core.PythonCommunicator(communicator)


def communicator() -> Any:
    """What collective operators use in this thread: what `set_communicator` was given; None where there is none."""
    found = _core.communicator()
    return found.object if isinstance(found, _core.PythonCommunicator) else found


def set_communicator(communicator: Any) -> None:
    """What collective operators of this process use from now on; None takes it back."""
    _core.set_communicator(None if communicator is None else as_communicator(communicator))


def communicator_of(rank: int, size: int) -> _core.Communicator | None:
    """What a trainer uses that was told its place among processes; None where there is one. ValueError where they were
    started otherwise."""
    if size == 1:
        return None
    found = communicator() or find_communicator()
    if (found.rank, found.size) != (rank, size):
        raise ValueError(
            f"world_rank, world_size: got {rank}, {size}, expected {found.rank}, {found.size} as the processes were "
            "started"
        )
    return as_communicator(found)


def find_communicator(timeout: float | None = None) -> Any:
    """That of the launcher this process was started by: torch.distributed where it is set up or torchrun is, MPI under
    mpirun, otherwise a process by itself.
    """
    given: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if "OMPI_COMM_WORLD_SIZE" in os.environ or "PMI_SIZE" in os.environ:
        from backpass.parallel.mpi_communicator import MPICommunicator

        return MPICommunicator(**given)
    if "TORCHELASTIC_RUN_ID" in os.environ or _is_torch_set_up():
        from backpass.parallel.torch_communicator import TorchCommunicator

        return TorchCommunicator(**given)
    return SingleCommunicator()


def _is_torch_set_up() -> bool:
    import sys

    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()
