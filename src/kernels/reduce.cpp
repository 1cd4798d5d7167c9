#include "kernels/reduce.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "support/convert.hpp"
#include "support/half.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kTile = 4096;          // columns folded together: long runs of memory, which are quickest
constexpr std::int64_t kGroupWork = 1 << 16;  // elements that make a group worth a thread
constexpr std::int64_t kMaxGroups = 64;
constexpr std::int64_t kFewestRows = 64;  // of a group: with fewer, partial results were many beside the elements

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
template <class T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || kIsHalf<T>;

template <class T>
using Acc =
    std::conditional_t<kIsFloat<T>, double, std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;

template <class T>
Acc<T> identity(Fold fold) {
  if constexpr (kIsFloat<T>) {
    return fold_identity(fold);
  } else {
    switch (fold) {
      case Fold::maximum:
        return std::numeric_limits<T>::lowest();
      case Fold::minimum:
        return std::numeric_limits<T>::max();
      case Fold::product:
        return 1;
      default:
        return 0;
    }
  }
}

template <class A>
A join(Fold fold, A a, A b) {
  if constexpr (std::is_floating_point_v<A>) {
    return fold_join(fold, a, b);
  } else {
    using U = std::uint64_t;  // wraps without undefined behaviour
    switch (fold) {
      case Fold::maximum:
        return std::max(a, b);
      case Fold::minimum:
        return std::min(a, b);
      case Fold::product:
        return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
      default:
        return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
    }
  }
}

template <class T>
Acc<T> contribution(Fold fold, T value) {
  auto a = static_cast<Acc<T>>(value);
  auto u = static_cast<std::uint64_t>(a);
  switch (fold) {
    case Fold::sum_abs:
      return static_cast<Acc<T>>(std::is_signed_v<T> && value < T{0} ? std::uint64_t{0} - u : u);
    case Fold::sum_square:
      return static_cast<Acc<T>>(u * u);
    default:
      return a;
  }
}

/// 16-bit floats as float32, some at a time.
constexpr std::int64_t kWideElements = 4096;

template <class T>
constexpr DType kHalfType = std::is_same_v<T, Half> ? DType::float16 : DType::bfloat16;

template <class T>
double wide_run(Fold fold, const T* x, std::int64_t n) {
  const ConvertLoop widen = convert_loop(kHalfType<T>, DType::float32);
  float wide[kWideElements];
  double acc = fold_identity(fold);
  for (std::int64_t i = 0; i < n; i += kWideElements) {
    const std::int64_t count = std::min(kWideElements, n - i);
    widen(x + i, wide, count);
    acc = fold_join(fold, acc, fold_run(fold, wide, count, 0.0F));
  }
  return acc;
}

template <class T>
void wide_columns(Fold fold, const T* x, std::int64_t stride, std::int64_t rows, std::int64_t width, double* acc) {
  const ConvertLoop widen = convert_loop(kHalfType<T>, DType::float32);
  float wide[kWideElements];
  const std::int64_t most = kWideElements / width;
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t count = std::min(most, rows - first);
    for (std::int64_t r = 0; r < count; ++r) widen(x + (first + r) * stride, wide + r * width, width);
    fold_columns(fold, wide, width, count, width, nullptr, acc);
  }
}

template <class T>
Acc<T> run(Fold fold, const T* x, std::int64_t n, T shift) {
  if constexpr (kIsHalf<T>) {
    return wide_run(fold, x, n);
  } else if constexpr (std::is_floating_point_v<T>) {
    return fold_run(fold, x, n, shift);
  } else {
    Acc<T> acc = identity<T>(fold);
    for (std::int64_t i = 0; i < n; ++i) acc = join(fold, acc, contribution(fold, x[i]));
    return acc;
  }
}

template <class T>
void columns(const Reduction& p, const T* x, std::int64_t rows, std::int64_t width, const T* shift, Acc<T>* acc) {
  if constexpr (kIsHalf<T>) {
    wide_columns(p.fold, x, p.row_stride, rows, width, acc);
  } else if constexpr (std::is_floating_point_v<T>) {
    fold_columns(p.fold, x, p.row_stride, rows, width, shift, acc);
  } else {
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* row = x + r * p.row_stride;
      for (std::int64_t c = 0; c < width; ++c) acc[c] = join(p.fold, acc[c], contribution(p.fold, row[c]));
    }
  }
}

