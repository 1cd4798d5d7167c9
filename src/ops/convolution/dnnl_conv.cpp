#include "ops/convolution/dnnl_conv.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ops/convolution/dnnl_conv_sizes.hpp"
#include "ops/convolution/dnnl_cut_conv.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

using Tag = dnnl::memory::format_tag;
using Desc = dnnl::memory::desc;
using Role = CutOperand::Role;

Desc blocked(const dnnl::memory::dims& dims) {
  bool wide = conv_block() == 16;
  return Desc(dims, dnnl::memory::data_type::f32, wide ? Tag::nChw16c : Tag::nChw8c);
}

dnnl::primitive_attr attributes(const DnnlConvOptions& options) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops post;
  if (options.has_sum) post.append_sum(1.0F);
  attr.set_post_ops(post);
  return attr;
}

/// The parts of constant weights in oneDNN's layout, one after the other; shared by all shapes of the input that choose
/// the same.
std::shared_ptr<const Tensor> shared_weights(const Tensor& constant, const Desc& part, const Desc& wanted,
                                             std::int64_t parts) {
  struct Entry {
    const void* source;
    Desc layout;
    std::int64_t parts;
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
    if (e.source != constant.data() || e.layout != wanted || e.parts != parts) continue;
    if (auto memory = e.memory.lock()) return memory;
  }
  auto bytes = static_cast<std::int64_t>(wanted.get_size());
  Tensor packed(DType::uint8, {parts * bytes});
  Relayout relayout(part, wanted);
  for (std::int64_t i = 0; i < parts; ++i) {
    relayout.run(constant.as<float>() + i * (constant.size() / parts), packed.as<std::uint8_t>() + i * bytes);
  }
  auto kept = std::make_shared<const Kept>(Kept{constant, packed});
  std::shared_ptr<const Tensor> memory(kept, &kept->packed);
  known.push_back({constant.data(), wanted, parts, memory});
  return memory;
}

using Pd = dnnl::convolution_forward::primitive_desc;

Pd describe(const DnnlConvSizes& s, const DnnlConvOptions& options) {
  return {dnnl_engine(),
          dnnl::prop_kind::forward_inference,
          dnnl::algorithm::convolution_direct,
          options.blocked_in ? blocked(s.x) : (options.blocked_out ? plain_layout(s.x) : any_layout(s.x)),
          any_layout(s.w),
          options.has_bias ? plain_layout(s.bias) : Desc(),
          options.blocked_out ? blocked(s.y) : any_layout(s.y),
          s.stride,
          s.dilation,
          s.pad_begin,
          s.pad_end,
          attributes(options)};
}

CutOperand weights(const ConvCut& cut, const DnnlConvSizes& s, const Pd& pd, const DnnlConvOptions& options) {
  CutOperand w{Role::w, DNNL_ARG_WEIGHTS, pd.weights_desc()};
  if (options.constant_weights != nullptr && w.wanted != plain_layout(s.w)) {
    w.role = Role::packed_w;
    w.constant = shared_weights(*options.constant_weights, plain_layout(s.w), w.wanted, cut.channel_parts);
  }
  return w;
}

CutConv forward_parts(const ConvCut& cut, const DnnlConvOptions& options) {
  DnnlConvSizes s(cut.part);
  Pd pd = describe(s, options);
  std::vector<CutOperand> operands = {
      {.role = Role::x, .argument = DNNL_ARG_SRC, .wanted = pd.src_desc(), .is_blocked = options.blocked_in},
      weights(cut, s, pd, options),
      {.role = Role::y,
       .argument = DNNL_ARG_DST,
       .wanted = pd.dst_desc(),
       .is_output = true,
       .is_blocked = options.blocked_out}};
  if (options.has_bias) operands.push_back({Role::bias, DNNL_ARG_BIAS, plain_layout(s.bias)});
  return {cut, dnnl::convolution_forward(pd), operands, pd.scratchpad_desc()};
}

std::vector<CutConv> all_parts(const ConvGeometry& g, const DnnlConvOptions& options) {
  ThreadScope alone(1);
  const bool is_blocked = options.blocked_in || options.blocked_out;
  std::vector<CutConv> parts;
  for (const ConvCut& cut : ConvCut::for_output(g, CutChannels::out, is_blocked)) {
    parts.push_back(forward_parts(cut, options));
  }
  return parts;
}

class Forward : public DnnlConv {
 public:
  Forward(const ConvGeometry& g, const DnnlConvOptions& options) : cuts_(all_parts(g, options)) {}

  std::size_t scratch_bytes() const override { return cuts_.scratch_bytes(); }

  void run(const float* x, const float* w, const float* bias, float* y, std::byte* scratch) const override {
    const float* data[] = {x, w, y, bias};
    cuts_.run(data, scratch);
  }

 private:
  CutConvs cuts_;
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
  try {
    return std::make_shared<Forward>(geometry, options);
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_out_of_memory) throw;
    return nullptr;
  }
}

}  // namespace backpass
