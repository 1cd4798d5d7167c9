"""User functions (torch.autograd.Function), which torch goes on running."""

from __future__ import annotations

from backpass.torch.dispatch import lowers
from backpass.torch.emit import emit_python_op

lowers("backpass::python_op")(emit_python_op)
