#include "training/bucket_layout.hpp"

#include <algorithm>
#include <map>

namespace backpass {
namespace {

constexpr std::int64_t kLine = 64;  // bytes of the cache

std::int64_t line_of(DType dtype) { return std::max<std::int64_t>(1, kLine * 8 / bit_width(dtype)); }

std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

std::vector<Bucket> lay_out(std::span<const Tensor> like, std::span<const std::size_t> order, std::int64_t bytes,
                            int parts) {
  std::vector<Bucket> buckets;
  std::map<DType, Bucket> open;
  auto close = [&](Bucket& bucket) {
    bucket.size = round_up(bucket.size, line_of(bucket.dtype) * parts);
    buckets.push_back(std::move(bucket));
    bucket = {};
  };
  for (const std::size_t i : order) {
    Bucket& bucket = open[like[i].dtype()];
    const std::int64_t size = round_up(like[i].size(), line_of(like[i].dtype()));
    const bool is_full = static_cast<std::int64_t>(byte_size(like[i].dtype(), bucket.size + size)) > bytes;
    if (is_full && size > 0 && !bucket.members.empty()) close(bucket);
    bucket.dtype = like[i].dtype();
    bucket.members.push_back({i, bucket.size, like[i].size(), like[i].dims()});
    bucket.size += size;
  }
  for (auto& [dtype, bucket] : open) close(bucket);
  return buckets;
}

BucketPart part_of(const Bucket& bucket, int part, int parts) {
  const std::int64_t size = bucket.size / parts;
  BucketPart found{part * size, (part + 1) * size, 0, 0};
  for (const Bucket::Member& m : bucket.members) {
    found.first += std::clamp<std::int64_t>(found.begin - m.begin, 0, m.size);
    found.last += std::clamp<std::int64_t>(found.end - m.begin, 0, m.size);
  }
  return found;
}

}  // namespace backpass
