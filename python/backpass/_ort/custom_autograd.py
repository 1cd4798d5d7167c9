"""The switch of the original for torch.autograd.Function."""

import os

_VARIABLE = "ORTMODULE_ENABLE_CUSTOM_AUTOGRAD"


class Enabler:
    """Whether each torch.autograd.Function stays one operator."""

    @property
    def state(self) -> bool:
        return os.environ.get(_VARIABLE, "1") != "0"

    @state.setter
    def state(self, value: bool) -> None:
        os.environ[_VARIABLE] = "1" if value else "0"

    @property
    def already_enabled(self) -> bool:
        return True


custom_autograd_function_enabler = Enabler()


def enable_custom_autograd_support(to_enable: bool = True) -> None:
    """Whether modules that are wrapped from here on keep each torch.autograd.Function as one operator."""
    custom_autograd_function_enabler.state = to_enable
