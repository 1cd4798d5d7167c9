// Positions of corresponding elements of tensors that broadcast: for element types that do not fit in tiles.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backpass/tensor.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {

template <std::size_t N>
class BroadcastWalk {
 public:
  BroadcastWalk(const std::array<Dims, N>& inputs, const Dims& output) : dims_(output), count_(element_count(output)) {
    for (std::size_t i = 0; i < N; ++i) strides_[i] = broadcast_strides(inputs[i], output);
  }

  /// f(position in the output, positions in the inputs)
  template <class F>
  void each(F&& f) const {
    Dims index(dims_.size(), 0);
    std::array<std::int64_t, N> at{};
    for (std::int64_t o = 0; o < count_; ++o) {
      f(o, at);
      for (std::size_t axis = dims_.size(); axis-- > 0;) {
        for (std::size_t i = 0; i < N; ++i) at[i] += strides_[i][axis];
        if (++index[axis] < dims_[axis]) break;
        for (std::size_t i = 0; i < N; ++i) at[i] -= strides_[i][axis] * dims_[axis];
        index[axis] = 0;
      }
    }
  }

 private:
  Dims dims_;
  std::int64_t count_;
  std::array<Dims, N> strides_;
};

}  // namespace backpass
