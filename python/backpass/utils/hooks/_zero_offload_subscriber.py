"""The original's support for ZeRO stage 3 of DeepSpeed, which Backpass has not: names, and what to do without it."""

from __future__ import annotations

from typing import Any

from backpass import Unsupported
from backpass.utils.hooks._subscriber_base import SubscriberBase

_INSTEAD = (
    "ZeRO stage 3 of DeepSpeed: got a request for it, expected none, since Backpass keeps every parameter whole; wrap "
    "the ORTModule in DistributedDataParallel, or let a trainer split the optimizer's state (ZeRO stage 1)"
)


class ZeROOffloadSubscriber(SubscriberBase):
    """Says what to do instead."""

    def __init__(self, offloader: Any, one_time_init: Any, enable_debug_info: bool = False) -> None:
        raise Unsupported(_INSTEAD)


def configure_ort_compatible_zero_stage3(
    debug: bool = False, stats_output_dir: str = "", stats_overwrite: bool = False
) -> None:
    """Says what to do instead."""
    raise Unsupported(_INSTEAD)
