#include "ops/attention/attention_layout.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace backpass {

HeadTensor head_tensor(const Dims& dims, std::int64_t heads) {
  if (dims.size() == 4)
    return {dims[0], dims[1], dims[2], dims[3], {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3]}};
  const std::int64_t size = dims[2] / heads;
  return {dims[0], heads, dims[1], size, {dims[1] * dims[2], size, dims[2]}};
}

AttentionStrides mask_strides(const Dims& mask) {
  Dims dims(4 - mask.size(), 1);
  dims.insert(dims.end(), mask.begin(), mask.end());
  const std::int64_t row = dims[3];
  return {dims[0] == 1 ? 0 : dims[1] * dims[2] * row, dims[1] == 1 ? 0 : dims[2] * row, dims[2] == 1 ? 0 : row};
}

AttentionShape attention_shape(const Node& node, const HeadTensor& q, const HeadTensor& keys, const HeadTensor& values,
                               std::int64_t past) {
  AttentionShape s;
  s.batch = q.batch, s.q_heads = q.heads, s.q_len = q.length, s.head = q.size;
  s.kv_heads = keys.heads, s.kv_len = past + keys.length, s.v_head = values.size;
  s.past = past;
  s.scale = node.has_attribute("scale") ? static_cast<double>(node.attr_float("scale", 0))
                                        : 1 / std::sqrt(static_cast<double>(q.size));
  s.softcap = node.attr_float("softcap", 0);
  s.unseen = node.attr_int("unseen_is_nan", 0) != 0 ? Unseen::nan : Unseen::zero;
  s.lowest = node.attr_float("lowest", -std::numeric_limits<float>::infinity());
  s.causal = node.attr_int("is_causal", 0) != 0;
  s.left_window = std::min(node.attr_int("left_window_size", -1), s.kv_len + s.q_len);
  s.right_window = std::min(node.attr_int("right_window_size", -1), s.kv_len + s.q_len);
  return s;
}

void check_kv_lengths(const std::string& label, const std::int64_t* lengths, const AttentionShape& shape) {
  for (std::int64_t b = 0; lengths != nullptr && b < shape.batch; ++b)
    if (lengths[b] < 0 || lengths[b] > shape.kv_len)
      fail(label, " nonpad_kv_seqlen[", b, "]: got ", lengths[b], ", expected 0 to ", shape.kv_len);
}

DropoutInputs::DropoutInputs(const PrepareContext& c, std::size_t ratio, std::size_t training)
    : ratio_(c, ratio, dropout::kDefaultRatio),
      training_(c, training, 0),
      stream_(dropout::seed_of(c.node), c.node.attr_string("stream", dropout::stream_name(c.node))),
      where_(c.node.label()) {}

AttentionDropout DropoutInputs::read(const KernelArgs& a) const {
  const double ratio = training_.read(a) == 0 ? 0 : dropout::checked_ratio(ratio_.read(a), where_);
  if (ratio == 0) return {};
  return {true, stream_.next(), dropout::threshold(ratio), 1 / (1 - ratio)};
}

}  // namespace backpass
