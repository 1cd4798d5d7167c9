"""Looking into modules while they train, in PyTorch and in ORTModule alike: docs/compatibility.md."""

from backpass import _needs_torch  # noqa: F401

# isort: split

import torch

from backpass.utils.hooks._statistics_subscriber import StatisticsSubscriber, _InspectActivation, inspect
from backpass.utils.hooks._subscriber_base import SubscriberBase
from backpass.utils.hooks._subscriber_manager import SubscriberManager
from backpass.utils.hooks._zero_offload_subscriber import ZeROOffloadSubscriber, configure_ort_compatible_zero_stage3

__all__ = [
    "GlobalSubscriberManager",
    "StatisticsSubscriber",
    "SubscriberBase",
    "SubscriberManager",
    "ZeROOffloadSubscriber",
    "_InspectActivation",
    "configure_ort_compatible_zero_stage3",
    "inspect_activation",
]

GlobalSubscriberManager = SubscriberManager()


def inspect_activation(activation_name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, to go on with: what it holds, and its gradient, are summarized under that name.

    For code inside of a module, where a StatisticsSubscriber is subscribed to.
    """
    try:
        subscriber = GlobalSubscriberManager.get_subscriber(StatisticsSubscriber)
    except RuntimeError as error:
        raise RuntimeError(
            "inspect_activation: StatisticsSubscriber is not registered; call GlobalSubscriberManager.subscribe first"
        ) from error
    return inspect(subscriber, GlobalSubscriberManager.get_run_context(), activation_name, None, tensor)
