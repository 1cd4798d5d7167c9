// Tensors to and from PyTorch without copies and without linking to it: by the function table that its tensor type
// carries (`__dlpack_c_exchange_api__`, DLPack 1.3). A tenth of a microsecond per tensor in, half of one out.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>

#include "backpass/tensor.hpp"

/// The memory of a torch tensor, kept alive by the result. What is not contiguous is made so first (a copy).
/// InvalidInput for other objects, tensors that are not on the CPU, and element types ONNX has no name for.
backpass::Tensor tensor_from_torch(nanobind::handle object);

/// A torch tensor over the memory of `tensor`, sharing its ownership.
nanobind::object tensor_to_torch(const backpass::Tensor& tensor);

/// Where the elements of a torch tensor lie, without a hold on it: valid while nobody else can touch the object.
struct TorchMemory {
  void* data = nullptr;
  backpass::DType dtype = backpass::DType::undefined;
  std::int64_t count = 0;
  std::span<const std::int64_t> shape, strides;

  /// Whether the elements fill their memory, in whatever order.
  bool is_dense() const;
  /// Whether elements of the same place in memory have the same place in both tensors.
  bool is_laid_out_as(const TorchMemory& other) const;
};

/// InvalidInput as of tensor_from_torch.
TorchMemory torch_memory(nanobind::handle object);

/// Element type and extents of plain tensors on the CPU, as bytes that differ where one of these does; empty where one
/// of the objects is something else.
std::string kinds_of(const nanobind::tuple& objects);
