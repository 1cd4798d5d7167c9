// Col2Im: overlapping blocks, stored as columns, added up into an image.
#include <algorithm>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

/// One spatial axis of the image and of the blocks over it.
struct Axis {
  std::int64_t image, block, stride, dilation, pad_begin, pad_end;
  /// Number of block positions.
  std::int64_t positions() const {
    std::int64_t room = image + pad_begin + pad_end - dilation * (block - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
  }
};

/// Attributes of the node, kept by the kernel.
struct Settings {
  std::string label;
  std::vector<std::int64_t> strides, dilations, pads;

  Settings(const Node& node, std::size_t rank) : label(node.label()) {
    std::vector<std::int64_t> ones(rank, 1);
    strides = node.attr_ints("strides", ones);
    dilations = node.attr_ints("dilations", ones);
    pads = node.attr_ints("pads", std::vector<std::int64_t>(2 * rank, 0));
  }
};

std::vector<Axis> axes_of(const Settings& s, std::span<const std::int64_t> image, std::span<const std::int64_t> block) {
  std::size_t rank = image.size();
  if (block.size() != rank || s.strides.size() != rank || s.dilations.size() != rank || s.pads.size() != 2 * rank) {
    fail(s.label, " got ", block.size(), " block extents, ", s.strides.size(), " strides, ", s.dilations.size(),
         " dilations, ", s.pads.size(), " pads for an image of ", rank, " axes");
  }
  constexpr std::int64_t kLimit = 1LL << 31;
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < rank; ++i) {
    Axis a{image[i], block[i], s.strides[i], s.dilations[i], s.pads[i], s.pads[i + rank]};
    bool sound = a.image >= 0 && a.block > 0 && a.stride > 0 && a.dilation > 0 && a.pad_begin >= 0 && a.pad_end >= 0;
    for (std::int64_t v : {a.image, a.block, a.stride, a.dilation, a.pad_begin, a.pad_end}) sound = sound && v < kLimit;
    if (!sound) fail(s.label, " axis ", i, " of the image has a non-positive or huge extent, stride or pad");
    axes.push_back(a);
  }
  return axes;
}

/// Number of positions a block can take.
std::int64_t column_count(const std::vector<Axis>& axes) {
  Dims positions;
  for (const Axis& a : axes) positions.push_back(a.positions());
  return element_count(positions);
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& in = c.shape(0);
  c.require(in.size() == 3, "input: got rank ", in.size(), ", expected [N, C * block, L]");
  const auto known_image = movement::index_list(c, 1, "image_shape");
  const auto known_block = movement::index_list(c, 2, "block_shape");
  if (!known_image || !known_block) throw NotKnownYet{};
  const std::vector<Dim>& image = *known_image;
  const std::vector<Dim>& block = *known_block;
  c.require(image.size() == block.size() && !image.empty(), "image_shape and block_shape: got ", image.size(), " and ",
            block.size(), " extents");
  Dim area = product(block);
  c.require(!area.is_known() || area.value() > 0, "block_shape: got ", shown(block));
  c.require(!in[1].is_known() || !area.is_known() || in[1].value() % area.value() == 0, "input: got ", shown(in[1]),
            " channels, expected a multiple of ", shown(area));
  Shape out{in[0], floor_div(in[1], area)};
  out.insert(out.end(), image.begin(), image.end());
  c.set_shape(0, std::move(out));
  if (!is_known(image) || !is_known(block)) return;
  std::int64_t columns = column_count(axes_of(Settings(c.node, image.size()), to_dims(image), to_dims(block)));
  c.require(!in[2].is_known() || in[2].value() == columns, "input: got ", shown(in[2]), " columns, expected ", columns);
}

/// Adds one row of block positions; the last axis is the innermost loop.
template <class T>
struct Accumulate {
  const std::vector<Axis>& axes;
  const Dims& strides;  ///< of the image
  T* image;

  /// Walks the positions of axes [d, end) for the element `offset` of the block. Returns where the columns go on.
  const T* operator()(const T* columns, std::size_t d, const std::vector<std::int64_t>& offset,
                      std::int64_t base) const {
    const Axis& a = axes[d];
    std::int64_t at = offset[d] * a.dilation - a.pad_begin;
    for (std::int64_t p = 0; p < a.positions(); ++p, at += a.stride) {
      bool inside = base >= 0 && at >= 0 && at < a.image;
      std::int64_t next = inside ? base + at * strides[d] : -1;
      if (d + 1 < axes.size()) {
        columns = (*this)(columns, d + 1, offset, next);
      } else {
        if (inside) image[next] = static_cast<T>(image[next] + *columns);
        ++columns;
      }
    }
    return columns;
  }
};

