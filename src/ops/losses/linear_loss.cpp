#include "ops/losses/linear_loss.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/class_tiles.hpp"
#include "kernels/gemm.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

// Scores that are kept together. Fewer rows read and write the weights and their gradients more often, more rows no
// longer gain anything.
constexpr std::int64_t kScoreBytes = std::int64_t{64} << 20;
constexpr std::int64_t kLeastRows = 176;
constexpr std::int64_t kMostRows = 304;
// Classes of one product, in whole tiles: what one step leaves is still in the cache when the next one reads it. Going
// back there are more steps, and weights to keep there as well.
constexpr std::int64_t kForwardClasses = 12 * kTileClasses;
constexpr std::int64_t kBackwardClasses = 3 * kTileClasses;

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// An odd number of groups: with a power of two, neighbouring classes would evict each other from the cache.
std::int64_t distance_for(std::int64_t rows) {
  const std::int64_t groups = (rows + kTileColumns - 1) / kTileColumns;
  return (groups | 1) * kTileColumns;
}

std::int64_t tile_count(std::int64_t classes) { return (classes + kTileClasses - 1) / kTileClasses; }

/// Takes pieces of scratch memory one after the other; without memory, it only adds up their sizes.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(std::int64_t count) {
    std::byte* at = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += static_cast<std::size_t>(round_up(count * static_cast<std::int64_t>(sizeof(T)), 64));
    return reinterpret_cast<T*>(at);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

template <class T>
struct Workspace {
  T* scores;      ///< [classes, ld], or one block of it when no gradients are wanted
  T* x;           ///< [ld, features]: the chunk's rows, then zeros
  T* dx;          ///< the same for their gradients
  T* shifts;      ///< [tiles, ld]
  T* sums;        ///< [tiles, ld]; then the factors that make probabilities of exponentials, times the row's flow
  T* class_sums;  ///< [classes]
  double* label_scores;
  double* log_sums;

  Workspace(Carver& c, const LinearLossShape& s, std::int64_t ld, bool wants_gradients) {
    const std::int64_t tiles = tile_count(s.classes);
    scores = c.take<T>((wants_gradients ? s.classes : std::min(s.classes, kForwardClasses)) * ld);
    x = c.take<T>(ld * s.features);
    dx = c.take<T>(wants_gradients ? ld * s.features : 0);
    shifts = c.take<T>(tiles * ld);
    sums = c.take<T>(tiles * ld);
    class_sums = c.take<T>(wants_gradients ? s.classes : 0);
    label_scores = c.take<double>(ld);
    log_sums = c.take<double>(ld);
  }
};

/// One chunk of rows.
template <class T>
class Chunk {
 public:
  Chunk(const LinearLossShape& shape, const LinearLossData<T>& data, const CountedRows<T>& counted,
        const Workspace<T>& work, std::int64_t begin, std::int64_t end)
      : s_(shape),
        d_(data),
        w_(work),
        rows_(counted.rows + begin),
        labels_(counted.labels + begin),
        weights_(counted.weights + begin),
        count_(end - begin),
        width_(round_up(count_, kTileColumns)),
        ld_(distance_for(count_)),
        is_first_(begin == 0) {}

  void forward() {
    gather_rows();
    for_each_block(kForwardClasses, [&](std::int64_t begin, std::int64_t end) {
      multiply_scores(begin, end);
      read_label_scores(begin, end);
      take_exponentials(begin, end);
    });
    add_up();
  }

  void backward(double divisor) {
    make_factors(divisor);
    for_each_block(kBackwardClasses, [&](std::int64_t begin, std::int64_t end) {
      make_score_gradients(begin, end, divisor);
      if (d_.dweight != nullptr) multiply_dweight(begin, end);
      if (d_.dx != nullptr) multiply_dx(begin, end);
    });
    scatter_rows();
  }

