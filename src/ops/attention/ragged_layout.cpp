#include "ops/attention/ragged_layout.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "ops/attention/attention_layout.hpp"
#include "ops/attention/ragged_rows.hpp"
#include "ops/flops.hpp"

namespace backpass {
namespace {

void check_attributes(const InferContext& c) {
  const std::int64_t q_heads = c.node.attr_int("q_num_heads", 0);
  const std::int64_t kv_heads = c.node.attr_int("kv_num_heads", 0);
  c.require(kv_heads > 0, "attribute 'kv_num_heads': got ", kv_heads, ", expected a positive number");
  c.require(q_heads > 0 && q_heads % kv_heads == 0, "attribute 'q_num_heads': got ", q_heads,
            ", expected a positive multiple of 'kv_num_heads' ", kv_heads);
  for (const char* key : {"left_window_size", "right_window_size"}) {
    const std::int64_t size = c.node.attr_int(key, -1);
    c.require(size >= -1, "attribute '", key, "': got ", size, ", expected -1 or more");
  }
  const std::string unseen = c.node.attr_string("unseen", "zero");
  c.require(unseen == "zero" || unseen == "nan" || unseen == "all", "attribute 'unseen': got '", unseen,
            "', expected 'zero', 'nan' or 'all'");
}

void check_types(const InferContext& c, std::size_t base) {
  const DType q = c.dtype(base + kRaggedQ);
  auto fits = [&](DType type) { return is_float(type) && (type == DType::float64) == (q == DType::float64); };
  auto check = [&](RaggedInput input, const char* name, auto accepts, const char* expected) {
    if (!c.has_input(base + input)) return;
    const DType type = c.dtype(base + input);
    c.require(accepts(type), "element type of ", name, ": got ", name_of(type), ", expected ", expected);
  };
  auto is_int64 = [](DType type) { return type == DType::int64; };
  check(kRaggedK, "k", fits, "that of q");
  check(kRaggedV, "v", fits, "that of q");
  check(kRaggedQPlaces, "q_places", is_int64, "int64");
  check(kRaggedKvPlaces, "kv_places", is_int64, "int64");
  check(kRaggedExtents, "extents", is_int64, "int64");
  check(
      kRaggedMask, "mask", [&](DType type) { return type == DType::boolean || fits(type); }, "bool or that of q");
  check(
      kRaggedTraining, "training_mode", [](DType type) { return type == DType::boolean; }, "bool");
}

/// The mask's extents, aligned to the right, are 1 or those of the scores.
void check_mask(const InferContext& c, std::size_t input, const std::optional<std::vector<Dim>>& extents) {
  if (!c.has_input(input) || !c.knows_shape(input)) return;
  const Shape& mask = c.shape(input);
  c.require(!mask.empty() && mask.size() <= 4, "rank of mask: got ", mask.size(), ", expected 1 to 4");
  if (!extents) return;
  const Shape scores{(*extents)[0], c.node.attr_int("q_num_heads", 0), (*extents)[1], (*extents)[2]};
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const Dim& got = mask[mask.size() - 1 - i];
    const Dim& want = scores[3 - i];
    if (!got.is_known() || !want.is_known()) continue;
    c.require(got.value() == 1 || got.value() == want.value(), "shape of mask: got ", shown(mask),
              ", expected to broadcast to ", shown(scores));
  }
}

/// Elements of each head.
Dim head_size(const InferContext& c, std::size_t input, const char* attribute) {
  const std::int64_t heads = c.node.attr_int(attribute, 0);
  const Dim& width = c.shape(input)[1];
  c.require(!width.is_known() || width.value() % heads == 0, "extent 1 of input ", input, ": got ", shown(width),
            ", expected a multiple of '", attribute, "' ", heads);
  return floor_div(width, heads);
}

/// As many places as rows; without places, all rows of the batch.
void check_rows(InferContext& c, std::size_t rows, std::size_t places, const std::optional<Dim>& all) {
  const Dim& count = c.shape(rows)[0];
  if (!c.has_input(places)) {
    if (all) c.unify(count, *all, "rows without places and what extents say");
    return;
  }
  if (!c.knows_shape(places)) return;
  c.require(c.rank(places) == 1, "rank of input ", places, ": got ", c.rank(places), ", expected 1");
  c.unify(count, c.shape(places)[0], "numbers of rows and of their places");
}

}  // namespace

void check_ragged(InferContext& c, std::size_t base) {
  check_attributes(c);
  check_types(c, base);
  for (std::size_t i : {kRaggedQ, kRaggedK, kRaggedV})
    c.require(c.rank(base + i) == 2, "rank of input ", base + i, ": got ", c.rank(base + i), ", expected 2");
  c.require(c.rank(base + kRaggedExtents) == 1, "rank of extents: got ", c.rank(base + kRaggedExtents), ", expected 1");
  c.unify(c.shape(base + kRaggedExtents)[0], 3, "length of extents");
  c.unify(head_size(c, base + kRaggedQ, "q_num_heads"), head_size(c, base + kRaggedK, "kv_num_heads"),
          "head sizes of q and k");
  head_size(c, base + kRaggedV, "kv_num_heads");
  c.unify(c.shape(base + kRaggedK)[0], c.shape(base + kRaggedV)[0], "numbers of keys and values");
  const std::optional<std::vector<Dim>> extents = c.maybe_ints(base + kRaggedExtents);
  check_mask(c, base + kRaggedMask, extents);
  auto all = [&](std::size_t i) { return extents ? std::optional((*extents)[0] * (*extents)[i]) : std::nullopt; };
  check_rows(c, base + kRaggedQ, base + kRaggedQPlaces, all(1));
  check_rows(c, base + kRaggedK, base + kRaggedKvPlaces, all(2));
}

