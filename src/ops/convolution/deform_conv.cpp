// DeformConv: convolution whose kernel positions are moved by data and read by linear interpolation.
#include <algorithm>
#include <array>
#include <cmath>

#include "graph/op.hpp"
#include "kernels/conv.hpp"
#include "kernels/gemm.hpp"
#include "ops/convolution/conv_common.hpp"
#include "ops/convolution/deform_conv_rule.hpp"
#include "ops/flops.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kW, kOffset, kBias, kMask };

void check_field(InferContext& c, std::size_t input, const Shape& y, const Dim& channels) {
  if (!c.has_input(input) || !c.knows_shape(input)) return;
  const Shape& field = c.shape(input);
  c.require(field.size() == y.size(), "input ", input, " is ", shown(field), ": expected ", y.size(), " axes");
  c.unify(field[0], y[0], "batch extents");
  c.unify(field[1], channels, input == kMask ? "channels of the mask" : "channels of the offsets");
  for (std::size_t i = 2; i < y.size(); ++i) c.unify(field[i], y[i], "extents of the output and of offsets or mask");
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(kX));
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    if (!c.has_input(i)) continue;
    c.require(c.dtype(i) == c.dtype(kX), "input ", i, " has element type ", name_of(c.dtype(i)), ": expected ",
              name_of(c.dtype(kX)));
  }
  const Shape& w = c.shape(kW);
  Shape y = conv_shape(c, c.shape(kX), w);
  check_conv_bias(c, kBias, w[0]);
  std::int64_t groups = c.node.attr_int("offset_group", 1);
  const Dim& channels = c.shape(kX)[1];
  c.require(groups >= 1 && (!channels.is_known() || channels.value() % groups == 0), "attribute offset_group is ",
            groups, ": expected a positive divisor of the ", shown(channels), " channels");
  Dim positions = product(std::span<const Dim>(w).subspan(2)) * groups;
  check_field(c, kOffset, y, positions * static_cast<std::int64_t>(w.size() - 2));
  check_field(c, kMask, y, positions);
  c.set_shape(0, std::move(y));
}

struct Spec {
  ConvGeometry g;
  std::int64_t offset_groups;
  std::int64_t channels_per_offset_group;
  bool has_bias, has_mask;
};

/// Up to 2^axes neighbours of a point and their weights; those outside are left out.
template <class T>
struct Neighbours {
  int count = 0;
  std::array<std::int64_t, 8> at;
  std::array<T, 8> weight;
};

template <class T>
Neighbours<T> neighbours_of(const ConvGeometry& g, const std::array<T, 3>& point) {
  Neighbours<T> result;
  std::size_t axes = g.in.size();
  std::array<std::int64_t, 3> low{};
  std::array<T, 3> fraction{};
  for (std::size_t i = 0; i < axes; ++i) {
    if (!(point[i] > -1 && point[i] < static_cast<T>(g.in[i]))) return result;
    T below = std::floor(point[i]);
    low[i] = static_cast<std::int64_t>(below);
    fraction[i] = point[i] - below;
  }
  for (unsigned corner = 0; corner < 1U << axes; ++corner) {
    std::int64_t at = 0;
    T weight = 1;
    bool inside = true;
    for (std::size_t i = 0; i < axes; ++i) {
      bool high = ((corner >> i) & 1U) != 0;
      std::int64_t p = low[i] + (high ? 1 : 0);
      inside = inside && p >= 0 && p < g.in[i];
      at = at * g.in[i] + p;
      weight *= high ? fraction[i] : 1 - fraction[i];
    }
    if (!inside) continue;
    result.at[static_cast<std::size_t>(result.count)] = at;
    result.weight[static_cast<std::size_t>(result.count++)] = weight;
  }
  return result;
}

/// Where kernel position `k` meets output position `o`, moved by the offsets (one plane per axis).
template <class T>
std::array<T, 3> point_at(const ConvGeometry& g, std::int64_t k, std::int64_t o, const T* offsets) {
  std::array<T, 3> point{};
  std::int64_t size = g.out_size();
  std::int64_t position = o;
  for (std::size_t i = g.in.size(); i-- > 0;) {
    std::int64_t base = position % g.out[i] * g.stride[i] - g.pad_begin[i] + k % g.kernel[i] * g.dilation[i];
    point[i] = static_cast<T>(base) + offsets[static_cast<std::int64_t>(i) * size + o];
    position /= g.out[i];
    k /= g.kernel[i];
  }
  return point;
}

