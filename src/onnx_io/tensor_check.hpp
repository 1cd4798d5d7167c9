// What the shape of a tensor asks of its data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "onnx_io/proto.hpp"

namespace backpass::onnx_io {

/// The product of the dims. Throws InvalidInput, its message starting with `where`, for a negative dim and when the
/// bytes cannot be counted in 63 bits, zero dims being taken as ones: byte_size() of the result, and of any slice, is
/// safe.
std::int64_t count_elements(const TensorProto&, std::string_view where);

/// Throws InvalidInput unless the tensor has an element type.
void check_dtype(const TensorProto&, std::string_view where);

/// "4 float32 elements"
std::string describe_elements(const TensorProto&, std::int64_t count);

/// Throws InvalidInput unless `size` bytes are what `count` elements take.
void check_data_size(const TensorProto&, std::int64_t count, std::size_t size, std::string_view where);

/// Throws InvalidInput unless a tensor of `count` strings has that many and nothing else.
void check_strings(const TensorProto&, std::int64_t count, std::string_view where);

}  // namespace backpass::onnx_io
