"""ORTTrainer of the first generation, as ``onnxruntime.capi.ort_trainer`` had it."""

from backpass.trainer.checkpoint import load_checkpoint, save_checkpoint
from backpass.trainer.descriptions import IODescription, ModelDescription, generate_sample
from backpass.trainer.loss_scaler import LossScaler
from backpass.trainer.ort_trainer import ORTTrainer

__all__ = [
    "IODescription",
    "LossScaler",
    "ModelDescription",
    "ORTTrainer",
    "generate_sample",
    "load_checkpoint",
    "save_checkpoint",
]
