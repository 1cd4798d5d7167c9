#include <algorithm>
#include <vector>

#include "ops/convolution/blocked_conv_parts.hpp"
#include "ops/convolution/depthwise.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

Tensor depthwise_weights(const ConvGeometry& g, std::int64_t b, const float* w) {
  Tensor result(DType::float32, {g.groups * g.kernel_size()});
  auto* out = result.as<float>();
  for (std::int64_t c = 0; c < g.groups; c += b) {
    for (std::int64_t i = 0; i < g.kernel_size(); ++i) {
      for (std::int64_t k = 0; k < b; ++k) *out++ = w[(c + k) * g.kernel_size() + i];
    }
  }
  return result;
}

class Depthwise : public BlockedConv {
 public:
  Depthwise(const ConvGeometry& g, const BlockedConvOptions& o, const Tensor& weights)
      : g_(g), end_(o.activation), rows_(g, 0), cols_(g, 1) {
    weights_ =
        shared_pack(weights, g.groups, o.block, [&] { return depthwise_weights(g_, o.block, weights.as<float>()); });
    plane_.block = o.block;
    plane_.low = end_.low;
    plane_.high = end_.high;
    plane_.inner_end = g.out[1];
    while (plane_.inner_begin < g.out[1] && !cols_.is_whole(plane_.inner_begin)) ++plane_.inner_begin;
    while (plane_.inner_end > plane_.inner_begin && !cols_.is_whole(plane_.inner_end - 1)) --plane_.inner_end;
  }

  void run(const float* x, const float* bias, const float* residual, float* y, std::byte*) const override {
    std::int64_t b = plane_.block;
    std::int64_t blocks = g_.groups / b;
    // Rows that make a task worth its while, the same for any number of threads.
    std::int64_t rows = std::min(g_.out[0], grain_for(g_.out[1] * b * g_.kernel_size()));
    std::int64_t parts = (g_.out[0] + rows - 1) / rows;
    parallel_for(g_.batch * blocks * parts, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        std::int64_t plane = task / parts;
        DepthwisePlane p = plane_;
        p.rows = rows_.axis();
        p.cols = cols_.axis();
        p.x = x + plane * g_.in_size() * b;
        p.weights = weights_->as<float>() + plane % blocks * g_.kernel_size() * b;
        p.bias = bias != nullptr ? bias + plane % blocks * b : nullptr;
        p.residual = residual != nullptr ? residual + plane * g_.out_size() * b : nullptr;
        p.y = y + plane * g_.out_size() * b;
        std::int64_t first = task % parts * rows;
        std::int64_t last = std::min(g_.out[0], first + rows);
        depthwise_rows(p, first, last);
        end_(p.y + first * g_.out[1] * b, (last - first) * g_.out[1] * b);
      }
    });
  }

 private:
  /// Which kernel positions lie inside the input along one axis.
  struct Axis {
    Axis(const ConvGeometry& g, std::size_t axis)
        : sizes{nullptr,        nullptr,        g.out[axis],      g.in[axis],
                g.kernel[axis], g.stride[axis], g.dilation[axis], g.pad_begin[axis]} {
      for (std::int64_t o = 0; o < sizes.out; ++o) {
        std::int64_t start = o * sizes.stride - sizes.pad;
        std::int32_t first = 0;
        auto last = static_cast<std::int32_t>(sizes.kernel);
        while (first < last && start + first * sizes.dilation < 0) ++first;
        while (last > first && start + (last - 1) * sizes.dilation >= sizes.in) --last;
        begin.push_back(first);
        end.push_back(last);
      }
    }
    bool is_whole(std::int64_t o) const {
      auto i = static_cast<std::size_t>(o);
      return begin[i] == 0 && end[i] == sizes.kernel;
    }
    DepthwisePlane::Axis axis() const {
      DepthwisePlane::Axis result = sizes;
      result.begin = begin.data();
      result.end = end.data();
      return result;
    }

    DepthwisePlane::Axis sizes;
    std::vector<std::int32_t> begin, end;
  };

  ConvGeometry g_;
  ConvEnd end_;
  Axis rows_, cols_;
  DepthwisePlane plane_;
  std::shared_ptr<const Tensor> weights_;
};

}  // namespace

std::shared_ptr<const BlockedConv> make_depthwise(const ConvGeometry& g, const BlockedConvOptions& o,
                                                  const Tensor& weights) {
  return std::make_shared<Depthwise>(g, o, weights);
}

}  // namespace backpass
