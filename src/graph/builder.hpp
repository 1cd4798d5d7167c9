// Writing nodes by program: `b.op("Mul", {x, b.scalar(2.0F, x)})`. Used by expansions, opset adapters, passes,
// gradients.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

using AttributeList = std::vector<std::pair<std::string, Attribute>>;

class Builder {
 public:
  /// Inserts before `position` (null: at the end). Names of new nodes and values start with `prefix`. With `infer`,
  /// each new node's output types are inferred at once, so rules can read shapes of what they just built.
  Builder(Graph& graph, const Node* position, std::string prefix, bool infer = true);

  Graph& graph;

  /// One output.
  Value* op(std::string_view op, std::vector<Value*> inputs, const AttributeList& attributes = {},
            std::string_view domain = "");
  /// Several outputs.
  std::vector<Value*> ops(std::string_view op, std::vector<Value*> inputs, std::size_t output_count,
                          const AttributeList& attributes = {}, std::string_view domain = "");

  Value* constant(Tensor tensor);
  Value* ints(std::vector<std::int64_t> values);  ///< 1-D int64 constant
  Value* integer(std::int64_t value);             ///< 0-D int64 constant
  /// 0-D constant of the element type of `like` (whose dtype must be known, numeric).
  Value* scalar(double value, const Value* like);
  Value* scalar(double value, DType dtype);

 private:
  const Node* position_;
  std::string prefix_;
  bool infer_;
  int counter_ = 0;
};

}  // namespace backpass
