// How many channels a blocked value [N, C/b, H, W, b] stands for.
#pragma once

#include "graph/op.hpp"

namespace backpass {

/// The attribute `channels` of a node that leaves the layout, where they do not fill the last block; all of them else.
inline Dim blocked_channels(InferContext& c, const Shape& x) {
  if (!c.node.has_attribute("channels")) return x[1] * x[4];
  const std::int64_t channels = c.node.attr_int("channels"), b = x[4].value();
  c.require(channels > 0 && x[1].is((channels + b - 1) / b), "input is ", shown(x), ": expected blocks for ", channels,
            " channels");
  return channels;
}

}  // namespace backpass
