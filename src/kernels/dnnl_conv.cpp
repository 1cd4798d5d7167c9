#include "kernels/dnnl_conv.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/dnnl_runtime.hpp"

namespace backpass {
namespace {

using Tag = dnnl::memory::format_tag;
using Desc = dnnl::memory::desc;

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

Desc plain(const dnnl::memory::dims& dims) {
  dnnl::memory::dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return Desc(dims, dnnl::memory::data_type::f32, strides);
}

Desc any(const dnnl::memory::dims& dims) { return Desc(dims, dnnl::memory::data_type::f32, Tag::any); }

Desc blocked(const dnnl::memory::dims& dims) {
  bool wide = conv_block() == 16;
  return Desc(dims, dnnl::memory::data_type::f32, wide ? Tag::nChw16c : Tag::nChw8c);
}

std::optional<std::pair<dnnl::algorithm, bool>> eltwise_of(FusedActivation kind) {  // bool: takes the two parameters
  using A = dnnl::algorithm;
  switch (kind) {
    case FusedActivation::none:
      return std::nullopt;
    case FusedActivation::relu:
      return {{A::eltwise_relu, false}};
    case FusedActivation::leaky_relu:
      return {{A::eltwise_relu, true}};
    case FusedActivation::clip:
      return {{A::eltwise_clip, true}};
    case FusedActivation::hard_sigmoid:
      return {{A::eltwise_hardsigmoid, true}};
    case FusedActivation::hard_swish:
      return {{A::eltwise_hardswish, true}};
    case FusedActivation::sigmoid:
      return {{A::eltwise_logistic, false}};
    case FusedActivation::tanh:
      return {{A::eltwise_tanh, false}};
    case FusedActivation::silu:
      return {{A::eltwise_swish, true}};
    case FusedActivation::gelu:
      return {{A::eltwise_gelu_erf, false}};
    case FusedActivation::gelu_tanh:
      return {{A::eltwise_gelu_tanh, false}};
  }
  return std::nullopt;
}

dnnl::primitive_attr attributes(const DnnlConvOptions& options) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops post;
  if (options.has_sum) post.append_sum(1.0F);
  if (auto eltwise = eltwise_of(options.activation.kind)) {
    const float* p = options.activation.parameters;
    post.append_eltwise(eltwise->first, eltwise->second ? p[0] : 0.0F, eltwise->second ? p[1] : 0.0F);
  }
  attr.set_post_ops(post);
  return attr;
}

struct Sizes {
  dnnl::memory::dims x, w, y, bias, stride, dilation, pad_begin, pad_end;

  explicit Sizes(const ConvGeometry& g)
      : x{g.batch, g.groups * g.in_channels},
        y{g.batch, g.groups * g.out_channels},
        bias{g.groups * g.out_channels},
        stride(g.stride),
        dilation(g.dilation),
        pad_begin(g.pad_begin),
        pad_end(g.pad_end) {
    if (g.groups > 1) {
      w = {g.groups, g.out_channels, g.in_channels};
    } else {
      w = {g.out_channels, g.in_channels};
    }
    x.insert(x.end(), g.in.begin(), g.in.end());
    y.insert(y.end(), g.out.begin(), g.out.end());
    w.insert(w.end(), g.kernel.begin(), g.kernel.end());
    for (auto& d : dilation) d -= 1;
    // oneDNN demands that padding and extents agree exactly; what a stride leaves over is padding not needed.
    for (std::size_t i = 0; i < g.in.size(); ++i) {
      std::int64_t reach = g.dilation[i] * (g.kernel[i] - 1) + 1;
      pad_end[i] = (g.out[i] - 1) * g.stride[i] + reach - g.in[i] - g.pad_begin[i];
    }
  }
};

/// A copy from one layout to another through scratch memory, when the two differ.
class Relayout {
 public:
  Relayout(const Desc& from, const Desc& to) : needed_(from != to), from_(unbound(from)), to_(unbound(to)) {
    if (needed_) reorder_ = dnnl::reorder(from_, to_);
  }
  bool needed() const { return needed_; }
  void run(const void* source, void* target) {
    bind(from_, source);
    bind(to_, target);
    execute(reorder_, {{DNNL_ARG_FROM, from_.get()}, {DNNL_ARG_TO, to_.get()}});
  }

