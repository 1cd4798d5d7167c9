// What a gradient rule sees and says.
//
// A rule gets one node and the gradients that reached its outputs; it emits nodes and hands back one gradient per
// input that wants one:
//
//   void sigmoid_gradient(GradientContext& g) {            // d/dx = y (1 - y)
//     g.set(0, g.mul(g.dy(), g.mul(g.y(), g.sub(g.one(), g.y()))));
//   }
//
// Rules are written in standard operators (OpDef::gradient), so derivatives of derivatives exist and any ONNX runtime
// can run them. They may read the node's inputs and outputs; whatever they read is kept until the backward pass.
#pragma once

#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/builder.hpp"
#include "graph/graph.hpp"

namespace backpass {

class GradientContext {
 public:
  /// `output_gradients`: one per output, null where nothing flows back. `active`: the values that take part.
  GradientContext(Builder& builder, const Node& node, std::vector<Value*> output_gradients,
                  const std::set<const Value*>& active);

  Builder& b;
  const Node& node;

  bool has_input(std::size_t i) const { return node.input(i) != nullptr; }
  Value* x(std::size_t i = 0) const;  ///< input i, which must be present
  Value* y(std::size_t k = 0) const;  ///< output k, which must be present
  /// Something flows back to output k (for at least one k: else the rule would not have been called).
  bool has_dy(std::size_t k = 0) const;
  /// The gradient of output k; zeros of its shape when nothing flows back to it.
  Value* dy(std::size_t k = 0);

  /// Whether input i takes part in the differentiation. Rules need not ask unless answering is costly: what set() is
  /// given for an input that wants nothing is dropped, and dead nodes are removed.
  bool wants(std::size_t i) const { return has_input(i) && wants(node.inputs[i]); }
  bool wants(const Value* value) const { return active_.count(value) != 0; }
  /// The gradient of input i, of its shape. At most once per input.
  void set(std::size_t i, Value* gradient);
  /// The same for an operand that may have been broadcast: summed to the input's shape first.
  void set_reduced(std::size_t i, Value* gradient);
  /// Input i takes part, but its derivative is zero wherever it exists.
  void set_zero(std::size_t i);

  /// A gradient of something the node reads without having it as an input: what its subgraphs capture.
  void set_captured(Value* outer, Value* gradient);

  // The vocabulary. Types and shapes of everything built are inferred at once.
  Value* op(std::string_view name, std::vector<Value*> inputs, const AttributeList& attributes = {},
            std::string_view domain = "");
  Value* number(double value, const Value* like = nullptr);  ///< scalar of like's element type (dy's when null)
  Value* zero(const Value* like = nullptr) { return number(0, like); }
  Value* one(const Value* like = nullptr) { return number(1, like); }
  Value* add(Value* a, Value* c) { return op("Add", {a, c}); }
  Value* sub(Value* a, Value* c) { return op("Sub", {a, c}); }
  Value* mul(Value* a, Value* c) { return op("Mul", {a, c}); }
  Value* div(Value* a, Value* c) { return op("Div", {a, c}); }
  Value* neg(Value* a) { return op("Neg", {a}); }
  Value* exp(Value* a) { return op("Exp", {a}); }
  Value* log(Value* a) { return op("Log", {a}); }
  Value* sqrt(Value* a) { return op("Sqrt", {a}); }
  Value* square(Value* a) { return mul(a, a); }
  Value* reciprocal(Value* a) { return op("Reciprocal", {a}); }
  Value* where(Value* condition, Value* yes, Value* no) { return op("Where", {condition, yes, no}); }
  Value* equal(Value* a, Value* c) { return op("Equal", {a, c}); }
  Value* less(Value* a, Value* c) { return op("Less", {a, c}); }
  Value* greater(Value* a, Value* c) { return op("Greater", {a, c}); }
  Value* cast(Value* a, DType to);
  Value* cast_like(Value* a, const Value* like) { return cast(a, like->type.dtype); }
  Value* matmul(Value* a, Value* c) { return op("MatMul", {a, c}); }
  Value* transpose(Value* a, std::vector<std::int64_t> perm);
  Value* concat(std::vector<Value*> parts, std::int64_t axis);
  Value* gather(Value* data, Value* indices, std::int64_t axis);
  Value* sum(Value* a, std::vector<std::int64_t> axes, bool keepdims);
  Value* squeeze(Value* a, std::vector<std::int64_t> axes);
  Value* unsqueeze(Value* a, std::vector<std::int64_t> axes);
  Value* reshape(Value* a, std::vector<std::int64_t> shape);  ///< -1 and 0 as in Reshape
  Value* reshape_to(Value* a, Value* shape);                  ///< shape: 1-D int64; zeros are extents
  Value* slice(Value* a, std::int64_t start, std::int64_t end, std::int64_t axis);

  Value* shape_of(Value* a);                ///< 1-D int64: a constant when all extents are numbers
  Value* extent(Value* a, std::int64_t i);  ///< one extent, as a 0-D int64
  Value* size_of(Value* a);                 ///< number of elements, 0-D int64
  Value* zeros_like(Value* a);
  Value* reshape_like(Value* a, Value* like);
  Value* expand_like(Value* a, Value* like);
  /// a, which has the shape that `like` was broadcast to, summed back to the shape of `like`.
  Value* reduce_like(Value* a, Value* like);

  /// Rank of a value; Unsupported naming the node when it is not known.
  std::int64_t rank(const Value* a) const;
  /// All extents when they are numbers.
  std::optional<Dims> known_dims(const Value* a) const;

  /// What was set: (input or captured value, gradient), for the driver. A null gradient is a zero derivative.
  const std::vector<std::pair<Value*, Value*>>& results() const { return results_; }
  /// Whether every input that takes part was answered, for the driver.
  void check_complete() const;

 private:
  std::vector<Value*> output_gradients_;
  const std::set<const Value*>& active_;
  std::vector<bool> answered_;
  std::vector<std::pair<Value*, Value*>> results_;
};

}  // namespace backpass
