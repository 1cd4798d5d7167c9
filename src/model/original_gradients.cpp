#include "model/original_gradients.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "backpass/problem.hpp"
#include "model/import.hpp"
#include "model/training_graph.hpp"

namespace backpass {
namespace {

using onnx_io::GraphProto;
using onnx_io::NodeProto;

constexpr std::string_view kOwn = "_Grad/";
constexpr std::string_view kSum = "AccumulateGrad_";
constexpr std::string_view kGradient = "_grad";

std::string label(const NodeProto& node) { return concat("[", node.op_type, " '", node.name, "']"); }

bool is_accumulator(const NodeProto& node) {
  return node.op_type == "InPlaceAccumulatorV2" && node.domain == "com.microsoft";
}

/// "x" for "x_grad" and "x_grad_12"; empty for others.
std::string differentiated(std::string_view name) {
  const std::size_t last = name.find_last_not_of("0123456789");
  if (last != std::string_view::npos && last + 1 < name.size() && name[last] == '_') name = name.substr(0, last);
  return name.ends_with(kGradient) ? std::string(name.substr(0, name.size() - kGradient.size())) : "";
}

/// Everything a node reads, in its bodies, too.
void collect_reads(const NodeProto& node, std::set<std::string>& names) {
  names.insert(node.input.begin(), node.input.end());
  for (const onnx_io::AttributeProto& attribute : node.attribute) {
    for (const auto& body : attribute.graphs) {
      for (const NodeProto& inner : body->node) collect_reads(inner, names);
      for (const onnx_io::ValueInfoProto& output : body->output) names.insert(output.name);
    }
  }
}

class Look {
 public:
  explicit Look(const GraphProto& graph) : graph_(graph) {
    for (const NodeProto& node : graph.node) {
      if (is_builders(node)) {
        gradients_.insert(node.output.begin(), node.output.end());
        continue;
      }
      Around& around = around_[node.name];
      around.inputs.insert(node.input.begin(), node.input.end());
      around.outputs.insert(node.output.begin(), node.output.end());
    }
    gradients_.erase("");
    if (!graph.output.empty()) gradients_.insert(seed());
  }

  Stranger run() const {
    if (!has_seed()) return {"", concat("'", seed(), "', where gradients begin, is not 1")};
    for (const NodeProto& node : graph_.node) {
      std::string what = is_accumulator(node)                      ? misread_by_accumulator(node)
                         : !is_builders(node)                      ? read_gradient(node)
                         : node.name.find(kOwn) < node.name.size() ? misplaced(node)
                                                                   : misadded(node);
      if (!what.empty()) return {label(node), std::move(what)};
    }
    return {};
  }

 private:
  /// What a node of the model itself reads and writes.
  struct Around {
    std::set<std::string> inputs, outputs;
  };

  static bool is_builders(const NodeProto& node) {
    return node.name.find(kOwn) != std::string::npos || node.name.starts_with(kSum) || is_accumulator(node);
  }

  std::string seed() const { return graph_.output.front().name + std::string(kGradient); }

  bool has_seed() const {
    const auto found = std::find_if(graph_.initializer.begin(), graph_.initializer.end(),
                                    [&](const onnx_io::TensorProto& t) { return t.name == seed(); });
    if (found == graph_.initializer.end()) return false;
    const Tensor t = to_tensor(*found);
    return t.size() == 1 && t.dtype() == DType::float32 && *t.as<float>() == 1;
  }

  std::string read_gradient(const NodeProto& node) const {
    std::set<std::string> reads;
    collect_reads(node, reads);
    for (const std::string& name : reads) {
      if (gradients_.count(name) != 0) return concat("reads gradient '", name, "'");
    }
    return "";
  }

  std::string misread_by_accumulator(const NodeProto& node) const {
    const std::string& buffer = node.input.at(0);
    if (!buffer.ends_with(kBufferSuffix)) return concat("accumulates into '", buffer, "'");
    const std::string wanted = buffer.substr(0, buffer.size() - kBufferSuffix.size()) + std::string(kGradient);
    const bool fits = node.input.size() == 3 && node.input[1] == wanted && gradients_.count(wanted) != 0;
    return fits ? "" : concat("does not accumulate '", wanted, "' as it was computed");
  }

  std::string misadded(const NodeProto& node) const {
    const std::string name = node.name.substr(kSum.size());
    if (node.op_type != "Sum" || node.output.size() != 1 || node.output[0] != name) return "is no sum of gradients";
    for (std::size_t k = 0; k < node.input.size(); ++k) {
      if (node.input[k] != concat(name, "_", k)) return concat("adds '", node.input[k], "'");
    }
    return "";
  }

  /// "OneConstant_Type1", which all nodes of a type share.
  bool is_shared_constant(std::string_view name) const {
    constexpr std::string_view kShared = "Constant_Type";
    return name.find(kShared) != std::string_view::npos &&
           std::any_of(graph_.initializer.begin(), graph_.initializer.end(),
                       [&](const auto& t) { return t.name == name; });
  }

  std::string misplaced(const NodeProto& node) const {
    const std::size_t end = node.name.rfind(kOwn);
    const auto found = around_.find(node.name.substr(0, end));
    if (found == around_.end()) return "is derived from no node of the model";
    const std::string own = node.name.substr(0, end + kOwn.size());
    const auto& [inputs, outputs] = found->second;
    for (const std::string& name : node.input) {
      const bool fits = name.empty() || name.starts_with(own) || inputs.count(name) != 0 || outputs.count(name) != 0 ||
                        outputs.count(differentiated(name)) != 0 || is_shared_constant(name);
      if (!fits) return concat("reads '", name, "', which has nothing to do with '", found->first, "'");
    }
    for (const std::string& name : node.output) {
      const bool fits = name.empty() || name.starts_with(own) || inputs.count(differentiated(name)) != 0;
      if (!fits) return concat("gives '", name, "', which has nothing to do with '", found->first, "'");
    }
    return "";
  }

  const GraphProto& graph_;
  std::map<std::string, Around> around_;
  std::set<std::string> gradients_;  // what the builder's nodes give, and the seed
};

}  // namespace

Stranger find_stranger(const onnx_io::GraphProto& graph) {
  if (graph.output.empty()) return {"", "there is no output"};
  return Look(graph).run();
}

}  // namespace backpass
