// Gradients of what is no tensor. That of a sequence is a sequence of as many tensors, each of the shape of its
// element; that of an optional is the gradient of what it holds. An empty optional holds nothing: its gradient is a
// placeholder that nothing reads.
#pragma once

#include <functional>
#include <vector>

#include "gradient/rule.hpp"

namespace backpass {

/// The type of the gradient of a value of this type.
const Type& gradient_type(const Type& type);

/// Zeros, or another number, of the shapes of a value of any type.
Value* filled_like(Builder& b, Value* a, double number);

/// Contributions to one gradient, added element by element.
Value* sum_of(Builder& b, const std::vector<Value*>& parts);

/// SequenceMap over sequences of the same length. `write` gets the elements and returns what becomes of them.
Value* mapped(Builder& b, std::vector<Value*> sequences,
              const std::function<Value*(Builder&, const std::vector<Value*>&)>& write);

/// The sum of all tensors of a sequence that have the shape of `like`: zeros when there is none.
Value* sum_over(GradientContext& g, Value* sequence, Value* like);

}  // namespace backpass
