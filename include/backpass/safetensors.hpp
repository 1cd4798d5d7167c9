// Tensors by name in a safetensors file, as the libraries around PyTorch exchange them.
//
//   backpass::export_parameters(state, "weights.safetensors");
//   backpass::import_parameters(state, "weights.safetensors");
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "backpass/checkpoint.hpp"
#include "backpass/tensor.hpp"

namespace backpass {

struct SafeTensors {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads bool, integers, float16, bfloat16, float32, float64, float8e4m3fn and float8e5m2; the tensors are copies. The
/// file is believed only after every offset has been checked: data that overlaps, leaves gaps or does not have the size
/// of its shape throws InvalidInput naming file and tensor.
SafeTensors load_safetensors(const std::filesystem::path& file);
SafeTensors load_safetensors(std::span<const std::byte> bytes);

/// Writes the file at once or not at all. Throws Unsupported for other element types.
void save_safetensors(const std::filesystem::path& file, const SafeTensors& content);

/// All parameters of a state. Throws for a nominal one.
void export_parameters(const CheckpointState& state, const std::filesystem::path& file);

/// Copies the file's tensors into the parameters of their names, or, in a nominal state, gives it its parameters.
/// Throws, and changes nothing, unless names, dtypes and shapes are exactly those of the state.
void import_parameters(CheckpointState& state, const std::filesystem::path& file);

}  // namespace backpass
