#include "support/mapped_memory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/gemm.hpp"
#include "onnx_io/mapped_file.hpp"
#include "onnx_io_models.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kRows = 512;
constexpr std::int64_t kCols = 256;
constexpr std::size_t kBytes = kRows * kCols * sizeof(float);

class MappedMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    std::iota(values_.begin(), values_.end(), 1.0F);
    onnx_io::write_file(path_, {reinterpret_cast<const char*>(values_.data()), kBytes});
    file_ = onnx_io::MappedFile::open(path_, "");
  }

  const float* data() const { return reinterpret_cast<const float*>(file_->bytes().data()); }

  /// Bytes of the mapping that are in memory, as Linux counts them for this process.
  std::int64_t resident() const {
    std::ifstream maps("/proc/self/smaps");
    std::string line;
    bool here = false;
    while (std::getline(maps, line)) {
      if (line.find(path_.string()) != std::string::npos) here = true;
      if (here && line.starts_with("Rss:")) return std::stoll(line.substr(4)) * 1024;
    }
    return -1;
  }

  onnx_io::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "weights";
  std::vector<float> values_ = std::vector<float>(kRows * kCols);
  std::shared_ptr<const onnx_io::MappedFile> file_;
};

TEST_F(MappedMemory, PackedWeightsLeaveTheirFile) {
  Tensor w(DType::float32, {kRows, kCols}, data(), file_);
  auto packed = shared_packed<float>(w, false, kRows, kCols);
  if (resident() < 0) GTEST_SKIP() << "no /proc, which tells how many pages are resident";
  EXPECT_EQ(resident(), 0);
  EXPECT_TRUE(std::equal(values_.begin(), values_.end(), data()));  // read again from the file
  EXPECT_EQ(resident(), static_cast<std::int64_t>(kBytes));
  std::vector<float> unit(kRows, 0.0F);
  unit[1] = 1;
  std::vector<float> y(kCols);
  packed->multiply(false, 1, 1, unit.data(), kRows, 0, y.data(), kCols);
  EXPECT_TRUE(std::equal(y.begin(), y.end(), values_.begin() + kCols));
  EXPECT_EQ(packed, shared_packed<float>(w, false, kRows, kCols));
}

TEST_F(MappedMemory, OtherMemoryIsLeftAlone) {
  std::vector<float> own = values_;
  release_mapped_pages(own.data(), kBytes);
  EXPECT_EQ(own, values_);
  release_mapped_pages(data() + 1, kBytes);  // reaches beyond the mapping
  EXPECT_TRUE(std::equal(values_.begin(), values_.end(), data()));
  const void* gone = data();
  file_.reset();
  release_mapped_pages(gone, kBytes);  // nothing is announced there any more
}

}  // namespace
}  // namespace backpass
