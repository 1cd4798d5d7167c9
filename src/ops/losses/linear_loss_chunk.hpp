// One chunk of the rows of a linear loss (linear_loss.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>

#include "kernels/gemm.hpp"
#include "ops/losses/linear_loss_weights.hpp"
#include "ops/losses/linear_loss_workspace.hpp"
#include "support/convert.hpp"
#include "support/parallel.hpp"

namespace backpass {

template <class T>
class LinearLossChunk {
 public:
  /// Of the rows that count, those from `begin` to `end`.
  LinearLossChunk(const LinearLossShape& shape, const LinearLossData<T>& data, const CountedRows<T>& counted,
                  const Workspace<T>& work, std::int64_t begin, std::int64_t end)
      : s_(shape),
        d_(data),
        w_(work),
        weights_(shape, data.weight, work),
        rows_(counted.rows + begin),
        labels_(counted.labels + begin),
        label_weights_(counted.weights + begin),
        count_(end - begin),
        ld_(distance_for(count_)),
        is_first_(begin == 0),
        is_gathered_(counted.count != shape.rows),
        width_(is_gathered_ ? std::min(whole_groups(count_), ld_) : count_),
        x_(is_gathered_ ? w_.x : d_.x + begin * s_.features),
        dx_(is_gathered_ || d_.dx == nullptr ? w_.dx : d_.dx + begin * s_.features) {}

  void forward() {
    if (is_gathered_) gather_rows();
    if (s_.multiplies_narrow) narrow_rows();
    if (w_.packs) packed_.emplace(true, s_.features, count_, x_, x_ld(), w_.packed);
    if (w_.class_shares > 1 && d_.share == 0 && forward_with_common_shifts()) return;
    mass_ = d_.share == 0 ? 0 : weight_of_all_classes();
    auto score = [&](std::int64_t begin, std::int64_t end) {
      multiply_scores(begin, end);
      read_label_scores(begin, end);
      take_exponentials(begin, end);
    };
    if (s_.wants_gradients && keeps_threads_apart(s_)) {
      for_each_tile_apart(score);
    } else {  // without gradients there is room for one block of scores only
      for_each_block(s_.converts_weight ? kBackwardClasses : kForwardClasses, score);
    }
    add_up();
  }

  void backward() {
    if (has_common_shifts_) {
      make_common_factors();
    } else {
      make_factors();
    }
    if (w_.packs && s_.classes_first) packed_.emplace(false, count_, s_.features, x_, x_ld(), w_.packed);
    if (w_.class_shares > 1) {
      backward_by_shares();
    } else {
      for_each_block(kBackwardClasses, [&](std::int64_t begin, std::int64_t end) {
        make_score_gradients(begin, end);
        if (s_.multiplies_narrow) narrow_scores(begin, end);
        if (d_.dweight != nullptr) multiply_dweight(begin, end, 0);
        if (d_.dx != nullptr) multiply_dx(begin, end);
      });
    }
    if (is_gathered_ && d_.dx != nullptr) scatter_rows();
  }

