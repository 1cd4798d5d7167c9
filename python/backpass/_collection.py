"""Work that makes many objects which stay, without Python's looking through all of them for garbage meanwhile."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Reference cycles are collected afterwards. What a program has loaded (transformers) takes longer to look through
    than all that is done here, and the objects made on the way are mostly those that are kept."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
