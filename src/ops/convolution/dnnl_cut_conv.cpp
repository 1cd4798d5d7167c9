#include "ops/convolution/dnnl_cut_conv.hpp"

#include <algorithm>
#include <array>
#include <atomic>

#include "ops/convolution/dnnl_conv_sizes.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

using Role = CutOperand::Role;

/// Row-major but for the distance of rows; that of a single row does not matter.
dnnl::memory::desc rows_apart(const dnnl::memory::dims& dims, std::int64_t distance) {
  if (dims[0] == 1) return plain_layout(dims);
  dnnl::memory::dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  strides[0] = distance;
  return {dims, dnnl::memory::data_type::f32, strides};
}

/// How far apart parts of a tensor lie, and how a part lies within it.
struct Placement {
  std::int64_t image_step = 0, channel_step = 0;
  dnnl::memory::desc lies;
};

Placement place_image(const ConvCut& c, bool is_input) {
  const DnnlConvSizes s(c.part);
  const ConvGeometry& p = c.part;
  const std::int64_t pixels = is_input ? p.in_size() : p.out_size();
  const std::int64_t all = c.whole.groups * (is_input ? c.whole.in_channels : c.whole.out_channels) * pixels;
  const std::int64_t some = p.groups * (is_input ? p.in_channels : p.out_channels) * pixels;
  return {p.batch * all, some == all ? 0 : some, rows_apart(is_input ? s.x : s.y, all)};
}

Placement place_weights(const ConvCut& c) {
  const DnnlConvSizes s(c.part);
  const ConvGeometry& p = c.part;
  if (p.in_channels != c.whole.in_channels) {
    return {0, p.column_rows(), rows_apart(s.w, c.whole.column_rows())};
  }
  return {0, c.channel_parts > 1 ? p.groups * p.out_channels * p.column_rows() : 0, plain_layout(s.w)};
}

Placement place_bias(const ConvCut& c) {
  const DnnlConvSizes s(c.part);
  return {0, c.channel_parts > 1 ? s.bias[0] : 0, plain_layout(s.bias)};
}

Placement place(const ConvCut& c, const CutOperand& operand) {
  Placement p;
  switch (operand.role) {
    case Role::x:
    case Role::y:
      p = place_image(c, operand.role == Role::x);
      break;
    case Role::w:
      p = place_weights(c);
      break;
    case Role::bias:
      p = place_bias(c);
      break;
    case Role::packed_w:
      p = {0, static_cast<std::int64_t>(operand.wanted.get_size() / sizeof(float)), operand.wanted};
      break;
    case Role::partial_w:
      p = place_weights(c);
      p.image_step = c.whole.groups * c.whole.out_channels * c.whole.column_rows();
      break;
    case Role::partial_bias:
      p = place_bias(c);
      p.image_step = c.whole.groups * c.whole.out_channels;
      break;
  }
  if (operand.is_blocked) p.lies = operand.wanted;
  return p;
}

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

CutConv::Side CutConv::side_of(const CutOperand& operand) {
  Placement p = place(cut_, operand);
  Side side;
  side.image_step = p.image_step;
  side.channel_step = p.channel_step;
  side.is_output = operand.is_output;
  side.constant = operand.constant;
  bool is_image = operand.role == Role::x || operand.role == Role::y;
  std::int64_t images = is_image ? cut_.part.batch : 1;
  side.first = (is_image ? cut_.first_image : cut_.first_part) * p.image_step / images;
  if (p.lies == operand.wanted) return side;
  side.bytes = aligned(operand.wanted.get_size());
  side.image_copies = p.image_step != 0 ? cut_.image_parts : 1;
  side.channel_copies = p.channel_step != 0 ? cut_.channel_parts : 1;
  if (side.image_copies * side.channel_copies == count()) {
    side.image_copies = side.channel_copies = 1;  // each part has its own
    side.own = operand.is_output ? solo_reorder(operand.wanted, p.lies) : solo_reorder(p.lies, operand.wanted);
    side.at = own_bytes_;
    own_bytes_ += side.bytes;
    return side;
  }
  ensure(!operand.is_output, "parts of a convolution write the same tensor");
  side.shared.emplace(p.lies, operand.wanted);
  side.at = shared_bytes_;
  shared_bytes_ += side.bytes * static_cast<std::size_t>(side.image_copies * side.channel_copies);
  return side;
}