 private:
  template <class F>
  void for_each_block(std::int64_t length, const F& f) {
    for (std::int64_t j = 0; j < s_.classes; j += length) f(j, std::min(s_.classes, j + length));
  }
  /// Calls f(begin, end) for a tile of classes at a time, threads apart.
  template <class F>
  void for_each_tile_apart(const F& f) {
    parallel_for(tile_count(s_.classes), 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t t = from; t < to; ++t) f(t * kTileClasses, std::min(s_.classes, (t + 1) * kTileClasses));
    });
  }

  /// A share of the classes is one thread's work, from scores to gradients, some classes at a time: what one step
  /// leaves is in this thread's cache when the next one reads it. Shares have gradients of x of their own, added up in
  /// order.
  void backward_by_shares() {
    parallel_for(w_.class_shares, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t share = from; share < to; ++share) backward_share(share);
    });
    if (d_.dx == nullptr) return;
    parallel_for(count_, grain_for(w_.class_shares * s_.features), [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t share = 1; share < w_.class_shares; ++share) {
        const T* more = dx_of(share);
        for (std::int64_t i = from * s_.features; i < to * s_.features; ++i) dx_[i] += more[i];
      }
      for (std::int64_t i = from; has_common_shifts_ && i < to; ++i) finish_dx(i);
    });
  }

  void backward_share(std::int64_t share) {
    const std::int64_t first = first_class(share, w_.class_shares, s_.classes);
    const std::int64_t last = first_class(share + 1, w_.class_shares, s_.classes);
    for (std::int64_t begin = first; begin < last; begin += kPartClasses) {
      const std::int64_t end = std::min(last, begin + kPartClasses);
      if (!has_common_shifts_) make_score_gradients(begin, end);
      if (d_.dweight != nullptr) multiply_dweight(begin, end, last - end);
      if (has_common_shifts_) finish_classes(begin, end);
      if (d_.dx != nullptr) multiply_dx_part(begin, end, last - end, begin == first ? T{0} : T{1}, dx_of(share));
    }
  }

  /// One shift of a row for all classes, the largest score of the first tile. Exponentials then need no look at their
  /// tile first, and a factor of the row alone makes probabilities of them, which x and dx take in their place: scores
  /// are not touched again. False where a row's exponentials come near to what the type can hold, or are no numbers.
  bool forward_with_common_shifts() {
    const std::int64_t first = std::min(s_.classes, kTileClasses);
    multiply_scores(0, first);
    read_label_scores(0, first);
    exponentials(ClassTile<T>{block(0), first, count_, ld_}, d_.bias, w_.shifts, w_.sums);
    parallel_for(tile_count(s_.classes) - 1, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t t = from + 1; t <= to; ++t) {
        const std::int64_t at = t * kTileClasses;
        const std::int64_t end = std::min(s_.classes, at + kTileClasses);
        multiply_scores(at, end);
        read_label_scores(at, end);
        const ClassTile<T> tile{block(at), end - at, count_, ld_};
        shifted_exponentials(tile, from_class(d_.bias, at), w_.shifts, w_.sums + t * ld_);
      }
    });
    return has_common_shifts_ = add_up_common();
  }

  bool add_up_common() {
    constexpr double kMost = 60;
    bool is_within = true;
    for (std::int64_t i = 0; i < count_; ++i) {
      double sum = 0;
      for (std::int64_t t = 0; t < tile_count(s_.classes); ++t) sum += static_cast<double>(w_.sums[t * ld_ + i]);
      const double above = std::log(sum);
      is_within = is_within && above < kMost;
      w_.log_sums[i] = static_cast<double>(w_.shifts[i]) + above;
      d_.losses[rows_[i]] = static_cast<double>(label_weights_[i]) * (w_.log_sums[i] - w_.label_scores[i]);
    }
    return is_within;
  }

  /// x takes the factors that make gradients of exponentials, but for what labels subtract.
  void make_common_factors() {
    for (std::int64_t i = 0; i < count_; ++i) {
      const double part = std::exp(static_cast<double>(w_.shifts[i]) - w_.log_sums[i]);
      w_.sums[i] = static_cast<T>(flow(i) * static_cast<double>(label_weights_[i]) * part);
      const T* from = d_.x + rows_[i] * s_.features;
      for (std::int64_t f = 0; f < s_.features; ++f) w_.x[i * s_.features + f] = w_.sums[i] * from[f];
    }
    x_ = w_.x;
  }

  T own_part(std::int64_t i) const { return static_cast<T>(flow(i) * static_cast<double>(label_weights_[i])); }

  /// Gradients of the bias of these classes; what rows with these labels subtract there and from those of weights.
  void finish_classes(std::int64_t begin, std::int64_t end) {
    std::array<T, kPartClasses> sums;
    if (d_.dbias != nullptr) {
      weighted_sums(ClassTile<T>{block(begin), end - begin, count_, ld_}, w_.sums, sums.data());
    }
    for (std::int64_t i = 0; i < count_; ++i) {
      const std::int64_t label = labels_[i];
      if (label < begin || label >= end) continue;
      const T own = own_part(i);
      sums[static_cast<std::size_t>(label - begin)] -= own;
      if (d_.dweight == nullptr) continue;
      T* to = d_.dweight + weights_.offset(label);
      const T* from = d_.x + rows_[i] * s_.features;
      for (std::int64_t f = 0; f < s_.features; ++f) to[f * weights_.feature_stride()] -= own * from[f];
    }
    if (d_.dbias != nullptr) add_dbias(begin, end, sums.data());
  }

  void finish_dx(std::int64_t i) {
    const T factor = w_.sums[i];
    const T own = own_part(i);
    T* row = dx_ + i * s_.features;
    const T* from = static_cast<const T*>(d_.weight.data) + weights_.offset(labels_[i]);
    for (std::int64_t f = 0; f < s_.features; ++f) row[f] = factor * row[f] - own * from[f * weights_.feature_stride()];
  }

  T* dx_of(std::int64_t share) const { return share == 0 ? dx_ : w_.dx_shares + (share - 1) * count_ * s_.features; }

  /// Calls f(number of the tile, first class, what there is of it).
  template <class F>
  void for_each_tile(std::int64_t begin, std::int64_t end, const F& f) {
    const std::int64_t first = begin / kTileClasses;
    parallel_for(tile_count(end) - first, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t t = first + from; t < first + to; ++t) {
        const std::int64_t at = std::max(begin, t * kTileClasses);
        const std::int64_t classes = std::min(end, (t + 1) * kTileClasses) - at;
        f(t, at, ClassTile<T>{block(begin) + (at - begin) * ld_, classes, count_, ld_});
      }
    });
  }
  /// Of a list with an element per class, or of none.
  static const T* from_class(const T* list, std::int64_t at) { return list == nullptr ? nullptr : list + at; }

  T* block(std::int64_t begin) const { return s_.wants_gradients ? w_.scores + begin * ld_ : w_.scores; }
  std::int64_t x_ld() const { return std::max<std::int64_t>(1, s_.features); }

  double weight_of_all_classes() const {
    if (d_.class_weights == nullptr) return static_cast<double>(s_.classes);
    double sum = 0;
    for (std::int64_t j = 0; j < s_.classes; ++j) sum += static_cast<double>(d_.class_weights[j]);
    return sum;
  }

  void gather_rows() {
    const std::int64_t k = s_.features;
    for (std::int64_t i = 0; i < count_; ++i) std::copy_n(d_.x + rows_[i] * k, k, w_.x + i * k);
  }

  /// Rows beyond the last are zero.
  void narrow_rows() {
    const std::int64_t elements = count_ * s_.features;
    convert_loop(float_type<T>, DType::bfloat16)(x_, w_.narrow_x, elements);
    std::fill(w_.narrow_x + elements, w_.narrow_x + width_ * s_.features, std::uint16_t{0});
  }

  /// Gradients of scores, columns beyond the last zero.
  void narrow_scores(std::int64_t begin, std::int64_t end) const {
    parallel_for(end - begin, grain_for(4 * ld_), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        std::uint16_t* to = w_.narrow_scores + i * ld_;
        convert_loop(float_type<T>, DType::bfloat16)(block(begin) + i * ld_, to, count_);
        std::fill(to + count_, to + width_, std::uint16_t{0});
      }
    });
  }

  /// C = op(A) op(B), or that added to C, of bfloat16 matrices.
  void multiply_narrow(const MatrixView<std::uint16_t>& a, bool trans_a, const MatrixView<std::uint16_t>& b,
                       bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, bool adds, T* c,
                       std::int64_t ldc) const {
    if constexpr (std::is_same_v<T, float>) {
      GemmBatch sizes;
      std::tie(sizes.trans_a, sizes.trans_b) = std::tie(trans_a, trans_b);
      std::tie(sizes.m, sizes.n, sizes.k) = std::tie(m, n, k);
      std::tie(sizes.lda, sizes.ldb, sizes.ldc) = std::tie(a.ld, b.ld, ldc);
      d_.products->run(sizes, adds, a.data, b.data, c);
    }
  }

  void multiply_scores(std::int64_t begin, std::int64_t end) {
    if (s_.multiplies_narrow) {
      multiply_narrow(weights_.narrow(begin, end), !s_.classes_first, {w_.narrow_x, x_ld()}, true, end - begin, width_,
                      s_.features, false, block(begin), ld_);
      return;
    }
    const MatrixView<T> w = weights_.at(begin, end);
    if (w_.packs) {
      const std::int64_t behind = s_.converts_weight ? 0 : s_.classes - end;
      packed_->multiply(!s_.classes_first, end - begin, T{1}, w.data, w.ld, T{0}, block(begin), ld_, {}, behind);
    } else {
      gemm<T>(!s_.classes_first, true, end - begin, count_, s_.features, T{1}, w.data, w.ld, x_, x_ld(), T{0},
              block(begin), ld_);
    }
  }

  void read_label_scores(std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < count_; ++i) {
      const std::int64_t label = labels_[i];
      if (label < begin || label >= end) continue;
      const T bias = d_.bias == nullptr ? T{0} : d_.bias[label];
      w_.label_scores[i] = static_cast<double>(block(begin)[(label - begin) * ld_ + i] + bias);
    }
  }

  void take_exponentials(std::int64_t begin, std::int64_t end) {
    for_each_tile(begin, end, [&](std::int64_t t, std::int64_t at, const ClassTile<T>& tile) {
      const T* bias = from_class(d_.bias, at);
      if (d_.share != 0) score_sums(tile, bias, from_class(d_.class_weights, at), w_.score_sums + t * ld_);
      exponentials(tile, bias, w_.shifts + t * ld_, w_.sums + t * ld_);
    });
  }

  void add_up() {
    const std::int64_t tiles = tile_count(s_.classes);
    parallel_for(count_, grain_for(tiles * 32), [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i) {
        w_.log_sums[i] = log_sum(i, tiles);
        double loss = static_cast<double>(label_weights_[i]) * (w_.log_sums[i] - w_.label_scores[i]);
        if (d_.share != 0) loss += d_.share * (mass_ * w_.log_sums[i] - score_sum(i, tiles));
        d_.losses[rows_[i]] = loss;
      }
    });
  }

  double log_sum(std::int64_t i, std::int64_t tiles) const {
    double largest = std::numeric_limits<double>::lowest();
    for (std::int64_t t = 0; t < tiles; ++t) {
      largest = std::max(largest, static_cast<double>(w_.shifts[t * ld_ + i]));
    }
    double sum = 0;
    for (std::int64_t t = 0; t < tiles; ++t) {
      sum +=
          static_cast<double>(w_.sums[t * ld_ + i]) * std::exp(static_cast<double>(w_.shifts[t * ld_ + i]) - largest);
    }
    return largest + std::log(sum);
  }

  double score_sum(std::int64_t i, std::int64_t tiles) const {
    double sum = 0;
    for (std::int64_t t = 0; t < tiles; ++t) sum += static_cast<double>(w_.score_sums[t * ld_ + i]);
    return sum;
  }

  double flow(std::int64_t i) const {
    return (d_.flows == nullptr ? 1.0 : static_cast<double>(d_.flows[rows_[i]])) / d_.divisor;
  }

  void make_factors() {
    const std::int64_t tiles = tile_count(s_.classes);
    for (std::int64_t i = 0; i < count_; ++i) w_.shares[i] = static_cast<T>(flow(i) * d_.share);
    parallel_for(tiles, grain_for(count_ * 32), [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t t = from; t < to; ++t) {
        T* factors = w_.sums + t * ld_;
        for (std::int64_t i = 0; i < count_; ++i) {
          const double all = flow(i) * (static_cast<double>(label_weights_[i]) + d_.share * mass_);
          const double part = std::exp(static_cast<double>(w_.shifts[t * ld_ + i]) - w_.log_sums[i]);
          // Where nothing flows nothing arrives, whatever the scores are.
          factors[i] = all == 0 ? T{0} : static_cast<T>(part * all);
        }
      }
    });
  }

  void make_score_gradients(std::int64_t begin, std::int64_t end) {
    std::array<T, kBackwardClasses> of_classes;
    T* sums = d_.dbias == nullptr ? nullptr : of_classes.data();
    for_each_tile(begin, end, [&](std::int64_t t, std::int64_t at, const ClassTile<T>& tile) {
      scale_columns(tile, w_.sums + t * ld_, sums == nullptr ? nullptr : sums + at - begin);
      if (d_.share != 0) subtract_shares(tile, w_.shares, from_class(d_.class_weights, at));
    });
    for (std::int64_t i = 0; i < count_; ++i) {
      const std::int64_t label = labels_[i];
      if (label < begin || label >= end) continue;
      const T own = own_part(i);
      block(begin)[(label - begin) * ld_ + i] -= own;
      if (sums != nullptr) sums[label - begin] -= own;
    }
    if (sums != nullptr) add_dbias(begin, end, sums);
  }

  void add_dbias(std::int64_t begin, std::int64_t end, const T* sums) {
    double shares = 0;
    for (std::int64_t i = 0; d_.share != 0 && i < count_; ++i) shares += static_cast<double>(w_.shares[i]);
    for (std::int64_t j = begin; j < end; ++j) {
      const double weight = d_.class_weights == nullptr ? 1 : static_cast<double>(d_.class_weights[j]);
      const T sum = sums[j - begin] - (d_.share == 0 ? T{0} : static_cast<T>(shares * weight));
      d_.dbias[j] = is_first_ ? sum : d_.dbias[j] + sum;
    }
  }

  void multiply_dweight(std::int64_t begin, std::int64_t end, std::int64_t classes_behind) {
    const std::int64_t n = end - begin;
    const T keep = is_first_ ? T{0} : T{1};
    T* to = d_.dweight + weights_.offset(begin);
    const MatrixView<std::uint16_t> narrow{w_.narrow_scores, ld_};
    if (s_.multiplies_narrow && s_.classes_first) {
      multiply_narrow(narrow, false, {w_.narrow_x, x_ld()}, false, n, s_.features, width_, !is_first_, to,
                      weights_.ld());
    } else if (s_.multiplies_narrow) {
      multiply_narrow({w_.narrow_x, x_ld()}, true, narrow, true, s_.features, n, width_, !is_first_, to, weights_.ld());
    } else if (s_.classes_first && w_.packs) {
      packed_->multiply(false, n, T{1}, block(begin), ld_, keep, to, weights_.ld(), {}, classes_behind);
    } else if (s_.classes_first) {
      gemm<T>(false, false, n, s_.features, count_, T{1}, block(begin), ld_, x_, x_ld(), keep, to, weights_.ld());
    } else {
      gemm<T>(true, true, s_.features, n, count_, T{1}, x_, x_ld(), block(begin), ld_, keep, to, weights_.ld());
    }
  }

  void multiply_dx(std::int64_t begin, std::int64_t end) {
    if (s_.multiplies_narrow) {
      multiply_narrow({w_.narrow_scores, ld_}, true, weights_.narrow(begin, end), !s_.classes_first, width_,
                      s_.features, end - begin, begin != 0, dx_, x_ld());
      return;
    }
    const MatrixView<T> w = weights_.at(begin, end);
    gemm<T>(true, !s_.classes_first, count_, s_.features, end - begin, T{1}, block(begin), ld_, w.data, w.ld,
            begin == 0 ? T{0} : T{1}, dx_, x_ld());
  }

  void multiply_dx_part(std::int64_t begin, std::int64_t end, std::int64_t classes_behind, T keep, T* dx) {
    const MatrixView<T> w = weights_.at(begin, end);
    if (s_.classes_first) {
      gemm_near<T>(count_, s_.features, end - begin, block(begin), ld_, w.data, w.ld, keep, dx, x_ld(), classes_behind);
    } else {
      gemm<T>(true, true, count_, s_.features, end - begin, T{1}, block(begin), ld_, w.data, w.ld, keep, dx, x_ld());
    }
  }

  void scatter_rows() {
    const std::int64_t k = s_.features;
    for (std::int64_t i = 0; i < count_; ++i) std::copy_n(w_.dx + i * k, k, d_.dx + rows_[i] * k);
  }

  const LinearLossShape& s_;
  const LinearLossData<T>& d_;
  const Workspace<T>& w_;
  LossWeights<T> weights_;
  const std::int64_t* rows_;
  const std::int64_t* labels_;
  const T* label_weights_;
  std::int64_t count_, ld_;
  bool is_first_, is_gathered_;
  std::int64_t width_;  // columns of bfloat16 products: where data decide their number, one of few
  const T* x_;
  T* dx_;
  double mass_ = 0;  // weight of all classes
  bool has_common_shifts_ = false;
  std::optional<PackedMatrix<T>> packed_;
};

}  // namespace backpass
