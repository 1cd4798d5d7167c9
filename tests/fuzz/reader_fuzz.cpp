// Any bytes: either a model, which then survives a round trip, or Error. Nothing else may happen.
//
// `make fuzz` starts from the models that reader_seeds.py writes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "backpass/error.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"

using namespace backpass;
using namespace backpass::onnx_io;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    read_tensor(bytes);
  } catch (const Error&) {
  }
  ModelProto model;
  try {
    model = read_model(bytes, std::make_shared<int>());  // the fuzzer owns the bytes
  } catch (const Error&) {
    return 0;
  }
  const std::string written = write_model(model);
  if (write_model(read_model(written, nullptr)) != written) std::abort();
  return 0;
}
