#include "support/buffer_pool.hpp"

#include <gtest/gtest.h>

#include <optional>

namespace backpass {
namespace {

const Dims kLarge{256, 1024};

TEST(BufferPool, GivesTheSameMemoryAgain) {
  BufferPool pool;
  std::optional<Tensor> t = pool.take(DType::float32, kLarge);
  const void* place = t->data();
  EXPECT_EQ(pool.idle_bytes(), 0U);
  t.reset();
  EXPECT_EQ(pool.idle_bytes(), 4U * 256 * 1024);
  EXPECT_EQ(pool.take(DType::int32, {1024, 256}).data(), place);
}

TEST(BufferPool, HandlesInUseAreNotShared) {
  BufferPool pool;
  Tensor a = pool.take(DType::float32, kLarge);
  Tensor b = pool.take(DType::float32, kLarge);
  EXPECT_NE(a.data(), b.data());
}

TEST(BufferPool, FreesWhatRunsNoLongerNeed) {
  BufferPool pool;
  pool.take(DType::float32, kLarge);
  for (int run = 0; run < 2; ++run) pool.end_run();
  EXPECT_GT(pool.idle_bytes(), 0U);
  pool.end_run();
  EXPECT_EQ(pool.idle_bytes(), 0U);
}

TEST(BufferPool, MemoryOutlivesThePool) {
  auto pool = std::make_unique<BufferPool>();
  Tensor t = pool->take(DType::float32, kLarge);
  pool.reset();
  t.as<float>()[kLarge[0] * kLarge[1] - 1] = 1;
}

TEST(BufferPool, SmallAndEmpty) {
  BufferPool pool;
  EXPECT_EQ(pool.take(DType::float32, {0, 3}).size(), 0);
  EXPECT_EQ(pool.take(DType::float32, {2, 3}).size(), 6);
  EXPECT_EQ(pool.idle_bytes(), 0U);
}

}  // namespace
}  // namespace backpass
