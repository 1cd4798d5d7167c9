// How a graph is laid out for running, decided on the plan's own copy of it: blocked layouts, groups of nodes that run
// as one. The graph itself stays as passes left it, which is what a file can hold. A decision is a pass like others:
// one file with its name, one line of kLowerings, and tests/passes/<name>.test.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>

#include "passes/list.hpp"
#include "passes/manager.hpp"

namespace backpass {

/// Convolutions and what stands between them work on blocked values, [N, C/b, H, W, b], which is how oneDNN's vector
/// code wants its channels; layout changes only where a chain begins or ends. float32 images with constant weights and
/// channels that fill at least half of their blocks; what they leave of the last one is computed and never read.
void block_convolutions(Graph& graph, Reports& reports);

/// Blocked convolutions apply a following residual sum and activation themselves.
void fuse_blocked_conv(Graph& graph, Reports& reports);

/// Convolutions over 3 x 3 windows with weights that are trained, their gradients, and blocked convolutions may use
/// Winograd's method where sizes make it worth while (ops/convolution/winograd.hpp). Results differ from direct sums in
/// the last bits.
void winograd_convolutions(Graph& graph, Reports& reports);

/// Indices of MaxPool that only its gradient reads become places in windows, a byte each. Images, windows of up to 256
/// elements.
void narrow_pooling(Graph& graph, Reports& reports);

/// Replaces groups of connected nodes that work on one shape (proved equal, whatever symbols stand for) by `Tile` nodes
/// of domain "backpass": pointwise nodes, sums, means, maxima and minima over the last axis, and pointwise nodes on
/// what those leave. Operands may broadcast; intermediate values that are needed elsewhere become further outputs.
/// Integer vectors, which carry shapes, are left alone.
void fuse_tiles(Graph& graph, Reports& reports);

inline constexpr Pass kLowerings[] = {
    {"block_convolutions", block_convolutions, Side::after, Graphs::lowered},
    {"fuse_blocked_conv", fuse_blocked_conv, Side::after, Graphs::lowered},
    {"winograd_convolutions", winograd_convolutions, Side::after, Graphs::lowered},
    {"narrow_pooling", narrow_pooling, Side::after, Graphs::lowered},
    {"fuse_tiles", fuse_tiles, Side::after, Graphs::lowered},
};

/// Those of passes/list.hpp, then these: all that can be switched off by name.
inline constexpr auto kEveryPass = [] {
  std::array<Pass, std::size(kPasses) + std::size(kLowerings)> all{};
  std::copy(std::begin(kLowerings), std::end(kLowerings),
            std::copy(std::begin(kPasses), std::end(kPasses), all.begin()));
  return all;
}();

/// A copy of the graph in the form that runs. Tensors share their data.
std::unique_ptr<Graph> lower(const Graph& graph, PassManager& passes);

}  // namespace backpass
