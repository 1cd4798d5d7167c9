// What an operator is: one OpDef, registered by the file that implements it.
//
//   static const Register relu{{.name = "Relu", .since = 14, .doc = "...", .inputs = {1, 1}, .infer = ..., .prepare =
//   ...}};
//
// There is no list of operators anywhere: linking the file registers it, and tables in the docs are generated from
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backpass/tensor.hpp"
#include "graph/dim.hpp"
#include "graph/graph.hpp"
#include "support/kernel.hpp"

namespace backpass {

/// A set of element types.
class DTypeSet {
 public:
  constexpr DTypeSet() = default;
  constexpr DTypeSet(std::initializer_list<DType> types) {
    for (DType t : types) bits_ |= 1U << static_cast<unsigned>(t);
  }
  constexpr bool has(DType t) const { return (bits_ >> static_cast<unsigned>(t)) & 1U; }
  constexpr friend DTypeSet operator|(DTypeSet a, DTypeSet b) {
    a.bits_ |= b.bits_;
    return a;
  }
  constexpr bool empty() const { return bits_ == 0; }
  std::string str() const;  ///< "float32, float64"

 private:
  std::uint32_t bits_ = 0;
};

namespace types {
inline constexpr DTypeSet reals{DType::float32, DType::float64};
inline constexpr DTypeSet halves{DType::float16, DType::bfloat16};
inline constexpr DTypeSet floats = reals | halves;
inline constexpr DTypeSet signed_integers{DType::int8, DType::int16, DType::int32, DType::int64};
inline constexpr DTypeSet unsigned_integers{DType::uint8, DType::uint16, DType::uint32, DType::uint64};
inline constexpr DTypeSet integers = signed_integers | unsigned_integers;
inline constexpr DTypeSet indices{DType::int32, DType::int64};
inline constexpr DTypeSet boolean{DType::boolean};
inline constexpr DTypeSet strings{DType::string};
inline constexpr DTypeSet numbers = floats | integers;
inline constexpr DTypeSet complexes{DType::complex64, DType::complex128};
inline constexpr DTypeSet float8s{DType::float8e4m3fn, DType::float8e4m3fnuz, DType::float8e5m2, DType::float8e5m2fnuz,
                                  DType::float8e8m0};
inline constexpr DTypeSet sub_bytes{DType::uint4, DType::int4, DType::float4e2m1, DType::uint2, DType::int2};
/// Whole-byte elements that can simply be moved (everything but strings and sub-byte types).
inline constexpr DTypeSet plain = numbers | boolean | complexes | float8s;
inline constexpr DTypeSet movable = plain | strings;
}  // namespace types

/// Thrown by InferContext when a rule asks for something that is not known yet. Never reaches users.
struct NotKnownYet {};

/// What a shape rule sees and fills in. Rules set the dtype of each output first and then ask for shapes: when an
/// input's shape is not known, shape() leaves the rule and the output keeps its dtype with unknown shape.
class InferContext {
 public:
  InferContext(const Node& node, std::vector<const Type*> inputs, std::vector<const Tensor*> constants,
               std::vector<const std::vector<Dim>*> ints);

  const Node& node;

  std::size_t input_count() const { return inputs_.size(); }
  bool has_input(std::size_t i) const { return i < inputs_.size() && inputs_[i] != nullptr; }
  bool has_output(std::size_t i) const { return node.output(i) != nullptr; }
  const Type& type(std::size_t i) const;  ///< of a present input; fails with a message when it is omitted
  DType dtype(std::size_t i) const;       ///< of a tensor input; fails when the input is no tensor
  bool knows_shape(std::size_t i) const;  ///< the rank is known (extents may be symbolic)
  const Shape& shape(std::size_t i) const;
  std::size_t rank(std::size_t i) const { return shape(i).size(); }

  /// The whole contents of an input when known, else null.
  const Tensor* constant(std::size_t i) const { return i < constants_.size() ? constants_[i] : nullptr; }
  /// Contents of a small integer input, possibly symbolic; nullopt when not known.
  std::optional<std::vector<Dim>> maybe_ints(std::size_t i) const;
  /// The same, for rules that cannot go on without.
  std::vector<Dim> ints(std::size_t i) const;
  /// The same, all numbers: leaves the rule when any is symbolic.
  std::vector<std::int64_t> known_ints(std::size_t i) const;

  void set_dtype(std::size_t output, DType dtype);
  void set_shape(std::size_t output, Shape shape);
  void set(std::size_t output, DType dtype, Shape shape);
  void set_type(std::size_t output, Type type);
  void set_ints(std::size_t output, std::vector<Dim> values);  ///< known contents of a small integer output

