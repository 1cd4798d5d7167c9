// The graph: nodes in execution order, values in single-assignment form. Everything before `plan` reads and writes
// this.
//
// Ownership: a Graph owns its Nodes and Values; pointers to them stay valid until they are removed. A Value is defined
// by exactly one of: graph input, constant, capture, node output. Subgraphs (bodies of If, Loop, Scan) see outer values
// only through their `captures`, so every dependence of a node is explicit.
//
// What a node reads changes through its Graph alone, which keeps the list of a value's readers in step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "backpass/tensor.hpp"
#include "graph/dim.hpp"

namespace backpass {

struct OpDef;
class Graph;
struct Node;

/// A list that all may read and Graph alone changes.
template <class T>
class GraphList {
 public:
  GraphList() = default;
  explicit GraphList(std::vector<T> items) : items_(std::move(items)) {}  ///< of a node outside of any graph
  GraphList(const GraphList&) = delete;
  GraphList& operator=(const GraphList&) = delete;

  operator const std::vector<T>&() const { return items_; }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }
  std::size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  const T& operator[](std::size_t i) const { return items_[i]; }
  const T& at(std::size_t i) const { return items_.at(i); }
  const T& front() const { return items_.front(); }
  const T& back() const { return items_.back(); }

 private:
  friend class Graph;
  std::vector<T> items_;
};

/// Static type of a value. A tensor whose `shape` is absent has unknown rank.
struct Type {
  enum class Kind : std::uint8_t { unknown, tensor, sequence, optional };
  Kind kind = Kind::unknown;
  DType dtype = DType::undefined;
  std::optional<Shape> shape;
  std::shared_ptr<const Type> element;  ///< of a sequence or optional

  static Type tensor(DType dtype, std::optional<Shape> shape = std::nullopt);
  static Type sequence(Type element);
  static Type optional(Type element);
  bool is_tensor() const { return kind == Kind::tensor; }
  std::string str() const;  ///< "float32[batch,3]", "seq(int64[?])"
};

struct Value {
  std::string name;
  Type type;
  Node* producer = nullptr;  ///< null for inputs, constants and captures
  GraphList<Node*> readers;  ///< once per read, in no order; whoever captures it for a subgraph reads it
  std::optional<Tensor> constant;
  /// Contents of a small integer tensor (rank 0 or 1) where they are known as expressions of the input extents.
  std::optional<std::vector<Dim>> ints;
};

using Attribute = std::variant<std::int64_t, float, std::string, Tensor, std::vector<std::int64_t>, std::vector<float>,
                               std::vector<std::string>, std::vector<Tensor>, Type>;

struct Node {
  std::string name;
  std::string op;
  std::string domain;  ///< "" is ai.onnx; "backpass" holds operators that only our own passes create
  const OpDef* def = nullptr;
  std::int64_t opset = 0;    ///< version the node is still written in; 0 once it has been lifted to the internal form
  GraphList<Value*> inputs;  ///< null where an optional input is omitted
  std::vector<Value*> outputs;  ///< null where an optional output is not wanted
  std::map<std::string, Attribute, std::less<>> attributes;
  GraphList<std::pair<std::string, std::unique_ptr<Graph>>> subgraphs;  ///< by attribute name

  Value* input(std::size_t i) const { return i < inputs.size() ? inputs[i] : nullptr; }
  Value* output(std::size_t i) const { return i < outputs.size() ? outputs[i] : nullptr; }

  bool has_attribute(std::string_view key) const { return attributes.find(key) != attributes.end(); }
  /// The attribute, or the default when it is absent. InvalidInput when it has another kind than asked for.
  std::int64_t attr_int(std::string_view key, std::int64_t otherwise) const;
  float attr_float(std::string_view key, float otherwise) const;
  std::string attr_string(std::string_view key, std::string_view otherwise) const;
  std::vector<std::int64_t> attr_ints(std::string_view key, std::vector<std::int64_t> otherwise = {}) const;
  std::vector<float> attr_floats(std::string_view key, std::vector<float> otherwise = {}) const;
  std::vector<std::string> attr_strings(std::string_view key, std::vector<std::string> otherwise = {}) const;
  const Tensor* attr_tensor(std::string_view key) const;  ///< null when absent
  /// Required attributes: InvalidInput naming the node when absent.
  std::int64_t attr_int(std::string_view key) const;
  std::string attr_string(std::string_view key) const;
  const Graph* subgraph(std::string_view key) const;  ///< null when absent

  std::string label() const;  ///< "[Relu 'relu_3']", the opening of every message about this node
};

inline std::string to_string(const Node& node) { return node.label(); }

