// The JSON header of a safetensors file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "backpass/tensor.hpp"

namespace backpass::onnx_io {

struct SafeTensorsEntry {
  DType dtype = DType::undefined;
  Dims dims;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafeTensorsHeader {
  std::map<std::string, SafeTensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// Strict: JSON of exactly this form, no key twice. Throws InvalidInput, its message starting with `where`.
SafeTensorsHeader parse_safetensors_header(std::string_view text, std::string_view where);

/// The same as text.
std::string print_safetensors_header(const SafeTensorsHeader& header);

/// Throws InvalidInput for what JSON cannot hold: names that are not UTF-8.
void check_utf8(std::string_view name, std::string_view where);

}  // namespace backpass::onnx_io
