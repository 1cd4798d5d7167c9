// The typed fields of TensorProto (float_data, int32_data, ...) as the packed little-endian bytes of TensorProto::data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "onnx_io/read_context.hpp"

namespace backpass::onnx_io {

/// The numbers of the typed fields.
namespace tensor_field {
enum : std::uint32_t {
  float_data = 4,
  int32_data = 5,
  string_data = 6,
  int64_data = 7,
  double_data = 10,
  uint64_data = 11,
};
}  // namespace tensor_field

/// The field number in which elements of this type stand when they are not raw.
std::uint32_t typed_field(DType);

/// "float_data", ... for a typed field, else empty.
std::string_view typed_field_name(std::uint32_t field);

/// Takes the typed field that stands next in a TensorProto: its encoded entries, all of them when it is packed.
std::string_view typed_entries(Fields&);

/// Decodes the typed field of the TensorProto in `message`, which has `count` elements. The number of entries is
/// checked before anything is allocated; messages start with `where`. float_data and double_data in one piece are not
/// copied.
Bytes read_typed_data(const ReadContext&, std::string_view message, const TensorProto&, std::int64_t count,
                      std::string_view where);

}  // namespace backpass::onnx_io
