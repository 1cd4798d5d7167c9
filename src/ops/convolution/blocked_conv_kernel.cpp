#include "ops/convolution/blocked_conv_kernel.hpp"

#include "kernels/pack_cache.hpp"
#include "ops/convolution/blocked_conv_parts.hpp"
#include "ops/convolution/conv_tiles.hpp"

namespace backpass {

std::shared_ptr<const Tensor> shared_pack(const Tensor& weights, std::int64_t groups, std::int64_t form,
                                          const std::function<Tensor()>& pack) {
  static PackCache<Tensor, std::int64_t, std::int64_t> cache;
  return cache.get(weights, weights.data(), groups, form, [&] {
    Tensor packed = pack();
    release_mapped_pages(weights.data(), weights.bytes());
    return packed;
  });
}

std::shared_ptr<const BlockedConv> BlockedConv::make(const ConvGeometry& g, const BlockedConvOptions& o,
                                                     const Tensor& weights) {
  if (g.in.size() != 2 || g.kernel_size() > kMaxPositions || o.block % conv_tile_kernels().lanes != 0) return nullptr;
  bool depthwise = o.blocked_in && g.in_channels == 1 && g.out_channels == 1;
  if (depthwise && g.groups % o.block == 0) return make_depthwise(g, o, weights);
  bool whole = g.out_channels % o.block == 0 && (g.groups == 1 || g.in_channels % o.block == 0);
  if (!whole || (!o.blocked_in && g.groups != 1)) return nullptr;
  const auto transformed = o.may_transform ? make_winograd(g, o, weights) : nullptr;
  return transformed != nullptr ? transformed : make_dense(g, o, weights);
}

}  // namespace backpass
