// Nothing in a checkpoint is believed before it is checked here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "backpass/tensor.hpp"
#include "onnx_io/checkpoint_schema.hpp"

namespace backpass::onnx_io {

template <class T>
using TableVector = flatbuffers::Vector<flatbuffers::Offset<T>>;

/// FlatBuffers reads numbers in place: its buffer must be aligned as its largest number.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::string_view bytes);
  std::string_view view() const { return view_; }

 private:
  std::vector<std::uint64_t> copy_;
  std::string_view view_;
};

/// The root, once FlatBuffers' own verifier has followed every offset, in a time bounded by the size, and the version
/// is right. Messages start with `where`. `bytes` are aligned.
const odtc::Checkpoint& verified_root(std::string_view bytes, std::string_view where);

/// Element type, shape and number of bytes of a stored tensor.
struct TensorHeader {
  DType dtype = DType::undefined;
  Dims dims;
  std::size_t bytes = 0;
};
TensorHeader read_header(const odtc::Tensor& source, std::string_view where);
DType read_dtype(const odtc::Tensor& source, std::string_view where);

}  // namespace backpass::onnx_io
