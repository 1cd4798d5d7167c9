#include "graph/exact_text.hpp"

namespace backpass {
namespace {

/// Preceded by its length, so that texts one after the other are told apart.
std::string measured(const std::string& text) { return concat(text.size(), ":") + text; }

struct Visitor {
  std::string operator()(std::int64_t v) const { return std::to_string(v); }
  std::string operator()(float v) const { return std::string(reinterpret_cast<const char*>(&v), sizeof(float)); }
  std::string operator()(const std::string& v) const { return measured(v); }
  std::string operator()(const Tensor& v) const { return exact_text(v); }
  std::string operator()(const std::vector<std::int64_t>& v) const { return to_string(v); }
  std::string operator()(const std::vector<float>& v) const {
    return std::string(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float));
  }
  std::string operator()(const std::vector<std::string>& v) const { return joined(v); }
  std::string operator()(const std::vector<Tensor>& v) const { return joined(v); }
  std::string operator()(const Type& v) const { return v.str(); }

 private:
  template <class T>
  static std::string joined(const std::vector<T>& items) {
    std::string text;
    for (const T& item : items) text += measured(Visitor{}(item));
    return text;
  }
};

}  // namespace

std::string exact_text(const Tensor& tensor) {
  std::string text = std::string(name_of(tensor.dtype())) + to_string(tensor.dims());
  if (tensor.dtype() == DType::string) {
    for (const std::string& s : tensor.values<std::string>()) text += measured(s);
    return text;
  }
  return text.append(tensor.as<char>(), tensor.bytes());
}

std::string exact_text(const Attribute& attribute) { return std::visit(Visitor{}, attribute); }

}  // namespace backpass
