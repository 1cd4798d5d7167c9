// StringSplit: each string cut at a delimiter, or at white space.
#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/op.hpp"

namespace backpass {
namespace {

constexpr std::string_view kWhite = " \t\n\r\f\v";

// White space counts as one separator however long, and is dropped at both ends (at the end unless a rest is kept).
std::vector<std::string> split_white(std::string_view text, std::int64_t limit) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t begin = std::min(text.find_first_not_of(kWhite), text.size());
    text.remove_prefix(begin);
    if (text.empty()) return parts;
    const std::size_t end = text.find_first_of(kWhite);
    if (static_cast<std::int64_t>(parts.size()) == limit || end == std::string_view::npos) {
      parts.emplace_back(text);
      return parts;
    }
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

std::vector<std::string> split_at(std::string_view text, std::string_view delimiter, std::int64_t limit) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = text.find(delimiter);
    if (static_cast<std::int64_t>(parts.size()) == limit || end == std::string_view::npos) {
      parts.emplace_back(text);
      return parts;
    }
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end + delimiter.size());
  }
}

void infer(InferContext& c) {
  c.set_dtype(0, DType::string);
  c.set_dtype(1, DType::int64);
  Shape shape = c.shape(0);
  c.set_shape(1, shape);
  shape.push_back(c.data_dependent("parts"));
  c.set_shape(0, std::move(shape));
}

void compute(ComputeContext& c) {
  const Tensor& x = c.tensor(0);
  const std::string delimiter = c.node.attr_string("delimiter", "");
  std::int64_t limit = c.node.attr_int("maxsplit", -1);
  if (limit < 0) limit = std::numeric_limits<std::int64_t>::max();
  std::vector<std::vector<std::string>> rows;
  Tensor counts(DType::int64, x.dims());
  std::size_t longest = 0;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::string& text = x.as<std::string>()[i];
    rows.push_back(delimiter.empty() ? split_white(text, limit) : split_at(text, delimiter, limit));
    longest = std::max(longest, rows.back().size());
    counts.as<std::int64_t>()[i] = static_cast<std::int64_t>(rows.back().size());
  }
  Dims dims = x.dims();
  dims.push_back(static_cast<std::int64_t>(longest));
  Tensor parts(DType::string, std::move(dims));
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::move(rows[i].begin(), rows[i].end(), parts.as<std::string>() + i * longest);
  c.outputs[0] = std::move(parts);
  if (c.outputs.size() > 1) c.outputs[1] = std::move(counts);
}

const Register string_split{{.name = "StringSplit",
                             .since = 20,
                             .doc = "Each string cut at a delimiter, or at white space.",
                             .inputs = {1, 1},
                             .outputs = {1, 2},
                             .types = types::strings,
                             .infer = infer,
                             .compute = compute}};

}  // namespace
}  // namespace backpass
