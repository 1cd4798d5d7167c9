// Custom operators, and gradients for them.
//
//   backpass::register_operator({.name = "Cube",
//                                .domain = "my.domain",
//                                .kernel = [](const auto& call) { ... write call.outputs[0] ... },
//                                .gradient = [](backpass::GradientGraph& g) {              // 3 x^2 dy
//                                  g.set(0, g.mul(g.number(3), g.mul(g.dy(), g.mul(g.x(), g.x()))));
//                                }});
//
// From then on every model may hold my.domain.Cube: sessions run it, backpass::grad and training differentiate it,
// check() knows it. A gradient says either how it is computed by a graph (`gradient`: nodes of any operators, so that
// derivatives of derivatives exist) or by numbers (`backward`). Models that are open already keep what they were opened
// with. All functions here may be called from several threads; what is registered may be called so, too.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "backpass/tensor.hpp"

namespace backpass {

class Dim;
class GradientContext;
struct Node;
struct Value;

using AttributeValue = std::variant<std::int64_t, float, std::string, Tensor, std::vector<std::int64_t>,
                                    std::vector<float>, std::vector<std::string>>;
using Attributes = std::map<std::string, AttributeValue>;

/// One extent of a shape: a number, or an expression of names for what may vary ("batch", "2*batch").
class Extent {
 public:
  Extent(std::int64_t value = 0);  // NOLINT: implicit on purpose
  explicit Extent(const Dim& dim);

  bool is_known() const;
  std::int64_t value() const;  ///< InvalidInput unless is_known()
  std::string str() const;
  const Dim& dim() const { return *dim_; }

  friend Extent operator+(const Extent& a, const Extent& b);
  friend Extent operator-(const Extent& a, const Extent& b);
  friend Extent operator*(const Extent& a, const Extent& b);
  friend Extent floor_div(const Extent& a, const Extent& b);  ///< InvalidInput when b is 0
  /// Equal whatever the names stand for; false does not mean that they differ.
  friend bool operator==(const Extent& a, const Extent& b);

 private:
  std::shared_ptr<const Dim> dim_;
};

/// What is known of a tensor before running.
struct TensorType {
  DType dtype = DType::undefined;
  std::optional<std::vector<Extent>> shape;  ///< absent: not even the rank is known
};

/// One occurrence of an operator in a model.
class OperatorCall {
 public:
  /// For the engine. `first`: where the operator's inputs begin among those of the node.
  explicit OperatorCall(const Node& node, std::size_t first = 0) : node_(node), first_(first) {}

  std::string label() const;  ///< "[my.domain.Cube 'cube_3']", the opening of messages about it
  std::size_t input_count() const;
  std::size_t output_count() const;
  bool has_input(std::size_t i) const;
  bool has_output(std::size_t k) const;  ///< whether anybody wants it

  /// The attribute, or the other value when it is absent. InvalidInput when it is of another kind.
  std::int64_t attribute(std::string_view name, std::int64_t otherwise) const;
  float attribute(std::string_view name, float otherwise) const;
  std::string attribute(std::string_view name, const char* otherwise) const;
  Attributes attributes() const;  ///< all of them

  const Node& node() const { return node_; }

 private:
  const Node& node_;
  std::size_t first_;
};

/// The rule for types: gets those of the inputs (undefined where omitted), returns those of the outputs. A shape may be
/// left out where it depends on contents. Throw InvalidInput or Unsupported to refuse; the operator's name is added.
using TypeRule = std::function<std::vector<TensorType>(const OperatorCall&, std::span<const TensorType>)>;

/// Computes outputs from inputs (undefined tensors where omitted). Inputs are valid, and may be read, during the call.
using ForwardFunction = std::function<std::vector<Tensor>(const OperatorCall&, std::span<const Tensor> inputs)>;

/// The same into memory that is given: for operators whose type rule tells all shapes. It is planned ahead, like that
/// of built-in operators. Outputs nobody wants are undefined tensors.
using KernelFunction =
    std::function<void(const OperatorCall&, std::span<const Tensor> inputs, std::span<Tensor> outputs)>;

/// Gradients of the inputs by numbers; an undefined tensor stands for zeros. `gradients` are those of the outputs,
/// undefined where nothing flows back.
using BackwardFunction =
    std::function<std::vector<Tensor>(const OperatorCall&, std::span<const Tensor> inputs,
                                      std::span<const Tensor> outputs, std::span<const Tensor> gradients)>;

/// What a gradient rule sees and says: it reads inputs and outputs of the differentiated operator and the gradients
/// that reached its outputs, adds nodes, and hands back one gradient per input. Values are valid during the rule.
class GradientGraph {
 public:
  /// For the engine. `results`: how many inputs of the node stand before those of the operator.
  GradientGraph(GradientContext& context, std::size_t results);