 private:
  bool needed_;
  dnnl::memory from_, to_;
  dnnl::reorder reorder_;
};

/// Weights in oneDNN's layout, shared by all shapes of the input that choose the same one.
std::shared_ptr<const Tensor> shared_weights(const Tensor& constant, const Desc& from, const Desc& to) {
  struct Entry {
    const void* source;
    Desc layout;
    std::weak_ptr<const Tensor> memory;
  };
  static std::mutex mutex;
  static std::vector<Entry> known;
  std::lock_guard lock(mutex);
  std::erase_if(known, [](const Entry& e) { return e.memory.expired(); });
  for (const Entry& e : known) {
    if (e.source != constant.data() || e.layout != to) continue;
    if (auto memory = e.memory.lock()) return memory;
  }
  auto memory = std::make_shared<Tensor>(DType::uint8, Dims{static_cast<std::int64_t>(to.get_size())});
  reorder_now(from, constant.data(), to, memory->mutable_data());
  known.push_back({constant.data(), to, memory});
  return memory;
}

class Implementation : public DnnlConv {
 public:
  using Forward = dnnl::convolution_forward;

  Implementation(const Sizes& sizes, const Forward::primitive_desc& pd, const DnnlConvOptions& options)
      : forward_(pd),
        into_(options.blocked_in ? pd.src_desc() : plain(sizes.x), pd.src_desc()),
        weights_(plain(sizes.w), pd.weights_desc()),
        out_of_(pd.dst_desc(), options.blocked_out ? pd.dst_desc() : plain(sizes.y)),
        src_(unbound(pd.src_desc())),
        w_(unbound(pd.weights_desc())),
        bias_(unbound(plain(sizes.bias))),
        dst_(unbound(pd.dst_desc())),
        scratchpad_(unbound(pd.scratchpad_desc())) {
    if (options.constant_weights != nullptr && weights_.needed()) {
      packed_ = shared_weights(*options.constant_weights, plain(sizes.w), pd.weights_desc());
    }
    auto take = [&](bool wanted, std::size_t size) {
      std::size_t at = bytes_;
      if (wanted) bytes_ += aligned(size);
      return at;
    };
    src_at_ = take(into_.needed(), pd.src_desc().get_size());
    w_at_ = take(weights_.needed() && packed_ == nullptr, pd.weights_desc().get_size());
    dst_at_ = take(out_of_.needed(), pd.dst_desc().get_size());
    scratchpad_at_ = take(true, pd.scratchpad_desc().get_size());
  }

  std::size_t scratch_bytes() const override { return bytes_; }

  void run(const float* x, const float* w, const float* bias, float* y, std::byte* scratch) override {
    bind(src_, through(into_, x, scratch + src_at_));
    bind(w_, packed_ != nullptr ? packed_->data() : through(weights_, w, scratch + w_at_));
    void* target = out_of_.needed() ? static_cast<void*>(scratch + dst_at_) : y;
    bind(dst_, target);
    bind(scratchpad_, scratch + scratchpad_at_);
    bind(bias_, bias);
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, src_.get()},
                                   {DNNL_ARG_WEIGHTS, w_.get()},
                                   {DNNL_ARG_DST, dst_.get()},
                                   {DNNL_ARG_SCRATCHPAD, scratchpad_.get()},
                                   {DNNL_ARG_BIAS, bias_.get()}};
    execute(forward_, arguments, bias != nullptr ? 5 : 4);
    if (out_of_.needed()) out_of_.run(target, y);
  }

 private:
  static const void* through(Relayout& relayout, const void* source, std::byte* buffer) {
    if (!relayout.needed()) return source;
    relayout.run(source, buffer);
    return buffer;
  }

  Forward forward_;
  Relayout into_, weights_, out_of_;
  dnnl::memory src_, w_, bias_, dst_, scratchpad_;
  std::shared_ptr<const Tensor> packed_;
  std::size_t bytes_ = 0, src_at_ = 0, w_at_ = 0, dst_at_ = 0, scratchpad_at_ = 0;
};

}  // namespace

std::int64_t conv_block() {
  static const bool wide = dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core;
  return wide ? 16 : 8;
}

std::shared_ptr<DnnlConv> DnnlConv::make(const ConvGeometry& geometry, const DnnlConvOptions& options) {
  if (geometry.in.empty() || geometry.in.size() > 3) return nullptr;
  Sizes s(geometry);
  try {
    dnnl::convolution_forward::primitive_desc pd(
        dnnl_engine(), dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct,
        options.blocked_in ? blocked(s.x) : (options.blocked_out ? plain(s.x) : any(s.x)), any(s.w),
        options.has_bias ? plain(s.bias) : Desc(), options.blocked_out ? blocked(s.y) : any(s.y), s.stride, s.dilation,
        s.pad_begin, s.pad_end, attributes(options));
    return std::make_shared<Implementation>(s, pd, options);
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_out_of_memory) throw;
    return nullptr;
  }
}

}  // namespace backpass
