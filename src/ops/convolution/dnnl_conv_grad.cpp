#include "ops/convolution/dnnl_conv_grad.hpp"

#include <algorithm>
#include <optional>

#include "ops/convolution/dnnl_conv_sizes.hpp"
#include "ops/convolution/dnnl_cut_conv.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

using Desc = dnnl::memory::desc;
using Role = CutOperand::Role;

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

dnnl::convolution_forward::primitive_desc forward_hint(const DnnlConvSizes& s) {
  return {dnnl_engine(),
          dnnl::prop_kind::forward_training,
          dnnl::algorithm::convolution_direct,
          any_layout(s.x),
          any_layout(s.w),
          any_layout(s.y),
          s.stride,
          s.dilation,
          s.pad_begin,
          s.pad_end};
}

/// Reference loops are slower than a matrix product.
template <class PrimitiveDesc>
bool is_fast(const PrimitiveDesc& pd) {
  std::string name = pd.impl_info_str();
  return name.find("ref") == std::string::npos && name.find("gemm:") == std::string::npos;
}

class Data : public DnnlConvBackwardData {
 public:
  explicit Data(std::vector<CutConv> cuts) : cuts_(std::move(cuts)) {}

  std::size_t scratch_bytes() const override { return cuts_.scratch_bytes(); }

  void run(const float* dy, const float* w, float* dx, std::byte* scratch) const override {
    const float* data[] = {dy, w, dx};
    cuts_.run(data, scratch);
  }

 private:
  CutConvs cuts_;
};

std::optional<CutConv> data_parts(const ConvCut& cut) {
  DnnlConvSizes s(cut.part);
  dnnl::convolution_backward_data::primitive_desc pd(dnnl_engine(), dnnl::algorithm::convolution_direct,
                                                     any_layout(s.x), any_layout(s.w), any_layout(s.y), s.stride,
                                                     s.dilation, s.pad_begin, s.pad_end, forward_hint(s), attributes());
  if (!is_fast(pd)) return std::nullopt;
  return CutConv(cut, dnnl::convolution_backward_data(pd),
                 {{Role::y, DNNL_ARG_DIFF_DST, pd.diff_dst_desc()},
                  {Role::w, DNNL_ARG_WEIGHTS, pd.weights_desc()},
                  {Role::x, DNNL_ARG_DIFF_SRC, pd.diff_src_desc(), true}},
                 pd.scratchpad_desc());
}

/// Adds the gradients of the runs of images, in their order.
void add_runs(const float* partial, std::int64_t runs, std::int64_t count, float* sum) {
  parallel_for(count, grain_for(runs), [&](std::int64_t begin, std::int64_t end) {
    std::copy(partial + begin, partial + end, sum + begin);
    for (std::int64_t r = 1; r < runs; ++r) {
      const float* from = partial + r * count;
      for (std::int64_t i = begin; i < end; ++i) sum[i] += from[i];
    }
  });
}

class Weights : public DnnlConvBackwardWeights {
 public:
  Weights(const ConvGeometry& g, std::vector<CutConv> cuts, std::int64_t runs)
      : cuts_(std::move(cuts)),
        runs_(runs),
        channels_(g.groups * g.out_channels),
        weights_(channels_ * g.column_rows()) {}

  std::size_t scratch_bytes() const override { return cuts_.scratch_bytes() + partial_bytes(); }

  void run(const float* x, const float* dy, float* dw, float* db, std::byte* scratch) const override {
    auto* partial = reinterpret_cast<float*>(scratch);
    const float* data[] = {x, dy, dw, db};
    if (runs_ > 1) {
      data[2] = partial;
      data[3] = partial + runs_ * weights_;
    }
    cuts_.run(data, scratch + partial_bytes());
    if (runs_ == 1) return;
    add_runs(partial, runs_, weights_, dw);
    if (db != nullptr) add_runs(partial + runs_ * weights_, runs_, channels_, db);
  }

 private:
  std::size_t partial_bytes() const {
    if (runs_ == 1) return 0;
    return (static_cast<std::size_t>(runs_ * (weights_ + channels_)) * sizeof(float) + 63) / 64 * 64;
  }

  CutConvs cuts_;
  std::int64_t runs_;  ///< of images, each with gradients of its own
  std::int64_t channels_, weights_;
};

std::optional<CutConv> weights_parts(const ConvCut& cut, bool has_bias) {
  DnnlConvSizes s(cut.part);
  dnnl::convolution_backward_weights::primitive_desc pd(
      dnnl_engine(), dnnl::algorithm::convolution_direct, any_layout(s.x), any_layout(s.w),
      has_bias ? plain_layout(s.bias) : Desc(), any_layout(s.y), s.stride, s.dilation, s.pad_begin, s.pad_end,
      forward_hint(s), attributes());
  if (!is_fast(pd)) return std::nullopt;
  std::vector<CutOperand> operands = {{Role::x, DNNL_ARG_SRC, pd.src_desc()},
                                      {Role::y, DNNL_ARG_DIFF_DST, pd.diff_dst_desc()},
                                      {Role::partial_w, DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc(), true}};
  if (has_bias) operands.push_back({Role::partial_bias, DNNL_ARG_DIFF_BIAS, plain_layout(s.bias), true});
  return CutConv(cut, dnnl::convolution_backward_weights(pd), operands, pd.scratchpad_desc());
}

bool fits(const ConvGeometry& g) {
  return !g.in.empty() && g.in.size() <= 3 && g.batch > 0 && g.in_size() > 0 && g.out_size() > 0 &&
         g.column_rows() > 0 && g.out_channels > 0;
}

/// The parts of all cuts by `make`; none where oneDNN has nothing fast for one of them.
template <class F>
std::vector<CutConv> parts_of(const std::vector<ConvCut>& cuts, const F& make) {
  ThreadScope alone(1);
  std::vector<CutConv> parts;
  try {
    for (const ConvCut& cut : cuts) {
      std::optional<CutConv> part = make(cut);
      if (!part) return {};
      parts.push_back(std::move(*part));
    }
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_out_of_memory) throw;
    return {};
  }
  return parts;
}

}  // namespace

std::shared_ptr<const DnnlConvBackwardData> DnnlConvBackwardData::make(const ConvGeometry& g) {
  if (!fits(g)) return nullptr;
  std::vector<CutConv> parts = parts_of(ConvCut::for_output(g, CutChannels::in), data_parts);
  return parts.empty() ? nullptr : std::make_shared<Data>(std::move(parts));
}

std::shared_ptr<const DnnlConvBackwardWeights> DnnlConvBackwardWeights::make(const ConvGeometry& g, bool has_bias) {
  if (!fits(g)) return nullptr;
  std::vector<ConvCut> cuts = ConvCut::for_weights(g);
  std::vector<CutConv> parts = parts_of(cuts, [&](const ConvCut& cut) { return weights_parts(cut, has_bias); });
  if (parts.empty()) return nullptr;
  return std::make_shared<Weights>(g, std::move(parts), cuts.back().first_part + cuts.back().image_parts);
}

}  // namespace backpass
