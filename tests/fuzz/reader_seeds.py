"""Write the seed corpus of reader_fuzz: the small models of ONNX's own tests, and models with rarely used fields.

Usage: python tests/fuzz/reader_seeds.py FOLDER
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.backend.test.case.node import collect_testcases

LARGEST = 2000  # bytes: longer inputs slow the fuzzer down more than they teach it


def typed_tensors() -> list[TensorProto]:
    """One tensor per element type, its data in the typed field."""
    tensors = []
    for data_type in sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}):
        name = TensorProto.DataType.Name(data_type).lower()
        values = [b"a", b"", b"c"] if data_type == TensorProto.STRING else np.array([0, 1, 1])
        tensors.append(helper.make_tensor(name, data_type, [3], values))
    return tensors


def sparse_tensor() -> onnx.SparseTensorProto:
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor("indices", TensorProto.INT64, [2], [0, 5])
    return helper.make_sparse_tensor(values, indices, [8])


def types() -> list[onnx.TypeProto]:
    """Every kind of type, some nested."""
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, "n", None])
    opaque = onnx.TypeProto(opaque_type=onnx.TypeProto.Opaque(domain="d", name="o"), denotation="x")
    return [
        tensor,
        helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, None),
        helper.make_sequence_type_proto(helper.make_optional_type_proto(tensor)),
        helper.make_map_type_proto(TensorProto.STRING, tensor),
        opaque,
    ]


def rich_model() -> onnx.ModelProto:
    """A model that uses the fields the backend tests leave out."""
    graph = helper.make_graph([], "inner", [], [])
    node = helper.make_node("Op", ["x", ""], ["y"], name="n", domain="local", overload="v", doc_string="doc")
    values = {
        "float": 1.0, "int": 1, "string": "s", "tensor": typed_tensors()[0], "graph": graph,
        "floats": [1.0, 2.0], "ints": [1, 2], "strings": ["a", ""], "tensors": typed_tensors()[:2],
        "graphs": [graph, graph], "sparse": sparse_tensor(), "sparses": [sparse_tensor()],
        "type": types()[0], "types": types(),
    }  # fmt: skip
    node.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())
    node.attribute.add(name="ref", type=onnx.AttributeProto.INT, ref_attr_name="alpha")
    node.device_configurations.add(configuration_id="c", pipeline_stage=1)
    helper.set_metadata_props(node, {"k": "v"})
    inputs = [helper.make_value_info(f"i{i}", type_proto) for i, type_proto in enumerate(types())]
    main = helper.make_graph([node], "g", inputs, [], typed_tensors(), "doc", [], [sparse_tensor()])
    main.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    function = helper.make_function(
        "local", "Op", ["x"], ["y"], [node], [helper.make_opsetid("", 18)], ["alpha"], overload="v"
    )
    model = helper.make_model(
        main, functions=[function], producer_name="p", opset_imports=[helper.make_opsetid("", 21)]
    )
    model.training_info.add().initialization.name = "t"
    model.configuration.add(name="c", num_devices=2)
    return model


def external_model() -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.data", "offset": "0", "length": "16"}.items():
        tensor.external_data.add(key=key, value=value)
    return helper.make_model(helper.make_graph([], "g", [], [], [tensor]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    models = [case.model for case in collect_testcases(None) if case.model is not None]
    seeds = [model.SerializeToString() for model in models]
    seeds = [seed for seed in seeds if len(seed) <= LARGEST]
    seeds += [rich_model().SerializeToString(), external_model().SerializeToString()]
    seeds += [tensor.SerializeToString() for tensor in typed_tensors()]
    for seed in seeds:
        (folder / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    print(f"{len(seeds)} seeds in {folder}")


if __name__ == "__main__":
    main()
