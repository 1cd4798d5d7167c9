#include "ops/collectives/adasum.hpp"

#include <algorithm>
#include <vector>

#include "ops/collectives/world.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr int kTag = 0x0ada;
constexpr std::int64_t kChunk = 1 << 14;

struct Products {
  double aa = 0, ab = 0, bb = 0;
};

/// Chunk by chunk, so that threads do not change the result.
template <class T>
Products products(std::int64_t count, const T* a, const T* b) {
  std::vector<Products> parts(static_cast<std::size_t>((count + kChunk - 1) / kChunk));
  parallel_for(static_cast<std::int64_t>(parts.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      Products p;
      for (std::int64_t i = k * kChunk; i < std::min(count, (k + 1) * kChunk); ++i) {
        const double x = a[i];
        const double y = b[i];
        p.aa += x * x;
        p.ab += x * y;
        p.bb += y * y;
      }
      parts[static_cast<std::size_t>(k)] = p;
    }
  });
  Products sum;
  for (const Products& p : parts) {
    sum.aa += p.aa;
    sum.ab += p.ab;
    sum.bb += p.bb;
  }
  return sum;
}

template <class T>
void combine(std::int64_t count, T* a, const T* b) {
  const Products p = products(count, a, b);
  const double of_a = p.aa == 0 ? 1 : 1 - p.ab / (2 * p.aa);
  const double of_b = p.bb == 0 ? 1 : 1 - p.ab / (2 * p.bb);
  parallel_for(count, kChunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) a[i] = static_cast<T>(of_a * a[i] + of_b * b[i]);
  });
}

/// The ranks [begin, end) that hold one result already.
struct Block {
  int begin, end;
  int size() const { return end - begin; }
  /// Who of the block tells its result to the member number `other` of its neighbour.
  int teller(int other) const { return begin + other % size(); }
};

/// One level of the tree: two neighbouring blocks tell each other what they have. The left one speaks first; nobody on
/// the right says anything before it has listened.
void trade(Communicator& world, const Block& left, const Block& right, const Tensor& mine, const Tensor& theirs) {
  const bool is_left = world.rank() < left.end;
  const Block& own = is_left ? left : right;
  const Block& other = is_left ? right : left;
  auto tell = [&] {
    for (int k = 0; k < other.size(); ++k) {
      if (own.teller(k) == world.rank()) world.send(mine, other.begin + k, kTag);
    }
  };
  if (is_left) tell();
  world.receive(theirs, other.teller(world.rank() - own.begin), kTag);
  if (!is_left) tell();
}

/// All tensors of one element type, one after the other.
Tensor joined(std::span<const Tensor> tensors) {
  std::int64_t count = 0;
  for (const Tensor& t : tensors) count += t.size();
  Tensor all(tensors[0].dtype(), {count});
  auto* to = static_cast<std::byte*>(all.mutable_data());
  for (const Tensor& t : tensors) {
    to = std::copy_n(static_cast<const std::byte*>(t.data()), t.bytes(), to);
  }
  return all;
}

void combine_each(std::span<const Tensor> tensors, Tensor& left, const Tensor& right) {
  auto* a = static_cast<std::byte*>(left.mutable_data());
  const auto* b = static_cast<const std::byte*>(right.data());
  for (const Tensor& t : tensors) {
    adasum_pair(t.dtype(), t.size(), a, b);
    a += t.bytes();
    b += t.bytes();
  }
}

void take_apart(const Tensor& all, std::span<const Tensor> tensors) {
  const auto* from = static_cast<const std::byte*>(all.data());
  for (Tensor t : tensors) {
    std::copy_n(from, t.bytes(), static_cast<std::byte*>(t.mutable_data()));
    from += t.bytes();
  }
}

}  // namespace

void adasum_pair(DType dtype, std::int64_t count, void* a, const void* b) {
  visit_real(dtype, [&]<class T>() { combine(count, static_cast<T*>(a), static_cast<const T*>(b)); });
}

void adasum(Communicator& world, std::span<const Tensor> tensors) {
  if (world.size() == 1 || tensors.empty()) return;
  for (const Tensor& t : tensors) {
    if (t.dtype() != tensors[0].dtype()) fail("adasum: got tensors of several element types, expected one");
  }
  Tensor mine = joined(tensors);
  if (mine.size() == 0) return;
  Tensor theirs(mine.dtype(), mine.dims());
  for (int width = 1; width < world.size(); width *= 2) {
    const int begin = world.rank() / (2 * width) * (2 * width);
    const Block left{begin, begin + width};
    const Block right{left.end, std::min(left.end + width, world.size())};
    if (right.size() <= 0) continue;
    trade(world, left, right, mine, theirs);
    if (world.rank() >= right.begin) std::swap(mine, theirs);
    combine_each(tensors, mine, theirs);
  }
  take_apart(mine, tensors);
}

}  // namespace backpass
