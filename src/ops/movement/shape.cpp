// Shape and Size: extents as data.
#include <algorithm>

#include "graph/op.hpp"
#include "ops/movement/movement.hpp"

namespace backpass {
namespace {

struct Range {
  std::size_t begin;
  std::size_t end;
};

Range selected_axes(const Node& node, std::size_t rank) {
  auto r = static_cast<std::int64_t>(rank);
  auto clamped = [r](std::int64_t axis) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(axis < 0 ? std::max(axis, -r) + r : axis, 0, r));
  };
  std::size_t begin = clamped(node.attr_int("start", 0));
  std::size_t end = clamped(node.attr_int("end", r));
  return {begin, std::max(begin, end)};
}

void infer_shape(InferContext& c) {
  c.set_dtype(0, DType::int64);
  const Shape& in = c.shape(0);
  Range axes = selected_axes(c.node, in.size());
  std::vector<Dim> extents(in.begin() + static_cast<std::ptrdiff_t>(axes.begin),
                           in.begin() + static_cast<std::ptrdiff_t>(axes.end));
  c.set_shape(0, {static_cast<std::int64_t>(extents.size())});
  movement::set_ints(c, 0, std::move(extents));
}

Kernel prepare_shape(PrepareContext& c) {
  const Dims& in = c.in(0).dims;
  Range axes = selected_axes(c.node, in.size());
  Dims extents(in.begin() + static_cast<std::ptrdiff_t>(axes.begin),
               in.begin() + static_cast<std::ptrdiff_t>(axes.end));
  return [extents](const KernelArgs& args) { std::copy(extents.begin(), extents.end(), args.out<std::int64_t>(0)); };
}

void infer_size(InferContext& c) {
  c.set(0, DType::int64, {});
  movement::set_ints(c, 0, {product(c.shape(0))});
}

Kernel prepare_size(PrepareContext& c) {
  std::int64_t count = c.in(0).size();
  return [count](const KernelArgs& args) { *args.out<std::int64_t>(0) = count; };
}

const Register shape{{.name = "Shape",
                      .since = 25,
                      .doc = "Extents of a tensor, or those of the axes [start, end).",
                      .types = movement::any_type,
                      .infer = infer_shape,
                      .prepare = prepare_shape}};

const Register size{{.name = "Size",
                     .since = 25,
                     .doc = "Number of elements of a tensor.",
                     .types = movement::any_type,
                     .infer = infer_size,
                     .prepare = prepare_size}};

}  // namespace
}  // namespace backpass
