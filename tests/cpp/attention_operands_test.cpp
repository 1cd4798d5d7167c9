// Rows of heads as right and left factors, and attention over heads that lie apart against heads that lie together.
#include "ops/attention/attention_operands.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "kernel_testing.hpp"
#include "ops/attention/attention_grad_kernel.hpp"

namespace backpass {
namespace {

template <class T>
void expect_copies() {
  for (std::int64_t rows : {0, 1, 3}) {
    for (std::int64_t length : {0, 1, 7, 16, 17, 48, 65}) {
      const std::int64_t stride = length + 5;
      const std::int64_t filled = length + 2;
      const std::int64_t apart = filled + 1;
      const auto from = numbers<T>(rows * stride, 1);
      std::vector<T> to(static_cast<std::size_t>(rows * apart), T(9));
      copy_rows(from.get(), stride, rows, length, to.data(), apart, filled);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < apart; ++j) {
          const T rest = j < filled ? T(0) : T(9);  // what is behind is left alone
          const T want = j < length ? from[static_cast<std::size_t>(i * stride + j)] : rest;
          ASSERT_EQ(to[static_cast<std::size_t>(i * apart + j)], want) << "length " << length << ", element " << j;
        }
      }
    }
  }
}

TEST(AttentionOperands, RowsAreCopiedAndFilledUpWithZeros) {
  on_every_target([] {
    expect_copies<float>();
    expect_copies<double>();
  });
}

/// Everything attention gives, forward and backward, with [batch, heads, length, size] written to one vector.
struct Layout {
  AttentionShape s;
  bool side_by_side;  ///< [batch, length, heads, size] in memory instead
  AttentionDropout dropout;

  AttentionStrides strides(std::int64_t heads, std::int64_t length, std::int64_t size) const {
    if (side_by_side) return {length * heads * size, size, heads * size};
    return {heads * length * size, length * size, size};
  }

  template <class F>
  void each(std::int64_t heads, std::int64_t length, std::int64_t size, const F& f) const {
    const AttentionStrides at = strides(heads, length, size);
    for (std::int64_t b = 0, i = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t r = 0; r < length; ++r)
          for (std::int64_t c = 0; c < size; ++c) f(i++, static_cast<std::size_t>(at.at(b, h, r) + c));
  }

  std::vector<float> values(std::int64_t heads, std::int64_t length, std::int64_t size, std::uint64_t seed) const {
    const auto drawn = numbers<float>(s.batch * heads * length * size, seed);
    std::vector<float> laid(static_cast<std::size_t>(s.batch * heads * length * size));
    each(heads, length, size,
         [&](std::int64_t i, std::size_t place) { laid[place] = drawn[static_cast<std::size_t>(i)]; });
    return laid;
  }

  std::vector<float> results() const {
    const auto q = values(s.q_heads, s.q_len, s.head, 1), k = values(s.kv_heads, s.kv_len, s.head, 2);
    const auto v = values(s.kv_heads, s.kv_len, s.v_head, 3), dy = values(s.q_heads, s.q_len, s.v_head, 4);
    std::vector<float> y(dy.size(), 9), dq(q.size(), 9), dk(k.size(), 9), dv(v.size(), 9);
    AttentionTensors<float> t;
    t.q = q.data(), t.k = k.data(), t.v = v.data(), t.y = y.data();
    t.q_strides = strides(s.q_heads, s.q_len, s.head), t.k_strides = strides(s.kv_heads, s.kv_len, s.head);
    t.v_strides = strides(s.kv_heads, s.kv_len, s.v_head), t.y_strides = strides(s.q_heads, s.q_len, s.v_head);
    t.dropout = dropout;
    attention(s, t);
    attention_backward(s, t, AttentionGradients<float>{dy.data(), dq.data(), dk.data(), dv.data(), nullptr});
    std::vector<float> all;
    auto add = [&](const std::vector<float>& x, std::int64_t heads, std::int64_t length, std::int64_t size) {
      each(heads, length, size, [&](std::int64_t, std::size_t place) { all.push_back(x[place]); });
    };
    add(y, s.q_heads, s.q_len, s.v_head), add(dq, s.q_heads, s.q_len, s.head);
    add(dk, s.kv_heads, s.kv_len, s.head), add(dv, s.kv_heads, s.kv_len, s.v_head);
    return all;
  }
};

TEST(AttentionOperands, WhereHeadsLieChangesNothing) {
  const AttentionDropout drops{true, Philox(5, 7), 0x40000000U, 4.0 / 3};
  on_every_target([&] {
    for (std::int64_t queries : {1, 17, 129})
      for (std::int64_t keys : {1, 33, 130, 300})
        for (std::int64_t size : {20, 64})
          for (bool causal : {false, true})
            for (const AttentionDropout& dropout : {AttentionDropout{}, drops}) {
              const AttentionShape s{.batch = 2,
                                     .q_heads = 4,
                                     .kv_heads = 2,
                                     .q_len = queries,
                                     .kv_len = keys,
                                     .head = size,
                                     .v_head = size + 1,
                                     .scale = 0.3,
                                     .causal = causal};
              ASSERT_EQ((Layout{s, true, dropout}.results()), (Layout{s, false, dropout}.results()))
                  << queries << " queries, " << keys << " keys of " << size << (causal ? ", causal" : "");
            }
  });
}

// Of queries that see nothing, the gradient of values is added before others have set any.
TEST(AttentionOperands, QueriesThatSeeNothingComeFirst) {
  AttentionShape s{.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 200, .kv_len = 40, .head = 8, .v_head = 8};
  s.past = -150, s.causal = true, s.unseen = Unseen::all;
  const std::vector<float> found = Layout{s, false, {}}.results();
  const auto dv = found.end() - 40 * 8;
  const auto dy = numbers<float>(200 * 8, 4);
  double given = 0, got = 0;  // weights of each query sum to one
  for (std::size_t i = 0; i < 200 * 8; ++i) given += static_cast<double>(dy[i]);
  for (auto i = dv; i != found.end(); ++i) got += static_cast<double>(*i);
  EXPECT_NEAR(got, given, 1e-3);
}

}  // namespace
}  // namespace backpass
