// Working memory of one thread that outlives the call: grows to the largest size asked for, so that steady state
// allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace backpass {

namespace detail {
struct FreeAligned {
  void operator()(void* p) const { std::free(p); }
};
}  // namespace detail

/// `count` uninitialised elements, 64-byte aligned. Valid until the next call with the same `Slot` on this thread, so
/// that callers that may nest use different slots.
template <class T, int Slot>
T* thread_buffer(std::int64_t count) {
  thread_local std::unique_ptr<void, detail::FreeAligned> memory;
  thread_local std::size_t capacity = 0;
  std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
  if (bytes > capacity) {
    memory.reset();
    capacity = 0;
    memory.reset(std::aligned_alloc(64, bytes));
    if (memory == nullptr) throw std::bad_alloc();
    capacity = bytes;
  }
  return static_cast<T*>(memory.get());
}

/// Who uses which slot.
enum BufferSlot : int { kPackedB, kCopiedA, kGemmBatch, kColumns, kSample, kTiles, kStrip, kWideStrip, kTurnedC };

}  // namespace backpass
