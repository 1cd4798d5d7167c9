#include "training/shared_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace backpass {
namespace {

struct Stretch {
  std::uintptr_t begin = 0, end = 0;
  bool is_written = false;
};

void add(std::vector<Stretch>& found, const Tensor& t, bool is_written) {
  if (t.bytes() == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(t.data());
  found.push_back({begin, begin + t.bytes(), is_written});
}

void add_read(std::vector<Stretch>& found, const RuntimeValue& value) {
  if (value.is_tensor() && value.tensor.dtype() != DType::string) add(found, value.tensor, false);
  if (value.kind != RuntimeValue::Kind::sequence) return;
  for (const RuntimeValue& item : *value.items) add_read(found, item);
}

}  // namespace

bool shares_memory(std::span<const Tensor> written, std::span<const RuntimeValue> read) {
  std::vector<Stretch> found;
  for (const Tensor& t : written) add(found, t, true);
  for (const RuntimeValue& v : read) add_read(found, v);
  std::sort(found.begin(), found.end(), [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  std::uintptr_t end = 0;          // of all so far
  std::uintptr_t written_end = 0;  // of those that are written
  for (const Stretch& s : found) {
    if (s.begin < (s.is_written ? end : written_end)) return true;
    end = std::max(end, s.end);
    if (s.is_written) written_end = std::max(written_end, s.end);
  }
  return false;
}

}  // namespace backpass
