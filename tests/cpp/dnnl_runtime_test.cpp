#include "ops/convolution/dnnl_runtime.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "backpass/tensor.hpp"
#include "ops/convolution/dnnl_conv_sizes.hpp"

namespace backpass {
namespace {

using Tag = dnnl::memory::format_tag;

struct Case {
  dnnl::memory::dims dims;
  Tag tag;
};

/// Cut among threads or not, a copy between layouts is the same.
void expect_same(const Case& c) {
  dnnl::memory::desc from = plain_layout(c.dims);
  dnnl::memory::desc to(c.dims, dnnl::memory::data_type::f32, c.tag);
  std::vector<float> source(from.get_size() / sizeof(float));
  std::iota(source.begin(), source.end(), 1.0F);
  std::vector<float> whole(to.get_size() / sizeof(float), -1);
  std::vector<float> cut(whole.size(), -2);
  solo_reorder(from, to).run({source.data(), whole.data()});
  Relayout(from, to).run(source.data(), cut.data());
  EXPECT_EQ(whole, cut) << to_string(c.dims);
}

TEST(Relayout, GivesWhatOneThreadDoes) {
  for (const Case& c :
       {Case{{5, 96, 8, 64}, Tag::nChw8c}, Case{{5, 96, 8, 8, 8}, Tag::nCdhw8c}, Case{{1, 96, 8, 64}, Tag::nChw8c},
        Case{{1, 20, 64, 64}, Tag::nChw8c}, Case{{3, 64, 14, 14}, Tag::nChw16c}, Case{{37, 24, 14, 14}, Tag::nChw8c},
        Case{{33, 96, 4, 4}, Tag::nhwc}, Case{{1, 96, 30, 30}, Tag::nhwc}, Case{{96, 96, 3, 3}, Tag::OIhw8i8o},
        Case{{64, 3, 16, 16}, Tag::Ohwi8o}, Case{{96, 64, 3, 3}, Tag::hwio}, Case{{4096, 1, 1, 3, 3}, Tag::Goihw8g}}) {
    expect_same(c);
  }
}

}  // namespace
}  // namespace backpass
