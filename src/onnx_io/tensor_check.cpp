#include "onnx_io/tensor_check.hpp"

#include <algorithm>

#include "backpass/error.hpp"

namespace backpass::onnx_io {

std::int64_t count_elements(const TensorProto& tensor, std::string_view where) {
  constexpr std::int64_t widest = 32;  // bytes of the largest element: complex128 has 16, std::string 32
  static_assert(sizeof(std::string) <= widest);
  std::int64_t extent = widest;
  bool is_empty = false;
  for (const std::int64_t dim : tensor.dims) {
    if (dim < 0) fail(where, "dimension: got ", dim, ", expected 0 or more");
    is_empty = is_empty || dim == 0;
    if (__builtin_mul_overflow(extent, std::max<std::int64_t>(dim, 1), &extent)) {
      fail(where, "shape: got more elements than 63 bits can count the bytes of");
    }
  }
  return is_empty ? 0 : extent / widest;
}

void check_dtype(const TensorProto& tensor, std::string_view where) {
  if (tensor.data_type == DType::undefined) fail(where, "data_type: got none, expected an element type");
}

std::string describe_elements(const TensorProto& tensor, std::int64_t count) {
  return concat(count, " ", name_of(tensor.data_type), count == 1 ? " element" : " elements");
}

void check_data_size(const TensorProto& tensor, std::int64_t count, std::size_t size, std::string_view where) {
  const std::size_t expected = byte_size(tensor.data_type, count);
  if (size == expected) return;
  fail(where, "data length: got ", size, ", expected ", expected, " (", describe_elements(tensor, count),
       "); re-export the model");
}

void check_strings(const TensorProto& tensor, std::int64_t count, std::string_view where) {
  if (tensor.data_location != 0 || !tensor.data.view.empty()) {
    fail(where, "got its strings as raw or external data, expected string_data; re-export the model");
  }
  if (static_cast<std::int64_t>(tensor.string_data.size()) != count) {
    fail(where, "string_data: got ", tensor.string_data.size(), " entries, expected ", count);
  }
}

}  // namespace backpass::onnx_io
