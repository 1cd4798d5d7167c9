#include "ops/quantization/quantization.hpp"

#include <algorithm>

#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

bool is_one_element(const Shape& shape) {
  return std::all_of(shape.begin(), shape.end(), [](const Dim& d) { return d.is(1); });
}

// Symbols are not taken to be equal: a scale of one element serves any input, and a symbol may turn out to be 1.
void require_equal(const InferContext& c, const Dim& a, const Dim& b, const char* what) {
  c.require(!a.is_known() || !b.is_known() || a == b, what, ": got ", shown(b), ", expected ", shown(a));
}

void check_block(InferContext& c, const Shape& x, const Shape& scale, std::size_t axis, std::int64_t block) {
  c.require(x.size() == scale.size(), "scale of rank ", scale.size(), ": expected that of the input (", x.size(),
            ") when block_size is given");
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i != axis) {
      require_equal(c, x[i], scale[i], "extent of scale and input");
    } else if (x[i].is_known() && scale[i].is_known()) {
      c.require(ceil_div(x[i], Dim(block)) == scale[i], "scale of extent ", shown(scale[i]), " along axis ", axis,
                ": expected ", ceil_div(x[i], Dim(block)).str(), ", blocks of ", block, " in ", shown(x[i]));
    }
  }
}

void check_shapes(InferContext& c) {
  const Shape& x = c.shape(0);
  const Shape& scale = c.shape(1);
  const std::int64_t block = c.node.attr_int("block_size", 0);
  c.require(block >= 0, "block_size: got ", block, ", expected 0 or more");
  if (is_one_element(scale)) return;
  const std::size_t axis = c.axis(x.size() == 1 ? 0 : c.node.attr_int("axis", 1), x.size());
  if (block > 0) return check_block(c, x, scale, axis, block);
  c.require(scale.size() == 1, "scale of rank ", scale.size(), ": expected 0 or 1 when block_size is not given");
  require_equal(c, x[axis], scale[0], "number of scales for the quantized axis");
}

}  // namespace

void check_quantization(InferContext& c) {
  if (c.knows_shape(0) && c.knows_shape(1)) check_shapes(c);
  if (!c.has_input(2) || !c.knows_shape(1) || !c.knows_shape(2)) return;
  const Shape& scale = c.shape(1);
  const Shape& zero = c.shape(2);
  if (is_one_element(scale) && is_one_element(zero)) return;
  c.require(scale.size() == zero.size(), "zero point of shape ", shown(zero), ": expected that of the scale, ",
            shown(scale));
  for (std::size_t i = 0; i < scale.size(); ++i) require_equal(c, scale[i], zero[i], "extent of zero point and scale");
}

DType dtype_attribute(InferContext& c, const char* key, DTypeSet allowed, DType otherwise) {
  const std::int64_t code = c.node.attr_int(key, 0);
  if (code == 0) return otherwise;
  c.require(is_known_dtype(code) && allowed.has(static_cast<DType>(code)), key, ": got ", code, ", expected one of ",
            shown(allowed));
  return static_cast<DType>(code);
}

ScaleLayout scale_layout(const PrepareContext& c) {
  const Dims& x = c.in(0).dims;
  const Dims& scale = c.in(1).dims;
  if (std::all_of(scale.begin(), scale.end(), [](std::int64_t d) { return d == 1; })) return {};
  const std::size_t axis = c.axis(x.size() == 1 ? 0 : c.node.attr_int("axis", 1), x.size());
  ScaleLayout layout;
  layout.extent = x[axis];
  layout.inner = product(x, axis + 1, x.size());
  layout.block = c.node.attr_int("block_size", 0);
  layout.kind = layout.block > 0 ? ScaleLayout::Kind::block : ScaleLayout::Kind::axis;
  layout.blocks = layout.block > 0 ? scale[axis] : 1;
  return layout;
}

QuantizeSpec quantize_spec(const PrepareContext& c) {
  return {.from = c.in(0).dtype,
          .scale = c.in(1).dtype,
          .to = c.out(0).dtype,
          .has_zero_point = c.has_input(2),
          .saturate = c.node.attr_int("saturate", 1) != 0,
          .layout = scale_layout(c),
          .size = c.in(0).size(),
          .scale_count = c.in(1).size()};
}

}  // namespace backpass