CutConv::CutConv(const ConvCut& cut, const dnnl::primitive& primitive, const std::vector<CutOperand>& operands,
                 const dnnl::memory::desc& scratchpad)
    : cut_(cut) {
  std::vector<SoloPrimitive::Operand> taken;
  for (const CutOperand& operand : operands) {
    sides_.push_back(side_of(operand));
    taken.emplace_back(operand.argument, operand.wanted);
  }
  taken.emplace_back(DNNL_ARG_SCRATCHPAD, scratchpad);
  scratchpad_at_ = own_bytes_;
  own_bytes_ += aligned(scratchpad.get_size());
  primitive_ = SoloPrimitive(primitive, std::move(taken));
}

void CutConv::begin(const float* const* data, std::byte* shared) const {
  for (std::size_t k = 0; k < sides_.size(); ++k) {
    const Side& side = sides_[k];
    if (!side.shared) continue;
    for (std::int64_t i = 0; i < side.image_copies; ++i) {
      for (std::int64_t j = 0; j < side.channel_copies; ++j) {
        side.shared->run(side.part(data[k], i, j), shared + side.copy_at(i, j));
      }
    }
  }
}

void CutConv::run(std::int64_t part, const float* const* data, std::byte* shared, std::byte* own) const {
  std::int64_t i = part / cut_.channel_parts;
  std::int64_t j = part % cut_.channel_parts;
  std::array<const void*, SoloPrimitive::kMostOperands> taken;
  for (std::size_t k = 0; k < sides_.size(); ++k) {
    const Side& side = sides_[k];
    const float* lies = side.part(data[k], i, j);
    taken[k] = lies;
    if (side.shared) taken[k] = shared + side.copy_at(i, j);
    if (side.own) taken[k] = own + side.at;
    if (side.own && !side.is_output) side.own.run({lies, taken[k]});
  }
  taken[sides_.size()] = own + scratchpad_at_;
  primitive_.run(taken.data(), sides_.size() + 1);
  for (std::size_t k = 0; k < sides_.size(); ++k) {
    const Side& side = sides_[k];
    if (side.own && side.is_output) side.own.run({taken[k], side.part(data[k], i, j)});
  }
}

CutConvs::CutConvs(std::vector<CutConv> cuts) : cuts_(std::move(cuts)) {
  for (const CutConv& cut : cuts_) {
    parts_ += cut.count();
    shared_bytes_ += cut.shared_bytes();
    own_bytes_ = std::max(own_bytes_, cut.own_bytes());
  }
  lanes_ = std::clamp<std::int64_t>(threads_here(), 1, std::max<std::int64_t>(parts_, 1));
}

void CutConvs::run_part(std::int64_t part, const float* const* data, std::byte* shared, std::byte* own) const {
  const CutConv* cut = cuts_.data();
  for (; part >= cut->count(); ++cut) {
    part -= cut->count();
    shared += cut->shared_bytes();
  }
  cut->run(part, data, shared, own);
}

void CutConvs::run(const float* const* data, std::byte* scratch) const {
  std::byte* shared = scratch;
  for (const CutConv& cut : cuts_) {
    cut.begin(data, shared);
    shared += cut.shared_bytes();
  }
  std::byte* own = scratch + shared_bytes_;
  std::atomic<std::int64_t> next = 0;  // a lane whose thread comes late finds less to do
  parallel_for(lanes_, 1, [&](std::int64_t lane, std::int64_t) {
    for (std::int64_t part = next++; part < parts_; part = next++) {
      run_part(part, data, scratch, own + static_cast<std::size_t>(lane) * own_bytes_);
    }
  });
}

}  // namespace backpass
