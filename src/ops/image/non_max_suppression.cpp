// NonMaxSuppression: the best boxes of each class that do not overlap a better one too much.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "graph/op.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, DType::int64);
  std::optional<Dim> most;
  if (c.has_input(1) && c.knows_shape(1)) most = product(c.shape(1));
  c.set_shape(0, {c.data_dependent("selected", most), 3});
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    if (!c.has_input(i)) continue;
    DType expected = i == 2 ? DType::int64 : DType::float32;
    c.require(c.dtype(i) == expected, "element type of input ", i, ": got ", name_of(c.dtype(i)), ", expected ",
              name_of(expected));
  }
  const Shape& boxes = c.shape(0);
  const Shape& scores = c.shape(1);
  c.require(boxes.size() == 3 && (boxes[2].is(4) || !boxes[2].is_known()), "boxes: got ", shown(boxes),
            ", expected [batches, boxes, 4]");
  c.require(scores.size() == 3, "scores: got rank ", scores.size(), ", expected [batches, classes, boxes]");
  c.unify(boxes[0], scores[0], "number of batches of boxes and scores");
  c.unify(boxes[1], scores[2], "number of boxes and of their scores");
}

struct Box {
  float x0, y0, x1, y1;
  float area() const { return (x1 - x0) * (y1 - y0); }
};

Box box_at(const float* p, bool centred) {
  if (centred) return {p[0] - p[2] / 2, p[1] - p[3] / 2, p[0] + p[2] / 2, p[1] + p[3] / 2};
  return {std::min(p[1], p[3]), std::min(p[0], p[2]), std::max(p[1], p[3]), std::max(p[0], p[2])};
}

bool overlaps(const Box& a, const Box& b, float threshold) {
  float width = std::min(a.x1, b.x1) - std::max(a.x0, b.x0);
  float height = std::min(a.y1, b.y1) - std::max(a.y0, b.y0);
  if (!(width > 0) || !(height > 0)) return false;
  float shared = width * height;
  float all = a.area() + b.area() - shared;
  if (!(a.area() > 0) || !(b.area() > 0) || !(all > 0)) return false;
  return shared / all > threshold;
}

struct Limits {
  std::int64_t boxes = 0;
  float overlap = 0;
  float score = -std::numeric_limits<float>::infinity();
  bool has_score = false;
};

Limits limits_of(const ComputeContext& c) {
  auto single = [&](std::size_t i) {
    c.require(c.tensor(i).size() == 1, "input ", i, ": got ", c.tensor(i).size(), " elements, expected one");
    return c.tensor(i).data();
  };
  Limits limits;
  if (c.has_input(2)) limits.boxes = *static_cast<const std::int64_t*>(single(2));
  if (c.has_input(3)) limits.overlap = *static_cast<const float*>(single(3));
  limits.has_score = c.has_input(4);
  if (limits.has_score) limits.score = *static_cast<const float*>(single(4));
  c.require(limits.overlap >= 0 && limits.overlap <= 1, "iou_threshold: got ", limits.overlap,
            ", expected one in [0, 1]");
  return limits;
}

/// Indices of the boxes kept for one class, best first.
std::vector<std::int64_t> select(const std::vector<Box>& boxes, const float* scores, const Limits& limits) {
  std::vector<std::int64_t> candidates;
  for (std::int64_t i = 0; i < std::ssize(boxes); ++i) {
    if (!limits.has_score || scores[i] > limits.score) candidates.push_back(i);
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&](std::int64_t a, std::int64_t b) {
    bool a_is_nan = scores[a] != scores[a];
    bool b_is_nan = scores[b] != scores[b];
    return a_is_nan || b_is_nan ? !a_is_nan && b_is_nan : scores[a] > scores[b];
  });
  std::vector<std::int64_t> kept;
  for (std::int64_t i : candidates) {
    if (std::ssize(kept) >= limits.boxes) break;
    const Box& box = boxes[static_cast<std::size_t>(i)];
    bool covered = std::any_of(kept.begin(), kept.end(), [&](std::int64_t k) {
      return overlaps(box, boxes[static_cast<std::size_t>(k)], limits.overlap);
    });
    if (!covered) kept.push_back(i);
  }
  return kept;
}

void compute(ComputeContext& c) {
  const Tensor& boxes = c.tensor(0);
  const Tensor& scores = c.tensor(1);
  bool fits = boxes.rank() == 3 && scores.rank() == 3 && boxes.dims()[2] == 4 && boxes.dims()[0] == scores.dims()[0] &&
              boxes.dims()[1] == scores.dims()[2];
  c.require(fits, "got boxes ", shown(boxes.dims()), " and scores ", shown(scores.dims()),
            ", expected [batches, boxes, 4] and [batches, classes, boxes]");
  std::int64_t format = c.node.attr_int("center_point_box", 0);
  c.require(format == 0 || format == 1, "center_point_box: got ", format, ", expected 0 or 1");
  Limits limits = limits_of(c);
  std::int64_t count = boxes.dims()[1];
  std::int64_t classes = scores.dims()[1];
  std::vector<std::array<std::int64_t, 3>> selected;
  for (std::int64_t b = 0; b < boxes.dims()[0]; ++b) {
    std::vector<Box> all;
    for (std::int64_t i = 0; i < count; ++i)
      all.push_back(box_at(boxes.as<float>() + (b * count + i) * 4, format == 1));
    for (std::int64_t k = 0; k < classes; ++k) {
      for (std::int64_t i : select(all, scores.as<float>() + (b * classes + k) * count, limits)) {
        selected.push_back({b, k, i});
      }
    }
  }
  Tensor out(DType::int64, {std::ssize(selected), 3});
  auto* to = out.as<std::int64_t>();
  for (const auto& row : selected) to = std::copy(row.begin(), row.end(), to);
  c.outputs[0] = std::move(out);
}

const Register non_max_suppression{{.name = "NonMaxSuppression",
                                    .since = 11,
                                    .doc = "The best boxes of each class that overlap no better one too much.",
                                    .inputs = {2, 5},
                                    .types = {DType::float32},
                                    .infer = infer,
                                    .compute = compute}};

}  // namespace
}  // namespace backpass
