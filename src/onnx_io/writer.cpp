#include "onnx_io/writer.hpp"

#include <algorithm>
#include <concepts>
#include <map>
#include <optional>
#include <protozero/pbf_writer.hpp>
#include <utility>
#include <vector>

#include "backpass/error.hpp"
#include "onnx_io/atomic_file.hpp"
#include "onnx_io/schema.hpp"
#include "onnx_io/tensor_check.hpp"
#include "support/printable.hpp"

namespace backpass::onnx_io {
namespace {

constexpr std::size_t kLargestMessage = (std::size_t{1} << 31) - 1;  // what protobuf can read

[[noreturn]] void refuse_size() {
  fail("[write_model] size: got more than 2 GiB, expected what protobuf can hold; set external_data_threshold");
}

/// Where in the data file each tensor goes. The same bytes (a shared weight) are given one place.
class ExternalLayout {
 public:
  struct Piece {
    std::string_view bytes;
    std::uint64_t offset;
  };

  ExternalLayout(std::string location, std::int64_t threshold)
      : location_(std::move(location)), threshold_(static_cast<std::uint64_t>(threshold)) {}

  bool takes(const TensorProto& tensor) const {
    return tensor.data_type != DType::string && !tensor.data.view.empty() && tensor.data.view.size() >= threshold_;
  }

  StringPairs place(std::string_view bytes) {
    const auto [known, is_new] = offsets_.try_emplace({bytes.data(), bytes.size()}, 0);
    if (is_new) {
      const std::uint64_t alignment = bytes.size() < kPage ? kCacheLine : kPage;
      known->second = (end_ + alignment - 1) / alignment * alignment;
      end_ = known->second + bytes.size();
      pieces_.push_back({bytes, known->second});
    }
    return {
        {"location", location_}, {"offset", std::to_string(known->second)}, {"length", std::to_string(bytes.size())}};
  }

  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  static constexpr std::uint64_t kCacheLine = 64;
  static constexpr std::uint64_t kPage = 4096;

  std::string location_;
  std::uint64_t threshold_;
  std::uint64_t end_ = 0;
  std::vector<Piece> pieces_;
  std::map<std::pair<const char*, std::size_t>, std::uint64_t> offsets_;
};

template <class Member>
concept Scalar = std::integral<Member> || std::is_enum_v<Member> || std::same_as<Member, std::string>;

/// The visitor for `fields`: writes each member that is not at its default.
class FieldWriter {
 public:
  FieldWriter(std::string& buffer, ExternalLayout* layout) : buffer_(buffer), writer_(buffer), layout_(layout) {}

  template <class Member>
  void operator()(std::uint32_t number, const Member& member) {
    if constexpr (Scalar<Member>) {
      if (member == Member{}) return;
    }
    if constexpr (std::same_as<Member, TypeProto>) {
      if (member.kind == TypeProto::Kind::none && member.denotation.empty()) return;
    }
    write(number, member);
  }

  template <class Member>
  void name(std::uint32_t number, const Member& member) {
    (*this)(number, member);
  }

  /// Of an attribute: the one that is its value, also when it is 0 or "".
  template <class Member>
  void alternative(AttributeProto::Type type, std::uint32_t number, const Member& member) {
    if (type == attribute_type_) write(number, member);
  }

  template <class Part>
  void alternative(TypeProto::Kind kind, std::uint32_t number, Part part) {
    if (kind == part.type.kind) write_message(number, part);
  }

 private:
  FieldWriter(FieldWriter& parent, std::uint32_t number)
      : buffer_(parent.buffer_), writer_(parent.writer_, number), layout_(parent.layout_) {}

  void write(std::uint32_t number, std::int64_t value) { writer_.add_int64(number, value); }
  void write(std::uint32_t number, float value) { writer_.add_float(number, value); }
  void write(std::uint32_t number, DType value) { writer_.add_int32(number, static_cast<int>(value)); }
  void write(std::uint32_t number, AttributeProto::Type value) { writer_.add_enum(number, static_cast<int>(value)); }
  void write(std::uint32_t number, std::string_view value) {
    if (value.size() > kLargestMessage - std::min(buffer_.size(), kLargestMessage)) refuse_size();
    writer_.add_bytes(number, value.data(), value.size());
  }
  void write(std::uint32_t number, const std::string& value) { write(number, std::string_view(value)); }
  void write(std::uint32_t number, const Bytes& value) {
    if (!value.view.empty()) write(number, value.view);
  }

