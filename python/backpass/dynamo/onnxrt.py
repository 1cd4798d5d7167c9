"""Importing it makes ``onnxrt``, a name torch no longer uses, another name of the backend."""

from __future__ import annotations

from backpass.dynamo import registration

NAME = "onnxrt"


def register() -> None:
    registration.register(NAME)


def unregister() -> None:
    registration.unregister(NAME)


register()
