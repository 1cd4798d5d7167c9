#include "support/mapped_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <mutex>

namespace backpass {
namespace {

struct Mappings {
  std::mutex mutex;
  std::map<std::uintptr_t, std::size_t> bytes_at;
};

Mappings& mappings() {
  static auto* const all = new Mappings;  // outlives every file, also those closed while the process ends
  return *all;
}

std::uintptr_t number_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

}  // namespace

void announce_mapping(const void* begin, std::size_t bytes) {
  std::lock_guard lock(mappings().mutex);
  mappings().bytes_at[number_of(begin)] = bytes;
}

void withdraw_mapping(const void* begin) {
  std::lock_guard lock(mappings().mutex);
  mappings().bytes_at.erase(number_of(begin));
}

void release_mapped_pages(const void* begin, std::size_t bytes) {
  std::lock_guard lock(mappings().mutex);
  auto it = mappings().bytes_at.upper_bound(number_of(begin));
  if (it == mappings().bytes_at.begin()) return;
  --it;
  if (number_of(begin) + bytes > it->first + it->second) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = (number_of(begin) + page - 1) / page * page;  // whole pages only
  const std::uintptr_t last = (number_of(begin) + bytes) / page * page;
  // Where the system does not take the advice everything still works.
  if (first < last) static_cast<void>(::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED));
}

}  // namespace backpass
