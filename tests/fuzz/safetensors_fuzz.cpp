// Any bytes: either a safetensors file, or Error; and a header that can be read is read the same after it was printed.
// Nothing else may happen.
//
// `make fuzz` starts from the files that safetensors_seeds.py writes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "backpass/safetensors.hpp"
#include "onnx_io/safetensors_header.hpp"

using namespace backpass;
using namespace backpass::onnx_io;

namespace {

/// The text after the length that the file begins with, whatever that length says.
void fuzz_header(std::string_view file) {
  constexpr std::size_t kLengthBytes = 8;
  SafeTensorsHeader header;
  try {
    header = parse_safetensors_header(file.substr(std::min(file.size(), kLengthBytes)), "");
  } catch (const Error&) {
    return;
  }
  std::string printed;
  try {
    printed = print_safetensors_header(header);
  } catch (const Unsupported&) {
    return;
  }
  if (print_safetensors_header(parse_safetensors_header(printed, "")) != printed) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz_header({reinterpret_cast<const char*>(data), size});
  try {
    for (const auto& [name, tensor] : load_safetensors(std::as_bytes(std::span(data, size))).tensors) {
      if (tensor.bytes() > size) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
