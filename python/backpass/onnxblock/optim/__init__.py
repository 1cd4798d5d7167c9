"""Optimizers: blocks called with the parameters of a training block, inside an empty base."""

from backpass.onnxblock.optim.optim import SGD, AdamW, ClipGradNorm

__all__ = ["SGD", "AdamW", "ClipGradNorm"]
