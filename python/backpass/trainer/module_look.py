"""ModuleLook: what of a torch module captured models depend on, and its tensors as the native trainer's state."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from backpass import _core
from backpass._core import InvalidInput, Unsupported
from backpass.ortmodule.tree import ModuleTree


class ModuleLook:
    """A module from the outside. It may be put into another mode, only while something is captured."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._tree: ModuleTree | None = None
        self._trains: dict[int, bool] = {}  # modes of parts when the whole was training
        self._states: dict[Hashable, int] = {}
        self._now: dict[bool, int] = {}

    def now(self) -> ModuleTree:
        """As things are."""
        if self._tree is None or not self._tree.unchanged():
            self._tree = ModuleTree(self.module)
            self._now.clear()
            if self.module.training:
                self._trains = {id(m): m.training for m in self.module.modules()}
        return self._tree

    def state(self, training: bool) -> int:
        """A number for all that a capture in this mode depends on, as of the latest look."""
        found = self._now.get(training)
        if found is None:
            with self.mode(training):
                found = self._now[training] = self._number(ModuleTree(self.module))
        return found

    def _number(self, tree: ModuleTree) -> int:
        return self._states.setdefault(tree.key, len(self._states))

    def settle(self, training: bool, number: int) -> None:
        """After a capture: attributes that forward itself has set are not a change."""
        if self._tree is not None and not self._tree.unchanged():
            self.now()
            with self.mode(training):
                self._states[ModuleTree(self.module).key] = number

    @contextlib.contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        """Training: as it is if the whole is in that mode, else as it was then, and all parts if it never was."""
        before = [(m, m.training) for m in self.module.modules()]
        try:
            if not training or not self.module.training:
                for part, _ in before:
                    part.training = training and self._trains.get(id(part), True)
            yield
        finally:
            for part, was in before:
                part.training = was


class SharedTensors:
    """A module's parameters and buffers, which the native trainer reads and writes where torch has them."""

    def __init__(self, module: nn.Module, frozen: Sequence[str]) -> None:
        self.module = module
        parameters = dict(module.named_parameters())
        everything: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
        everything |= dict(module.named_buffers(remove_duplicate=False))
        unknown = [name for name in frozen if name not in everything]
        if unknown:
            raise RuntimeError(f"{unknown} in frozen_weights not found in model weights.")
        held = {id(everything[name]) for name in frozen}
        self.trained = [n for n, p in parameters.items() if p.requires_grad and id(p) not in held]
        self._required = {name: p.requires_grad for name, p in parameters.items()}
        known = {id(p) for p in parameters.values()}
        self.names = [*parameters, *(name for name, b in module.named_buffers() if id(b) not in known)]
        self._numbers = {name: i for i, name in enumerate(self.names)}
        self._tree: ModuleTree | None = None
        self._places: list[tuple[dict[str, Any], str]] = []
        self._pointers: list[Hashable] = []
        self._kinds: list[tuple[torch.dtype, torch.Size]] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # of those that are not contiguous

    def _look(self, tree: ModuleTree) -> None:
        """Finds out where the module has its tensors."""
        missing = [name for name in self.names if name not in tree.slots]
        if missing:
            raise InvalidInput(f"module: got none with the tensors {missing}, expected them as before")
        self._tree, self._places = tree, [tree.slots[name] for name in self.names]

    def make_state(self) -> _core.CheckpointState:
        self._look(ModuleTree(self.module))
        state, trained = _core.CheckpointState(), set(self.trained)
        tensors = [place[name] for place, name in self._places]
        for name, tensor in zip(self.names, tensors, strict=True):
            _check(name, tensor)
            self._kinds.append((tensor.dtype, tensor.shape))
            state.share_parameter(name, self._lent(tensor), name in trained)
        self._pointers = [_place(t) for t in tensors]
        return state

    def _lent(self, tensor: torch.Tensor) -> _core.Tensor:
        plain = tensor.detach()
        if not plain.is_contiguous():
            plain = plain.contiguous()
            self._copies.append((tensor, plain))
        return _core.tensors_from_torch([plain])[0]

    def refresh(self, state: _core.CheckpointState, tree: ModuleTree) -> None:
        """Shares again what was replaced; cheap where nothing was."""
        if tree is not self._tree:
            self._look(tree)
        now = [place[name] for place, name in self._places]
        pointers = [_place(t) for t in now]
        if pointers != self._pointers:
            self._copies = []
            trained = set(self.trained)
            for name, tensor, kind in zip(self.names, now, self._kinds, strict=True):
                _check(name, tensor, kind)
                self._check_training(name, tensor)
                state.share_parameter(name, self._lent(tensor), name in trained)
            self._pointers = pointers
        for tensor, copy in self._copies:
            copy.copy_(tensor.detach())

    def _check_training(self, name: str, tensor: torch.Tensor) -> None:
        if name in self._required and tensor.requires_grad != self._required[name]:
            raise InvalidInput(
                f"parameter '{name}': got requires_grad={tensor.requires_grad} after the first step, expected "
                f"{self._required[name]} as before; make another trainer"
            )

    def after_step(self, names: Sequence[str]) -> None:
        """The engine has written to these: torch is told."""
        for tensor, copy in self._copies:
            with torch.no_grad():
                tensor.copy_(copy)
        places = [self._places[self._numbers[name]] for name in names]
        torch.autograd.graph.increment_version([place[name] for place, name in places])


def _place(tensor: torch.Tensor) -> Hashable:
    """What changes when it is other memory, or other elements of it, or trained or not."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.requires_grad


def _check(name: str, tensor: torch.Tensor, kind: tuple[torch.dtype, torch.Size] | None = None) -> None:
    if nn.parameter.is_lazy(tensor):
        raise InvalidInput(
            f"parameter '{name}': got none yet, it gets its shape by the first call: call the module once"
        )
    if tensor.device.type != "cpu":
        raise Unsupported(f"parameter '{name}': got device {tensor.device}, expected cpu; use module.cpu()")
    now = tensor.dtype, tensor.shape
    if kind not in (None, now):
        got, expected = (f"{dtype} {list(shape)}" for dtype, shape in (now, kind))
        raise InvalidInput(f"parameter '{name}': got {got}, expected {expected} as before; make another trainer")