template <class T>
void fold(const std::vector<Axis>& axes, std::int64_t planes, std::int64_t columns, const T* in, T* out) {
  Dims image;
  std::int64_t area = 1;
  for (const Axis& a : axes) {
    image.push_back(a.image);
    area *= a.block;
  }
  Dims strides = strides_of(image);
  std::int64_t size = element_count(image);
  parallel_for(planes, grain_for(area * columns), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> offset(axes.size());
    for (std::int64_t plane = begin; plane < end; ++plane) {
      Accumulate<T> add{axes, strides, out + plane * size};
      std::fill_n(add.image, size, T(0));
      for (std::int64_t k = 0; k < area; ++k) {
        std::int64_t rest = k;
        for (std::size_t d = axes.size(); d-- > 0; rest /= axes[d].block) offset[d] = rest % axes[d].block;
        add(in + (plane * area + k) * columns, 0, offset, 0);
      }
    }
  });
}

Kernel prepare(PrepareContext& c) {
  Dims out = c.out(0).dims;
  DType dtype = c.in(0).dtype;
  Dims image(out.begin() + 2, out.end());
  std::int64_t planes = out[0] * out[1];
  std::int64_t columns = c.in(0).dims[2];
  std::int64_t channels = c.in(0).dims[1];
  std::int64_t block_rank = c.in(2).size();
  auto plan = [=, settings = Settings(c.node, image.size())](const void* block) {
    std::vector<std::int64_t> extents = movement::read_ints(DType::int64, block, block_rank);
    std::vector<Axis> axes = axes_of(settings, image, extents);
    if (column_count(axes) != columns || element_count(extents) * out[1] != channels) {
      fail(settings.label, " block_shape: got ", to_string(extents), ", which does not fit the input");
    }
    return axes;
  };
  std::vector<Axis> fixed;
  if (c.in(2).constant != nullptr) fixed = plan(c.in(2).constant->data());
  return [=](const KernelArgs& args) {
    std::vector<Axis> read;
    if (fixed.empty()) read = plan(args.inputs[2]);
    const std::vector<Axis>& axes = fixed.empty() ? read : fixed;
    visit_real_or_integer(dtype, [&]<class T>() { fold(axes, planes, columns, args.in<T>(0), args.out<T>(0)); });
  };
}

/// Where the elements of a block lie along one axis of the padded image, for each position of the block.
Value* taps(GradientContext& g, const Settings& s, std::size_t axis, std::int64_t pad) {
  auto number = [&](Value* extents) { return g.gather(extents, g.b.integer(static_cast<std::int64_t>(axis)), 0); };
  Value* dilation = g.b.integer(s.dilations[axis]);
  Value* stride = g.b.integer(s.strides[axis]);
  Value* block = number(g.x(2));
  Value* reach = g.mul(dilation, g.sub(block, g.b.integer(1)));
  Value* room = g.sub(g.add(number(g.x(1)), g.b.integer(pad - 1 + s.strides[axis])), reach);
  Value* positions = g.op("Max", {g.div(room, stride), g.b.integer(0)});
  return g.add(g.unsqueeze(g.mul(count_up(g, block), dilation), {1}), g.mul(count_up(g, positions), stride));
}

/// Every column is read back from where it was added.
void gradient(GradientContext& g) {
  const auto rank = static_cast<std::size_t>(g.rank(g.y()) - 2);
  const Settings s(g.node, rank);
  std::vector<std::int64_t> pads(2 * (rank + 2), 0);
  std::copy_n(s.pads.begin(), rank, pads.begin() + 2);
  std::copy_n(s.pads.begin() + static_cast<std::ptrdiff_t>(rank), rank, pads.end() - static_cast<std::ptrdiff_t>(rank));
  Value* columns = g.op("Pad", {g.dy(), g.b.ints(pads)});
  std::vector<std::int64_t> order{0, 1};
  for (std::size_t i = 0; i < rank; ++i) {
    const auto at = static_cast<std::int64_t>(2 + 2 * i);
    columns = g.gather(columns, taps(g, s, i, s.pads[i] + s.pads[i + rank]), at);
    order.push_back(at);
  }
  for (std::size_t i = 0; i < rank; ++i) order.push_back(static_cast<std::int64_t>(3 + 2 * i));
  g.set(0, g.reshape_like(g.transpose(columns, std::move(order)), g.x()));
}

const Register col2im{{.name = "Col2Im",
                       .since = 18,
                       .doc = "Overlapping blocks, stored as columns, added up into an image.",
                       .inputs = {3, 3},
                       .types = types::numbers,
                       .infer = infer,
                       .prepare = prepare,
                       .gradient = gradient,
                       .half_through_float = true}};

}  // namespace
}  // namespace backpass
