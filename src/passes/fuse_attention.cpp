#include <algorithm>
#include <numeric>

#include "graph/builder.hpp"
#include "ops/random/dropout.hpp"
#include "passes/list.hpp"
#include "passes/match_attention.hpp"

namespace backpass {
namespace {

using Perm = std::vector<std::int64_t>;

const Perm kHeadsFirst{0, 2, 1, 3};  ///< [batch, length, heads, size] as [batch, heads, length, size], and back

bool is_transposition(const Node* node, const Perm& perm) {
  return node != nullptr && node->domain.empty() && node->op == "Transpose" && node->attr_ints("perm") == perm;
}

/// v with its last two axes swapped; where it is a transposition itself, of what that transposes.
Value* swapped(Builder& b, Value* v) {
  const Node* from = v->producer;
  Perm perm(v->type.shape->size());
  std::iota(perm.begin(), perm.end(), 0);
  const bool turns = from != nullptr && from->domain.empty() && from->op == "Transpose" && from->has_attribute("perm");
  if (turns) perm = from->attr_ints("perm");
  std::swap(perm[perm.size() - 2], perm[perm.size() - 1]);
  Value* source = turns ? from->input(0) : v;
  return std::is_sorted(perm.begin(), perm.end()) ? source : b.op("Transpose", {source}, {{"perm", perm}});
}

/// Whether v is [batch, length, heads, size] with heads moved to the front, of known extents.
bool has_heads_moved(const Value* v) {
  const Shape& shape = *v->type.shape;
  return shape.size() == 4 && is_transposition(v->producer, kHeadsFirst) && shape[1].is_known() && shape[3].is_known();
}

/// Some nodes of a graph are to become one FusedAttention.
class Fusion {
 public:
  Fusion(Graph& graph, const WrittenAttention& found)
      : graph_(graph), found_(found), b_(graph, found.result, found.result->name) {}

  void run() {
    inputs_ = {found_.q, swapped(b_, found_.keys), found_.v, found_.mask};
    inputs_.resize(7, nullptr);
    inputs_.insert(inputs_.end(), {found_.dropout->input(1), found_.dropout->input(2)});
    set_attributes();
    if (std::all_of(inputs_.begin(), inputs_.begin() + 3, has_heads_moved)) return replace_moved();
    if (found_.v->type.shape->size() == 3) use_one_head();
    graph_.rewrite(*found_.result, "backpass", "FusedAttention", inputs_);
    for (const auto& [key, value] : attributes_) found_.result->attributes[key] = value;
  }

 private:
  void set_attributes() {
    const auto scale = static_cast<float>(found_.scale);
    const bool is_exact = found_.q->type.dtype == DType::float32 || static_cast<double>(scale) == found_.scale;
    if (!is_exact) inputs_[0] = b_.op("Mul", {found_.q, b_.scalar(found_.scale, found_.q)});
    attributes_ = {{"scale", is_exact ? scale : 1.0F}, {"stream", dropout::stream_name(*found_.dropout)}};
    if (found_.dropout->has_attribute("seed")) attributes_.emplace_back("seed", found_.dropout->attr_int("seed"));
    if (found_.unseen_is_nan && found_.mask != nullptr) attributes_.emplace_back("unseen_is_nan", std::int64_t{1});
  }

  void set_heads(std::int64_t heads) {
    attributes_.emplace_back("q_num_heads", heads);
    attributes_.emplace_back("kv_num_heads", heads);
  }

  /// [batch, length, size]: what stands before the last two axes is a batch.
  void use_one_head() {
    set_heads(1);
    if (found_.mask != nullptr && found_.mask->type.shape->size() == 3)
      inputs_[3] = b_.op("Unsqueeze", {found_.mask, b_.ints({1})});
  }

  /// Heads stay where they are in memory.
  void replace_moved() {
    const Shape& q = *found_.q->type.shape;
    set_heads(q[1].value());
    for (std::size_t i = 0; i < 3; ++i) {
      const std::int64_t size = inputs_[i]->type.shape->at(3).value();
      inputs_[i] = b_.op("Reshape", {inputs_[i]->producer->input(0), b_.ints({0, 0, q[1].value() * size})});
    }
    Value* packed = b_.op("FusedAttention", inputs_, attributes_, "backpass");
    Value* old = found_.result->output(0);
    Value* shape = b_.ints({0, 0, q[1].value(), old->type.shape->at(3).value()});
    const std::vector<Node*> readers = old->readers;
    for (Node* reader : readers) {
      if (!is_transposition(reader, kHeadsFirst)) continue;
      graph_.rewrite(*reader, "", "Reshape", {packed, shape});
      reader->attributes.clear();
    }
    graph_.rewrite(*found_.result, "", "Transpose", {b_.op("Reshape", {packed, shape})});
    found_.result->attributes["perm"] = kHeadsFirst;
  }

  Graph& graph_;
  const WrittenAttention& found_;
  Builder b_;
  std::vector<Value*> inputs_;
  AttributeList attributes_;
};

/// Nobody else reads what lies between scores and result.
bool is_closed(const Graph& graph, const WrittenAttention& found) {
  return std::all_of(found.nodes.begin(), found.nodes.end(), [&](const Node* node) {
    if (node == found.result) return true;
    return std::all_of(node->outputs.begin(), node->outputs.end(), [&](const Value* v) {
      if (v == nullptr) return true;
      return !graph.is_output(v) && std::all_of(v->readers.begin(), v->readers.end(),
                                                [&](const Node* reader) { return found.nodes.count(reader) != 0; });
    });
  });
}

/// A mask that is learned gets a gradient, for which all scores are needed after all.
bool is_learned(const Graph& graph, const Value* mask) {
  std::unordered_set<const Value*> seen;
  std::vector<const Value*> todo{mask};
  while (!todo.empty()) {
    const Value* v = todo.back();
    todo.pop_back();
    if (v == nullptr || !is_float(v->type.dtype) || !seen.insert(v).second) continue;
    const auto& steady = graph.steady_inputs;
    if (std::find(steady.begin(), steady.end(), v) != steady.end()) return true;
    if (v->producer != nullptr) for_each_read(*v->producer, [&](const Value* read) { todo.push_back(read); });
  }
  return false;
}

}  // namespace

void fuse_attention(Graph& graph, Reports& reports) {
  if (graph.parent != nullptr) return;  // the gradient of a body is another body, which draws other numbers
  bool changed = false;
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    const std::optional<WrittenAttention> found = match_attention(*node);
    if (!found || !is_closed(graph, *found) || is_learned(graph, found->mask)) continue;
    Value* inner[] = {found->scores->output(0), found->softmax->output(0), found->dropout->output(0)};
    reports.push_back(
        {.node = node->label(),
         .what = concat("joined ", node->label(), " with ", found->scores->label(), ", ", found->softmax->label(),
                        " and ", found->dropout->label()),
         .why = "scores of all queries are never needed together, and what was dropped can be drawn again",
         .bytes_saved = bytes_of(inner)});
    Fusion(graph, *found).run();
    changed = true;
  }
  if (changed) graph.remove_dead_nodes();
}

}  // namespace backpass
