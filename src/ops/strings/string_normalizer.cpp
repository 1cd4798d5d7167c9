// StringNormalizer: removes stop words from a list of strings and changes their case.
#include <clocale>
#include <cwctype>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/op.hpp"
#include "support/printable.hpp"
#include "support/utf8.hpp"

namespace backpass {
namespace {

enum class Case : std::uint8_t { none, lower, upper };

Case case_of(const Node& node) {
  const std::string action = node.attr_string("case_change_action", "NONE");
  if (action == "NONE") return Case::none;
  if (action == "LOWER") return Case::lower;
  if (action == "UPPER") return Case::upper;
  fail(node.label(), " attribute 'case_change_action': got ", printable(action), ", expected NONE, LOWER or UPPER");
}

/// Rules of a language for upper and lower case: the asked one where the system has it, else Unicode's own.
class Casing {
 public:
  explicit Casing(const std::string& name) : locale_(newlocale(LC_CTYPE_MASK, (name + ".UTF-8").c_str(), nullptr)) {
    if (locale_ == nullptr) locale_ = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  }
  ~Casing() {
    if (locale_ != nullptr) freelocale(locale_);
  }
  Casing(const Casing&) = delete;
  Casing& operator=(const Casing&) = delete;

  std::string apply(const std::string& text, Case change) const {
    if (change == Case::none) return text;
    std::string out;
    for (std::size_t at = 0; at < text.size();) append_code_point(out, changed(next_code_point(text, at), change));
    return out;
  }

 private:
  char32_t changed(char32_t c, Case change) const {
    if (c < 0x80 || locale_ == nullptr) {
      const bool from_upper = c >= 'A' && c <= 'Z' && change == Case::lower;
      const bool from_lower = c >= 'a' && c <= 'z' && change == Case::upper;
      return from_upper ? c + 32 : from_lower ? c - 32 : c;
    }
    const auto wide = static_cast<wint_t>(c);
    return static_cast<char32_t>(change == Case::lower ? towlower_l(wide, locale_) : towupper_l(wide, locale_));
  }

  locale_t locale_;
};

void infer(InferContext& c) {
  c.set_dtype(0, DType::string);
  case_of(c.node);
  const Shape& x = c.shape(0);
  c.require(x.size() == 1 || x.size() == 2, "rank of X: got ", x.size(), ", expected 1 or 2");
  if (x.size() == 2) c.unify(x[0], 1, "first extent of X");
  Shape out = x;
  if (!c.node.attr_strings("stopwords").empty() || !out.back().is_known() || out.back().is(0))
    out.back() = c.data_dependent("words");
  c.set_shape(0, std::move(out));
}

void compute(ComputeContext& c) {
  const Tensor& x = c.tensor(0);
  c.require(x.rank() == 1 || (x.rank() == 2 && x.dims()[0] == 1), "shape of X: got ", shown(x.dims()),
            ", expected [C] or [1,C]");
  const Case change = case_of(c.node);
  const Casing casing(c.node.attr_string("locale", "en_US"));
  // Words are compared as they are, or in one case.
  const bool sensitive = c.node.attr_int("is_case_sensitive", 0) != 0;
  const Case compared = sensitive ? Case::none : change == Case::none ? Case::lower : change;
  std::set<std::string> stop;
  for (const std::string& word : c.node.attr_strings("stopwords")) stop.insert(casing.apply(word, compared));
  std::vector<std::string> kept;
  for (const std::string& word : x.values<std::string>())
    if (stop.empty() || !stop.contains(casing.apply(word, compared))) kept.push_back(casing.apply(word, change));
  if (kept.empty()) kept.emplace_back();
  Dims dims = x.dims();
  dims.back() = static_cast<std::int64_t>(kept.size());
  c.outputs[0] = Tensor::from<std::string>(DType::string, std::move(dims), kept);
}

const Register string_normalizer{{.name = "StringNormalizer",
                                  .since = 10,
                                  .doc = "Removes stop words from a list of strings and changes their case.",
                                  .inputs = {1, 1},
                                  .types = types::strings,
                                  .infer = infer,
                                  .compute = compute}};

}  // namespace
}  // namespace backpass
