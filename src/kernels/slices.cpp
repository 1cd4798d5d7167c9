#include "kernels/slices.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace backpass {
namespace {

struct Block {
  std::int64_t outer,
      inner;  ///< products of the extents before and after the axis
};

Block around(std::span<const std::int64_t> dims, std::size_t axis) {
  return {element_count(dims.first(axis)), element_count(dims.subspan(axis + 1))};
}

// Strings move as objects, everything else as bytes.
void move_elements(DType dtype, void* to, std::int64_t to_index, const void* from, std::int64_t from_index,
                   std::int64_t count) {
  if (count == 0) return;
  if (dtype == DType::string) {
    std::copy_n(static_cast<const std::string*>(from) + from_index, count, static_cast<std::string*>(to) + to_index);
    return;
  }
  const auto size = static_cast<std::int64_t>(byte_size(dtype, 1));
  std::memcpy(static_cast<std::byte*>(to) + to_index * size, static_cast<const std::byte*>(from) + from_index * size,
              static_cast<std::size_t>(count * size));
}

void require_whole_bytes(DType dtype) {
  if (is_sub_byte(dtype)) fail<Unsupported>("cutting a tensor of packed ", name_of(dtype), " elements along an axis");
}

bool fits(const Dims& a, const Dims& b, std::size_t axis) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (i != axis && a[i] != b[i]) return false;
  return true;
}

}  // namespace

Tensor copied(const Tensor& tensor) {
  Tensor copy(tensor.dtype(), tensor.dims());
  if (tensor.size() == 0) return copy;
  if (tensor.dtype() == DType::string) {
    std::copy_n(tensor.as<std::string>(), tensor.size(), copy.as<std::string>());
  } else {
    std::memcpy(copy.mutable_data(), tensor.data(), tensor.bytes());
  }
  return copy;
}

Tensor owned(const Tensor& tensor) { return tensor.owner() ? tensor : copied(tensor); }

RuntimeValue owned(const RuntimeValue& value) { return value.is_tensor() ? RuntimeValue(owned(value.tensor)) : value; }

Tensor take(const Tensor& tensor, std::size_t axis, std::int64_t begin, std::int64_t count) {
  require_whole_bytes(tensor.dtype());
  const std::int64_t extent = tensor.dims()[axis];
  ensure(begin >= 0 && count >= 0 && begin + count <= extent, "take: range outside of the axis");
  Dims dims = tensor.dims();
  dims[axis] = count;
  Tensor out(tensor.dtype(), std::move(dims));
  const auto [outer, inner] = around(tensor.dims(), axis);
  for (std::int64_t o = 0; o < outer; ++o)
    move_elements(tensor.dtype(), out.mutable_data(), o * count * inner, tensor.data(), (o * extent + begin) * inner,
                  count * inner);
  return out;
}

Tensor pick(const Tensor& tensor, std::size_t axis, std::int64_t index) {
  Tensor one = take(tensor, axis, index, 1);
  Dims dims = one.dims();
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
  return one.reshaped(std::move(dims));
}

Tensor joined(std::span<const Tensor> parts, std::size_t axis) {
  ensure(!parts.empty(), "joined: no parts");
  const Tensor& first = parts.front();
  require_whole_bytes(first.dtype());
  Dims dims = first.dims();
  dims[axis] = 0;
  for (const Tensor& part : parts) {
    if (part.dtype() != first.dtype())
      fail("parts of different element types: got ", name_of(part.dtype()), " and ", name_of(first.dtype()));
    if (!fits(part.dims(), first.dims(), axis))
      fail("parts of different shapes: got ", to_string(part.dims()), " and ", to_string(first.dims()),
           ", expected equal extents except along axis ", axis);
    dims[axis] += part.dims()[axis];
  }
  Tensor out(first.dtype(), std::move(dims));
  const auto [outer, inner] = around(out.dims(), axis);
  const std::int64_t row = out.dims()[axis] * inner;
  std::int64_t offset = 0;
  for (const Tensor& part : parts) {
    const std::int64_t length = part.dims()[axis] * inner;
    for (std::int64_t o = 0; o < outer; ++o)
      move_elements(out.dtype(), out.mutable_data(), o * row + offset, part.data(), o * length, length);
    offset += length;
  }
  return out;
}

Tensor stacked(std::span<const Tensor> parts, std::size_t axis) {
  std::vector<Tensor> raised;
  raised.reserve(parts.size());
  for (const Tensor& part : parts) {
    Dims dims = part.dims();
    if (axis > dims.size()) fail("axis ", axis, " of the result: expected at most ", dims.size());
    dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis), 1);
    raised.push_back(part.reshaped(std::move(dims)));
  }
  return joined(raised, axis);
}

void fill_zero(Tensor& tensor) {
  if (tensor.size() == 0) return;
  if (tensor.dtype() == DType::string) {
    std::fill_n(tensor.as<std::string>(), tensor.size(), std::string());
  } else {
    std::memset(tensor.mutable_data(), 0, tensor.bytes());
  }
}

}  // namespace backpass
