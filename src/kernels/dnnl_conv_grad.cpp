#include "kernels/dnnl_conv_grad.hpp"

#include <algorithm>

#include "kernels/dnnl_conv_sizes.hpp"
#include "kernels/dnnl_runtime.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

using Desc = dnnl::memory::desc;

/// An operand that lies in one layout and is wanted in another; with room of its own when these differ.
class Operand {
 public:
  Operand() = default;
  Operand(const Desc& plain, const Desc& wanted, bool is_output, std::size_t& bytes) : plain_(plain), wanted_(wanted) {
    if (plain == wanted) return;
    const dnnl::engine& e = dnnl_engine();
    const Desc& from = is_output ? wanted : plain;
    const Desc& to = is_output ? plain : wanted;
    reorder_ = dnnl::reorder(dnnl::reorder::primitive_desc(e, from, e, to));
    at_ = bytes;
    bytes += (wanted.get_size() + 63) / 64 * 64;
  }

  /// Where the primitive finds or leaves it, when the tensor is at `data`.
  dnnl::memory memory(const float* data, std::byte* scratch) const {
    dnnl::memory m = unbound(wanted_);
    bind(m, reorder_ ? static_cast<const void*>(scratch + at_) : data);
    return m;
  }
  /// Brings an input there.
  void load(const float* data, const dnnl::memory& staged) const { copy(data, staged, true); }
  /// Brings an output back.
  void store(const float* data, const dnnl::memory& staged) const { copy(data, staged, false); }

 private:
  void copy(const float* data, const dnnl::memory& staged, bool in) const {
    if (!reorder_) return;
    dnnl::memory plain = unbound(plain_);
    bind(plain, data);
    execute(reorder_,
            {{DNNL_ARG_FROM, in ? plain.get() : staged.get()}, {DNNL_ARG_TO, in ? staged.get() : plain.get()}});
  }

  Desc plain_, wanted_;
  dnnl::reorder reorder_;
  std::size_t at_ = 0;
};

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
  using Pd = dnnl::convolution_backward_data::primitive_desc;

  Data(const DnnlConvSizes& s, const Pd& pd)
      : dy_(plain_layout(s.y), pd.diff_dst_desc(), false, bytes_),
        w_(plain_layout(s.w), pd.weights_desc(), false, bytes_),
        dx_(plain_layout(s.x), pd.diff_src_desc(), true, bytes_),
        scratchpad_(pd.scratchpad_desc()),
        scratchpad_at_(bytes_),
        backward_(pd) {
    bytes_ += scratchpad_.get_size();
  }

  std::size_t scratch_bytes() const override { return bytes_; }

  void run(const float* dy, const float* w, float* dx, std::byte* scratch) const override {
    dnnl::memory from = dy_.memory(dy, scratch);
    dnnl::memory weights = w_.memory(w, scratch);
    dnnl::memory to = dx_.memory(dx, scratch);
    dnnl::memory scratchpad = unbound(scratchpad_);
    bind(scratchpad, scratch + scratchpad_at_);
    dy_.load(dy, from);
    w_.load(w, weights);
    execute(backward_, {{DNNL_ARG_DIFF_DST, from.get()},
                        {DNNL_ARG_WEIGHTS, weights.get()},
                        {DNNL_ARG_DIFF_SRC, to.get()},
                        {DNNL_ARG_SCRATCHPAD, scratchpad.get()}});
    dx_.store(dx, to);
  }

 private:
  std::size_t bytes_ = 0;
  Operand dy_, w_, dx_;
  Desc scratchpad_;
  std::size_t scratchpad_at_;
  dnnl::convolution_backward_data backward_;
};

/// How the work on weights is cut: into parts of equal numbers of groups, or of output channels where there is one
/// group. Depends on sizes alone.
struct Parts {
  std::int64_t count = 1;
  ConvGeometry part;

  explicit Parts(const ConvGeometry& g) : part(g) {
    constexpr std::int64_t kBlock = 16;  // channels that vector loops take at once, at most
    std::int64_t& cut = g.groups > 1 ? part.groups : part.out_channels;
    for (std::int64_t n : {8, 4, 2}) {
      if (cut % (n * kBlock) != 0) continue;
      count = n;
      cut /= n;
      return;
    }
  }
};

/// Some of the channels of a tensor [N, channels, ...] in plain layout.
Desc some_channels(const dnnl::memory::dims& dims, std::int64_t of) {
  dnnl::memory::dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * (i == 1 ? of : dims[i]);
  return {dims, dnnl::memory::data_type::f32, strides};
}

class Weights : public DnnlConvBackwardWeights {
 public:
  using Pd = dnnl::convolution_backward_weights::primitive_desc;