  /// An extent that depends on data (how many elements are non-zero, ...), and is never above `most` where that is
  /// given.
  Dim data_dependent(std::string_view hint, const std::optional<Dim>& most = std::nullopt);

  /// The two extents must be equal: returns the more specific one and remembers what that says of symbols.
  Dim unify(const Dim& a, const Dim& b, std::string_view what);

  /// Axis in [-rank, rank) made non-negative, else a message.
  std::size_t axis(std::int64_t axis, std::size_t rank) const;

  /// InvalidInput: `[Op 'node'] <text>`.
  template <class... Args>
  [[noreturn]] void fail(const Args&... args) const {
    backpass::fail(node.label(), " ", args...);
  }
  template <class... Args>
  void require(bool condition, const Args&... args) const {
    if (!condition) fail(args...);
  }

  // Results, for the driver.
  std::vector<Type> outputs;
  std::vector<std::optional<std::vector<Dim>>> output_ints;
  std::vector<std::pair<std::string, Dim>> equalities;
  std::map<std::string, Dim> most;  ///< of data-dependent extents

 private:
  void check_integers(std::size_t i) const;

  std::vector<const Type*> inputs_;
  std::vector<const Tensor*> constants_;
  std::vector<const std::vector<Dim>*> ints_;
  int fresh_ = 0;
};

/// What is known of a tensor when a kernel is prepared.
struct TensorInfo {
  DType dtype = DType::undefined;
  Dims dims;
  const Tensor* constant = nullptr;  ///< contents that will not change for the life of the kernel, when known
  bool present = false;

  std::int64_t rank() const { return static_cast<std::int64_t>(dims.size()); }
  std::int64_t size() const { return element_count(dims); }
};

/// Given to `prepare` once all extents are numbers: do here whatever need not be done on every run (read attributes,
/// create primitives, pack constant weights), and return the closure that does the rest.
class PrepareContext {
 public:
  const Node& node;
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
  std::size_t scratch_bytes = 0;

  explicit PrepareContext(const Node& n) : node(n) {}

  bool has_input(std::size_t i) const { return i < inputs.size() && inputs[i].present; }
  bool has_output(std::size_t i) const { return i < outputs.size() && outputs[i].present; }
  const TensorInfo& in(std::size_t i) const;  ///< fails with a message when the input is omitted
  const TensorInfo& out(std::size_t i) const;
  std::size_t axis(std::int64_t axis, std::size_t rank) const;

  /// Reserves scratch memory; returns its offset from KernelArgs::scratch (a multiple of 64).
  std::size_t reserve(std::size_t bytes);

  template <class... Args>
  [[noreturn]] void fail(const Args&... args) const {
    backpass::fail(node.label(), " ", args...);
  }
  template <class... Args>
  void require(bool condition, const Args&... args) const {
    if (!condition) fail(args...);
  }
};

/// For operators whose outputs cannot be laid out before they run: sizes that depend on data, sequences, optionals,
/// strings, control flow.
class ComputeContext {
 public:
  const Node& node;
  std::vector<RuntimeValue> inputs;   ///< kind none where omitted
  std::vector<RuntimeValue> outputs;  ///< to be filled in; already has one entry per declared output

  explicit ComputeContext(const Node& n) : node(n), outputs(n.outputs.size()) {}

  bool has_input(std::size_t i) const { return i < inputs.size() && inputs[i].kind != RuntimeValue::Kind::none; }
  bool has_output(std::size_t i) const { return node.output(i) != nullptr; }
  const Tensor& tensor(std::size_t i) const;  ///< fails with a message when the input is no tensor
  const std::vector<RuntimeValue>& sequence(std::size_t i) const;
  std::size_t axis(std::int64_t axis, std::size_t rank) const;

  /// Runs a subgraph of this node; captures are bound already. Provided by whoever runs the node.
  std::function<std::vector<RuntimeValue>(std::string_view attribute, std::vector<RuntimeValue> inputs)> run_subgraph;

  template <class... Args>
  [[noreturn]] void fail(const Args&... args) const {
    backpass::fail(node.label(), " ", args...);
  }
  template <class... Args>
  void require(bool condition, const Args&... args) const {
    if (!condition) fail(args...);
  }
};

class Builder;
class GradientContext;
struct TileOp;

struct Arity {
  int min = 0;
  int max = 0;  ///< -1: any number
};

struct OpDef {
  std::string_view name;
  std::string_view domain = "";
  int since = 1;         ///< opset version whose meaning `infer` and the kernel implement (older ones are lifted to it)
  std::string_view doc;  ///< one line for the table in the docs
  Arity inputs{1, 1};
  Arity outputs{1, 1};
  DTypeSet types;  ///< of input 0 (of output 0 when there is no input); empty: any

