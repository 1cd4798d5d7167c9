"""What users put beside a checkpoint: JSON, as text of hexadecimal digits.

The original pickles it, and unpickling a file from elsewhere runs whatever its author wanted: such text is refused
unless the caller says that it can be trusted.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

_KIND = "__kind__"
_PLAIN = (bool, int, float, str, type(None))


def to_serialized_hex(user_dict: Any) -> str:
    """Of dicts, lists, tuples, sets, numbers, text, bytes, numpy arrays and torch tensors. TypeError for others."""
    return json.dumps(_plain("user_dict", user_dict), separators=(",", ":")).encode().hex()


def from_serialized_hex(serialized_hex: str | bytes, allow_pickle: bool = False) -> Any:
    """What `to_serialized_hex` was given. `allow_pickle`: also what the original wrote, from files that you trust."""
    text = serialized_hex.decode() if isinstance(serialized_hex, bytes) else str(serialized_hex)
    try:
        data = bytes.fromhex(text)
        if not data.startswith(b"\x80"):  # the first byte of every pickle since protocol 2
            return _original(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        text = f"user_dict: got text that is damaged ({error}), expected what save_checkpoint wrote"
        raise ValueError(f"{text}; read the rest by load_state_dict") from error
    if not allow_pickle:
        raise ValueError(
            "the user_dict of this checkpoint was written by pickle, which can run any code when it is read: "
            "pass allow_pickle=True if you trust where the file comes from"
        )
    import pickle

    return pickle.loads(data)


def _plain(path: str, value: Any) -> Any:
    """The value as JSON can write it; what JSON does not know is a dict that says what it is."""
    if isinstance(value, np.generic):
        return {_KIND: "scalar", **_packed(np.asarray(value))}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list):
        return [_plain(f"{path}[{i}]", inner) for i, inner in enumerate(value)]
    if isinstance(value, (tuple, set, frozenset)):
        kind = type(value).__name__ if type(value) in (tuple, set, frozenset) else "tuple"
        return {_KIND: kind, "items": [_plain(f"{path}[{i}]", inner) for i, inner in enumerate(value)]}
    if isinstance(value, dict):
        return _plain_dict(path, value)
    if isinstance(value, bytes):
        return {_KIND: "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {_KIND: "array", **_packed(value)}
    if type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach"):
        return _plain_tensor(value)
    kinds = "numbers, text, bytes, lists, tuples, sets, dicts, numpy arrays and torch tensors"
    raise TypeError(f"{path}: got {type(value).__name__}, which a checkpoint cannot hold; expected {kinds}")


def _plain_dict(path: str, value: dict[Any, Any]) -> dict[str, Any]:
    if all(isinstance(key, str) for key in value) and _KIND not in value:
        return {key: _plain(f"{path}[{key!r}]", inner) for key, inner in value.items()}
    pairs = [[_plain(path, key), _plain(f"{path}[{key!r}]", inner)] for key, inner in value.items()]
    return {_KIND: "dict", "items": pairs}


def _plain_tensor(tensor: Any) -> dict[str, Any]:
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return {_KIND: "bfloat16", **_packed(tensor.view(torch.uint16).numpy())}
    return {_KIND: "tensor", **_packed(tensor.numpy())}


def _packed(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _original(value: Any) -> Any:
    if isinstance(value, list):
        return [_original(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: _original(inner) for key, inner in value.items()}
    if kind == "dict":
        return {_original(key): _original(inner) for key, inner in value["items"]}
    if kind in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](_original(i) for i in value["items"])
    return _unpacked(kind, value)


def _unpacked(kind: str, value: dict[str, Any]) -> Any:
    data = base64.b64decode(value["data"])
    if kind == "bytes":
        return data
    array = np.frombuffer(data, value["dtype"]).reshape(value["shape"]).copy()
    if kind == "array":
        return array
    if kind == "scalar":
        return array[()]
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor
