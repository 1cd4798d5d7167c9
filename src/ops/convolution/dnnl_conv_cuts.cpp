#include <algorithm>

#include "ops/convolution/dnnl_cut_conv.hpp"

namespace backpass {
namespace {

// Enough for any number of threads that a convolution is worth, and multiplications that make a part worth its start.
constexpr std::int64_t kMostParts = 16;
constexpr std::int64_t kLeastWork = std::int64_t{1} << 20;
// Parts that keep threads busy without another division.
constexpr std::int64_t kEnough = 8;
// Channels of a block, and those below which inputs are read too often for what is done with them.
constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kWorthAShare = 32;

std::int64_t parts_wanted(const ConvGeometry& g) {
  std::int64_t work = g.batch * g.groups * g.out_channels * g.out_size() * g.column_rows();
  return std::clamp<std::int64_t>(work / kLeastWork, 1, kMostParts);
}

std::int64_t& divided(ConvGeometry& g, CutChannels along) {
  if (g.groups > 1) return g.groups;
  return along == CutChannels::in ? g.in_channels : g.out_channels;
}

/// Equal shares of the channels, `most` at most, that still fill `least` channels each.
std::int64_t channel_shares(ConvGeometry g, CutChannels along, std::int64_t least, std::int64_t most) {
  const std::int64_t channels = divided(g, along);
  // Groups of whole blocks can go anywhere; of smaller ones several make a block.
  const bool single = g.groups > 1 && g.in_channels % 8 == 0 && g.out_channels % 8 == 0;
  for (std::int64_t n : {16, 8, 4, 2}) {
    if (n <= most && channels % (n * (single ? 1 : least)) == 0) return n;
  }
  return 1;
}

/// The cut into about `runs` runs of images, and what remains.
std::vector<ConvCut> in_runs(const ConvGeometry& g, CutChannels along, std::int64_t runs, std::int64_t shares) {
  const std::int64_t images = (g.batch + runs - 1) / runs;
  std::vector<ConvCut> cuts;
  ConvCut cut{g, g, along, g.batch / images, shares};
  cut.part.batch = images;
  divided(cut.part, along) /= shares;
  cuts.push_back(cut);
  if (std::int64_t rest = g.batch % images; rest != 0) {
    cut.first_part = cut.image_parts;
    cut.first_image = cut.image_parts * images;
    cut.image_parts = 1;
    cut.part.batch = rest;
    cuts.push_back(cut);
  }
  return cuts;
}

}  // namespace

std::vector<ConvCut> ConvCut::for_output(const ConvGeometry& g, CutChannels along, bool whole_images) {
  const std::int64_t wanted = parts_wanted(g);
  const std::int64_t runs = std::min(g.batch, wanted);
  // Each run of images reads all weights, each share of the channels all images.
  const std::int64_t weights = g.groups * g.out_channels * g.column_rows();
  const std::int64_t images =
      g.batch * (along == CutChannels::out ? g.in_channels * g.in_size() : g.out_channels * g.out_size());
  const std::int64_t shares = g.groups == 1 ? channel_shares(g, along, kWorthAShare, std::min(wanted, kEnough)) : 1;
  if (!whole_images && weights * runs > weights + images * shares && shares > 1) {
    return in_runs(g, along, std::min(wanted / shares, g.batch), shares);
  }
  if (runs >= std::min(wanted, kEnough)) return in_runs(g, along, runs, 1);
  std::int64_t few = channel_shares(g, along, kWorthAShare, wanted / runs);
  if (few == 1 && runs == 1) few = channel_shares(g, along, kBlock, std::min<std::int64_t>(wanted, 2));
  return in_runs(g, along, runs, few);
}

std::vector<ConvCut> ConvCut::for_weights(const ConvGeometry& g) {
  const std::int64_t shares = channel_shares(g, CutChannels::out, kBlock, kEnough);
  // Each run of images has a gradient of its own to be added: not more of them than there are images to read.
  const std::int64_t weights = g.groups * g.out_channels * g.column_rows();
  const std::int64_t images = g.groups * (g.in_channels * g.in_size() + g.out_channels * g.out_size()) * g.batch;
  const std::int64_t runs = std::min({kEnough / shares, parts_wanted(g), g.batch, 1 + images / weights});
  return in_runs(g, CutChannels::out, runs, shares);
}

}  // namespace backpass
