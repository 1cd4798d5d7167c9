// A oneDNN convolution, or one of its gradients, cut into parts that one thread each computes: the same bits for any
// number of threads by construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/conv.hpp"
#include "ops/convolution/dnnl_runtime.hpp"

namespace backpass {

/// Which channels of a convolution may be divided among parts where there is one group.
enum class CutChannels : std::uint8_t { in, out };

/// Runs of images times equal shares of the channels: of the groups where there are several, else of the channels in or
/// out. Sizes alone decide.
struct ConvCut {
  ConvGeometry whole, part;
  CutChannels along = CutChannels::out;
  std::int64_t image_parts = 1;
  std::int64_t channel_parts = 1;
  std::int64_t first_image = 0;
  std::int64_t first_part = 0;  ///< runs of images before

  /// For parts that each write some of the output: mostly runs of images, or shares of the channels along `along` where
  /// that means less to read. `whole_images`: a share of the channels holds one image at most. A second cut is that of
  /// the images that remain.
  static std::vector<ConvCut> for_output(const ConvGeometry& g, CutChannels along, bool whole_images = false);
  /// For the gradient of the weights, a sum over images: shares of the channels, and runs of images where these are
  /// few, each with a sum of its own.
  static std::vector<ConvCut> for_weights(const ConvGeometry& g);
};

/// A tensor that the parts of a convolution read or write.
struct CutOperand {
  enum class Role : std::uint8_t {
    x,
    w,
    y,
    bias,
    packed_w,   ///< constant weights in the layout wanted, part after part
    partial_w,  ///< a gradient of the weights for each run of images, one after the other
    partial_bias,
  };

  Role role;
  int argument;               ///< DNNL_ARG_...
  dnnl::memory::desc wanted;  ///< layout in which the primitive takes a part
  bool is_output = false;
  bool is_blocked = false;                           ///< the tensor has that layout already
  std::shared_ptr<const Tensor> constant = nullptr;  ///< the tensor itself, for packed_w
};

/// The parts of one cut.
class CutConv {
 public:
  CutConv(const ConvCut& cut, const dnnl::primitive& primitive, const std::vector<CutOperand>& operands,
          const dnnl::memory::desc& scratchpad);

  std::int64_t count() const { return cut_.image_parts * cut_.channel_parts; }
  /// Scratch memory of all parts together, and of a part while it runs; multiples of 64.
  std::size_t shared_bytes() const { return shared_bytes_; }
  std::size_t own_bytes() const { return own_bytes_; }
  /// Brings what several parts read into the layout they want. `data`: the whole tensors, one per operand.
  void begin(const float* const* data, std::byte* shared) const;
  void run(std::int64_t part, const float* const* data, std::byte* shared, std::byte* own) const;

 private:
  /// One operand: where its parts lie, in elements, and their copies in the layout wanted.
  struct Side {
    std::int64_t first = 0, image_step = 0, channel_step = 0;
    bool is_output = false;
    std::shared_ptr<const Tensor> constant;
    SoloPrimitive own;               ///< copies one part on its way in or out; empty when nothing needs to be copied
    std::optional<Relayout> shared;  ///< copies what several parts read, before they run
    std::int64_t image_copies = 1, channel_copies = 1;
    std::size_t at = 0, bytes = 0;

    const float* part(const float* whole, std::int64_t image, std::int64_t channel) const {
      if (constant != nullptr) whole = static_cast<const float*>(constant->data());
      return whole + first + image * image_step + channel * channel_step;
    }
    std::size_t copy_at(std::int64_t image, std::int64_t channel) const {
      return at + static_cast<std::size_t>(image % image_copies * channel_copies + channel % channel_copies) * bytes;
    }
  };

  Side side_of(const CutOperand& operand);

  ConvCut cut_;
  std::vector<Side> sides_;
  std::size_t shared_bytes_ = 0, own_bytes_ = 0, scratchpad_at_ = 0;
  SoloPrimitive primitive_;
};

/// All parts of all cuts. As many run at the same time as there are threads where this is made, each of which has
/// scratch memory of its own.
class CutConvs {
 public:
  explicit CutConvs(std::vector<CutConv> cuts);

  std::size_t scratch_bytes() const { return shared_bytes_ + static_cast<std::size_t>(lanes_) * own_bytes_; }
  /// `data`: the whole tensors, in the order of the operands.
  void run(const float* const* data, std::byte* scratch) const;

 private:
  void run_part(std::int64_t part, const float* const* data, std::byte* shared, std::byte* own) const;

  std::vector<CutConv> cuts_;
  std::int64_t parts_ = 0, lanes_ = 1;
  std::size_t shared_bytes_ = 0, own_bytes_ = 0;
};

}  // namespace backpass