  void (*infer)(InferContext&) = nullptr;

  // Exactly one of the following four says how it runs.
  Kernel (*prepare)(PrepareContext&) = nullptr;
  void (*compute)(ComputeContext&) = nullptr;
  /// Emits simpler nodes into the builder (before the node) and returns one value per output.
  std::vector<Value*> (*expand)(Builder&, const Node&) = nullptr;
  /// A function of corresponding elements: see ops/pointwise/tile_op.hpp. infer may be left out.
  const TileOp* tile = nullptr;

  // Its derivative (gradient/rule.hpp); an operator with `expand` has that of its expansion.
  /// Emits the gradients of the inputs, in standard operators only.
  void (*gradient)(GradientContext&) = nullptr;
  /// The same by an operator made for it, named as ONNX Runtime's where it has one: what training graphs use.
  void (*fused_gradient)(GradientContext&) = nullptr;
  /// Piecewise constant: the gradient is zero wherever it exists.
  bool is_flat = false;
  /// How many of the node's first inputs its results do not depend on differentiably, whatever the rest of the graph
  /// says: a gradient of its own stands in for theirs. Null: none.
  std::size_t (*detached_inputs)(const Node&) = nullptr;
  /// Asks for derivatives by its inputs: nothing computed from them is folded, or no way would lead back.
  bool is_gradient_request = false;

  // Traits.
  /// The kernel knows float32 and float64; float16 and bfloat16 tensors among inputs and outputs are converted around
  /// it.
  bool half_through_float = false;
  /// With half_through_float, a kernel that reads and writes tensors of 16-bit floats as they are; a null one where it
  /// has none for these sizes.
  Kernel (*prepare_half)(PrepareContext&) = nullptr;
  /// With half_through_float: how many first axes of all inputs and outputs it works separately along. Tensors are
  /// converted some of their elements at a time, as many as a cache holds.
  int separate_axes = 0;
  /// Output 0 is input 0 under another shape.
  bool is_view = false;
  /// Output 0 may occupy the memory of this input when both have the same size (-1: never).
  int in_place_input = -1;
  /// Works element by element through a tile program: with in_place_input >= 0, any input of the output's shape will
  /// do.
  bool is_tile_program = false;
  /// Costs little more than reading and writing its tensors once: if need be, computed again instead of kept. So are
  /// pointwise operators and views without saying so. A random one has to draw the same numbers as a node of its name.
  bool is_one_pass = false;
  /// Gives a different result each time: never folded or merged.
  bool is_random = false;
  /// Does something that others notice, such as talking to other processes: runs once, in the order of the graph, also
  /// where nobody reads what it gives (graph/effects.hpp). Random as well, so that nothing folds or merges it.
  bool has_effect = false;
  /// Made of other nodes when a graph is lowered (plan/lower.hpp): no file holds it.
  bool is_lowered = false;
  /// Hands its inputs to whoever runs the graph and waits for what it gives.
  bool is_pause = false;
  /// How many operations it takes, as an expression of extents; null: about one per element of its outputs. For nodes
  /// whose operands have known ranks.
  Dim (*flops)(const Node&) = nullptr;
};

/// Makes an operator known; lives in static storage of the operator's file.
struct Register {
  explicit Register(const OpDef& def);
};

/// Rewrites a node from an older opset to the form of OpDef::since. `opset` is the model's version for the domain.
/// May add constants or nodes through the builder, and may edit the node itself.
struct Adapter {
  std::string_view op;
  int below;  ///< applies to models whose opset is smaller than this
  void (*lift)(Builder&, Node&);
  std::string_view domain = "";
};

struct RegisterAdapter {
  explicit RegisterAdapter(const Adapter& adapter);
};

/// Null when there is no such operator.
const OpDef* find_op(std::string_view domain, std::string_view name);
/// All of them, sorted by domain and name.
std::vector<const OpDef*> all_ops();
/// The adapters that a node of this opset needs, in the order they must be applied: from the oldest change of meaning
/// (smallest `below`) to the newest, since each expects the form that the one before it left.
std::vector<const Adapter*> adapters_for(std::string_view domain, std::string_view op, std::int64_t opset);

}  // namespace backpass
