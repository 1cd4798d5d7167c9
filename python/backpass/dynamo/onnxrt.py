"""Importing it makes ``onnxrt``, a name torch no longer uses, another name of the backend."""

from __future__ import annotations

import functools

from backpass.dynamo import registration

register = functools.partial(registration.register, "onnxrt")
unregister = functools.partial(registration.unregister, "onnxrt")

register()
