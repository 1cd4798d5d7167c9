#include "ops/movement/pad_kernel.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "kernels/strided_copy.hpp"
#include "support/parallel.hpp"
#include "support/strides.hpp"
#include "support/visit.hpp"

namespace backpass::kernels {
namespace {

std::int64_t floor_mod(std::int64_t a, std::int64_t b) { return (a % b + b) % b; }

/// The index that position i, outside [0, n), takes its element from.
std::int64_t made_up(std::int64_t i, std::int64_t n, PadMode mode) {
  switch (mode) {
    case PadMode::edge:
      return std::clamp<std::int64_t>(i, 0, n - 1);
    case PadMode::wrap:
      return floor_mod(i, n);
    case PadMode::reflect: {
      if (n == 1) return 0;
      std::int64_t period = 2 * (n - 1);
      std::int64_t m = floor_mod(i, period);
      return m < n ? m : period - m;
    }
    default:
      return -1;
  }
}

/// What is cropped is gone before anything is made up from the rest.
std::vector<std::int64_t> source_of(std::int64_t in, std::int64_t out, std::int64_t begin, PadMode mode) {
  std::int64_t end = out - in - begin;
  std::int64_t first = std::max<std::int64_t>(0, -begin);
  std::int64_t kept = std::max<std::int64_t>(0, in - first - std::max<std::int64_t>(0, -end));
  std::vector<std::int64_t> source(static_cast<std::size_t>(out));
  for (std::int64_t o = 0; o < out; ++o) {
    std::int64_t i = o - std::max<std::int64_t>(0, begin);
    bool inside = i >= 0 && i < kept;
    ensure(inside || kept > 0 || mode == PadMode::constant, "padding of an empty axis");
    std::int64_t from = inside ? i : made_up(i, kept, mode);
    source[static_cast<std::size_t>(o)] = from < 0 ? -1 : first + from;
  }
  return source;
}

}  // namespace

PadCopy::PadCopy(DType dtype, std::span<const std::int64_t> in, std::span<const std::int64_t> out,
                 std::span<const std::int64_t> begins, PadMode mode)
    : dtype_(dtype) {
  ensure(in.size() <= kMaxLoops, "padding of a tensor of rank ", in.size());
  std::size_t last = in.size();
  while (last > 0 && in[last - 1] == out[last - 1] && begins[last - 1] == 0) --last;
  Dims strides = strides_of(in);
  block_ = product(in, last, in.size());
  if (last == 0) {  // nothing changes: one row of one block
    inner_.source = {0};
  } else {
    inner_.source = source_of(in[last - 1], out[last - 1], begins[last - 1], mode);
    for (std::size_t i = 0; i + 1 < last; ++i) {
      outer_.push_back({source_of(in[i], out[i], begins[i], mode), strides[i]});
      rows_ *= out[i];
    }
    lead_ = std::clamp<std::int64_t>(begins[last - 1], 0, out[last - 1]);
  }
  auto position = static_cast<std::size_t>(lead_);
  const auto& source = inner_.source;
  while (position < source.size() && source[position] >= 0 &&
         source[position] == source[static_cast<std::size_t>(lead_)] + copied_) {
    ++copied_;
    ++position;
  }
}

void PadCopy::operator()(const void* in, const void* fill, void* out) const {
  visit_storage(dtype_, [&]<class T>() {
    run(static_cast<const T*>(in), fill == nullptr ? T{} : *static_cast<const T*>(fill), static_cast<T*>(out));
  });
}

template <class T>
void PadCopy::run_row(const T* in, const T& fill, T* out) const {
  auto count = static_cast<std::int64_t>(inner_.source.size());
  auto single = [&](std::int64_t o) {
    std::int64_t from = inner_.source[static_cast<std::size_t>(o)];
    if (from < 0) {
      std::fill_n(out + o * block_, block_, fill);
    } else {
      std::copy_n(in + from * block_, block_, out + o * block_);
    }
  };
  for (std::int64_t o = 0; o < lead_; ++o) single(o);
  if (copied_ > 0) {
    std::int64_t from = inner_.source[static_cast<std::size_t>(lead_)];
    std::copy_n(in + from * block_, copied_ * block_, out + lead_ * block_);
  }
  for (std::int64_t o = lead_ + copied_; o < count; ++o) single(o);
}

template <class T>
void PadCopy::run(const T* in, const T& fill, T* out) const {
  std::int64_t row_size = static_cast<std::int64_t>(inner_.source.size()) * block_;
  parallel_for(rows_, grain_for(row_size), [&](std::int64_t begin, std::int64_t end) {
    std::array<std::size_t, kMaxLoops> index;  // NOLINT: only what is used is set
    std::int64_t rest = begin;
    for (std::size_t i = outer_.size(); i-- > 0;) {
      auto extent = static_cast<std::int64_t>(outer_[i].source.size());
      index[i] = static_cast<std::size_t>(rest % extent);
      rest /= extent;
    }
    for (std::int64_t row = begin; row < end; ++row) {
      std::int64_t offset = 0;
      bool inside = true;
      for (std::size_t i = 0; i < outer_.size(); ++i) {
        std::int64_t from = outer_[i].source[index[i]];
        inside = inside && from >= 0;
        offset += from * outer_[i].stride;
      }
      if (inside) {
        run_row(in + offset, fill, out + row * row_size);
      } else {
        std::fill_n(out + row * row_size, row_size, fill);
      }
      for (std::size_t i = outer_.size(); i-- > 0;) {
        if (++index[i] < outer_[i].source.size()) break;
        index[i] = 0;
      }
    }
  });
}

}  // namespace backpass::kernels
