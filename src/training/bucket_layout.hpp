// How gradients lie together in buckets: pieces of memory that are sent to other processes as a whole.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backpass/tensor.hpp"

namespace backpass {

struct Bucket {
  /// A gradient in it.
  struct Member {
    std::size_t gradient = 0;
    std::int64_t begin = 0;  ///< its first element
    std::int64_t size = 0;
    Dims dims;
  };
  DType dtype = DType::undefined;
  std::int64_t size = 0;  ///< elements, a multiple of the number of parts
  std::vector<Member> members;
};

/// Of a part of a bucket: its elements, and what they are of its members' elements alone, one after the other.
struct BucketPart {
  std::int64_t begin = 0, end = 0;
  std::int64_t first = 0, last = 0;
};

/// Gradients like these tensors, in the order in which they are completed: as many of an element type as `bytes` hold
/// go together. Each begins at a cache line, and so does each of the equal `parts` that a bucket can be cut into.
std::vector<Bucket> lay_out(std::span<const Tensor> like, std::span<const std::size_t> order, std::int64_t bytes,
                            int parts);

BucketPart part_of(const Bucket& bucket, int part, int parts);

}  // namespace backpass
