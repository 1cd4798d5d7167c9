// NeededRows: the rows of a batch of sequences that have to be computed, given rows that are asked for and the masks
// through which attention sees others.
#include <algorithm>
#include <bit>
#include <numeric>

#include "graph/op.hpp"
#include "ops/indexing/reach.hpp"
#include "ops/movement/movement.hpp"
#include "support/parallel.hpp"
#include "support/strides.hpp"

namespace backpass {
namespace {

constexpr DTypeSet kMaskTypes = types::floats | types::boolean;

/// Inputs (extents, asked..., masks...), and what attributes say of each mask.
struct Operands {
  std::size_t asked, masks;
  std::vector<std::int64_t> causal, outside, unseen;

  template <class Context>
  Operands(const Context& c, std::size_t given)
      : causal(c.node.attr_ints("causal")), outside(c.node.attr_ints("outside")), unseen(c.node.attr_ints("unseen")) {
    const std::int64_t count = c.node.attr_int("asked", 0);
    masks = causal.size();
    c.require(count >= 0 && outside.size() == masks && unseen.size() == masks, "got asked ", count, " and ", masks,
              ", ", outside.size(), ", ", unseen.size(), " of causal, outside, unseen, expected one for each mask");
    asked = static_cast<std::size_t>(count);
    c.require(given >= 1 + asked && given <= 1 + asked + masks, "got ", given, " inputs, expected extents, ", asked,
              " asked, and at most ", masks, " masks");
  }

  std::size_t first_mask() const { return 1 + asked; }
};

void infer(InferContext& c) {
  c.set_dtype(0, DType::int64);
  const Operands operands(c, c.input_count());
  auto extents = movement::index_list(c, 0, "extents");
  if (extents) c.require(extents->size() == 2, "extents: got ", extents->size(), " numbers, expected 2");
  for (std::size_t i = 0; i < operands.asked; ++i) {
    c.require(c.dtype(1 + i) == DType::int64, "asked ", i, ": got ", name_of(c.dtype(1 + i)), ", expected int64");
  }
  for (std::size_t i = 0; i < operands.masks; ++i) {
    const std::size_t input = operands.first_mask() + i;
    if (!c.has_input(input)) continue;
    c.require(kMaskTypes.has(c.dtype(input)), "mask ", i, ": got ", name_of(c.dtype(input)), ", expected ",
              shown(kMaskTypes));
    if (c.knows_shape(input))
      c.require(c.rank(input) <= 4, "mask ", i, ": got rank ", c.rank(input), ", expected 4 or less");
  }
  c.set_shape(0,
              {c.data_dependent("needed", extents ? std::optional<Dim>((*extents)[0] * (*extents)[1]) : std::nullopt)});
}

struct Extents {
  std::int64_t batch, length;

