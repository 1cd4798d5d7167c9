#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/convolution/dnnl_conv.hpp"
#include "passes/match_activation.hpp"
#include "plan/lower.hpp"

namespace backpass {
namespace {

/// [N, C, H, W] of float32 with a known number of channels.
std::optional<std::int64_t> image_channels(const Value* v) {
  if (v == nullptr || !v->type.is_tensor() || v->type.dtype != DType::float32) return std::nullopt;
  if (!v->type.shape || v->type.shape->size() != 4 || !(*v->type.shape)[1].is_known()) return std::nullopt;
  return (*v->type.shape)[1].value();
}

class Blocker {
 public:
  explicit Blocker(Graph& graph) : graph_(graph), b_(conv_block()) {}

  int run() {
    std::vector<Node*> nodes = graph_.nodes();
    for (Node* node : nodes) {
      if (!node->domain.empty() || node->outputs.empty() || !image_channels(node->output(0))) {
        if (is_op(*node, "ReduceMean")) convert_mean(*node);
        continue;
      }
      bool done = convert_conv(*node) || convert_pool(*node) || convert_global(*node) || convert_mean(*node) ||
                  convert_concat(*node) || convert_pointwise(*node);
      if (done) ++converted_;
    }
    return converted_;
  }

 private:
  static bool is_op(const Node& node, std::string_view op) { return node.domain.empty() && node.op == op; }
  bool fills_blocks(std::int64_t channels) const { return channels > 0 && channels % b_ == 0; }

  Value* native(const Value* v) const {
    auto it = native_.find(v);
    return it == native_.end() ? nullptr : it->second;
  }

  /// The blocked form of an image, made here if nobody made it before.
  Value* blocked(Builder& builder, Value* v) {
    if (Value* known = native(v)) return known;
    Value*& copy = copies_[v];
    if (copy == nullptr) copy = builder.op("Block", {v}, {{"block", b_}}, "backpass");
    return copy;
  }

  /// The node's result is now `result`, blocked; the node itself unblocks it for readers that want it plain.
  void replace(Node& node, Value* result) {
    native_[node.output(0)] = result;
    turn_into(node, "Unblock", {result});
  }

  void turn_into(Node& node, std::string_view op, const std::vector<Value*>& inputs) {
    node.domain = "backpass";
    node.op = op;
    node.def = find_op(node.domain, op);
    graph_.set_inputs(node, inputs);
    node.attributes.clear();
  }

  AttributeList attributes_of(const Node& node) const { return {node.attributes.begin(), node.attributes.end()}; }

  bool convert_conv(Node& node) {
    if (!is_op(node, "Conv") || node.input(1) == nullptr || !node.input(1)->constant) return false;
    const Tensor& w = *node.input(1)->constant;
    if (w.rank() != 4 || w.size() == 0 || !image_channels(node.input(0))) return false;
    std::int64_t groups = node.attr_int("group", 1);
    std::int64_t in = w.dims()[1] * groups;
    std::int64_t out = w.dims()[0];
    bool depthwise = groups == in && groups == out;
    bool whole_groups = fills_blocks(in / groups) && fills_blocks(out / groups);
    bool few = groups == 1 && in < b_ && native(node.input(0)) == nullptr;  // an image as it comes: RGB
    if (!fills_blocks(out) || !(whole_groups || few || (depthwise && fills_blocks(in)))) return false;
    Builder builder(graph_, &node, node.name);
    AttributeList attributes = attributes_of(node);
    attributes.emplace_back("block", b_);
    std::vector<Value*> inputs = node.inputs;
    if (!few) inputs[0] = blocked(builder, inputs[0]);
    replace(node, builder.op("BlockedConv", std::move(inputs), attributes, "backpass"));
    return true;
  }

  bool convert_pool(Node& node) {
    bool max = is_op(node, "MaxPool");
    if (!max && !is_op(node, "AveragePool")) return false;
    Value* x = native(node.input(0));
    if (x == nullptr || node.output(1) != nullptr) return false;
    Builder builder(graph_, &node, node.name);
    replace(node, builder.op(max ? "BlockedMaxPool" : "BlockedAveragePool", {x}, attributes_of(node), "backpass"));
    return true;
  }

