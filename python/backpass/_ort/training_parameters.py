"""TrainingParameters: settings of a trainer that is gone, for scripts that still fill them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["TrainingParameters"]


@dataclass(slots=True)  # other names are errors, as in the original
class TrainingParameters:
    """Kept as they are set; nothing reads them. `backpass.ORTTrainer` takes these settings as arguments."""

    allreduce_post_accumulation: bool = False
    attn_dropout_recompute: bool = False
    data_parallel_size: int = 1
    deepspeed_zero_stage: int = 0
    enable_adasum: bool = False
    enable_grad_norm_clip: bool = True
    gelu_recompute: bool = False
    gradient_accumulation_steps: int = 1
    horizontal_parallel_size: int = 1
    loss_output_name: str = ""
    loss_scale: float = 0.0
    lr_params_feed_name: str = "Learning_Rate"
    model_after_graph_transforms_path: str = ""
    model_with_gradient_graph_path: str = ""
    model_with_training_graph_path: str = ""
    num_pipeline_micro_batches: int = 1
    number_recompute_layers: int = 0
    optimizer_attributes_map: dict[str, Any] = field(default_factory=dict)
    optimizer_int_attributes_map: dict[str, Any] = field(default_factory=dict)
    pipeline_cut_info_string: str = ""
    pipeline_parallel_size: int = 1
    propagate_cast_ops_allow: list[str] = field(default_factory=list)
    propagate_cast_ops_level: int = 1
    propagate_cast_ops_strategy: int = 2
    set_gradients_as_graph_outputs: bool = False
    sliced_axes: dict[str, Any] = field(default_factory=dict)
    sliced_schema: dict[str, Any] = field(default_factory=dict)
    sliced_tensor_names: list[str] = field(default_factory=list)
    training_optimizer_name: str = ""
    transformer_layer_recompute: bool = False
    use_fp16_moments: bool = False
    use_memory_efficient_gradient: bool = False
    use_mixed_precision: bool = False
    weights_not_to_train: set[str] = field(default_factory=set)
    weights_to_train: set[str] = field(default_factory=set)
    world_rank: int = 0
    world_size: int = 1
