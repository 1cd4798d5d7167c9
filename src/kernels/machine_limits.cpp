#include <dnnl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "support/simd.hpp"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/machine_limits.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// to = a + to / 2, which does not grow however often it is done. `count` is a multiple of every vector's length.
void add_half(const float* a, float* to, std::size_t count) {
  const hn::ScalableTag<float> d;
  const auto half = hn::Set(d, 0.5F);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(hn::MulAdd(half, hn::LoadU(d, to + i), hn::LoadU(d, a + i)), d, to + i);
  }
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backpass/profile.hpp"
#include "kernels/gemm.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

HWY_EXPORT(add_half);

constexpr std::int64_t kMatrix = 512;         // rows and columns of the products
constexpr std::int64_t kProducts = 16;        // by each library; the best counts, for others use the machine, too
constexpr std::int64_t kPasses = 3;           // over memory at least
constexpr std::int64_t kPassBytes = 8 << 20;  // that a pass is worth; what is smaller gets more of them
constexpr std::int64_t kChunk = 1 << 13;      // elements

// What fits into half a core's second cache, into a shared one, and into none.
constexpr std::int64_t kWorkingSets[] = {std::int64_t{512} << 10, std::int64_t{16} << 20, std::int64_t{96} << 20};

template <class F>
double best_us(std::int64_t calls, const F& f) {
  double best = std::numeric_limits<double>::infinity();
  f();  // warms caches, threads and the clock
  for (std::int64_t i = 0; i < calls; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

/// Ordinary numbers, in pages of its own.
Tensor filled(Dims dims) {
  Tensor t(DType::float32, std::move(dims));
  std::fill_n(t.as<float>(), t.size(), 0.5F);
  return t;
}

double measure_gflops() {
  const std::int64_t n = kMatrix;
  Tensor a = filled({n, n});
  Tensor b = filled({n, n});
  Tensor c = filled({n, n});
  const float* x = a.as<float>();
  const float* y = b.as<float>();
  float* z = c.as<float>();
  const double ours = best_us(kProducts, [&] { gemm<float>(false, false, n, n, n, 1, x, n, y, n, 0, z, n); });
  const double library = best_us(kProducts, [&] { dnnl_sgemm('N', 'N', n, n, n, 1, x, n, y, n, 0, z, n); });
  return 2.0 * static_cast<double>(n * n * n) / std::min(ours, library) / 1e3;
}

/// Rate of reading and writing two arrays with so many bytes together; the better of copying and adding up counts.
double measure_gbs(std::int64_t bytes) {
  const std::int64_t count = bytes / 8 / kChunk * kChunk;
  const std::int64_t grain = std::max(kChunk, count / (4 * threads_here()) / kChunk * kChunk);
  const std::int64_t calls = std::max(kPasses, kPassBytes / bytes * kPasses);
  Tensor a = filled({count});
  Tensor b = filled({count});
  const float* from = a.as<float>();
  float* to = b.as<float>();
  auto copy = [&](std::int64_t i, std::int64_t end) {
    std::memcpy(to + i, from + i, static_cast<std::size_t>(end - i) * sizeof(float));
  };
  auto add = [&](std::int64_t i, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_half)(from + i, to + i, static_cast<std::size_t>(end - i));
  };
  const auto array = static_cast<double>(b.bytes());
  const double copied = 2 * array / best_us(calls, [&] { parallel_for(count, grain, copy); });
  const double added = 3 * array / best_us(calls, [&] { parallel_for(count, grain, add); });
  return std::max(copied, added) / 1e3;
}

MachineLimits measure() {
  MachineLimits limits;
  limits.threads = threads_here();
  limits.gflops = measure_gflops();
  for (std::int64_t bytes : kWorkingSets) limits.memory.push_back({bytes, measure_gbs(bytes)});
  return limits;
}

}  // namespace

MachineLimits machine_limits(int threads) {
  static std::mutex mutex;
  static std::map<int, MachineLimits> known;
  const ThreadScope scope(threads);
  const std::lock_guard lock(mutex);
  auto found = known.find(threads_here());
  if (found == known.end()) found = known.emplace(threads_here(), measure()).first;
  return found->second;
}

}  // namespace backpass
#endif  // HWY_ONCE
