#include "kernels/strided_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "backpass/tensor.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

/// One element at a time, in the order of the destination.
template <class T>
std::vector<T> permuted(const std::vector<T>& in, const Dims& dims, const Dims& strides) {
  std::vector<T> out(in.size());
  for (std::int64_t i = 0; i < std::ssize(out); ++i) {
    std::int64_t rest = i;
    std::int64_t from = 0;
    for (std::size_t d = dims.size(); d-- > 0; rest /= dims[d]) from += rest % dims[d] * strides[d];
    out[static_cast<std::size_t>(i)] = in[static_cast<std::size_t>(from)];
  }
  return out;
}

template <class T>
void check_permutation(DType dtype, const Dims& dims, const std::vector<std::size_t>& order) {
  std::vector<T> in(static_cast<std::size_t>(element_count(dims)));
  std::iota(in.begin(), in.end(), T(1));
  Dims own = strides_of(dims);
  Dims to_dims;
  Dims strides;
  for (std::size_t axis : order) {
    to_dims.push_back(dims[axis]);
    strides.push_back(own[axis]);
  }
  std::vector<T> expected = permuted(in, to_dims, strides);
  for (int threads : {1, 2}) {
    ThreadScope scope(threads);
    std::vector<T> out(in.size());
    kernels::StridedCopy copy(dtype, to_dims, strides, strides_of(to_dims));
    copy(in.data(), out.data());
    EXPECT_EQ(out, expected) << to_string(std::span<const std::int64_t>(dims));
  }
}

/// Sizes around the edges of vectors, cache lines and tiles, for every element size.
TEST(StridedCopy, TransposesMatricesOfEverySize) {
  for (std::int64_t rows : {1, 3, 8, 17, 64, 129}) {
    for (std::int64_t columns : {1, 2, 16, 31, 65, 257}) {
      check_permutation<std::uint8_t>(DType::uint8, {rows, columns}, {1, 0});
      check_permutation<std::uint16_t>(DType::float16, {rows, columns}, {1, 0});
      check_permutation<std::uint32_t>(DType::float32, {rows, columns}, {1, 0});
      check_permutation<std::uint64_t>(DType::int64, {rows, columns}, {1, 0});
    }
  }
}

TEST(StridedCopy, PermutesManyAxes) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Dims dims(1 + random() % 6);
    for (std::int64_t& d : dims) d = 1 + static_cast<std::int64_t>(random() % 6);
    std::vector<std::size_t> order(dims.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    check_permutation<std::uint32_t>(DType::float32, dims, order);
  }
}

TEST(StridedCopy, ReversesAndRepeats) {
  std::vector<std::uint32_t> in{1, 2, 3};
  std::vector<std::uint32_t> out(6);
  Dims dims{2, 3};
  Dims backwards{0, -1};
  kernels::StridedCopy(DType::int32, dims, backwards, strides_of(dims))(in.data() + 2, out.data());
  EXPECT_EQ(out, (std::vector<std::uint32_t>{3, 2, 1, 3, 2, 1}));
}

TEST(StridedCopy, NothingToCopyTouchesNothing) {
  Dims dims{3, 0};
  kernels::StridedCopy(DType::float32, dims, strides_of(dims), strides_of(dims))(nullptr, nullptr);
}

}  // namespace
}  // namespace backpass
