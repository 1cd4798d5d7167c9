#include "kernels/blocked_conv.hpp"

#include <map>
#include <mutex>
#include <tuple>

#include "kernels/blocked_conv_parts.hpp"
#include "kernels/conv_tiles.hpp"

namespace backpass {

std::shared_ptr<const Tensor> shared_pack(const Tensor& weights, std::int64_t groups, std::int64_t form,
                                          const std::function<Tensor()>& pack) {
  struct Kept {
    Tensor source;  // keeps its address, the key, from meaning other weights
    Tensor packed;
  };
  static std::mutex mutex;
  static std::map<std::tuple<const void*, std::int64_t, std::int64_t>, std::weak_ptr<const Tensor>> known;
  std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = known[{weights.data(), groups, form}];
  if (auto packed = entry.lock()) return packed;
  auto kept = std::make_shared<const Kept>(Kept{weights, pack()});
  std::shared_ptr<const Tensor> packed(kept, &kept->packed);
  entry = packed;
  return packed;
}

std::shared_ptr<const BlockedConv> BlockedConv::make(const ConvGeometry& g, const BlockedConvOptions& o,
                                                     const Tensor& weights) {
  constexpr std::int64_t kMaxPositions = 64;
  if (g.in.size() != 2 || g.kernel_size() > kMaxPositions || o.block % conv_tile_kernels().lanes != 0) return nullptr;
  bool depthwise = o.blocked_in && g.in_channels == 1 && g.out_channels == 1;
  if (depthwise && g.groups % o.block == 0) return make_depthwise(g, o, weights);
  bool whole = g.out_channels % o.block == 0 && (!o.blocked_in || g.in_channels % o.block == 0);
  if (!whole || (!o.blocked_in && g.groups != 1)) return nullptr;
  return make_dense(g, o, weights);
}

}  // namespace backpass
