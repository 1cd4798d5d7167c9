"""The switch of the original for torch.autograd.Function."""

import os


def enable_custom_autograd_support(to_enable: bool = True) -> None:
    """Whether modules that are wrapped from here on keep each torch.autograd.Function as one operator."""
    os.environ["ORTMODULE_ENABLE_CUSTOM_AUTOGRAD"] = "1" if to_enable else "0"
