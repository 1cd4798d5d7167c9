// Memory that files lend, and how its pages are given back.
#pragma once

#include <cstddef>

namespace backpass {

/// Announces read-only memory whose pages the system can bring back from a file; withdrawn before it is unmapped.
void announce_mapping(const void* begin, std::size_t bytes);
void withdraw_mapping(const void* begin);

/// What lies in an announced mapping will not be read again soon: its pages stop counting against this process. Reading
/// them again is safe and costs a page fault. Other memory is left alone.
void release_mapped_pages(const void* begin, std::size_t bytes);

}  // namespace backpass