  explicit Extents(const ComputeContext& c) {
    const std::vector<std::int64_t> given = c.tensor(0).to_ints();
    c.require(given.size() == 2 && given[0] >= 0 && given[1] >= 0, "extents: got ", shown(given),
              ", expected two numbers, 0 or more");
    batch = given[0];
    length = given[1];
    element_count(given);
  }
};

/// One for each head of a mask.
void add_sights(const ComputeContext& c, const Operands& operands, std::size_t i, const Extents& extents,
                std::vector<Sight>& sights) {
  Sight sight{.causal = operands.causal[i] != 0,
              .outside = operands.outside[i] != 0,
              .unseen_sees_all = operands.unseen[i] != 0};
  const std::size_t input = operands.first_mask() + i;
  if (!c.has_input(input)) {
    sights.push_back(sight);
    return;
  }
  const Tensor& mask = c.tensor(input);
  Dims dims = mask.dims();
  c.require(dims.size() <= 4 && kMaskTypes.has(mask.dtype()), "mask ", i, ": got ", name_of(mask.dtype()),
            shown(mask.dims()), ", expected rank 4 or less of ", shown(kMaskTypes));
  dims.insert(dims.begin(), 4 - dims.size(), 1);
  const bool fits = (dims[0] == 1 || dims[0] == extents.batch) && (dims[3] == 1 || dims[3] == extents.length) &&
                    (sight.outside || dims[2] == 1 || dims[2] == extents.length);
  c.require(fits, "mask ", i, ": got ", shown(mask.dims()), ", expected one that broadcasts to [", extents.batch,
            ",heads,", sight.outside ? "queries" : std::to_string(extents.length), ",", extents.length, "]");
  sight.dtype = mask.dtype();
  sight.queries = dims[2];
  sight.keys = dims[3];
  sight.batch_stride = dims[0] == 1 ? 0 : dims[1] * dims[2] * dims[3];
  for (std::int64_t head = 0; head < dims[1]; ++head) {
    sight.mask = static_cast<const std::byte*>(mask.data()) + byte_size(sight.dtype, head * dims[2] * dims[3]);
    if (std::find(sights.begin(), sights.end(), sight) == sights.end()) sights.push_back(sight);
  }
}

void mark_asked(const ComputeContext& c, std::size_t i, const Extents& extents, std::vector<KeySet>& needed) {
  const Tensor& places = c.tensor(1 + i);
  std::int64_t b = 0;
  for (std::int64_t j = 0; j < places.size(); ++j) {
    const std::int64_t place = places.as<std::int64_t>()[j];
    c.require(place >= 0 && place < extents.batch * extents.length, "asked ", i, ": got place ", place, " at position ",
              j, ", expected one in [0, ", extents.batch * extents.length, ")");
    if (place < b * extents.length || place >= (b + 1) * extents.length) b = place / extents.length;
    needed[static_cast<std::size_t>(b)].insert(place - b * extents.length);
  }
}

void write_places(const KeySet& keys, std::int64_t place, std::int64_t* to) {
  for (std::uint64_t word : keys.words()) {
    for (; word != 0; word &= word - 1) *to++ = place + std::countr_zero(word);
    place += 64;
  }
}

Tensor places_of(const std::vector<KeySet>& needed, const Extents& extents) {
  std::vector<std::int64_t> ends(needed.size());
  std::transform(needed.begin(), needed.end(), ends.begin(), [](const KeySet& keys) { return keys.count(); });
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  Tensor places(DType::int64, {ends.empty() ? 0 : ends.back()});
  auto* to = places.as<std::int64_t>();
  parallel_for(extents.batch, grain_for(extents.length), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      write_places(needed[static_cast<std::size_t>(b)], b * extents.length,
                   to + (b == 0 ? 0 : ends[static_cast<std::size_t>(b) - 1]));
    }
  });
  return places;
}

/// About how many elements of masks are read for a sequence.
std::int64_t work_of(const std::vector<Sight>& sights) {
  std::int64_t work = 1;
  for (const Sight& sight : sights) work += sight.queries * sight.keys;
  return work;
}

void compute(ComputeContext& c) {
  const Operands operands(c, c.inputs.size());
  const Extents extents(c);
  std::vector<Sight> sights;
  for (std::size_t i = 0; i < operands.masks; ++i) add_sights(c, operands, i, extents, sights);
  std::vector<KeySet> needed(static_cast<std::size_t>(extents.batch), KeySet(extents.length));
  for (std::size_t i = 0; i < operands.asked; ++i) mark_asked(c, i, extents, needed);
  parallel_for(extents.batch, grain_for(work_of(sights)), [&](std::int64_t begin, std::int64_t end) {
    Reach reach(sights, extents.length);
    for (std::int64_t b = begin; b < end; ++b) reach.complete(b, needed[static_cast<std::size_t>(b)]);
  });
  c.outputs[0] = places_of(needed, extents);
}

const Register kNeededRows({.name = "NeededRows",
                            .domain = "backpass",
                            .doc = "places of rows that are asked for, and of those that they see through masks",
                            .inputs = {1, -1},
                            .types = {DType::int64},
                            .infer = infer,
                            .compute = compute,
                            .is_flat = true});

}  // namespace
}  // namespace backpass