  Weights(const ConvGeometry& g, const Parts& parts, const DnnlConvSizes& s, const Pd& pd, bool has_bias)
      : parts_(parts.count),
        shares_x_(g.groups == 1),
        x_(some_channels(s.x, g.groups * g.in_channels), pd.src_desc(), false, shares_x_ ? shared_ : bytes_),
        dy_(some_channels(s.y, g.groups * g.out_channels), pd.diff_dst_desc(), false, bytes_),
        dw_(plain_layout(s.w), pd.diff_weights_desc(), true, bytes_),
        db_(has_bias ? plain_layout(s.bias) : Desc()),
        has_bias_(has_bias),
        scratchpad_(pd.scratchpad_desc()),
        scratchpad_at_(bytes_),
        backward_(pd) {
    bytes_ = (bytes_ + scratchpad_.get_size() + 63) / 64 * 64;
    const ConvGeometry& p = parts.part;
    x_step_ = shares_x_ ? 0 : p.groups * p.in_channels * p.in_size();
    dy_step_ = p.groups * p.out_channels * p.out_size();
    dw_step_ = p.groups * p.out_channels * p.column_rows();
    db_step_ = p.groups * p.out_channels;
  }

  std::size_t scratch_bytes() const override { return shared_ + static_cast<std::size_t>(parts_) * bytes_; }

  void run(const float* x, const float* dy, float* dw, float* db, std::byte* scratch) const override {
    if (shares_x_) x_.load(x, x_.memory(x, scratch));
    parallel_for(parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        part(x + i * x_step_, dy + i * dy_step_, dw + i * dw_step_, has_bias_ ? db + i * db_step_ : nullptr, scratch,
             scratch + shared_ + static_cast<std::size_t>(i) * bytes_);
      }
    });
  }

 private:
  void part(const float* x, const float* dy, float* dw, float* db, std::byte* shared, std::byte* own) const {
    dnnl::memory image = x_.memory(x, shares_x_ ? shared : own);
    dnnl::memory from = dy_.memory(dy, own);
    dnnl::memory to = dw_.memory(dw, own);
    dnnl::memory scratchpad = unbound(scratchpad_);
    bind(scratchpad, own + scratchpad_at_);
    if (!shares_x_) x_.load(x, image);
    dy_.load(dy, from);
    dnnl::memory bias = unbound(db_);
    if (has_bias_) bind(bias, db);
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, image.get()},
                                   {DNNL_ARG_DIFF_DST, from.get()},
                                   {DNNL_ARG_DIFF_WEIGHTS, to.get()},
                                   {DNNL_ARG_SCRATCHPAD, scratchpad.get()},
                                   {DNNL_ARG_DIFF_BIAS, bias.get()}};
    execute(backward_, arguments, has_bias_ ? 5 : 4);
    dw_.store(dw, to);
  }

  std::int64_t parts_;
  bool shares_x_;
  std::size_t bytes_ = 0, shared_ = 0;
  Operand x_, dy_, dw_;
  Desc db_;
  bool has_bias_;
  Desc scratchpad_;
  std::size_t scratchpad_at_;
  dnnl::convolution_backward_weights backward_;
  std::int64_t x_step_ = 0, dy_step_ = 0, dw_step_ = 0, db_step_ = 0;
};

bool fits(const ConvGeometry& g) {
  return !g.in.empty() && g.in.size() <= 3 && g.batch > 0 && g.in_size() > 0 && g.out_size() > 0 &&
         g.column_rows() > 0 && g.out_channels > 0;
}

/// Null instead of an error for what oneDNN does not cover.
template <class F>
auto attempt(const F& make) -> decltype(make()) {
  try {
    return make();
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_out_of_memory) throw;
    return nullptr;
  }
}

}  // namespace

std::shared_ptr<const DnnlConvBackwardData> DnnlConvBackwardData::make(const ConvGeometry& g) {
  if (!fits(g)) return nullptr;
  return attempt([&]() -> std::shared_ptr<const DnnlConvBackwardData> {
    DnnlConvSizes s(g);
    Data::Pd pd(dnnl_engine(), dnnl::algorithm::convolution_direct, any_layout(s.x), any_layout(s.w), any_layout(s.y),
                s.stride, s.dilation, s.pad_begin, s.pad_end, forward_hint(s), attributes());
    if (!is_fast(pd)) return nullptr;
    return std::make_shared<Data>(s, pd);
  });
}

std::shared_ptr<const DnnlConvBackwardWeights> DnnlConvBackwardWeights::make(const ConvGeometry& g, bool has_bias) {
  if (!fits(g)) return nullptr;
  ThreadScope one(1);  // each part runs on one thread
  return attempt([&]() -> std::shared_ptr<const DnnlConvBackwardWeights> {
    Parts parts(g);
    DnnlConvSizes s(parts.part);
    Weights::Pd pd(dnnl_engine(), dnnl::algorithm::convolution_direct, any_layout(s.x), any_layout(s.w),
                   has_bias ? plain_layout(s.bias) : Desc(), any_layout(s.y), s.stride, s.dilation, s.pad_begin,
                   s.pad_end, forward_hint(s), attributes());
    if (!is_fast(pd)) return nullptr;
    return std::make_shared<Weights>(g, parts, s, pd, has_bias);
  });
}

}  // namespace backpass
