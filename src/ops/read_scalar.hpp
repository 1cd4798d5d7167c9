// A scalar that arrives with the data: ratio, training_mode, learning rate.
#pragma once

#include <cstdint>

#include "graph/op.hpp"
#include "support/visit.hpp"

namespace backpass {

inline double read_scalar(DType dtype, const void* p) {
  double value = 0;
  visit_numeric(dtype, [&]<class T>() { value = static_cast<double>(*static_cast<const T*>(p)); });
  return value;
}

/// Reads input `input` (of one element) at each run, or stands for `otherwise` when it is omitted.
class ScalarInput {
 public:
  ScalarInput(const PrepareContext& c, std::size_t input, double otherwise) : input_(input), otherwise_(otherwise) {
    present_ = c.has_input(input);
    if (!present_) return;
    dtype_ = c.in(input).dtype;
    c.require(c.in(input).size() == 1, "input ", input, ": got shape ", shown(c.in(input).dims),
              ", expected a single value");
  }
  double read(const KernelArgs& a) const { return present_ ? read_scalar(dtype_, a.inputs[input_]) : otherwise_; }

 private:
  std::size_t input_;
  double otherwise_;
  bool present_ = false;
  DType dtype_ = DType::undefined;
};

}  // namespace backpass
