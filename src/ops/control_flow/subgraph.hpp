// What the operators with bodies (If, Loop, Scan, SequenceMap, FlexAttention)
// share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/op.hpp"

namespace backpass {

/// The body under this attribute. InvalidInput when it is missing or has other
/// numbers of inputs or outputs (-1: any).
const Graph& body_of(const Node& node, std::string_view attribute, std::int64_t inputs = -1, std::int64_t outputs = -1);

/// Brings the body into the internal form (see infer_graph), once, for inputs
/// of these types: they must hold in every call. Throws what is wrong with it.
void elaborate_body(const Node& node, std::string_view attribute, std::vector<Type> inputs);

/// Types of the body's outputs when its inputs have these types (unknown ones:
/// as the body declares them). Elaborates a body that has not been; otherwise
/// the graph is only read, so that it can be asked with symbols and with
/// numbers.
std::vector<Type> infer_body(const Node& node, std::string_view attribute, std::vector<Type> inputs);

/// What holds for a value that may be of either type: equal extents stay,
/// others become new symbols, named after this number.
Type merged(InferContext& context, const Type& a, const Type& b, std::size_t number = 0);

/// The type of one element of a sequence whose elements are of this type: an extent that depends on data (its symbol
/// has an '@') need not be that of another element, so it becomes a new symbol, named after this number.
Type one_of(InferContext& context, const Type& element, std::size_t number = 0);

/// The type with all shapes, also those of elements, unknown.
Type without_shapes(const Type& type);

/// Types around a body that hands `variables` from one iteration to the next.
struct IterationTypes {
  std::vector<Type> variables;  ///< after the last iteration (or before the
                                ///< first, when there is none)
  std::vector<Type> others;     ///< the body's remaining outputs, in any iteration
};

/// Finds types that hold for every iteration, given those before the first one:
/// extents that change become symbols. `call` gives the types of all body
/// outputs for given variable types; outputs [first, first + variables) are the
/// variables, those after them the others.
IterationTypes iteration_types(InferContext& context, std::vector<Type> initial, std::size_t first,
                               const std::function<std::vector<Type>(const std::vector<Type>&)>& call);

/// Numbers behind symbols.
using SymbolValues = std::map<std::string, Dim>;

/// Notes what the bare symbols of a body input's type stand for when a tensor of these extents is handed in.
void learn_symbols(const Type& input, const Dims& dims, SymbolValues& known);

/// A tensor for a scan output of no iterations: extents that neither the body
/// nor `known` tells are 0.
Tensor empty_scan_output(const Type& element, std::size_t axis, const SymbolValues& known);

/// Whether this is a bool tensor with one element.
bool is_truth(const Tensor& tensor);

/// One truth value. InvalidInput when the tensor is not a bool with one
/// element.
bool truth(const ComputeContext& context, const RuntimeValue& value, std::string_view what);

}  // namespace backpass
