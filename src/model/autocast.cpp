#include "model/autocast.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "model/import.hpp"
#include "onnx_io/proto.hpp"

namespace backpass {
namespace {

using onnx_io::NodeProto;

enum class Kind : std::uint8_t { wide, narrow, follows };

// Operators of the default domain and of com.microsoft whose sums run over many elements, done with wider accumulators.
constexpr std::string_view kNarrow[] = {"Attention", "Conv", "ConvTranspose", "FusedMatMul", "Gemm", "MatMul"};

// What rounds each element at most once: bfloat16 when what it reads is.
constexpr std::string_view kFollows[] = {"Add",       "Concat",  "Div",       "Dropout", "Expand",   "Flatten",
                                         "Gather",    "Gelu",    "Identity",  "MaxPool", "Mul",      "Relu",
                                         "LeakyRelu", "Reshape", "Sub",       "Sigmoid", "Slice",    "Split",
                                         "Tanh",      "Squeeze", "Unsqueeze", "Swish",   "Transpose"};

template <class Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Kind kind_of(const NodeProto& node) {
  if (!node.domain.empty() && node.domain != "com.microsoft") return Kind::wide;
  if (contains(kNarrow, node.op_type)) return Kind::narrow;
  if (node.domain.empty() && contains(kFollows, node.op_type)) return Kind::follows;
  return Kind::wide;
}

/// Inputs from this one on say how, not what.
std::size_t data_count(const NodeProto& node) { return node.op_type == "Dropout" ? 1 : node.input.size(); }

/// Names of values, at the top level, that are float32.
std::set<std::string> float_values(const onnx_io::ModelProto& model) {
  const Import import = import_model(model);
  throw_if_any(import.problems, model.opening);
  std::set<std::string> names;
  auto note = [&](const Value* v) {
    if (v != nullptr && v->type.is_tensor() && v->type.dtype == DType::float32) names.insert(v->name);
  };
  for (const Value* v : import.graph->inputs) note(v);
  for (const auto& node : import.graph->nodes()) {
    for (const Value* v : node->inputs) note(v);
    for (const Value* v : node->outputs) note(v);
  }
  return names;
}

void add_names_read(const onnx_io::GraphProto& graph, std::set<std::string>& names) {
  for (const onnx_io::ValueInfoProto& v : graph.output) names.insert(v.name);
  for (const NodeProto& node : graph.node) {
    names.insert(node.input.begin(), node.input.end());
    for (const onnx_io::AttributeProto& a : node.attribute) {
      for (const auto& inner : a.graphs) add_names_read(*inner, names);
    }
  }
}

/// Each value keeps its name for its float32 form, which is made only where that is read.
class Casting {
 public:
  explicit Casting(onnx_io::ModelProto& model) : model_(model), floats_(float_values(model)) {
    add_names_read(model.graph, taken_);
    for (const onnx_io::TensorProto& t : model.graph.initializer) constants_.insert(t.name);
  }

  void run() {
    std::vector<NodeProto> nodes = std::move(model_.graph.node);
    for (NodeProto& node : nodes) add(std::move(node));
    for (const onnx_io::ValueInfoProto& v : model_.graph.output) widen(v.name);
    model_.graph.node = std::move(made_);
    std::erase_if(model_.graph.value_info, [&](const auto& v) { return not_made_.contains(v.name); });
  }

 private:
  void add(NodeProto node) {
    const Kind kind = kind_of(node);
    if (kind == Kind::narrow || (kind == Kind::follows && reads_narrow(node))) {
      add_narrow(std::move(node));
      return;
    }
    std::set<std::string> read(node.input.begin(), node.input.end());
    for (const onnx_io::AttributeProto& a : node.attribute) {
      for (const auto& inner : a.graphs) add_names_read(*inner, read);
    }
    for (const std::string& name : read) widen(name);
    if (node.op_type == "Constant" && node.domain.empty()) constants_.insert(node.output.begin(), node.output.end());
    made_.push_back(std::move(node));
  }

  /// Whether all that it reads but constants is there in bfloat16.
  bool reads_narrow(const NodeProto& node) const {
    bool some = false;
    for (std::size_t i = 0; i < data_count(node); ++i) {
      if (!floats_.contains(node.input[i]) || constants_.contains(node.input[i])) continue;
      if (!narrow_.contains(node.input[i])) return false;
      some = true;
    }
    return some;
  }

  void add_narrow(NodeProto node) {
    for (std::size_t i = 0; i < data_count(node); ++i) {
      if (floats_.contains(node.input[i])) node.input[i] = narrowed(node.input[i]);
    }
    for (std::size_t i = data_count(node); i < node.input.size(); ++i) widen(node.input[i]);
    for (std::string& output : node.output) {
      if (!floats_.contains(output)) continue;
      not_made_.insert(output);
      output = narrow_[output] = fresh(output);
    }
    made_.push_back(std::move(node));
  }

  const std::string& narrowed(const std::string& name) {
    auto [it, added] = narrow_.try_emplace(name);
    if (added) {
      it->second = fresh(name);
      add_cast(name, it->second, DType::bfloat16);
    }
    return it->second;
  }

  void widen(const std::string& name) {
    if (not_made_.erase(name) > 0) add_cast(narrow_.at(name), name, DType::float32);
  }

  void add_cast(const std::string& from, const std::string& to, DType dtype) {
    NodeProto cast;
    cast.op_type = "Cast";
    cast.name = "autocast." + to;
    cast.input = {from};
    cast.output = {to};
    onnx_io::AttributeProto type;
    type.name = "to";
    type.type = onnx_io::AttributeProto::Type::int_;
    type.i = static_cast<std::int64_t>(dtype);
    cast.attribute.push_back(std::move(type));
    made_.push_back(std::move(cast));
  }

  std::string fresh(const std::string& name) {
    std::string made = name + ".bfloat16";
    while (!taken_.insert(made).second) made += "_";
    return made;
  }

  onnx_io::ModelProto& model_;
  std::set<std::string> floats_;
  std::set<std::string> taken_;
  std::set<std::string> constants_;
  std::map<std::string, std::string> narrow_;  // by name of the float32 value
  std::set<std::string> not_made_;             // values that are there in bfloat16 only
  std::vector<NodeProto> made_;
};

}  // namespace

void autocast(onnx_io::ModelProto& model) { Casting(model).run(); }

}  // namespace backpass
