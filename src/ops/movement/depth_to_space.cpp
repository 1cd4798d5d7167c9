// DepthToSpace and SpaceToDepth: channels into square blocks of pixels, and back.
#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"
#include "support/printable.hpp"

namespace backpass {
namespace {

template <class Context>
std::int64_t block_size(const Context& c) {
  std::int64_t b = c.node.attr_int("blocksize");
  constexpr std::int64_t kLargest = (1 << 15) - 1;
  c.require(b > 0 && b <= kLargest, "blocksize: got ", b, ", expected 1 to ", kLargest);
  return b;
}

bool depth_first(const Node& node) {
  std::string mode = node.attr_string("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") fail(node.label(), " mode: got ", printable(mode), ", expected DCR or CRD");
  return mode == "DCR";
}

Dim divided(const InferContext& c, const Dim& extent, std::int64_t by, const char* what) {
  c.require(!extent.is_known() || extent.value() % by == 0, what, ": got ", shown(extent), ", expected a multiple of ",
            by);
  return floor_div(extent, by);
}

const Shape& image(InferContext& c) {
  depth_first(c.node);
  c.set_dtype(0, c.dtype(0));
  c.require(c.rank(0) == 4, "input: got rank ", c.rank(0), ", expected [N,C,H,W]");
  return c.shape(0);
}

void infer_to_space(InferContext& c) {
  const Shape& in = image(c);
  std::int64_t b = block_size(c);
  c.set_shape(0, {in[0], divided(c, in[1], b * b, "channels"), in[2] * b, in[3] * b});
}

void infer_to_depth(InferContext& c) {
  const Shape& in = image(c);
  std::int64_t b = block_size(c);
  c.set_shape(0, {in[0], in[1] * (b * b), divided(c, in[2], b, "height"), divided(c, in[3], b, "width")});
}

/// The same six loops serve both directions: strides of the deep tensor [N, C*b*b, H, W] and of the wide one
/// [N, C, H*b, W*b] along n, c, block row, block column, h, w.
struct Blocks {
  Dims dims;
  Dims deep;
  Dims wide;

  Blocks(const Dims& d, std::int64_t b, bool dcr) {
    std::int64_t channels = d[1] / (b * b);
    std::int64_t area = d[2] * d[3];
    dims = {d[0], channels, b, b, d[2], d[3]};
    std::int64_t channel = dcr ? area : b * b * area;
    std::int64_t column = dcr ? channels * area : area;
    deep = {d[1] * area, channel, b * column, column, d[3], 1};
    wide = {d[1] * area, b * b * area, b * d[3], 1, b * b * d[3], b};
  }
};

Kernel prepare_to_space(PrepareContext& c) {
  Blocks blocks(c.in(0).dims, block_size(c), depth_first(c.node));
  kernels::StridedCopy copy(c.in(0).dtype, blocks.dims, blocks.deep, blocks.wide);
  return [copy](const KernelArgs& args) { copy(args.inputs[0], args.outputs[0]); };
}

Kernel prepare_to_depth(PrepareContext& c) {
  Blocks blocks(c.out(0).dims, block_size(c), depth_first(c.node));
  kernels::StridedCopy copy(c.in(0).dtype, blocks.dims, blocks.wide, blocks.deep);
  return [copy](const KernelArgs& args) { copy(args.inputs[0], args.outputs[0]); };
}

void to_space_gradient(GradientContext& g) {
  const std::int64_t block = g.node.attr_int("blocksize");
  if (depth_first(g.node)) return g.set(0, g.op("SpaceToDepth", {g.dy()}, {{"blocksize", block}}));
  Value* dy = g.dy();
  Value* b = g.b.integer(block);
  Value* split = vector_of(g, {g.extent(dy, 0), g.extent(dy, 1), g.extent(g.x(), 2), b, g.extent(g.x(), 3), b});
  g.set(0, g.reshape_like(g.transpose(g.reshape_to(dy, split), {0, 1, 3, 5, 2, 4}), g.x()));
}

void to_depth_gradient(GradientContext& g) { g.set(0, g.op("DepthToSpace", {g.dy()}, attributes_of(g.node))); }

const Register depth_to_space{{.name = "DepthToSpace",
                               .since = 28,
                               .doc = "Channels rearranged into square blocks of pixels.",
                               .types = types::movable,
                               .infer = infer_to_space,
                               .prepare = prepare_to_space,
                               .gradient = to_space_gradient}};

const Register space_to_depth{{.name = "SpaceToDepth",
                               .since = 28,
                               .doc = "Square blocks of pixels rearranged into channels.",
                               .types = types::movable,
                               .infer = infer_to_depth,
                               .prepare = prepare_to_depth,
                               .gradient = to_depth_gradient}};

}  // namespace
}  // namespace backpass