/// An outer value as seen inside a subgraph.
struct Capture {
  Value* outer;
  Value* inner;
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  std::string name;
  std::vector<Value*> inputs;
  std::vector<Value*> outputs;
  GraphList<Capture> captures;
  Graph* parent = nullptr;
  /// Symbols found equal to another extent during inference ("a" -> "b"); shapes are already rewritten.
  std::map<std::string, Dim> equalities;
  /// Of a training graph: which outputs are gradients, by number. What only these need is the graph's second half
  /// (graph/halves.hpp). None in other graphs.
  std::size_t first_gradient = 0;
  std::size_t gradient_count = 0;
  /// Inputs that are the same in both halves, also where the caller gets a say between them (YieldOp): parameters.
  std::vector<const Value*> steady_inputs;

  const std::vector<Node*>& nodes() const { return order_; }
  const std::vector<std::unique_ptr<Value>>& values() const { return values_; }

  /// A new value. The name is made unique ("x", "x_1", ...) within this graph; empty stands for "v".
  Value* add_value(std::string_view wanted, Type type = {});
  Value* add_constant(std::string_view wanted, Tensor tensor);

  /// Gives a value another name, made unique in the same way.
  void rename(Value* value, std::string_view wanted);

  /// A new node at the end of the order, or before another node. It becomes the producer of `writes`.
  Node* add_node(std::string_view op, std::vector<Value*> reads, std::vector<Value*> writes,
                 std::string_view node_name = "", std::string_view domain = "", const Node* before = nullptr);

  /// The node reads `value` as its input i; inputs in between are omitted.
  void set_input(Node& node, std::size_t i, Value* value);
  void set_inputs(Node& node, const std::vector<Value*>& values);

  /// Turns the node into another operator with other inputs, keeping its outputs. Nodes that nobody reads any more
  /// because of that read nothing themselves from then on; remove_dead_nodes() takes them out.
  void rewrite(Node& node, std::string_view domain, std::string_view op, const std::vector<Value*>& values);

  /// Makes `body` a subgraph of a node of this graph.
  void add_subgraph(Node& node, std::string_view key, std::unique_ptr<Graph> body);

  /// This graph, a subgraph, sees `outer` as its own value `inner`.
  void add_capture(Value* outer, Value* inner);
  /// Every captured value gives way to `to(value)`.
  void redirect_captures(const std::function<Value*(Value*)>& to);
  void remove_captures(const std::function<bool(const Capture&)>& is_unwanted);

  /// Redirects every use of `from` (node inputs, captures of subgraphs, graph outputs) to `to`.
  void replace_uses(Value* from, Value* to);

  /// Reads of the value by nodes, plus one if it is an output of the graph. An omitted value, null, has no uses.
  std::size_t use_count(const Value* v) const;
  /// The one node that reads the value, or null when there is another use of any kind.
  Node* only_reader(const Value* v) const;

  /// Removes a node whose outputs have no uses left; the output values go too.
  void remove_node(Node* node);

  /// Removes nodes and constants that no output and no node with an effect depends on. Returns how many nodes went.
  int remove_dead_nodes();

  /// Sorts nodes so that producers come first, keeping the present order where it can, and that of nodes with
  /// effects always. InvalidInput naming nodes on a cycle.
  void sort_topologically();

  bool is_output(const Value* v) const;

 private:
  std::string unique_name(std::string_view wanted);
  static void add_read(Value* v, Node* node);
  static void drop_read(Value* v, Node* node);
  void read_nothing(Node& node);

  Node* owner_ = nullptr;  // of a subgraph: the node that reads what is captured
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Node*> order_;
  std::vector<std::unique_ptr<Value>> values_;
  std::map<std::string, int, std::less<>> taken_names_;
};

/// Calls f(Value*) for everything the node reads: inputs and what its subgraphs capture.
template <class F>
void for_each_read(const Node& node, F&& f) {
  for (Value* v : node.inputs) {
    if (v != nullptr) f(v);
  }
  for (const auto& [key, graph] : node.subgraphs) {
    for (const Capture& c : graph->captures) f(c.outer);
  }
}

/// One node per line: `%y: float32[batch,4] = Relu(%x) {axis=1} 'relu_3'`, subgraphs indented.
std::string print(const Graph&);

/// Every broken invariant of the graph (single assignment, order, captures, readers, arity). Empty means sound.
std::vector<std::string> verify(const Graph&);

/// The part of verify that is about one node's number of inputs and outputs (not checked before the node is lifted).
std::vector<std::string> verify_arity(const Node&);

}  // namespace backpass