template <class T>
T finished(const Reduction& p, Acc<T> acc) {
  switch (p.finish) {
    case Finish::none:
      break;
    case Finish::mean:
      if constexpr (!kIsFloat<T>) {
        if (p.count == 0) return T{0};
      }
      return static_cast<T>(acc / static_cast<Acc<T>>(p.count));
    case Finish::root:
      return static_cast<T>(std::sqrt(static_cast<double>(acc)));
    case Finish::log:
      return static_cast<T>(std::log(static_cast<double>(acc)));
  }
  return static_cast<T>(acc);
}

std::int64_t offset_of(const std::vector<Reduction::Axis>& axes, std::int64_t index) {
  std::int64_t offset = 0;
  for (std::size_t i = axes.size(); i-- > 0;) {
    offset += (index % axes[i].extent) * axes[i].stride;
    index /= axes[i].extent;
  }
  return offset;
}

/// Folds group `g` of `width` neighbouring outputs into acc.
template <class T>
void fold_group(const Reduction& p, const T* x, std::int64_t g, std::int64_t width, const T* shift, Acc<T>* acc) {
  std::int64_t units = p.chunks;
  for (const auto& axis : p.folded) units *= axis.extent;
  std::int64_t last = std::min(units, (g + 1) * p.group_units);
  for (std::int64_t u = g * p.group_units; u < last; ++u) {
    std::int64_t begin = (u % p.chunks) * p.chunk_rows;
    std::int64_t rows = std::min(p.rows, begin + p.chunk_rows) - begin;
    const T* from = x + offset_of(p.folded, u / p.chunks) + begin * p.row_stride;
    if (p.runs) {
      acc[0] = join(p.fold, acc[0], run(p.fold, from, rows, shift == nullptr ? T(0) : *shift));
    } else {
      columns(p, from, rows, width, shift, acc);
    }
  }
}

/// Every row of a matrix, without the bookkeeping of the general case.
template <class T>
void reduce_rows(const Reduction& p, const T* x, const T* shift, T* y) {
  constexpr std::int64_t kBatch = 256;
  parallel_for(p.blocks, grain_for(p.rows), [&](std::int64_t begin, std::int64_t end) {
    double acc[kBatch];
    for (std::int64_t row = begin; row < end; row += kBatch) {
      std::int64_t count = std::min(kBatch, end - row);
      fold_rows(p.fold, x + row * p.rows, count, p.rows, shift == nullptr ? nullptr : shift + row, acc);
      for (std::int64_t i = 0; i < count; ++i) y[row + i] = finished<T>(p, acc[i]);
    }
  });
}

/// All groups into the first, group by group: in the order of memory.
template <class T>
void join_groups(const Reduction& p, Acc<T>* partial) {
  for (std::int64_t g = 1; g < p.groups; ++g) {
    const Acc<T>* group = partial + g * p.outputs;
    for (std::int64_t out = 0; out < p.outputs; ++out) partial[out] = join(p.fold, partial[out], group[out]);
  }
}

template <class T>
void reduce_as(const Reduction& p, const T* x, const T* shift, T* y, Acc<T>* partial) {
  if constexpr (std::is_floating_point_v<T>) {
    bool contiguous = p.kept.empty() || (p.kept.size() == 1 && p.kept[0].stride == p.rows);
    if (p.runs && p.folded.empty() && p.groups == 1 && contiguous) return reduce_rows(p, x, shift, y);
  }
  std::int64_t tiles = (p.inner + kTile - 1) / kTile;
  std::int64_t items = p.blocks * tiles * p.groups;
  std::int64_t work = p.count * std::min(p.inner, kTile) / p.groups;
  parallel_for(items, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    Acc<T> acc[kTile];
    for (std::int64_t item = begin; item < end; ++item) {
      std::int64_t g = item % p.groups;
      std::int64_t tile = (item / p.groups) % tiles;
      std::int64_t block = item / (p.groups * tiles);
      std::int64_t width = std::min(p.inner - tile * kTile, kTile);
      std::int64_t out = block * p.inner + tile * kTile;
      std::fill_n(acc, width, identity<T>(p.fold));
      const T* from = x + offset_of(p.kept, block) + tile * kTile;
      fold_group(p, from, g, width, shift == nullptr ? nullptr : shift + out, acc);
      if (p.groups == 1) {
        for (std::int64_t c = 0; c < width; ++c) y[out + c] = finished<T>(p, acc[c]);
      } else {
        std::copy_n(acc, width, partial + g * p.outputs + out);
      }
    }
  });
  if (p.groups == 1) return;
  join_groups<T>(p, partial);
  for (std::int64_t out = 0; out < p.outputs; ++out) y[out] = finished<T>(p, partial[out]);
}

