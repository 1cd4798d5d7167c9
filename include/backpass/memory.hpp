// How much memory a model takes, before anything runs.
//
//   auto memory = backpass::check_memory("model.onnx", {.trainable = {"weight"}, .sizes = {{"batch", 32}}});
//   std::cout << memory.str();
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace backpass {

/// What the names of extents stand for: "batch" -> 32.
using Sizes = std::map<std::string, std::int64_t>;

/// Of intermediate values.
struct ArenaNeed {
  /// Bytes of the values that are needed at once, as an expression of the model's symbols: "max(3136*batch+64,
  /// 4096*batch)". What kernels want as scratch memory comes on top; small values that follow from extents alone are
  /// counted, though plans hold them elsewhere.
  std::string expression;
  std::vector<std::string> unknown;  ///< values whose size the model does not say; they are left out of it
  /// All of it, PlanReport::peak_bytes, for the sizes that were given; none where data decide how much follows.
  std::optional<std::int64_t> bytes;
};

struct MemoryCheck {
  ArenaNeed inference;
  std::optional<ArenaNeed> training;  ///< forward and backward, where something is trained
  std::int64_t constant_bytes = 0;    ///< weights and whatever else the model holds
  std::int64_t gradient_bytes = 0;    ///< of what is trained
  std::int64_t optimizer_bytes = 0;   ///< AdamW's two moments for it
  std::string str() const;
};

struct MemoryRequest {
  std::vector<std::string> trainable = {};  ///< inputs or initializers; empty: only inference
  Sizes sizes = {};                         ///< none: expressions only
};

/// InvalidInput listing every problem, and sizes that are missing or not of the model.
MemoryCheck check_memory(const std::filesystem::path& model, const MemoryRequest& request = {});
MemoryCheck check_memory(std::string_view bytes, const MemoryRequest& request = {});

}  // namespace backpass
