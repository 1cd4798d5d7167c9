#include "support/strides.hpp"

#include <algorithm>

#include "backpass/error.hpp"

namespace backpass {

Dims broadcast_dims(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  std::size_t rank = std::max(a.size(), b.size());
  Dims out(rank, 1);
  for (std::size_t i = 0; i < rank; ++i) {
    std::int64_t x = i < rank - a.size() ? 1 : a[i - (rank - a.size())];
    std::int64_t y = i < rank - b.size() ? 1 : b[i - (rank - b.size())];
    if (x != y && x != 1 && y != 1) fail("shapes ", to_string(a), " and ", to_string(b), " do not broadcast");
    out[i] = x == 1 ? y : x;
  }
  return out;
}

Dims strides_of(std::span<const std::int64_t> dims) {
  Dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

Dims broadcast_strides(std::span<const std::int64_t> from, std::span<const std::int64_t> to) {
  Dims own = strides_of(from);
  Dims strides(to.size(), 0);
  std::size_t offset = to.size() - from.size();
  for (std::size_t i = 0; i < from.size(); ++i) strides[offset + i] = from[i] == 1 ? 0 : own[i];
  return strides;
}

std::int64_t product(std::span<const std::int64_t> dims, std::size_t begin, std::size_t end) {
  std::int64_t p = 1;
  for (std::size_t i = begin; i < end; ++i) p *= dims[i];
  return p;
}

}  // namespace backpass
