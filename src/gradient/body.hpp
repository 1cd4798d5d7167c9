// For rules of operators with bodies (If, Loop, Scan): the gradient runs other bodies, which repeat the forward
// computation from what was kept and differentiate it.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "gradient/rule.hpp"
#include "graph/clone.hpp"

namespace backpass {

/// The value as the body sees it; captured now if it was not.
Value* captured_in(Graph& body, Value* outer);

/// The captures of the body that take part in the differentiation.
std::vector<Capture> wanted_captures(const GradientContext& g, const Graph& body);

/// Removes whatever the outputs do not need, captures included, and refuses bodies that would draw random numbers a
/// second time.
void finish_body(const GradientContext& g, Graph& body);

using Bodies = std::vector<std::pair<std::string, std::unique_ptr<Graph>>>;

/// A new node with bodies; returns its outputs.
std::vector<Value*> add_with_bodies(GradientContext& g, std::string_view op, std::vector<Value*> inputs,
                                    Bodies&& bodies, std::size_t output_count, const AttributeList& attributes = {});

}  // namespace backpass