 private:
  template <class F>
  void for_each_block(std::int64_t length, const F& f) {
    for (std::int64_t j = 0; j < s_.classes; j += length) f(j, std::min(s_.classes, j + length));
  }
  template <class F>
  void for_each_tile(std::int64_t begin, std::int64_t end, const F& f) {
    const std::int64_t first = begin / kTileClasses;
    parallel_for(tile_count(end - begin), 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t t = first + from; t < first + to; ++t) {
        const std::int64_t at = t * kTileClasses;
        f(t, at, ClassTile<T>{block(begin) + (at - begin) * ld_, std::min(kTileClasses, end - at), width_, ld_});
      }
    });
  }

  T* block(std::int64_t begin) const { return d_.wants_gradients() ? w_.scores + begin * ld_ : w_.scores; }
  /// What the weights of classes from `begin` on are stored from, and the distance of their rows.
  std::int64_t weight_offset(std::int64_t begin) const { return s_.classes_first ? begin * s_.features : begin; }
  std::int64_t weight_ld() const { return std::max<std::int64_t>(1, s_.classes_first ? s_.features : s_.classes); }
  std::int64_t x_ld() const { return std::max<std::int64_t>(1, s_.features); }

  void gather_rows() {
    const std::int64_t k = s_.features;
    for (std::int64_t i = 0; i < count_; ++i) std::copy_n(d_.x + rows_[i] * k, k, w_.x + i * k);
    std::fill_n(w_.x + count_ * k, (width_ - count_) * k, T{0});
  }

  void multiply_scores(std::int64_t begin, std::int64_t end) {
    gemm<T>(!s_.classes_first, true, end - begin, width_, s_.features, T{1}, d_.weight + weight_offset(begin),
            weight_ld(), w_.x, x_ld(), T{0}, block(begin), ld_);
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
      exponentials(tile, d_.bias == nullptr ? nullptr : d_.bias + at, w_.shifts + t * ld_, w_.sums + t * ld_);
    });
  }

  void add_up() {
    const std::int64_t tiles = tile_count(s_.classes);
    parallel_for(count_, grain_for(tiles * 32), [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i) {
        double largest = std::numeric_limits<double>::lowest();
        for (std::int64_t t = 0; t < tiles; ++t) {
          largest = std::max(largest, static_cast<double>(w_.shifts[t * ld_ + i]));
        }
        double sum = 0;
        for (std::int64_t t = 0; t < tiles; ++t) {
          sum += static_cast<double>(w_.sums[t * ld_ + i]) *
                 std::exp(static_cast<double>(w_.shifts[t * ld_ + i]) - largest);
        }
        w_.log_sums[i] = largest + std::log(sum);
        const double loss = w_.log_sums[i] - w_.label_scores[i];
        d_.losses[rows_[i]] = static_cast<double>(weights_[i]) * loss;
      }
    });
  }

  double flow(std::int64_t i, double divisor) const { return static_cast<double>(weights_[i]) / divisor; }

  void make_factors(double divisor) {
    const std::int64_t tiles = tile_count(s_.classes);
    parallel_for(tiles, grain_for(width_ * 32), [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t t = from; t < to; ++t) {
        T* factors = w_.sums + t * ld_;
        for (std::int64_t i = 0; i < count_; ++i) {
          const double part = std::exp(static_cast<double>(w_.shifts[t * ld_ + i]) - w_.log_sums[i]);
          // Where nothing flows nothing arrives, whatever the scores are.
          factors[i] = weights_[i] == T{0} ? T{0} : static_cast<T>(part * flow(i, divisor));
        }
        std::fill_n(factors + count_, width_ - count_, T{0});
      }
    });
  }

  void make_score_gradients(std::int64_t begin, std::int64_t end, double divisor) {
    T* sums = d_.dbias == nullptr ? nullptr : w_.class_sums;
    for_each_tile(begin, end, [&](std::int64_t t, std::int64_t at, const ClassTile<T>& tile) {
      scale_columns(tile, w_.sums + t * ld_, sums == nullptr ? nullptr : sums + at);
    });
    for (std::int64_t i = 0; i < count_; ++i) {
      const std::int64_t label = labels_[i];
      if (label < begin || label >= end) continue;
      const T own = static_cast<T>(flow(i, divisor));
      block(begin)[(label - begin) * ld_ + i] -= own;
      if (sums != nullptr) sums[label] -= own;
    }
    if (sums == nullptr) return;
    for (std::int64_t j = begin; j < end; ++j) d_.dbias[j] = (is_first_ ? T{0} : d_.dbias[j]) + sums[j];
  }

  void multiply_dweight(std::int64_t begin, std::int64_t end) {
    const std::int64_t n = end - begin;
    const T keep = is_first_ ? T{0} : T{1};
    T* to = d_.dweight + weight_offset(begin);
    if (s_.classes_first) {
      gemm<T>(false, false, n, s_.features, count_, T{1}, block(begin), ld_, w_.x, x_ld(), keep, to, weight_ld());
    } else {
      gemm<T>(true, true, s_.features, n, count_, T{1}, w_.x, x_ld(), block(begin), ld_, keep, to, weight_ld());
    }
  }

  void multiply_dx(std::int64_t begin, std::int64_t end) {
    gemm<T>(true, !s_.classes_first, width_, s_.features, end - begin, T{1}, block(begin), ld_,
            d_.weight + weight_offset(begin), weight_ld(), begin == 0 ? T{0} : T{1}, w_.dx, x_ld());
  }

  void scatter_rows() {
    const std::int64_t k = s_.features;
    if (d_.dx == nullptr) return;
    for (std::int64_t i = 0; i < count_; ++i) std::copy_n(w_.dx + i * k, k, d_.dx + rows_[i] * k);
  }

  const LinearLossShape& s_;
  const LinearLossData<T>& d_;
  const Workspace<T>& w_;
  const std::int64_t* rows_;
  const std::int64_t* labels_;
  const T* weights_;
  std::int64_t count_, width_, ld_;
  bool is_first_;
};

