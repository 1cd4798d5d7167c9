"""Names under which torch.compile finds the backend."""

from __future__ import annotations

from torch._dynamo.backends import registry

from backpass._compile import backpass


def register(name: str) -> None:
    """Makes ``torch.compile(..., backend=name)`` mean Backpass. Calling it again is harmless."""
    if registry._COMPILER_FNS.get(name) is None:
        registry._BACKENDS.pop(name, None)
        registry.register_backend(backpass, name=name)


def unregister(name: str) -> None:
    """Undoes `register`."""
    if registry._COMPILER_FNS.get(name) is backpass:
        del registry._COMPILER_FNS[name]
        del registry._BACKENDS[name]
