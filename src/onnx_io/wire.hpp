// One protobuf message, field by field: protozero with the checks that untrusted input needs.
#pragma once

#include <cstdint>
#include <limits>
#include <protozero/pbf_reader.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace backpass::onnx_io {

/// The bytes are not the message they should be. read_model turns it, like protozero::exception, into InvalidInput.
class DamagedMessage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Walks the fields of a message:
///
///     for (Fields f(bytes); f.next();) {
///       if (f.number() == 3) name = f.bytes(); else f.skip();
///     }
///
/// After next(), exactly one of the other functions must take the field. Each checks the wire type (protozero only
/// asserts).
class Fields {
 public:
  explicit Fields(std::string_view message) : reader_(message.data(), message.size()) {}

  bool next() {
    if (!reader_.next()) return false;
    if (is_packed()) check_length();
    return true;
  }
  std::uint32_t number() const { return reader_.tag(); }
  void skip() { reader_.skip(); }

  std::int64_t integer() {
    expect(protozero::pbf_wire_type::varint);
    return reader_.get_int64();
  }
  float real() {
    expect(protozero::pbf_wire_type::fixed32);
    return reader_.get_float();
  }
  std::string_view bytes() {
    expect(protozero::pbf_wire_type::length_delimited);
    const auto view = reader_.get_view();
    return {view.data(), view.size()};
  }

  /// Calls `take(std::int64_t)` for each entry of a repeated integer field, packed or not.
  template <class Take>
  void each_integer(Take take) {
    if (!is_packed()) return take(integer());
    for (const std::int64_t value : reader_.get_packed_int64()) take(value);
  }

  /// Calls `take(float)` for each entry of a repeated float field, packed or not.
  template <class Take>
  void each_real(Take take) {
    if (!is_packed()) return take(real());
    for (const float value : reader_.get_packed_float()) take(value);
  }

  /// The encoded entries of a repeated field: all of them when it is packed, else the one that stands here. `single` is
  /// the wire type of an entry.
  std::string_view entries(protozero::pbf_wire_type single) {
    if (is_packed()) return bytes();
    expect(single);
    const char* const begin = reader_.data().data();
    reader_.skip();
    return {begin, static_cast<std::size_t>(reader_.data().data() - begin)};
  }

 private:
  /// protozero keeps the lower 32 bits of a length and drops the rest.
  void check_length() const {
    const char* at = reader_.data().data();
    const char* const end = at + reader_.data().size();
    const std::uint64_t length = protozero::decode_varint(&at, end);
    if (length > static_cast<std::uint64_t>(end - at)) throw protozero::end_of_buffer_exception();
    if (length > std::numeric_limits<protozero::pbf_length_type>::max()) {
      throw DamagedMessage("field " + std::to_string(number()) + " of a message has " + std::to_string(length) +
                           " bytes, protobuf allows less than 2 GiB");
    }
  }

  bool is_packed() const { return reader_.has_wire_type(protozero::pbf_wire_type::length_delimited); }

  void expect(protozero::pbf_wire_type type) const {
    if (reader_.has_wire_type(type)) return;
    throw DamagedMessage("field " + std::to_string(number()) + " of a message: got wire type " +
                         std::to_string(static_cast<int>(reader_.wire_type())) + ", expected " +
                         std::to_string(static_cast<int>(type)));
  }

  protozero::pbf_reader reader_;
};

}  // namespace backpass::onnx_io
