// Results that callers may write to.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "backpass/tensor.hpp"

namespace backpass {

/// The same elements in memory of their own.
inline Tensor copy_of(const Tensor& t) {
  Tensor copy(t.dtype(), t.dims());
  if (t.dtype() == DType::string) {
    std::copy_n(t.as<std::string>(), t.size(), copy.as<std::string>());
  } else if (t.bytes() > 0) {
    std::memcpy(copy.mutable_data(), t.data(), t.bytes());
  }
  return copy;
}

/// The tensor for someone who may keep it: itself where its memory has an owner, a copy where that is used again.
inline Tensor owned(const Tensor& t) { return t.owner() != nullptr || t.dtype() == DType::string ? t : copy_of(t); }

/// Copies what someone else (a feed, a model constant) holds too, so that results can be written to freely.
inline void unshare(RuntimeValue& v, long holders) {
  if (v.is_tensor() && v.tensor.owner().use_count() != holders) v.tensor = copy_of(v.tensor);
  if (v.kind != RuntimeValue::Kind::sequence) return;
  std::vector<RuntimeValue> items = *v.items;
  for (RuntimeValue& item : items) unshare(item, 2);
  v = RuntimeValue::sequence(std::move(items));
}

}  // namespace backpass