  const OperatorCall& call() const { return call_; }
  Value* x(std::size_t i = 0) const;     ///< input i
  Value* y(std::size_t k = 0) const;     ///< output k
  bool has_dy(std::size_t k = 0) const;  ///< whether something flows back to output k
  Value* dy(std::size_t k = 0);          ///< its gradient; zeros when nothing does
  bool wants(std::size_t i) const;       ///< whether the gradient of input i is asked for

  /// The gradient of input i, of its type and shape. Null: it is zero.
  void set(std::size_t i, Value* gradient);
  /// The same for an operand that was broadcast: summed to the input's shape first.
  void set_reduced(std::size_t i, Value* gradient);

  /// A node of any operator. Null inputs are omitted ones.
  Value* op(std::string_view name, std::vector<Value*> inputs, const Attributes& attributes = {},
            std::string_view domain = "");
  std::vector<Value*> ops(std::string_view name, std::vector<Value*> inputs, std::size_t outputs,
                          const Attributes& attributes = {}, std::string_view domain = "");
  Value* constant(Tensor tensor);
  Value* number(double value, const Value* like = nullptr);  ///< 0-D, of the element type of `like` (null: of dy)
  Value* add(Value* a, Value* b) { return op("Add", {a, b}); }
  Value* sub(Value* a, Value* b) { return op("Sub", {a, b}); }
  Value* mul(Value* a, Value* b) { return op("Mul", {a, b}); }
  Value* div(Value* a, Value* b) { return op("Div", {a, b}); }
  Value* neg(Value* a) { return op("Neg", {a}); }
  Value* matmul(Value* a, Value* b) { return op("MatMul", {a, b}); }
  Value* cast_like(Value* a, const Value* like);
  Value* shape_of(Value* a);  ///< 1-D int64
  Value* zeros_like(Value* a);
  Value* reshape_like(Value* a, Value* like);
  Value* expand_like(Value* a, Value* like);
  Value* reduce_like(Value* a, Value* like);  ///< summed over what `like` was broadcast along

  TensorType type_of(const Value* a) const;

  /// For the engine: everything that was asked for has been said.
  void check_complete() const;

 private:
  GradientContext& context_;
  OperatorCall call_;
  std::size_t results_;
  std::vector<bool> answered_;
};

using GradientRule = std::function<void(GradientGraph&)>;

/// How many inputs or outputs an operator takes.
struct OperandCount {
  int min = 1;
  int max = 1;  ///< -1: any number
};

struct CustomOperator {
  std::string name;
  std::string domain;  ///< not that of the standard ("")
  int since = 1;       ///< version of the domain
  OperandCount inputs = {};
  OperandCount outputs = {};
  TypeRule types = {};  ///< left out: every output is like input 0
  // Exactly one of:
  ForwardFunction forward = {};
  KernelFunction kernel = {};
  // At most one of:
  GradientRule gradient = {};
  BackwardFunction backward = {};
  bool is_pure = true;   ///< the same inputs give the same outputs: may be computed once for constants
  bool replace = false;  ///< take the place of a custom operator registered before
};

/// InvalidInput when it is incomplete or the name is taken.
void register_operator(CustomOperator op);

/// A gradient for an operator that exists, or for a function that models bring along (which is then differentiated by
/// this rule instead of through its body). One that has a gradient keeps it unless `replace`.
struct CustomGradient {
  std::string name;
  std::string domain;
  GradientRule gradient = {};
  BackwardFunction backward = {};
  bool replace = false;
};

/// InvalidInput when it is incomplete, Unsupported when the operator is one that is taken apart while a model is read.
void register_gradient(CustomGradient gradient);

/// Takes back what was registered under that name; a built-in operator has its own gradient again.
void unregister(std::string_view domain, std::string_view name);

}  // namespace backpass