void split_into_groups(Reduction& p) {
  std::int64_t outer = 1;
  for (const auto& axis : p.folded) outer *= axis.extent;
  std::int64_t items = p.blocks * ((p.inner + kTile - 1) / kTile);
  std::int64_t wanted = std::min(kMaxGroups, p.count * std::min(p.inner, kTile) / kGroupWork);
  p.chunk_rows = std::max<std::int64_t>(p.rows, 1);
  p.chunks = 1;
  p.group_units = outer;
  if (items >= kMaxGroups || wanted <= 1) return;
  std::int64_t per_unit = p.runs ? kGroupWork : std::max(kFewestRows, kGroupWork / std::min(p.inner, kTile));
  p.chunk_rows = std::min(p.chunk_rows, per_unit);
  p.chunks = (p.rows + p.chunk_rows - 1) / p.chunk_rows;
  std::int64_t units = outer * p.chunks;
  p.group_units = (units + wanted - 1) / wanted;
  p.groups = (units + p.group_units - 1) / p.group_units;
}

struct MergedAxis {
  std::int64_t extent, stride;
  bool folded;
};

/// Innermost first; neighbours of the same kind are one axis, axes of extent 1 are none.
std::vector<MergedAxis> merged_axes(std::span<const std::int64_t> dims, const std::vector<bool>& reduced) {
  std::vector<MergedAxis> axes;
  std::int64_t stride = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    if (dims[i] != 1) {
      if (!axes.empty() && axes.back().folded == reduced[i]) {
        axes.back().extent *= dims[i];
      } else {
        axes.push_back({dims[i], stride, reduced[i]});
      }
    }
    stride *= dims[i];
  }
  return axes;
}

}  // namespace

Reduction plan_reduction(std::span<const std::int64_t> dims, const std::vector<bool>& reduced, Fold fold,
                         Finish finish) {
  std::vector<MergedAxis> axes = merged_axes(dims, reduced);
  Reduction p;
  p.fold = fold;
  p.finish = finish;
  bool have_rows = false;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const MergedAxis& a = axes[i];
    if (!a.folded) {
      p.outputs *= a.extent;
      if (i == 0) {
        p.inner = a.extent;
        continue;
      }
      p.kept.insert(p.kept.begin(), {a.extent, a.stride});
      p.blocks *= a.extent;
      continue;
    }
    p.count *= a.extent;
    if (have_rows) {
      p.folded.insert(p.folded.begin(), {a.extent, a.stride});
    } else {
      p.rows = a.extent;
      p.row_stride = a.stride;
      p.runs = i == 0;
      have_rows = true;
    }
  }
  if (!have_rows) p.runs = p.inner == 1;
  if (p.outputs > 0 && p.count > 0) split_into_groups(p);
  return p;
}

void reduce(const Reduction& plan, DType dtype, const void* x, const void* shift, void* y, std::byte* scratch) {
  if (plan.outputs == 0) return;
  auto go = [&]<class T>() {
    reduce_as(plan, static_cast<const T*>(x), static_cast<const T*>(shift), static_cast<T*>(y),
              reinterpret_cast<Acc<T>*>(scratch));
  };
  if (dtype == DType::boolean) return go.template operator()<bool>();
  if (dtype == DType::float16) return go.template operator()<Half>();
  if (dtype == DType::bfloat16) return go.template operator()<BFloat16>();
  visit_real_or_integer(dtype, go);
}

}  // namespace backpass
