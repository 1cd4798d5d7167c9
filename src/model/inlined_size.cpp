#include "model/inlined_size.hpp"

#include <algorithm>

namespace backpass {
namespace {

class Counter {
 public:
  Counter(const Functions& functions, std::int64_t limit) : functions_(functions), limit_(limit) {}

  std::int64_t of(const std::vector<onnx_io::NodeProto>& nodes) {
    std::int64_t count = 0;
    for (const onnx_io::NodeProto& node : nodes) {
      count += of(node);
      if (count > limit_) return limit_ + 1;
    }
    return count;
  }

 private:
  std::int64_t of(const onnx_io::NodeProto& node) {
    std::int64_t count = 1;
    for (const onnx_io::AttributeProto& attribute : node.attribute) {
      for (const auto& graph : attribute.graphs) count = std::min(count + of(graph->node), limit_ + 1);
    }
    auto it = functions_.find({node.domain, node.op_type, node.overload});
    return it == functions_.end() ? count : std::min(count + of(*it->second), limit_ + 1);
  }

  std::int64_t of(const onnx_io::FunctionProto& function) {
    auto [it, is_new] = known_.emplace(&function, 0);  // 0 stands while it is being counted
    if (!is_new) return it->second;
    return known_[&function] = of(function.node);
  }

  const Functions& functions_;
  std::int64_t limit_;
  std::map<const onnx_io::FunctionProto*, std::int64_t> known_;
};

}  // namespace

std::int64_t inlined_size(const onnx_io::GraphProto& graph, const Functions& functions, std::int64_t limit) {
  return Counter(functions, limit).of(graph.node);
}

}  // namespace backpass
