// What users register (include/backpass/custom_operator.hpp), as the engine sees it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backpass/custom_operator.hpp"
#include "graph/op.hpp"

namespace backpass {

/// The derivative of an operator or function: by a graph or by numbers.
struct CustomDerivative {
  GradientRule rule;
  BackwardFunction backward;
  std::string grad_domain;  ///< the operator that computes it by numbers
  std::string grad_op;
};

/// An operator of a user, or a built-in one under a user's gradient. Nodes point to the one they were read with.
struct CustomDef : OpDef {
  std::string own_name;
  std::string own_domain;
  TypeRule type_rule;
  ForwardFunction forward;
  KernelFunction kernel;
  std::shared_ptr<const CustomDerivative> derivative;
};

/// The rule for functions of that name, should there be one.
std::shared_ptr<const CustomDerivative> find_function_gradient(std::string_view domain, std::string_view name);

/// Emits the derivative of the node; `first`: where the operator's inputs begin among the node's.
void emit_custom_gradient(GradientContext& g, const CustomDerivative& derivative, std::size_t first);

// Inside of a node that computes a gradient by numbers: how many inputs and outputs the forward node had.
inline constexpr std::string_view kForwardInputs = "backpass_inputs";
inline constexpr std::string_view kForwardOutputs = "backpass_outputs";

}  // namespace backpass
