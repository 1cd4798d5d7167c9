// What RaggedAttention and its gradient have in common: what their inputs must be, and which rows belong together.
#pragma once

#include <span>
#include <string>

#include "graph/op.hpp"
#include "ops/attention/attention_kernel.hpp"

namespace backpass {

/// Inputs of RaggedAttention; those of its gradient follow dy.
enum RaggedInput : std::size_t {
  kRaggedQ,
  kRaggedK,
  kRaggedV,
  kRaggedQPlaces,
  kRaggedKvPlaces,
  kRaggedExtents,
  kRaggedMask,
  kRaggedRatio,
  kRaggedTraining
};

/// Fails unless inputs and attributes fit together. `base`: where q is among the inputs.
void check_ragged(InferContext& c, std::size_t base);

/// `products` of matrices as large as if every query saw all keys of the whole.
Dim ragged_operations(const Node& node, std::size_t base, std::int64_t products);

/// Which rows a query is worked on with.
enum class RaggedGroups : std::uint8_t {
  blocks,  ///< a sequence for every few queries
  items    ///< a sequence for every batch item, with all keys and queries that there are
};

class RaggedLayout {
 public:
  RaggedLayout(PrepareContext& c, std::size_t base);

  /// What does not change from run to run.
  template <class T>
  AttentionTensors<T> strides() const {
    AttentionTensors<T> t;
    t.q_strides = {0, shape_.head, shape_.q_heads * shape_.head};
    t.k_strides = {0, shape_.head, shape_.kv_heads * shape_.head};
    t.v_strides = {0, shape_.v_head, shape_.kv_heads * shape_.v_head};
    t.y_strides = {0, shape_.v_head, shape_.q_heads * shape_.v_head};
    return t;
  }

  /// The extents of a run, checked against mask and rows.
  AttentionShape shape(const KernelArgs& args) const;

  /// The mask of a run.
  template <class T>
  void set_mask(const KernelArgs& args, const AttentionShape& shape, AttentionTensors<T>& t) const {
    if (mask_.empty()) return;
    t.mask_strides = mask_strides_, t.mask_len = shape.kv_len;
    t.mask_step = mask_.back() == 1 ? 0 : 1;
    if (mask_chooses_) t.chosen_mask = args.in<bool>(base_ + kRaggedMask);
    if (!mask_chooses_) t.added_mask = args.in<T>(base_ + kRaggedMask);
  }

  /// Valid until the next run.
  std::span<const AttentionSequence> sequences(const KernelArgs& args, const AttentionShape& shape,
                                               RaggedGroups groups) const;

 private:
  std::size_t base_;
  std::string label_;
  AttentionShape shape_;
  std::int64_t queries_, keys_;
  bool has_q_places_, has_kv_places_;
  Dims mask_;  ///< four extents; none: no mask
  AttentionStrides mask_strides_;
  bool mask_chooses_ = false;
  std::size_t query_rows_, key_rows_, sequences_;  ///< in scratch memory
};

}  // namespace backpass