/// Each query sees the keys of one sequence: of all there are, its share.
Dim ragged_operations(const Node& node, std::size_t base, std::int64_t products) {
  const Value& extents = *node.inputs.at(base + kRaggedExtents);
  Dim batch = 1;
  if (extents.constant) batch = extents.constant->as<std::int64_t>()[0];
  if (extents.ints) batch = extents.ints->at(0);
  const Dim& keys = flops::shape(node.inputs.at(base + kRaggedK)).at(0);
  return Dim(2 * products) * flops::elements(node.inputs.at(base + kRaggedQ)) * floor_div(keys, max(batch, Dim(1)));
}

RaggedLayout::RaggedLayout(PrepareContext& c, std::size_t base) : base_(base), label_(c.node.label()) {
  const Dims &q = c.in(base + kRaggedQ).dims, &k = c.in(base + kRaggedK).dims, &v = c.in(base + kRaggedV).dims;
  const std::int64_t q_heads = c.node.attr_int("q_num_heads");
  const std::int64_t kv_heads = c.node.attr_int("kv_num_heads");
  queries_ = q[0], keys_ = k[0];
  shape_ = attention_shape(c.node, {0, q_heads, 0, q[1] / q_heads, {}}, {0, kv_heads, 0, k[1] / kv_heads, {}},
                           {0, kv_heads, 0, v[1] / kv_heads, {}}, 0);
  shape_.left_window = c.node.attr_int("left_window_size", -1);
  shape_.right_window = c.node.attr_int("right_window_size", -1);
  const std::string unseen = c.node.attr_string("unseen", "zero");
  shape_.unseen = unseen == "all" ? Unseen::all : unseen == "nan" ? Unseen::nan : Unseen::zero;
  has_q_places_ = c.has_input(base + kRaggedQPlaces);
  has_kv_places_ = c.has_input(base + kRaggedKvPlaces);
  if (c.has_input(base + kRaggedMask)) {
    const TensorInfo& mask = c.in(base + kRaggedMask);
    mask_.assign(4 - mask.dims.size(), 1);
    mask_.insert(mask_.end(), mask.dims.begin(), mask.dims.end());
    mask_strides_ = mask_strides(mask.dims);
    mask_chooses_ = mask.dtype == DType::boolean;
  }
  const auto rows = static_cast<std::size_t>(queries_ + keys_);
  query_rows_ = c.reserve(static_cast<std::size_t>(queries_) * sizeof(AttentionRows));
  key_rows_ = c.reserve(static_cast<std::size_t>(keys_) * sizeof(AttentionRows));
  sequences_ = c.reserve(rows * sizeof(AttentionSequence));
}

AttentionShape RaggedLayout::shape(const KernelArgs& args) const {
  const auto* extents = args.in<std::int64_t>(base_ + kRaggedExtents);
  AttentionShape s = shape_;
  s.batch = extents[0], s.q_len = extents[1], s.kv_len = extents[2];
  std::int64_t scores = s.q_heads;
  for (std::int64_t i = 0; i < 3; ++i)
    if (extents[i] < 0 || __builtin_mul_overflow(scores, std::max<std::int64_t>(extents[i], 1), &scores))
      fail(label_, " extents[", i, "]: got ", extents[i], ", expected an extent of a tensor");
  const Dims all{s.batch, s.q_heads, s.q_len, s.kv_len};
  for (std::size_t i = 0; i < mask_.size(); ++i)
    if (mask_[i] != 1 && mask_[i] != all[i])
      fail(label_, " shape of mask: got ", shown(mask_), ", expected to broadcast to ", shown(all));
  s.left_window = std::min(s.left_window, s.kv_len + s.q_len);
  s.right_window = std::min(s.right_window, s.kv_len + s.q_len);
  return s;
}

std::span<const AttentionSequence> RaggedLayout::sequences(const KernelArgs& args, const AttentionShape& shape,
                                                           RaggedGroups groups) const {
  auto placed = [&](bool has_places, RaggedInput input, std::int64_t count, std::int64_t length) {
    return PlacedRows{!has_places, has_places ? args.in<std::int64_t>(base_ + input) : nullptr, count, length};
  };
  const PlacedRows queries = placed(has_q_places_, kRaggedQPlaces, queries_, shape.q_len);
  const PlacedRows keys = placed(has_kv_places_, kRaggedKvPlaces, keys_, shape.kv_len);
  check_places(label_, "q_places", queries, shape.batch, false);
  check_places(label_, "kv_places", keys, shape.batch, true);
  return join_rows(cut_rows(queries, kQueryRows, reinterpret_cast<AttentionRows*>(args.scratch + query_rows_)),
                   cut_rows(keys, shape.kv_len, reinterpret_cast<AttentionRows*>(args.scratch + key_rows_)),
                   groups == RaggedGroups::items, reinterpret_cast<AttentionSequence*>(args.scratch + sequences_));
}

}  // namespace backpass
