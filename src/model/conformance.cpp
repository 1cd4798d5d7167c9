#include "model/conformance.hpp"

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>

#include "model/import.hpp"
#include "onnx_io/standard_operators.hpp"

namespace backpass {
namespace {

using Opsets = std::map<std::string, std::int64_t>;

template <class... Args>
void note(const onnx_io::NodeProto& node, std::vector<Problem>& problems, const Args&... args) {
  const std::string& name = node.name.empty() && !node.output.empty() ? node.output.front() : node.name;
  std::string text = concat("[", node.op_type, " '", name, "'] ", args...);
  problems.push_back({Problem::Kind::invalid, name, node.op_type, std::move(text)});
}

class Checker {
 public:
  explicit Checker(const onnx_io::ModelProto& model) {
    for (const onnx_io::FunctionProto& f : model.functions) functions_.insert({f.domain, f.name, f.overload});
    for (const onnx_io::OpsetId& id : model.opset_import) opsets_[id.domain] = id.version;
  }

  std::vector<Problem> run(const onnx_io::ModelProto& model) {
    check(model.graph.node, opsets_);
    for (const onnx_io::FunctionProto& f : model.functions) {
      Opsets opsets = opsets_;
      for (const onnx_io::OpsetId& id : f.opset_import) opsets[id.domain] = id.version;
      check(f.node, opsets);
    }
    return std::move(problems_);
  }

 private:
  void check(const std::vector<onnx_io::NodeProto>& nodes, const Opsets& opsets) {
    for (const onnx_io::NodeProto& node : nodes) {
      check(node, opsets);
      for (const onnx_io::AttributeProto& a : node.attribute) {
        for (const auto& graph : a.graphs) check(graph->node, opsets);
      }
    }
  }

  void check(const onnx_io::NodeProto& node, const Opsets& opsets) {
    auto opset = opsets.find(node.domain);
    if (opset == opsets.end() || functions_.count({node.domain, node.op_type, node.overload}) != 0) return;
    const bool is_readable = opset->second >= kOldestOpset && opset->second <= kNewestOpset;
    if (node.domain.empty() && !is_readable) return;  // which the import says
    for (const std::string& text : onnx_io::standard_problems(node, opset->second)) note(node, problems_, text);
  }

  std::set<std::tuple<std::string, std::string, std::string>> functions_;
  Opsets opsets_;
  std::vector<Problem> problems_;
};

/// Kinds, element types, and the same of elements; what is not known fits everything.
bool contradict(const Type& a, const Type& b) {
  if (a.kind == Type::Kind::unknown || b.kind == Type::Kind::unknown) return false;
  if (a.kind != b.kind) return true;
  if (a.kind != Type::Kind::tensor) return contradict(*a.element, *b.element);
  return a.dtype != DType::undefined && b.dtype != DType::undefined && a.dtype != b.dtype;
}

std::string brief(const Type& type) { return type.is_tensor() ? std::string(name_of(type.dtype)) : type.str(); }

/// Not known where it is of a kind that Backpass does not have.
Type declared_type(const onnx_io::ValueInfoProto& info) {
  using Kind = onnx_io::TypeProto::Kind;
  const onnx_io::TypeProto* innermost = &info.type;
  while (innermost->element != nullptr && innermost->kind != Kind::map) innermost = innermost->element.get();
  return innermost->kind == Kind::tensor ? to_type(info.type, info.name) : Type{};
}

using Values = std::unordered_map<std::string_view, const Value*>;

/// What became of a subgraph of a node; null where the node was replaced by others.
const Graph* body_of(const Values& values, const onnx_io::NodeProto& node, const std::string& key) {
  for (const std::string& output : node.output) {
    auto value = values.find(output);
    if (value == values.end() || value->second->producer == nullptr) continue;
    for (const auto& [name, body] : value->second->producer->subgraphs) {
      if (name == key) return body.get();
    }
  }
  return nullptr;
}

void check_declared_types(const onnx_io::GraphProto& proto, const Graph& graph, std::vector<Problem>& problems) {
  Values values;
  for (const auto& v : graph.values()) values.emplace(v->name, v.get());
  std::unordered_map<std::string_view, const onnx_io::NodeProto*> producers;
  for (const onnx_io::NodeProto& node : proto.node) {
    for (const std::string& output : node.output) producers.emplace(output, &node);
  }
  auto check = [&](const onnx_io::ValueInfoProto& info, const Type& type) {
    const Type declared = declared_type(info);
    auto producer = producers.find(info.name);
    if (producer == producers.end() || !contradict(declared, type)) return;
    note(*producer->second, problems, "type of '", info.name, "': got ", brief(type), ", expected the declared ",
         brief(declared));
  };
  for (std::size_t i = 0; i < proto.output.size(); ++i) check(proto.output[i], graph.outputs.at(i)->type);
  for (const onnx_io::ValueInfoProto& info : proto.value_info) {
    auto value = values.find(info.name);
    if (value != values.end()) check(info, value->second->type);
  }
  for (const onnx_io::NodeProto& node : proto.node) {
    for (const onnx_io::AttributeProto& a : node.attribute) {
      const Graph* body = a.graphs.size() == 1 ? body_of(values, node, a.name) : nullptr;
      if (body != nullptr && body->outputs.size() == a.graphs.front()->output.size()) {
        check_declared_types(*a.graphs.front(), *body, problems);
      }
    }
  }
}

}  // namespace

std::vector<Problem> check_nodes(const onnx_io::ModelProto& model) { return Checker(model).run(model); }

std::vector<Problem> check_declared_types(const onnx_io::GraphProto& proto, const Graph& graph) {
  std::vector<Problem> problems;
  check_declared_types(proto, graph, problems);
  return problems;
}

}  // namespace backpass
