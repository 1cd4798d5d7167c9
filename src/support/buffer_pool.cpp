#include "support/buffer_pool.hpp"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <span>

#include "support/parallel.hpp"

namespace backpass {
namespace {

constexpr std::size_t kWorthKeeping = std::size_t{1} << 16;  // below, malloc is as good

/// The whole pages of a piece of memory.
std::span<std::byte> pages_of(std::byte* data, std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  const std::size_t skipped = (kPage - reinterpret_cast<std::uintptr_t>(data) % kPage) % kPage;
  if (bytes < skipped + kPage) return {};
  return {data + skipped, (bytes - skipped) / kPage * kPage};
}

/// A large Tensor asks for huge pages. Those pay for what every step reads again and again; but where the system has to
/// look for them, the first gradients take longer to touch than to compute. All of it is going to be written: to be
/// given its pages in large pieces takes a third less time than one fault after the other. Where the system does not
/// know how (Linux before 5.14), they come by faults.
Tensor on_usual_pages(std::size_t bytes) {
  constexpr std::size_t kLarge = std::size_t{1} << 22;
  Tensor memory(DType::uint8, {static_cast<std::int64_t>(bytes)});
  const std::span<std::byte> pages = pages_of(memory.as<std::byte>(), bytes);
  if (pages.empty()) return memory;
  if (bytes >= kLarge) madvise(pages.data(), pages.size(), MADV_NOHUGEPAGE);
  constexpr int kPopulate = 23;  // MADV_POPULATE_WRITE, which older headers lack
  constexpr std::int64_t kTogether = std::int64_t{1} << 22;
  parallel_for(std::ssize(pages), kTogether, [&](std::int64_t begin, std::int64_t end) {
    madvise(pages.data() + begin, static_cast<std::size_t>(end - begin), kPopulate);
  });
  return memory;
}

struct Idle {
  Tensor memory;
  int since = 0;
};

}  // namespace

struct BufferPool::Shelf {
  std::mutex mutex;
  int run = 0;
  std::multimap<std::size_t, Idle> idle;  // by size in bytes

  Tensor find(std::size_t bytes) {
    std::lock_guard lock(mutex);
    auto it = idle.find(bytes);
    if (it == idle.end()) return {};
    Tensor memory = std::move(it->second.memory);
    idle.erase(it);
    return memory;
  }

  void put_back(Tensor memory) {
    std::lock_guard lock(mutex);
    const std::size_t bytes = memory.bytes();
    idle.emplace(bytes, Idle{std::move(memory), run});
  }
};

BufferPool::BufferPool() : shelf_(std::make_shared<Shelf>()) {}
BufferPool::~BufferPool() = default;

Tensor BufferPool::take(DType dtype, Dims dims) {
  const std::size_t bytes = dtype == DType::string ? 0 : byte_size(dtype, element_count(dims));
  if (bytes < kWorthKeeping) return {dtype, std::move(dims)};
  Tensor memory = shelf_->find(bytes);
  if (memory.size() == 0) memory = on_usual_pages(bytes);
  const void* data = memory.data();
  std::shared_ptr<const void> owner(data, [shelf = std::weak_ptr(shelf_), memory](const void*) mutable {
    if (auto alive = shelf.lock()) alive->put_back(std::move(memory));
  });
  return {dtype, std::move(dims), data, std::move(owner)};
}

void BufferPool::end_run() {
  constexpr int kPatience = 2;
  std::multimap<std::size_t, Idle> freed;  // after the lock is given up
  std::lock_guard lock(shelf_->mutex);
  const int now = ++shelf_->run;
  for (auto it = shelf_->idle.begin(); it != shelf_->idle.end();) {
    auto next = std::next(it);
    if (now - it->second.since > kPatience) freed.insert(shelf_->idle.extract(it));
    it = next;
  }
}

std::size_t BufferPool::idle_bytes() const {
  std::lock_guard lock(shelf_->mutex);
  std::size_t sum = 0;
  for (const auto& [bytes, idle] : shelf_->idle) sum += bytes;
  return sum;
}

}  // namespace backpass