  template <class Item>
  void write(std::uint32_t number, const std::vector<Item>& items) {
    for (const Item& item : items) write(number, item);
  }
  template <class Item>
  void write(std::uint32_t number, const std::optional<Item>& item) {
    if (item) write(number, *item);
  }
  void write(std::uint32_t number, const std::optional<std::vector<DimProto>>& shape) {
    if (shape) write_message(number, *shape);
  }
  template <class Message>
  void write(std::uint32_t number, const std::shared_ptr<Message>& message) {
    if (message) write(number, *message);
  }
  template <class Message>
  void write(std::uint32_t number, const Message& message) {
    write_message(number, message);
  }

  template <class Message>
  void write_message(std::uint32_t number, const Message& message) {
    nest(number, [&](FieldWriter& inner) { fields(message, inner); });
  }
  void write(std::uint32_t number, const AttributeProto& attribute) {
    nest(number, [&](FieldWriter& inner) {
      if (attribute.ref_attr_name.empty()) inner.attribute_type_ = attribute.type;
      fields(attribute, inner);
    });
  }
  // The onnx package does not look for external data in these.
  void write(std::uint32_t number, const SparseTensorProto& tensor) { write_inline(number, tensor); }
  void write(std::uint32_t number, const FunctionProto& function) { write_inline(number, function); }
  template <class Message>
  void write_inline(std::uint32_t number, const Message& message) {
    nest(number, [&](FieldWriter& inner) {
      inner.layout_ = nullptr;
      fields(message, inner);
    });
  }
  template <class Write>
  void nest(std::uint32_t number, Write write_inner) {
    const std::size_t before = buffer_.size();
    {
      FieldWriter inner(*this, number);
      write_inner(inner);
    }
    // protozero drops an empty message; here it says something: a scalar's shape, a dimension nobody knows.
    if (buffer_.size() == before) writer_.add_message(number, nullptr, 0);
  }
  void write(std::uint32_t number, const TensorProto& tensor);

  std::string& buffer_;
  protozero::pbf_writer writer_;
  ExternalLayout* layout_;  ///< null keeps all data inline
  AttributeProto::Type attribute_type_ = AttributeProto::Type::undefined;
};

void check_tensor(const TensorProto& tensor) {
  const std::string where = concat("[write_model] tensor ", printable(tensor.name), ": ");
  check_dtype(tensor, where);
  const std::int64_t count = count_elements(tensor, where);
  if (tensor.data_type == DType::string) {
    check_strings(tensor, count, where);
  } else {
    check_data_size(tensor, count, tensor.data.view.size(), where);
  }
}

void FieldWriter::write(std::uint32_t number, const TensorProto& tensor) {
  check_tensor(tensor);
  const bool goes_out = layout_ != nullptr && layout_->takes(tensor);
  if (!goes_out && tensor.data_location == 0 && tensor.external_data.empty()) return write_message(number, tensor);
  TensorProto moved = tensor;
  moved.data_location = goes_out ? 1 : 0;
  moved.external_data = goes_out ? layout_->place(tensor.data.view) : StringPairs{};
  if (goes_out) moved.data = {};
  write_message(number, moved);
}

std::string serialize(const ModelProto& model, ExternalLayout* layout) {
  std::string buffer;
  fields(model, FieldWriter(buffer, layout));
  if (buffer.size() > kLargestMessage) refuse_size();
  return buffer;
}

}  // namespace

std::string write_model(const ModelProto& model) { return serialize(model, nullptr); }

void write_model(const ModelProto& model, const std::filesystem::path& file, const WriteOptions& options) {
  std::filesystem::path data_path = file;
  data_path += ".data";
  ExternalLayout layout(data_path.filename().string(), options.external_data_threshold);
  const std::string bytes = serialize(model, options.external_data_threshold < 0 ? nullptr : &layout);

  AtomicFile model_file(file);
  model_file.write(bytes);
  model_file.finish();
  if (!layout.pieces().empty()) {
    AtomicFile data_file(data_path);
    for (const auto& piece : layout.pieces()) {
      data_file.pad_to(piece.offset);
      data_file.write(piece.bytes);
    }
    data_file.finish();
    data_file.publish();
  }
  model_file.publish();
}

}  // namespace backpass::onnx_io
