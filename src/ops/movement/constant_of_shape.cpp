// ConstantOfShape: a tensor filled with one value.
#include <cstring>

#include "graph/op.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/movement.hpp"

namespace backpass {
namespace {

/// The one element to repeat; float32 zero when the attribute is absent.
template <class Context>
Tensor element_of(const Context& c) {
  const Tensor* value = c.node.attr_tensor("value");
  if (value == nullptr) return Tensor::scalar_float(0);
  c.require(value->size() == 1, "value: got ", value->size(), " elements, expected one");
  return *value;
}

Shape shape_from_length(InferContext& c) {
  const Shape& length = c.shape(0);
  if (length.size() != 1 || !length[0].is_known()) throw NotKnownYet{};
  Shape out;
  for (std::int64_t i = 0; i < length[0].value(); ++i) out.push_back(c.data_dependent(concat("extent", i)));
  return out;
}

void infer(InferContext& c) {
  Tensor element = element_of(c);
  c.set_dtype(0, element.dtype());
  c.require(c.dtype(0) == DType::int64, "shape: got ", name_of(c.dtype(0)), ", expected int64");
  auto extents = movement::index_list(c, 0, "shape");
  if (!extents) return c.set_shape(0, shape_from_length(c));
  for (const Dim& d : *extents) {
    c.require(!d.is_known() || d.value() >= 0, "shape: got extent ", shown(d), ", expected none below 0");
  }
  c.set_shape(0, *extents);
  bool small = extents->empty() || (extents->size() == 1 && (*extents)[0].is_known() && (*extents)[0].value() <= 1024);
  if (small && (is_integer(element.dtype()) || element.dtype() == DType::boolean)) {
    std::size_t count = extents->empty() ? 1 : static_cast<std::size_t>((*extents)[0].value());
    movement::set_ints(c, 0, std::vector<Dim>(count, Dim(element.to_ints()[0])));
  }
}

/// A byte made of copies of one packed element.
std::uint8_t repeated(std::uint8_t element, int width) {
  unsigned bits = element & ((1U << width) - 1U);
  for (int w = width; w < 8; w *= 2) bits |= bits << w;
  return static_cast<std::uint8_t>(bits);
}

Kernel prepare(PrepareContext& c) {
  Tensor element = element_of(c);
  std::int64_t count = c.out(0).size();
  if (!is_sub_byte(element.dtype())) {
    return [=](const KernelArgs& args) {
      kernels::fill_elements(element.dtype(), element.data(), args.outputs[0], count);
    };
  }
  c.require(8 % bit_width(element.dtype()) == 0, "value: elements of ", name_of(element.dtype()), " are not supported");
  std::uint8_t byte = repeated(*element.as<std::uint8_t>(), bit_width(element.dtype()));
  std::size_t bytes = byte_size(element.dtype(), count);
  return [=](const KernelArgs& args) { std::memset(args.outputs[0], byte, bytes); };
}

const Register constant_of_shape{{.name = "ConstantOfShape",
                                  .since = 25,
                                  .doc = "A tensor of the given extents filled with one value.",
                                  .types = {DType::int64},
                                  .infer = infer,
                                  .prepare = prepare}};

}  // namespace
}  // namespace backpass
