// Losses against class labels: scores are [batch, classes, area], labels [batch, area].
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "backpass/error.hpp"
#include "kernels/reduce.hpp"
#include "kernels/softmax.hpp"
#include "support/parallel.hpp"

namespace backpass {

enum class LossReduction : std::uint8_t { none, sum, mean };

struct LossShape {
  std::int64_t batch, classes, area;
  std::int64_t labels() const { return batch * area; }
};

/// The label of position i, or nullopt for ignore_index. Labels come from data, so each is checked.
template <class I>
std::optional<std::int64_t> checked_label(const I* labels, std::int64_t i, std::int64_t classes,
                                          const std::optional<std::int64_t>& ignore, const std::string& where) {
  auto label = static_cast<std::int64_t>(labels[i]);
  if (ignore && label == *ignore) return std::nullopt;
  if (label < 0 || label >= classes) {
    fail(where, " label ", label, " at position ", i, ": expected [0, ", classes, ")",
         ignore ? concat(" or ignore_index ", *ignore) : std::string("; set ignore_index to leave labels out"));
  }
  return label;
}

/// What a label counts for in sums and means.
template <class T>
double label_weight(const T* weights, std::int64_t label) {
  return weights == nullptr ? 1.0 : static_cast<double>(weights[label]);
}

/// Weighted losses of all positions and their weights, for fold_losses. `nll(i, label)` is the unweighted loss, `work`
/// how many operations it takes; it is not asked for positions that are ignored.
template <class T, class I, class F>
void label_losses(const LossShape& s, const I* labels, const T* weights, const std::optional<std::int64_t>& ignore,
                  const std::string& where, const F& nll, std::int64_t work, double* losses, double* counts) {
  parallel_for(s.labels(), grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      auto label = checked_label(labels, i, s.classes, ignore, where);
      counts[i] = label ? label_weight(weights, *label) : 0;
      losses[i] = label ? counts[i] * nll(i, *label) : 0;
    }
  });
}

/// none: one value per position; sum; mean: divided by the sum of weights (`mean_of_none` when that is 0: every label
/// is ignored).
template <class T>
void fold_losses(LossReduction reduction, std::int64_t n, const double* losses, const double* counts,
                 double mean_of_none, T* y) {
  if (reduction == LossReduction::none) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(losses[i]);
    return;
  }
  double sum = 0;
  double weight = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    sum += losses[i];
    weight += counts[i];
  }
  if (reduction == LossReduction::mean) sum = weight == 0 ? mean_of_none : sum / weight;
  y[0] = static_cast<T>(sum);
}

/// log(sum(exp(scores))) over classes, one per position, where there is more than one position per instance.
class ClassLogSums {
 public:
  ClassLogSums(const LossShape& s, DType dtype) : shape_(s), dtype_(dtype) {
    Dims dims{s.batch, s.classes, s.area};
    largest_ = plan_reduction(dims, {false, true, false}, Fold::maximum, Finish::none);
    sum_ = plan_reduction(dims, {false, true, false}, Fold::sum_exp, Finish::log);
  }
  std::size_t scratch_bytes() const { return byte_size(dtype_, 2 * shape_.labels()) + 64 + sum_.scratch_bytes(); }
  template <class T>
  void run(const T* scores, double* result, std::byte* scratch) const {
    std::byte* partial = scratch;
    T* shift = reinterpret_cast<T*>(scratch + (sum_.scratch_bytes() + 63) / 64 * 64);
    T* log_sum = shift + shape_.labels();
    reduce(largest_, dtype_, scores, nullptr, shift, partial);
    reduce(sum_, dtype_, scores, shift, log_sum, partial);
    for (std::int64_t i = 0; i < shape_.labels(); ++i) {
      result[i] = static_cast<double>(shift[i]) + static_cast<double>(log_sum[i]);
    }
  }

 private:
  LossShape shape_;
  DType dtype_;
  Reduction largest_, sum_;
};

}  // namespace backpass
