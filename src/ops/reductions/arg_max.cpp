// ArgMax, ArgMin: position of the extreme element along an axis.
#include "graph/op.hpp"
#include "kernels/arg_extreme.hpp"
#include "ops/axis_view.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, DType::int64);
  Shape shape = c.shape(0);
  std::size_t axis = c.axis(c.node.attr_int("axis", 0), shape.size());
  c.require(!shape[axis].is(0), "axis ", axis, " has extent 0: an empty axis has no extreme element");
  if (c.node.attr_int("keepdims", 1) != 0) {
    shape[axis] = 1;
  } else {
    shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  }
  c.set_shape(0, std::move(shape));
}

template <bool largest>
Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  AxisView v = axis_view(c, c.node.attr_int("axis", 0));
  bool last = c.node.attr_int("select_last_index", 0) != 0;
  return [=](const KernelArgs& a) {
    visit_real_or_integer(dtype, [&]<class T>() {
      arg_extreme(a.in<T>(0), a.out<std::int64_t>(0), v.outer, v.extent, v.inner, largest, last);
    });
  };
}

template <bool largest>
OpDef definition(std::string_view name, std::string_view doc) {
  return {.name = name,
          .since = 13,
          .doc = doc,
          .types = types::numbers,
          .infer = infer,
          .prepare = prepare<largest>,
          .half_through_float = true};
}

const Register kArgMax(definition<true>("ArgMax", "position of the largest element along an axis"));
const Register kArgMin(definition<false>("ArgMin", "position of the smallest element along an axis"));

}  // namespace
}  // namespace backpass
