// What every kernel is to those who run it: a function of addresses.
#pragma once

#include <cstddef>
#include <functional>

namespace backpass {

/// What a kernel gets when it runs. Memory of inputs and outputs does not overlap unless the operator allowed it.
struct KernelArgs {
  const void* const* inputs;  ///< null where omitted
  void* const* outputs;       ///< null where not wanted
  std::byte* scratch;         ///< 64-byte aligned, as much as prepare asked for

  template <class T>
  const T* in(std::size_t i) const {
    return static_cast<const T*>(inputs[i]);
  }
  template <class T>
  T* out(std::size_t i) const {
    return static_cast<T*>(outputs[i]);
  }
};

/// Called many times, possibly from several threads at once: a kernel keeps no state of its own but what it was
/// prepared with. Pointers are aligned to the element size, not to vectors.
using Kernel = std::function<void(const KernelArgs&)>;

}  // namespace backpass
