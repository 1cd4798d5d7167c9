"""Models built by stacking blocks: custom losses, optimizers, training models.

```
with onnxblock.base(model) as accessor:
    loss = onnxblock.loss.CrossEntropyLoss()("logits")
accessor.model  # with the loss on top
```
"""

from backpass import _needs_onnx  # noqa: F401

# isort: split

from backpass.onnxblock import blocks, loss, optim
from backpass.onnxblock.blocks import Block
from backpass.onnxblock.checkpoint_utils import load_checkpoint_to_model, save_checkpoint
from backpass.onnxblock.model_accessor import base, custom_op_library, empty_base
from backpass.onnxblock.onnxblock import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