/// Columns [channel, kernel position] x [output position] of one image, as im2col makes them.
template <class T>
void deformed_columns(const Spec& s, const T* x, const T* offset, const T* mask, T* columns) {
  const ConvGeometry& g = s.g;
  std::int64_t size = g.out_size();
  std::int64_t positions = g.kernel_size();
  auto axes = static_cast<std::int64_t>(g.in.size());
  parallel_for(s.offset_groups * positions, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t first = i / positions * s.channels_per_offset_group;
      for (std::int64_t o = 0; o < size; ++o) {
        Neighbours<T> n = neighbours_of<T>(g, point_at(g, i % positions, o, offset + i * axes * size));
        T factor = mask != nullptr ? mask[i * size + o] : T(1);
        for (std::int64_t c = first; c < first + s.channels_per_offset_group; ++c) {
          T sum = 0;
          for (std::size_t j = 0; j < static_cast<std::size_t>(n.count); ++j) {
            sum += n.weight[j] * x[c * g.in_size() + n.at[j]];
          }
          columns[(c * positions + i % positions) * size + o] = sum * factor;
        }
      }
    }
  });
}

template <class T>
void run(const Spec& s, const KernelArgs& args, T* columns) {
  const ConvGeometry& g = s.g;
  std::int64_t size = g.out_size();
  std::int64_t rows = g.column_rows();
  std::int64_t fields = s.offset_groups * g.kernel_size() * size;
  auto axes = static_cast<std::int64_t>(g.in.size());
  for (std::int64_t n = 0; n < g.batch; ++n) {
    deformed_columns(s, args.in<T>(kX) + n * g.groups * g.in_channels * g.in_size(),
                     args.in<T>(kOffset) + n * fields * axes, s.has_mask ? args.in<T>(kMask) + n * fields : nullptr,
                     columns);
    for (std::int64_t group = 0; group < g.groups; ++group) {
      std::int64_t channel = group * g.out_channels;
      T* y = args.out<T>(0) + (n * g.groups * g.out_channels + channel) * size;
      for (std::int64_t c = 0; c < g.out_channels; ++c) {
        std::fill_n(y + c * size, size, s.has_bias ? args.in<T>(kBias)[channel + c] : T(0));
      }
      gemm<T>(false, false, g.out_channels, size, rows, T(1), args.in<T>(kW) + channel * rows, rows,
              columns + group * rows * size, size, T(1), y, size);
    }
  }
}

Kernel prepare(PrepareContext& c) {
  Spec s;
  s.g = conv_geometry(c.node, c.in(kX).dims, c.in(kW).dims, c.out(0).dims);
  if (s.g.in.size() > 3) {
    fail<Unsupported>(c.node.label(), " has ", s.g.in.size(), " spatial axes: supported are 1, 2 and 3");
  }
  s.offset_groups = c.node.attr_int("offset_group", 1);
  s.channels_per_offset_group = c.in(kX).dims[1] / s.offset_groups;
  s.has_bias = c.has_input(kBias);
  s.has_mask = c.has_input(kMask);
  if (c.out(0).size() == 0) return [](const KernelArgs&) {};
  Kernel kernel;
  visit_real(c.in(kX).dtype, [&]<class T>() {
    std::size_t at = c.reserve(static_cast<std::size_t>(s.g.groups * s.g.column_rows() * s.g.out_size()) * sizeof(T));
    kernel = [s, at](const KernelArgs& args) { run<T>(s, args, reinterpret_cast<T*>(args.scratch + at)); };
  });
  return kernel;
}

const Register deform_conv{
    {.name = "DeformConv",
     .since = 22,
     .doc = "convolution with kernel positions moved by data (1 to 3 spatial axes)",
     .inputs = {3, 5},
     .types = types::floats,
     .infer = infer,
     .prepare = prepare,
     .gradient = deform_conv_gradient,
     .half_through_float = true,
     .flops = [](const Node& node) { return flops::sums(node, flops::per_channel(node.inputs.at(1))); }}};

}  // namespace
}  // namespace backpass
