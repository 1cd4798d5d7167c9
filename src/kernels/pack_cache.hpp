// Forms of constant weights that kernels make for themselves, shared by everyone who asks for the same one while any of
// them is alive: a new binding costs no new packing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "backpass/tensor.hpp"
#include "support/mapped_memory.hpp"

namespace backpass {

/// `Form...` tells forms of the same weights apart.
template <class Packed, class... Form>
class PackCache {
 public:
  /// What make() gives for the part of `source` that begins at `part`.
  template <class Make>
  std::shared_ptr<const Packed> get(const Tensor& source, const void* part, Form... form, const Make& make) {
    std::lock_guard lock(mutex_);
    if (known_.size() >= sweep_at_) {
      std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
      sweep_at_ = std::max(kFirstSweep, 2 * known_.size());
    }
    std::weak_ptr<const Packed>& entry = known_[{part, form...}];
    if (std::shared_ptr<const Packed> packed = entry.lock()) return packed;
    struct Kept {
      Tensor source;  // keeps the address, the key, from meaning other weights
      Packed packed;
    };
    auto kept = std::make_shared<const Kept>(Kept{source, make()});
    std::shared_ptr<const Packed> packed(kept, &kept->packed);
    entry = packed;
    return packed;
  }

 private:
  static constexpr std::size_t kFirstSweep = 64;

  std::mutex mutex_;
  std::map<std::tuple<const void*, Form...>, std::weak_ptr<const Packed>> known_;
  std::size_t sweep_at_ = kFirstSweep;  // entries nobody uses are looked for only now and then
};

}  // namespace backpass
