#include "model/export.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <type_traits>

#include "graph/op.hpp"
#include "onnx_io/standard_operators.hpp"

namespace backpass {
namespace {

/// The oldest file format that may hold an opset, as the standard pairs them.
std::int64_t ir_version_for(std::int64_t opset) {
  if (opset <= 22) return 10;
  if (opset == 23) return 11;
  if (opset == 24) return 12;
  return opset <= 27 ? 13 : 14;
}

onnx_io::AttributeProto make_attribute(const std::string& name, onnx_io::AttributeProto::Type type) {
  onnx_io::AttributeProto a;
  a.name = name;
  a.type = type;
  return a;
}

onnx_io::AttributeProto attribute_proto(const std::string& name, const Attribute& attribute) {
  using Kind = onnx_io::AttributeProto::Type;
  return std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        onnx_io::AttributeProto a = make_attribute(name, Kind::undefined);
        if constexpr (std::is_same_v<T, std::int64_t>) {
          a.type = Kind::int_;
          a.i = v;
        } else if constexpr (std::is_same_v<T, float>) {
          a.type = Kind::float_;
          a.f = v;
        } else if constexpr (std::is_same_v<T, std::string>) {
          a.type = Kind::string;
          a.s = v;
        } else if constexpr (std::is_same_v<T, Tensor>) {
          a.type = Kind::tensor;
          a.tensors.push_back(to_proto(v, ""));
        } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
          a.type = Kind::ints;
          a.ints = v;
        } else if constexpr (std::is_same_v<T, std::vector<float>>) {
          a.type = Kind::floats;
          a.floats = v;
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          a.type = Kind::strings;
          a.strings = v;
        } else if constexpr (std::is_same_v<T, std::vector<Tensor>>) {
          a.type = Kind::tensors;
          for (const Tensor& t : v) a.tensors.push_back(to_proto(t, ""));
        } else {
          static_assert(std::is_same_v<T, Type>);
          a.type = Kind::type_proto;
          a.type_protos.push_back(to_proto(v));
        }
        return a;
      },
      attribute);
}

constexpr const char* kProducer = "backpass";

/// Writes one model. Names of values in subgraphs are made different from all others, as the standard demands.
class Exporter {
 public:
  explicit Exporter(const ExportOptions& options) : options_(options), opset_(options.opset) {}

  onnx_io::ModelProto run(const Graph& graph) {
    onnx_io::ModelProto model;
    for (const auto& v : graph.values()) {
      names_.emplace(v.get(), v->name);
      taken_.insert(v->name);
    }
    model.graph = write(graph, true);
    model.ir_version = ir_version_for(opset_);
    model.producer_name = kProducer;
    model.opset_import.push_back({"", opset_});
    for (const auto& [domain, version] : other_domains_) model.opset_import.push_back({domain, version});
    return model;
  }

 private:
  onnx_io::GraphProto write(const Graph& graph, bool is_main) {
    onnx_io::GraphProto proto;
    proto.name = graph.name.empty() ? "graph" : graph.name;
    for (const Capture& c : graph.captures) names_[c.inner] = name(c.outer);
    std::set<const Value*> used(graph.outputs.begin(), graph.outputs.end());
    for (const Node* node : graph.nodes()) {
      for_each_read(*node, [&](const Value* v) { used.insert(v); });
    }
    for (const Value* v : graph.inputs) proto.input.push_back(info(v, name(v)));
    for (const auto& v : graph.values()) {
      if (v->constant && used.count(v.get()) != 0 && !is_captured(graph, v.get())) {
        proto.initializer.push_back(to_proto(*v->constant, name(v.get())));
      }
    }
    for (const Node* node : graph.nodes()) proto.node.push_back(write(*node));
    add_outputs(graph, is_main, proto);
    if (is_main && options_.with_types) add_types(graph, proto);
    return proto;
  }

  static bool is_captured(const Graph& graph, const Value* v) {
    return std::any_of(graph.captures.begin(), graph.captures.end(), [&](const Capture& c) { return c.inner == v; });
  }

