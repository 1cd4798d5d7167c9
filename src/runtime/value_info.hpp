// What users are told about inputs and outputs, and the check of what they feed.
#pragma once

#include <span>
#include <string>

#include "backpass/session.hpp"
#include "graph/graph.hpp"

namespace backpass {

ValueInfo describe(const Value& value);

/// Empty when `fed` fits the declared type of `input`, else "\n" and a message. Symbolic extents fit anything here;
/// that equal names get equal numbers is checked when the shapes are bound.
std::string mismatch(const Value& input, const RuntimeValue& fed);

/// The same for a tensor that is to hold what `info` describes: "got ..., expected ...", or empty.
std::string mismatch(const ValueInfo& info, const Tensor& given);

/// Throws when a symbol of the declared extents would stand for two numbers.
void check_symbols(std::span<Value* const> inputs, std::span<const RuntimeValue> fed);

}  // namespace backpass
