"""Train a small Llama through torch.compile, and look at the models that were made of its graphs.

The forward and the backward graph of AOTAutograd are each exported and run by the engine. With --exporter torch they
are exported by torch.onnx instead.
"""

import argparse
import copy
import os
import warnings

import numpy as np
import onnx
import torch
from backpass.dynamo import dump_onnx, make_aot_ort, train_loop

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--exporter", choices=["backpass", "torch"], default="backpass")
parser.add_argument("--folder", default="dump_llama")
arguments = parser.parse_args()


def ids_tensor(shape, vocab_size):
    total_dims = 1
    for dim in shape:
        total_dims *= dim
    values = [np.random.randint(0, vocab_size - 1) for _ in range(total_dims)]
    return torch.tensor(data=values, dtype=torch.long).view(shape).contiguous()


config = LlamaConfig(
    hidden_size=16,
    num_hidden_layers=1,
    vocab_size=1024,
    intermediate_size=16,
    max_position_embeddings=1024,
    num_attention_heads=2,
)
config._attn_implementation = "eager"

model = LlamaModel(config)

batch, seq, vocab_size = 2, 1024, 1024

input_ids = ids_tensor([batch, seq], vocab_size)
input_mask = torch.tril(torch.ones(batch, seq, dtype=torch.float32))

eager_loss, eager_gradients = train_loop(copy.deepcopy(model), input_ids, input_mask)

os.environ["ONNXRT_CHANGE_REWRITER"] = "1" if arguments.exporter == "backpass" else "0"

local_aot_ort, record = make_aot_ort(dynamic=True, rewrite=arguments.exporter == "torch", verbose=1)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    optimized_mod = torch.compile(model, backend=local_aot_ort, fullgraph=True)
    with dump_onnx("dort-llama-ort", folder=arguments.folder, clean=True):
        loss, gradients = train_loop(optimized_mod, input_ids, input_mask)

names = sorted(name for name in os.listdir(arguments.folder) if name.endswith(".onnx"))
print("------------------------------------------")
print(f"exported model: {names}")
for name in names:
    print()
    print(f"NODES in {name!r}")
    onx = onnx.load(os.path.join(arguments.folder, name))
    for i, node in enumerate(onx.graph.node):
        print(f"{i + 1}/{len(onx.graph.node)}: {node.op_type} {node.input} -> {node.output}")

difference = max((a - b).abs().max().item() for a, b in zip(gradients, eager_gradients, strict=True) if a is not None)
print(f"loss {loss:.6f}, eager {eager_loss:.6f}; gradients differ by at most {difference:.1e}")
print(f"{sum(g.native for g in record.graphs)} of {len(record.graphs)} graphs run in the engine alone")
