#include "onnx_io/typed_data.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <protozero/varint.hpp>

#include "backpass/error.hpp"
#include "onnx_io/tensor_check.hpp"

namespace backpass::onnx_io {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor data is used as it stands in the file");

using protozero::pbf_wire_type;

pbf_wire_type entry_type(std::uint32_t field) {
  if (field == tensor_field::float_data) return pbf_wire_type::fixed32;
  if (field == tensor_field::double_data) return pbf_wire_type::fixed64;
  return pbf_wire_type::varint;
}

/// Calls `take` with the encoded entries of `field`, run by run.
template <class Take>
void each_run(std::string_view message, std::uint32_t field, Take take) {
  for (Fields f(message); f.next();) {
    if (f.number() == field) {
      take(typed_entries(f));
    } else {
      f.skip();
    }
  }
}

std::int64_t count_entries(std::string_view run, pbf_wire_type type) {
  if (type == pbf_wire_type::fixed32) return static_cast<std::int64_t>(run.size() / 4);
  if (type == pbf_wire_type::fixed64) return static_cast<std::int64_t>(run.size() / 8);
  return std::count_if(run.begin(), run.end(), [](char byte) { return (byte & 0x80) == 0; });
}

std::int64_t expected_entries(DType dtype, std::int64_t count, std::size_t size) {
  if (dtype == DType::complex64 || dtype == DType::complex128) return 2 * count;
  if (bit_width(dtype) == 4 || bit_width(dtype) == 2) return static_cast<std::int64_t>(size);
  return count;
}

/// Bits of the packed buffer that one integer entry fills: 4- and 2-bit elements come packed to bytes already.
int entry_bits(DType dtype) { return bit_width(dtype) < 6 ? 8 : bit_width(dtype); }

/// Puts integer entries one after another into a packed buffer of zeros.
class Packer {
 public:
  Packer(char* out, DType dtype) : out_(out), dtype_(dtype), bits_(entry_bits(dtype)) {
    if (bits_ >= 32 && dtype != DType::uint32) return;
    greatest_ = (std::int64_t{1} << bits_) - 1;
    least_ = bits_ == 6 || dtype == DType::uint32 ? 0 : -(std::int64_t{1} << (bits_ - 1));
  }

  /// False when the value does not fit. Both signs are taken for 8 and 16 bits: producers disagree on sign extension.
  bool put(std::int64_t value) {
    if (dtype_ == DType::boolean) value = value != 0;
    if (value < least_ || value > greatest_) return false;
    const auto position = index_++ * static_cast<std::size_t>(bits_);
    if (bits_ == 6) {
      const unsigned shifted = static_cast<unsigned>(value) << position % 8;
      out_[position / 8] = static_cast<char>(out_[position / 8] | (shifted & 0xff));
      if (position % 8 > 2) out_[position / 8 + 1] = static_cast<char>(shifted >> 8);
    } else {
      std::memcpy(out_ + position / 8, &value, static_cast<std::size_t>(bits_ / 8));
    }
    return true;
  }

 private:
  char* out_;
  DType dtype_;
  int bits_;
  std::size_t index_ = 0;
  std::int64_t least_ = std::numeric_limits<std::int64_t>::min();
  std::int64_t greatest_ = std::numeric_limits<std::int64_t>::max();
};

Bytes join_fixed(const ReadContext& context, std::string_view message, std::uint32_t field, std::size_t size) {
  auto joined = std::make_shared<std::string>();
  std::string_view whole;
  each_run(message, field, [&](std::string_view run) {
    if (run.size() == size)
      whole = run;
    else
      joined->append(run);
  });
  if (whole.size() == size) return {whole, context.owner};
  return {*joined, joined};
}

Bytes pack_integers(std::string_view message, const TensorProto& tensor, std::size_t size, std::string_view where) {
  const std::uint32_t field = typed_field(tensor.data_type);
  const auto packed = std::make_shared<std::string>(size, '\0');
  Packer packer(packed->data(), tensor.data_type);
  each_run(message, field, [&](std::string_view run) {
    for (const char *at = run.data(), *end = at + run.size(); at != end;) {
      const auto entry = protozero::decode_varint(&at, end);
      const auto value =
          field == tensor_field::int32_data ? static_cast<std::int32_t>(entry) : static_cast<std::int64_t>(entry);
      if (packer.put(value)) continue;
      fail(where, typed_field_name(field), ": got ", value, ", which does not fit in ", name_of(tensor.data_type));
    }
  });
  return {*packed, packed};
}

}  // namespace

std::uint32_t typed_field(DType dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::complex64:
      return tensor_field::float_data;
    case DType::float64:
    case DType::complex128:
      return tensor_field::double_data;
    case DType::int64:
      return tensor_field::int64_data;
    case DType::uint32:
    case DType::uint64:
      return tensor_field::uint64_data;
    case DType::string:
      return tensor_field::string_data;
    default:
      return tensor_field::int32_data;
  }
}

std::string_view typed_field_name(std::uint32_t field) {
  switch (field) {
    case tensor_field::float_data:
      return "float_data";
    case tensor_field::int32_data:
      return "int32_data";
    case tensor_field::string_data:
      return "string_data";
    case tensor_field::int64_data:
      return "int64_data";
    case tensor_field::double_data:
      return "double_data";
    case tensor_field::uint64_data:
      return "uint64_data";
    default:
      return {};
  }
}

std::string_view typed_entries(Fields& f) { return f.entries(entry_type(f.number())); }

Bytes read_typed_data(const ReadContext& context, std::string_view message, const TensorProto& tensor,
                      std::int64_t count, std::string_view where) {
  const std::size_t size = byte_size(tensor.data_type, count);
  const std::uint32_t field = typed_field(tensor.data_type);
  const pbf_wire_type type = entry_type(field);
  const std::int64_t expected = expected_entries(tensor.data_type, count, size);
  std::int64_t entries = 0;
  std::size_t bytes = 0;
  each_run(message, field, [&](std::string_view run) {
    entries += count_entries(run, type);
    bytes += run.size();
  });
  const bool has_whole_entries = type == pbf_wire_type::varint || bytes == size;
  if (entries != expected || !has_whole_entries) {
    fail(where, typed_field_name(field), ": got ", entries, " entries in ", bytes, " bytes, expected ", expected, " (",
         describe_elements(tensor, count), "); re-export the model");
  }
  return type == pbf_wire_type::varint ? pack_integers(message, tensor, size, where)
                                       : join_fixed(context, message, field, size);
}

}  // namespace backpass::onnx_io