  bool convert_global(Node& node) {
    Value* x = is_op(node, "GlobalAveragePool") ? native(node.input(0)) : nullptr;
    if (x == nullptr) return false;
    turn_into(node, "BlockedGlobalAveragePool", {x});
    return true;
  }

  /// ReduceMean over height and width is a global pooling.
  bool convert_mean(Node& node) {
    Value* x = is_op(node, "ReduceMean") ? native(node.input(0)) : nullptr;
    if (x == nullptr || node.input(1) == nullptr || !node.input(1)->constant) return false;
    std::set<std::int64_t> axes;
    for (std::int64_t axis : node.input(1)->constant->to_ints()) axes.insert(axis < 0 ? axis + 4 : axis);
    if (axes != std::set<std::int64_t>{2, 3}) return false;
    std::int64_t keep = node.attr_int("keepdims", 1);
    turn_into(node, "BlockedGlobalAveragePool", {x});
    node.attributes["keepdims"] = keep;
    return true;
  }

  bool convert_concat(Node& node) {
    if (!is_op(node, "Concat")) return false;
    std::int64_t axis = node.attr_int("axis", 0);
    std::vector<Value*> inputs;
    for (const Value* v : node.inputs) inputs.push_back(native(v));
    bool all = std::find(inputs.begin(), inputs.end(), nullptr) == inputs.end();
    if (!all || (axis != 1 && axis != -3)) return false;
    Builder builder(graph_, &node, node.name);
    replace(node, builder.op("Concat", std::move(inputs), {{"axis", std::int64_t{1}}}));
    return true;
  }

  /// An operand of a pointwise operator beside blocked ones, in a form that broadcasts the same way; null when there is
  /// none.
  Value* beside_blocked(Builder& builder, Value* v, const Shape& result) {
    if (Value* known = native(v)) return known;
    if (scalar_constant(v)) return v;
    if (v->constant && v->type.dtype == DType::float32) return channel_constant(builder, *v->constant, result);
    std::optional<std::int64_t> channels = image_channels(v);
    return channels && fills_blocks(*channels) ? blocked(builder, v) : nullptr;
  }

  /// A constant [C, 1, 1] or [1, C, 1, 1] as [1, C/b, 1, 1, b].
  Value* channel_constant(Builder& builder, const Tensor& t, const Shape& result) {
    Dims dims = t.dims();
    if (dims.size() == 3) dims.insert(dims.begin(), 1);
    std::int64_t channels = result[1].value();
    if (dims != Dims{1, channels, 1, 1} || !fills_blocks(channels)) return nullptr;
    return builder.constant(t.reshaped({1, channels / b_, 1, 1, b_}));
  }

  bool convert_pointwise(Node& node) {
    if (node.def == nullptr || node.def->tile == nullptr || node.outputs.size() != 1) return false;
    bool any = std::any_of(node.inputs.begin(), node.inputs.end(), [&](Value* v) { return native(v) != nullptr; });
    const Shape& result = *node.output(0)->type.shape;
    if (!any || !fills_blocks(result[1].value())) return false;
    Builder builder(graph_, &node, node.name);
    std::vector<Value*> inputs;
    for (Value* v : node.inputs) {
      Value* operand = v == nullptr ? nullptr : beside_blocked(builder, v, result);
      if (v != nullptr && operand == nullptr) return false;
      inputs.push_back(operand);
    }
    replace(node, builder.op(node.op, std::move(inputs), attributes_of(node), node.domain));
    return true;
  }

  Graph& graph_;
  std::int64_t b_;
  int converted_ = 0;
  std::unordered_map<const Value*, Value*> native_;  ///< plain value -> blocked value that was computed as such
  std::unordered_map<const Value*, Value*> copies_;  ///< plain value -> its copy in blocked layout
};

}  // namespace

void block_convolutions(Graph& graph, Reports& reports) {
  if (conv_block() == 0) return;
  int converted = Blocker(graph).run();
  graph.remove_dead_nodes();
  if (converted == 0) return;
  reports.push_back({.what = concat("blocked layout of ", conv_block(), " channels: ", converted, " nodes"),
                     .why = "vector instructions take as many channels at once"});
}

}  // namespace backpass
