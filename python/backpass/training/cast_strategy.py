"""PropagateCastOpsStrategy, a choice of the original that has no effect here."""

import enum

__all__ = ["PropagateCastOpsStrategy"]


class PropagateCastOpsStrategy(enum.IntFlag):
    """Kept for scripts: the engine runs the casts a model has."""

    NONE = 0
    INSERT_AND_REDUCE = 1
    FLOOD_FILL = 2
