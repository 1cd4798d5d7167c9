#include "model/import_tensor.hpp"

#include <cstring>

#include "model/import.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kMaxDenseElements = std::int64_t{1} << 31;

std::size_t alignment_of(DType dtype) {
  int bits = bit_width(dtype);
  if (dtype == DType::complex64 || dtype == DType::complex128) bits /= 2;
  return bits < 8 ? 1 : static_cast<std::size_t>(bits) / 8;
}

[[noreturn]] void refuse_index(const std::string& name, std::int64_t index, std::int64_t extent) {
  fail("sparse tensor '", name, "' index: got ", index, ", expected one in [0, ", extent, ")");
}

}  // namespace

Tensor to_tensor(const onnx_io::TensorProto& proto) {
  if (proto.data_type == DType::string) {
    Tensor t(DType::string, proto.dims);
    if (t.size() != static_cast<std::int64_t>(proto.string_data.size())) {
      fail("tensor '", proto.name, "': got ", proto.string_data.size(), " strings, expected ", t.size());
    }
    std::copy(proto.string_data.begin(), proto.string_data.end(), t.as<std::string>());
    return t;
  }
  std::int64_t count = element_count(proto.dims);
  std::size_t bytes = byte_size(proto.data_type, count);
  if (bytes != proto.data.view.size()) {
    fail("tensor '", proto.name, "': got ", proto.data.view.size(), " bytes, expected ", bytes);
  }
  bool aligned = reinterpret_cast<std::uintptr_t>(proto.data.view.data()) % alignment_of(proto.data_type) == 0;
  if (aligned && bytes > 0) return {proto.data_type, proto.dims, proto.data.view.data(), proto.data.owner};
  Tensor t(proto.data_type, proto.dims);
  if (bytes > 0) std::memcpy(t.mutable_data(), proto.data.view.data(), bytes);
  return t;
}

Tensor to_dense(const onnx_io::SparseTensorProto& proto) {
  Tensor values = to_tensor(proto.values);
  const std::string& name = proto.values.name;
  if (element_count(proto.dims) > kMaxDenseElements) fail("sparse tensor '", name, "' is too large to be made dense");
  if (values.dtype() == DType::string || bit_width(values.dtype()) < 8) {
    fail<Unsupported>("sparse tensor '", name, "' of type ", name_of(values.dtype()));
  }
  std::vector<std::int64_t> indices = to_tensor(proto.indices).to_ints();
  bool linear = proto.indices.dims.size() == 1;
  std::size_t rank = proto.dims.size();
  auto count = static_cast<std::size_t>(values.size());
  if (indices.size() != (linear ? count : count * rank)) {
    fail("sparse tensor '", name, "': got ", indices.size(), " indices, expected ", linear ? count : count * rank);
  }
  Tensor dense(values.dtype(), proto.dims);
  std::memset(dense.mutable_data(), 0, dense.bytes());
  std::size_t width = byte_size(values.dtype(), 1);
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t position = 0;
    if (linear) {
      position = indices[i];
    } else {
      for (std::size_t d = 0; d < rank; ++d) {
        std::int64_t index = indices[i * rank + d];
        if (index < 0 || index >= proto.dims[d]) refuse_index(name, index, proto.dims[d]);
        position = position * proto.dims[d] + index;
      }
    }
    if (position < 0 || position >= dense.size()) refuse_index(name, position, dense.size());
    std::memcpy(dense.as<char>() + static_cast<std::size_t>(position) * width, values.as<char>() + i * width, width);
  }
  return dense;
}

Type to_type(const onnx_io::TypeProto& proto, const std::string& name) {
  switch (proto.kind) {
    case onnx_io::TypeProto::Kind::tensor:
    case onnx_io::TypeProto::Kind::sparse_tensor: {
      if (!proto.shape) return Type::tensor(proto.elem_type);
      Shape shape;
      for (std::size_t i = 0; i < proto.shape->size(); ++i) {
        const onnx_io::DimProto& d = (*proto.shape)[i];
        if (d.value && *d.value >= 0) {
          shape.emplace_back(*d.value);
        } else {
          shape.push_back(Dim::symbol(d.param.empty() ? name + "." + std::to_string(i) : d.param));
        }
      }
      return Type::tensor(proto.elem_type, std::move(shape));
    }
    case onnx_io::TypeProto::Kind::sequence:
      return Type::sequence(proto.element ? to_type(*proto.element, name) : Type{});
    case onnx_io::TypeProto::Kind::optional:
      return Type::optional(proto.element ? to_type(*proto.element, name) : Type{});
    case onnx_io::TypeProto::Kind::map:
    case onnx_io::TypeProto::Kind::opaque:
      fail<Unsupported>("value '", name, "' has a map or opaque type");
    case onnx_io::TypeProto::Kind::none:
      break;
  }
  return {};
}

}  // namespace backpass
