// Loads a model, says what it takes and gives, runs it once on zeros: `describe model.onnx [extent for what may vary]`.
#include <backpass/session.hpp>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <span>
#include <string>

namespace {

std::int64_t extent_of(const std::string& text, std::int64_t otherwise) {
  bool is_number = text.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? std::stoll(text) : otherwise;
}

backpass::Tensor zeros(const backpass::ValueInfo& input, std::int64_t free_extent) {
  backpass::Dims dims;
  for (const std::string& extent : input.shape) dims.push_back(extent_of(extent, free_extent));
  backpass::Tensor tensor(input.dtype, dims);
  std::memset(tensor.mutable_data(), 0, tensor.bytes());
  return tensor;
}

void describe(const std::string& path, std::int64_t free_extent) {
  const backpass::InferenceSession session(path);
  backpass::Feeds feeds;
  for (const backpass::ValueInfo& input : session.inputs()) {
    feeds.emplace_back(input.name, zeros(input, free_extent));
    std::cout << "input  " << input.name << ": " << input.type << "\n";
  }
  std::cout << "peak memory: " << session.plan(feeds).peak_bytes << " bytes\n";
  const auto results = session.run({}, feeds);
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::cout << "output " << session.outputs()[i].name << ": " << backpass::to_string(results[i].tensor.dims())
              << "\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::span arguments(argv, static_cast<std::size_t>(argc));
  if (argc < 2) {
    std::cerr << "usage: describe model.onnx [extent for what may vary]\n";
    return 2;
  }
  try {
    describe(arguments[1], argc > 2 ? std::stoll(arguments[2]) : 1);
    return 0;
  } catch (const std::exception& e) {  // backpass::InvalidInput, Unsupported: the message says what to do
    std::cerr << e.what() << "\n";
    return 1;
  }
}
