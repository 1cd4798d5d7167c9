"""How a process ends that is one of a gloo group.

gloo's threads may still hold tensors of the last operation when the interpreter ends; giving them back aborts the
process then. torch 2.13 keeps the threads of a destroyed group, where DistributedDataParallel has used it.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import torch.distributed as dist


def end_process() -> NoReturn:
    """All is well, and nothing is left to do."""
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
