#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/convolution/blocked_conv_kernel.hpp"
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
  std::int64_t rounded(std::int64_t channels) const { return (channels + b_ - 1) / b_ * b_; }
  bool fills_blocks(std::int64_t channels) const { return channels > 0 && channels % b_ == 0; }
  /// At least half of what blocks have room for: then vectors still gain.
  bool is_worth_blocks(std::int64_t channels) const { return channels > 0 && rounded(channels) <= 2 * channels; }

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
    leave_layout(node, "Unblock", {result}, *image_channels(node.output(0)));
  }

  void leave_layout(Node& node, std::string_view op, const std::vector<Value*>& inputs, std::int64_t channels) {
    turn_into(node, op, inputs);
    if (!fills_blocks(channels)) node.attributes["channels"] = channels;
  }

  void turn_into(Node& node, std::string_view op, const std::vector<Value*>& inputs) {
    node.domain = "backpass";
    node.op = op;
    node.def = find_op(node.domain, op);
    graph_.set_inputs(node, inputs);
    node.attributes.clear();
  }

  AttributeList attributes_of(const Node& node) const { return {node.attributes.begin(), node.attributes.end()}; }

  /// How a convolution fits the layout.
  struct Fit {
    bool is_plain_input = false;  ///< an image as it comes: RGB
    bool is_depthwise = false;
    std::int64_t outputs = 0;  ///< channels, with those that fill the last block
  };

  std::optional<Fit> fit_of(const Node& node, const Tensor& w) const {
    Fit fit;
    const std::int64_t groups = node.attr_int("group", 1);
    const std::int64_t in = w.dims()[1] * groups, out = w.dims()[0];
    fit.outputs = rounded(out);
    const bool is_native = native(node.input(0)) != nullptr;
    fit.is_depthwise = groups > 1 && groups == in && groups == out;
    fit.is_plain_input = groups == 1 && in < b_ && !is_native;
    const bool can_fill = w.dims()[2] * w.dims()[3] <= BlockedConv::kMaxPositions &&
                          (node.input(2) == nullptr || node.input(2)->constant) && is_worth_blocks(out) &&
                          (groups == 1 || fit.is_depthwise);
    if (!fills_blocks(out) && !can_fill) return std::nullopt;
    const bool is_whole =
        (fills_blocks(in / groups) && fills_blocks(out / groups)) || (fit.is_depthwise && fills_blocks(in));
    const bool takes_rest = can_fill && (is_native || is_worth_blocks(in));
    if (!is_whole && !fit.is_plain_input && !takes_rest) return std::nullopt;
    return fit;
  }

  bool convert_conv(Node& node) {
    if (!is_op(node, "Conv") || node.input(1) == nullptr || !node.input(1)->constant) return false;
    const Tensor& w = *node.input(1)->constant;
    if (w.rank() != 4 || w.size() == 0 || !image_channels(node.input(0))) return false;
    const std::optional<Fit> fit = fit_of(node, w);
    if (!fit) return false;
    Builder builder(graph_, &node, node.name);
    AttributeList attributes;
    for (const auto& [name, value] : node.attributes) {
      if (name != "group" || !fit->is_depthwise) attributes.emplace_back(name, value);
    }
    if (fit->is_depthwise) attributes.emplace_back("group", fit->outputs);
    attributes.emplace_back("block", b_);
    std::vector<Value*> inputs = node.inputs;
    if (!fit->is_plain_input) inputs[0] = blocked(builder, inputs[0]);
    for (std::size_t i = 1; i < inputs.size(); ++i) inputs[i] = filled_up(builder, inputs[i], fit->outputs);
    replace(node, builder.op("BlockedConv", std::move(inputs), attributes, "backpass"));
    return true;
  }

  /// Weights or bias of `outputs` channels: zeros for those that are missing.
  static Value* filled_up(Builder& builder, Value* v, std::int64_t outputs) {
    if (v == nullptr || !v->constant || v->constant->dims()[0] == outputs) return v;
    const Tensor& some = *v->constant;
    Dims dims = some.dims();
    dims[0] = outputs;
    Tensor all(DType::float32, dims);
    std::copy_n(some.as<float>(), some.size(), all.as<float>());
    std::fill(all.as<float>() + some.size(), all.as<float>() + all.size(), 0.0F);
    return builder.constant(std::move(all));
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
    leave_layout(node, "BlockedGlobalAveragePool", {x}, *image_channels(node.input(0)));
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
    leave_layout(node, "BlockedGlobalAveragePool", {x}, *image_channels(node.input(0)));
    node.attributes["keepdims"] = keep;
    return true;
  }

  bool convert_concat(Node& node) {
    if (!is_op(node, "Concat")) return false;
    std::int64_t axis = node.attr_int("axis", 0);
    std::vector<Value*> inputs;
    for (const Value* v : node.inputs) inputs.push_back(native(v));
    bool all = std::find(inputs.begin(), inputs.end(), nullptr) == inputs.end();
    // Behind a block that is not full nothing can follow.
    all = all && std::all_of(node.inputs.begin(), node.inputs.end() - 1,
                             [&](const Value* v) { return fills_blocks(*image_channels(v)); });
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
    return channels && is_worth_blocks(*channels) ? blocked(builder, v) : nullptr;
  }

  /// A constant [C, 1, 1] or [1, C, 1, 1] as [1, C/b, 1, 1, b].
  Value* channel_constant(Builder& builder, const Tensor& t, const Shape& result) {
    Dims dims = t.dims();
    if (dims.size() == 3) dims.insert(dims.begin(), 1);
    std::int64_t channels = result[1].value();
    if (dims != Dims{1, channels, 1, 1}) return nullptr;
    Tensor blocks(DType::float32, {1, rounded(channels) / b_, 1, 1, b_});
    std::fill_n(blocks.as<float>(), blocks.size(), 0.0F);
    std::copy_n(t.as<float>(), channels, blocks.as<float>());
    return builder.constant(std::move(blocks));
  }

  bool convert_pointwise(Node& node) {
    if (node.def == nullptr || node.def->tile == nullptr || node.outputs.size() != 1) return false;
    bool any = std::any_of(node.inputs.begin(), node.inputs.end(), [&](Value* v) { return native(v) != nullptr; });
    const Shape& result = *node.output(0)->type.shape;
    if (!any || !is_worth_blocks(result[1].value())) return false;
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
