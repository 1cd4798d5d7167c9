// MelWeightMatrix: weights that gather the frequencies of a spectrum into bands of the mel scale.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "graph/op.hpp"
#include "ops/scalar_input.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kBands, kLength, kRate, kLower, kUpper };

void infer(InferContext& c) {
  const std::int64_t code = c.node.attr_int("output_datatype", static_cast<std::int64_t>(DType::float32));
  c.require(is_known_dtype(code) && types::numbers.has(static_cast<DType>(code)), "attribute 'output_datatype': got ",
            code, ", expected a number type");
  c.set_dtype(0, static_cast<DType>(code));
  const Dim bands = scalar_input(c, kBands, "num_mel_bins");
  const Dim length = scalar_input(c, kLength, "dft_length");
  for (const Dim& dim : {bands, length})
    c.require(!dim.is_known() || dim.value() >= 0, "num_mel_bins and dft_length: got ", shown(dim),
              ", expected 0 or more");
  scalar_input(c, kRate, "sample_rate");
  for (std::size_t i : {kLower, kUpper}) {
    c.require(is_float(c.dtype(i)), "element type of input ", i, ": got ", name_of(c.dtype(i)), ", expected a float");
    if (c.knows_shape(i)) c.unify(product(c.shape(i)), 1, "number of edges");
  }
  c.set_shape(0, {floor_div(length, 2) + 1, bands});
}

double mel(double hertz) { return 2595 * std::log10(1 + hertz / 700); }
double hertz(double mel) { return 700 * (std::pow(10.0, mel / 2595) - 1); }

struct Bands {
  std::string label;
  std::int64_t rows, count, length;
  double rate, lower, upper;
};

// The spectrum rows where bands begin, peak and end: band i spans edges i, i + 1, i + 2.
std::vector<std::int64_t> edges(const Bands& b) {
  const double low = mel(b.lower);
  const double step = (mel(b.upper) - low) / static_cast<double>(b.count + 2);
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < b.count + 2; ++i) {
    const double row =
        std::floor(static_cast<double>(b.length + 1) * hertz(low + static_cast<double>(i) * step) / b.rate);
    if (!(row >= 0 && row <= static_cast<double>(b.rows)))
      fail(b.label, " edges: got ", b.lower, " to ", b.upper, " Hz at ", b.rate,
           " samples per second, expected frequencies from 0 to half the sample rate");
    rows.push_back(static_cast<std::int64_t>(row));
  }
  return rows;
}

template <class T>
void run(const Bands& b, T* out) {
  std::fill_n(out, b.rows * b.count, static_cast<T>(0.0F));
  const std::vector<std::int64_t> edge = edges(b);
  for (std::int64_t band = 0; band < b.count; ++band) {
    const auto i = static_cast<std::size_t>(band);
    const std::int64_t left = edge[i], peak = edge[i + 1], right = edge[i + 2];
    auto set = [&](std::int64_t row, double value) {
      if (row < b.rows) out[row * b.count + band] = static_cast<T>(value);
    };
    for (std::int64_t row = left; row <= peak; ++row)
      set(row, peak == left ? 1 : static_cast<double>(row - left) / static_cast<double>(peak - left));
    for (std::int64_t row = peak; row < right; ++row)
      set(row, static_cast<double>(right - row) / static_cast<double>(right - peak));
  }
}

double first_value(const KernelArgs& args, std::size_t input, const TensorInfo& info) {
  return Tensor(info.dtype, info.dims, args.inputs[input], nullptr).to_doubles().at(0);
}

Kernel prepare(PrepareContext& c) {
  for (std::size_t i : {kRate, kLower, kUpper})
    c.require(c.in(i).size() == 1, "input ", i, ": got ", c.in(i).size(), " values, expected 1");
  const Dims& out = c.out(0).dims;
  return [=, label = c.node.label(), infos = c.inputs, dtype = c.out(0).dtype](const KernelArgs& args) {
    auto value = [&](std::size_t i) { return first_value(args, i, infos[i]); };
    const Bands bands{label,        out[0],        out[1],       static_cast<std::int64_t>(value(kLength)),
                      value(kRate), value(kLower), value(kUpper)};
    visit_numeric(dtype, [&]<class T>() { run<T>(bands, args.out<T>(0)); });
  };
}

const Register mel_weight_matrix{{.name = "MelWeightMatrix",
                                  .since = 17,
                                  .doc = "Weights that gather the frequencies of a spectrum into mel bands.",
                                  .inputs = {5, 5},
                                  .types = types::indices,
                                  .infer = infer,
                                  .prepare = prepare,
                                  .is_flat = true}};

}  // namespace
}  // namespace backpass
