#include "onnx_io/checkpoint_verify.hpp"

#include <cstring>
#include <utility>

#include "backpass/error.hpp"
#include "onnx_io/tensor_check.hpp"
#include "support/printable.hpp"

namespace backpass::onnx_io {

AlignedBytes::AlignedBytes(std::string_view bytes) : view_(bytes) {
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % sizeof(std::uint64_t) == 0) return;
  copy_.resize(bytes.size() / sizeof(std::uint64_t) + 1);
  std::memcpy(copy_.data(), bytes.data(), bytes.size());
  view_ = {reinterpret_cast<const char*>(copy_.data()), bytes.size()};
}

const odtc::Checkpoint& verified_root(std::string_view bytes, std::string_view where) {
  constexpr std::size_t smallest = 8;
  constexpr std::size_t largest = FLATBUFFERS_MAX_BUFFER_SIZE - 1;
  const auto* const data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  if (bytes.size() < smallest)
    fail(where, "got ", bytes.size(), " bytes, expected a checkpoint; the file is truncated");
  if (!odtc::CheckpointBufferHasIdentifier(data)) {
    fail(where, "got a file with identifier ", printable(bytes.substr(4, 4)), ", expected 'ODTC'; not a checkpoint");
  }
  if (bytes.size() > largest) fail(where, "got ", bytes.size(), " bytes, expected less than 2 GiB");
  flatbuffers::Verifier::Options options;
  options.max_tables = static_cast<flatbuffers::uoffset_t>(bytes.size() / sizeof(flatbuffers::uoffset_t));
  flatbuffers::Verifier verifier(data, bytes.size(), options);
  if (!odtc::VerifyCheckpointBuffer(verifier)) {
    fail(where, "the file is damaged: an offset or a length in it leads nowhere");
  }
  const odtc::Checkpoint& root = *odtc::GetCheckpoint(data);
  if (root.version() != kCheckpointVersion) {
    fail(where, "version: got ", root.version(), ", expected ", kCheckpointVersion);
  }
  return root;
}

DType read_dtype(const odtc::Tensor& source, std::string_view where) {
  const std::int32_t code = source.data_type();
  if (!is_known_dtype(code)) fail(where, "element type: got ", code, ", expected a number that ONNX defines");
  const auto dtype = static_cast<DType>(code);
  if (dtype == DType::string) fail<Unsupported>(where, "strings cannot be trained");
  return dtype;
}

TensorHeader read_header(const odtc::Tensor& source, std::string_view where) {
  constexpr std::size_t largest_rank = 64;
  TensorProto tensor;
  tensor.data_type = read_dtype(source, where);
  if (source.dims() != nullptr) {
    const std::size_t rank = source.dims()->size();
    if (rank > largest_rank) fail(where, "got ", rank, " dimensions, expected at most ", largest_rank);
    tensor.dims.resize(rank);  // copied bytewise: nobody has checked that 8-byte numbers are aligned in vectors
    if (rank > 0) std::memcpy(tensor.dims.data(), source.dims()->Data(), rank * sizeof(std::int64_t));
  }
  const std::int64_t count = count_elements(tensor, where);
  return {tensor.data_type, std::move(tensor.dims), byte_size(tensor.data_type, count)};
}

}  // namespace backpass::onnx_io
