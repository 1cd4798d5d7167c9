#include "kernels/dnnl_conv.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/dnnl_conv_sizes.hpp"
#include "kernels/dnnl_runtime.hpp"

namespace backpass {
namespace {

using Tag = dnnl::memory::format_tag;
using Desc = dnnl::memory::desc;

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

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

/// Where one run finds its operands. Memory objects are costly to make, so they are made once and lent to one run at a
/// time.
struct Handles {
  dnnl::memory x, src, w_plain, w, bias, dst, y, scratchpad;
};

/// Weights in oneDNN's layout, shared by all shapes of the input that choose the same one.
std::shared_ptr<const Tensor> shared_weights(const Tensor& constant, const Desc& from, const Desc& to) {
  struct Entry {
    const void* source;
    Desc layout;
    std::weak_ptr<const Tensor> memory;
  };
  struct Kept {
    Tensor source;  // keeps its address, the key, from meaning other weights
    Tensor packed;
  };
  static std::mutex mutex;
  static std::vector<Entry> known;
  std::lock_guard lock(mutex);
  std::erase_if(known, [](const Entry& e) { return e.memory.expired(); });
  for (const Entry& e : known) {
    if (e.source != constant.data() || e.layout != to) continue;
    if (auto memory = e.memory.lock()) return memory;
  }
  Tensor packed(DType::uint8, {static_cast<std::int64_t>(to.get_size())});
  reorder_now(from, constant.data(), to, packed.mutable_data());
  auto kept = std::make_shared<const Kept>(Kept{constant, packed});
  std::shared_ptr<const Tensor> memory(kept, &kept->packed);
  known.push_back({constant.data(), to, memory});
  return memory;
}

class Implementation : public DnnlConv {
 public:
  using Forward = dnnl::convolution_forward;

  Implementation(const DnnlConvSizes& sizes, const Forward::primitive_desc& pd, const DnnlConvOptions& options)
      : pd_(pd),
        x_(options.blocked_in ? pd.src_desc() : plain_layout(sizes.x)),
        w_(plain_layout(sizes.w)),
        y_(options.blocked_out ? pd.dst_desc() : plain_layout(sizes.y)),
        bias_(plain_layout(sizes.bias)),
        forward_(pd) {
    const dnnl::engine& e = dnnl_engine();
    if (x_ != pd.src_desc()) into_ = dnnl::reorder(dnnl::reorder::primitive_desc(e, x_, e, pd.src_desc()));
    if (y_ != pd.dst_desc()) out_of_ = dnnl::reorder(dnnl::reorder::primitive_desc(e, pd.dst_desc(), e, y_));
    if (w_ != pd.weights_desc()) {
      if (options.constant_weights != nullptr) {
        packed_ = shared_weights(*options.constant_weights, w_, pd.weights_desc());
      } else {
        weights_ = dnnl::reorder(dnnl::reorder::primitive_desc(e, w_, e, pd.weights_desc()));
      }
    }
    auto take = [&](bool wanted, std::size_t size) {
      std::size_t at = bytes_;
      if (wanted) bytes_ += aligned(size);
      return at;
    };
    src_at_ = take(bool(into_), pd.src_desc().get_size());
    w_at_ = take(bool(weights_), pd.weights_desc().get_size());
    dst_at_ = take(bool(out_of_), pd.dst_desc().get_size());
    scratchpad_at_ = take(true, pd.scratchpad_desc().get_size());
  }

  std::size_t scratch_bytes() const override { return bytes_; }

  void run(const float* x, const float* w, const float* bias, float* y, std::byte* scratch) const override {
    std::unique_ptr<Handles> h = borrow();
    bind(h->src, into_ ? static_cast<const void*>(scratch + src_at_) : x);
    if (into_) reorder(into_, h->x, x, h->src);
    if (packed_ != nullptr) {
      bind(h->w, packed_->data());
    } else {
      bind(h->w, weights_ ? static_cast<const void*>(scratch + w_at_) : w);
      if (weights_) reorder(weights_, h->w_plain, w, h->w);
    }
    bind(h->dst, out_of_ ? static_cast<void*>(scratch + dst_at_) : y);
    bind(h->scratchpad, scratch + scratchpad_at_);
    bind(h->bias, bias);
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, h->src.get()},
                                   {DNNL_ARG_WEIGHTS, h->w.get()},
                                   {DNNL_ARG_DST, h->dst.get()},
                                   {DNNL_ARG_SCRATCHPAD, h->scratchpad.get()},
                                   {DNNL_ARG_BIAS, h->bias.get()}};
    execute(forward_, arguments, bias != nullptr ? 5 : 4);
    if (out_of_) {
      bind(h->y, y);
      execute(out_of_, {{DNNL_ARG_FROM, h->dst.get()}, {DNNL_ARG_TO, h->y.get()}});
    }
    give_back(std::move(h));
  }

 private:
  static void reorder(const dnnl::reorder& r, dnnl::memory& from, const void* source, dnnl::memory& to) {
    bind(from, source);
    execute(r, {{DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, to.get()}});
  }

  std::unique_ptr<Handles> borrow() const {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      return std::make_unique<Handles>(Handles{unbound(x_), unbound(pd_.src_desc()), unbound(w_),
                                               unbound(pd_.weights_desc()), unbound(bias_), unbound(pd_.dst_desc()),
                                               unbound(y_), unbound(pd_.scratchpad_desc())});
    }
    std::unique_ptr<Handles> h = std::move(idle_.back());
    idle_.pop_back();
    return h;
  }

  void give_back(std::unique_ptr<Handles> h) const {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(h));
  }

  Forward::primitive_desc pd_;
  Desc x_, w_, y_, bias_;
  Forward forward_;
  dnnl::reorder into_, weights_, out_of_;  // empty where layouts agree
  std::shared_ptr<const Tensor> packed_;
  std::size_t bytes_ = 0, src_at_ = 0, w_at_ = 0, dst_at_ = 0, scratchpad_at_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Handles>> idle_;
};

}  // namespace

std::int64_t conv_block() {
#if defined(__x86_64__)
  static const std::int64_t block = [] {
    dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    if (isa >= dnnl::cpu_isa::avx512_core) return 16;
    return isa >= dnnl::cpu_isa::avx2 ? 8 : 0;
  }();
  return block;
#else
  return 0;
#endif
}

std::shared_ptr<DnnlConv> DnnlConv::make(const ConvGeometry& geometry, const DnnlConvOptions& options) {
  if (geometry.in.empty() || geometry.in.size() > 3) return nullptr;
  DnnlConvSizes s(geometry);
  try {
    dnnl::convolution_forward::primitive_desc pd(
        dnnl_engine(), dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct,
        options.blocked_in ? blocked(s.x) : (options.blocked_out ? plain_layout(s.x) : any_layout(s.x)),
        any_layout(s.w), options.has_bias ? plain_layout(s.bias) : Desc(),
        options.blocked_out ? blocked(s.y) : any_layout(s.y), s.stride, s.dilation, s.pad_begin, s.pad_end,
        attributes(options));
    return std::make_shared<Implementation>(s, pd, options);
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_out_of_memory) throw;
    return nullptr;
  }
}

}  // namespace backpass