/// What no chunk writes: all of it when no row counts.
template <class T>
void clear(const LinearLossShape& s, const LinearLossData<T>& d, const CountedRows<T>& counted) {
  std::fill_n(d.losses, s.rows, 0.0);
  if (d.dx != nullptr && counted.count < s.rows) std::fill_n(d.dx, s.rows * s.features, T{0});
  if (counted.count > 0) return;
  if (d.dweight != nullptr) std::fill_n(d.dweight, s.classes * s.features, T{0});
  if (d.dbias != nullptr) std::fill_n(d.dbias, s.classes, T{0});
}

}  // namespace

std::int64_t rows_at_once(const LinearLossShape& s, std::size_t element_bytes) {
  const std::int64_t class_bytes = std::max<std::int64_t>(1, s.classes) * static_cast<std::int64_t>(element_bytes);
  const std::int64_t rows = std::clamp(kScoreBytes / class_bytes, kLeastRows, kMostRows);
  return std::min(std::max<std::int64_t>(1, s.rows), rows / kTileColumns * kTileColumns);
}

std::size_t linear_loss_scratch(const LinearLossShape& s, std::size_t element_bytes, bool wants_gradients) {
  Carver sizes(nullptr);
  const std::int64_t ld = distance_for(rows_at_once(s, element_bytes));
  if (element_bytes == sizeof(float)) {
    Workspace<float>(sizes, s, ld, wants_gradients);
  } else {
    Workspace<double>(sizes, s, ld, wants_gradients);
  }
  return sizes.used();
}

template <class T>
void linear_loss(const LinearLossShape& s, const LinearLossData<T>& data, const CountedRows<T>& counted, double divisor,
                 std::byte* scratch) {
  clear(s, data, counted);
  const std::int64_t most = rows_at_once(s, sizeof(T));
  const std::int64_t chunks = (counted.count + most - 1) / most;
  Carver memory(scratch);
  const Workspace<T> work(memory, s, distance_for(most), data.wants_gradients());
  for (std::int64_t c = 0; c < chunks; ++c) {
    Chunk<T> chunk(s, data, counted, work, c * counted.count / chunks, (c + 1) * counted.count / chunks);
    chunk.forward();
    if (data.wants_gradients()) chunk.backward(divisor);
  }
}

template void linear_loss(const LinearLossShape&, const LinearLossData<float>&, const CountedRows<float>&, double,
                          std::byte*);
template void linear_loss(const LinearLossShape&, const LinearLossData<double>&, const CountedRows<double>&, double,
                          std::byte*);

}  // namespace backpass