  void add_outputs(const Graph& graph, bool is_main, onnx_io::GraphProto& proto) {
    std::set<std::string> seen;
    for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
      const Value* v = graph.outputs[i];
      std::string wanted = name(v);
      if (is_main && i < options_.output_names.size()) wanted = options_.output_names[i];
      // An output of a subgraph must be the result of one of its nodes; none may be given twice.
      const bool is_own = wanted == name(v) && (is_main || v->producer != nullptr);
      if (!is_own || !seen.insert(wanted).second) {
        if (wanted == name(v)) wanted = unique(name(v) + "_out");
        onnx_io::NodeProto identity;
        identity.op_type = "Identity";
        identity.name = wanted + "/Identity";
        identity.input = {name(v)};
        identity.output = {wanted};
        proto.node.push_back(std::move(identity));
        seen.insert(wanted);
      }
      proto.output.push_back(info(v, wanted));
      const bool is_gradient = i >= graph.first_gradient && i - graph.first_gradient < graph.gradient_count;
      if (is_gradient) proto.output.back().metadata_props.emplace_back(kGradientMark, "");
    }
  }

  void add_types(const Graph& graph, onnx_io::GraphProto& proto) {
    for (const Node* node : graph.nodes()) {
      for (const Value* v : node->outputs) {
        if (v == nullptr || v->type.kind == Type::Kind::unknown || graph.is_output(v)) continue;
        proto.value_info.push_back(info(v, name(v)));
      }
    }
  }

  onnx_io::NodeProto write(const Node& node) {
    ensure(node.def == nullptr || !node.def->is_lowered, shown(node), " has no form in a file");
    onnx_io::NodeProto proto;
    proto.name = node.name;
    proto.op_type = node.op;
    proto.domain = node.domain;
    for (const Value* v : node.inputs) proto.input.push_back(v == nullptr ? "" : name(v));
    for (const Value* v : node.outputs) proto.output.push_back(v == nullptr ? "" : name(v));
    while (!proto.input.empty() && proto.input.back().empty()) proto.input.pop_back();
    while (!proto.output.empty() && proto.output.back().empty()) proto.output.pop_back();
    for (const auto& [key, attribute] : node.attributes) proto.attribute.push_back(attribute_proto(key, attribute));
    for (const auto& [key, graph] : node.subgraphs) {
      onnx_io::AttributeProto a = make_attribute(key, onnx_io::AttributeProto::Type::graph);
      a.graphs.push_back(std::make_shared<onnx_io::GraphProto>(write(*graph, false)));
      proto.attribute.push_back(std::move(a));
    }
    need_opset(node, proto);
    return proto;
  }

  /// The oldest version in which the node means what it means here (the youngest change that an adapter lifts over)
  /// and the standard has it so.
  void need_opset(const Node& node, const onnx_io::NodeProto& proto) {
    if (node.opset != 0) {  // still as a file had it
      std::int64_t& known = node.domain.empty() ? opset_ : other_domains_[node.domain];
      known = std::max(known, node.opset);
      return;
    }
    if (!node.domain.empty()) {
      auto version = static_cast<std::int64_t>(node.def == nullptr ? 1 : node.def->since);
      std::int64_t& known = other_domains_[node.domain];
      known = std::max(known, version);
      return;
    }
    for (const Adapter* a : adapters_for(node.domain, node.op, 0)) opset_ = std::max<std::int64_t>(opset_, a->below);
    opset_ = onnx_io::oldest_standard_opset(proto, element_types(node.inputs), element_types(node.outputs), opset_);
  }

  static std::vector<DType> element_types(const std::vector<Value*>& values) {
    std::vector<DType> types;
    types.reserve(values.size());
    for (const Value* v : values) types.push_back(v == nullptr ? DType::undefined : v->type.dtype);
    return types;
  }

  const std::string& name(const Value* v) {
    auto it = names_.find(v);
    return it != names_.end() ? it->second : names_.emplace(v, unique(v->name)).first->second;
  }

  std::string unique(const std::string& wanted) {
    std::string result = wanted;
    for (int i = 1; !taken_.insert(result).second; ++i) result = concat(wanted, "_", i);
    return result;
  }

  static onnx_io::ValueInfoProto info(const Value* v, const std::string& name) {
    onnx_io::ValueInfoProto proto;
    proto.name = name;
    proto.type = to_proto(v->type);
    return proto;
  }

  const ExportOptions& options_;
  std::int64_t opset_;
  std::map<std::string, std::int64_t> other_domains_;
  std::map<const Value*, std::string> names_;
  std::set<std::string> taken_;
};

}  // namespace

onnx_io::TensorProto to_proto(const Tensor& tensor, const std::string& name) {
  onnx_io::TensorProto proto;
  proto.name = name;
  proto.data_type = tensor.dtype();
  proto.dims = tensor.dims();
  if (tensor.dtype() == DType::string) {
    std::span<const std::string> texts = tensor.values<std::string>();
    proto.string_data.assign(texts.begin(), texts.end());
  } else {
    auto keeper = std::make_shared<const Tensor>(tensor);
    proto.data = {{static_cast<const char*>(tensor.data()), tensor.bytes()}, keeper};
  }
  return proto;
}

onnx_io::TypeProto to_proto(const Type& type) {
  onnx_io::TypeProto proto;
  switch (type.kind) {
    case Type::Kind::unknown:
      return proto;
    case Type::Kind::tensor:
      proto.kind = onnx_io::TypeProto::Kind::tensor;
      proto.elem_type = type.dtype;
      if (!type.shape) return proto;
      proto.shape.emplace();
      for (const Dim& d : *type.shape) {
        onnx_io::DimProto dim;
        if (d.is_known()) {
          dim.value = d.value();
        } else {
          dim.param = d.str();
        }
        proto.shape->push_back(std::move(dim));
      }
      return proto;
    case Type::Kind::sequence:
    case Type::Kind::optional:
      proto.kind =
          type.kind == Type::Kind::sequence ? onnx_io::TypeProto::Kind::sequence : onnx_io::TypeProto::Kind::optional;
      proto.element = std::make_shared<onnx_io::TypeProto>(to_proto(*type.element));
      return proto;
  }
  return proto;
}

bool is_ours(const onnx_io::ModelProto& model) { return model.producer_name == kProducer; }

onnx_io::ModelProto export_graph(const Graph& graph, const ExportOptions& options) {
  return Exporter(options).run(graph);
}

}  // namespace backpass
