// Any ONNX message from its bytes, by the schema. A message that needs more than its fields has its own read_message.
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnx_io/read_context.hpp"
#include "onnx_io/schema.hpp"
#include "support/printable.hpp"

namespace backpass::onnx_io {

void read_message(ReadContext&, std::string_view bytes, GraphProto&);
void read_message(ReadContext&, std::string_view bytes, FunctionProto&);
void read_message(ReadContext&, std::string_view bytes, NodeProto&);
void read_message(ReadContext&, std::string_view bytes, AttributeProto&);
void read_message(ReadContext&, std::string_view bytes, TensorProto&);
void read_message(ReadContext&, std::string_view bytes, SparseTensorProto&);
void read_message(ReadContext&, std::string_view bytes, TypeProto&);
void read_message(ReadContext&, std::string_view bytes, DimProto&);
void read_message(ReadContext&, std::string_view bytes, OpsetId&);

template <class Message>
void read_message(ReadContext&, std::string_view bytes, Message&);

/// The visitor for `fields`: reads the field on which `f` stands into the member it belongs to.
class FieldReader {
 public:
  FieldReader(ReadContext& context, Fields& f) : context_(context), f_(f) {}

  bool was_read() const { return was_read_; }

  template <class Member>
  void operator()(std::uint32_t number, Member& member) {
    if (was_read_ || f_.number() != number) return;
    was_read_ = true;
    read(member);
  }

  /// Names are told to people and other programs: a string of the protobuf language is UTF-8, and nobody means a NUL.
  template <class Member>
  void name(std::uint32_t number, Member& member) {
    if (was_read_ || f_.number() != number) return;
    (*this)(number, member);
    check_name(last_of(member));
  }

  /// The alternatives of AttributeProto; `attribute_type` tells which it was.
  template <class Member>
  void alternative(AttributeProto::Type type, std::uint32_t number, Member& member) {
    if (was_read_ || f_.number() != number) return;
    attribute_type = type;
    (*this)(number, member);
  }

  /// The alternatives of TypeProto: another one than before starts afresh.
  template <class Part>
  void alternative(TypeProto::Kind kind, std::uint32_t number, Part part) {
    if (was_read_ || f_.number() != number) return;
    was_read_ = true;
    if (part.type.kind != kind) {
      TypeProto fresh;
      fresh.kind = kind;
      fresh.denotation = std::move(part.type.denotation);
      part.type = std::move(fresh);
    }
    read_message(context_, f_.bytes(), part);
  }

  AttributeProto::Type attribute_type = AttributeProto::Type::undefined;

 private:
  void read(std::int64_t& out) { out = f_.integer(); }
  void read(float& out) { out = f_.real(); }
  void read(std::string& out) { out = f_.bytes(); }
  void read(Bytes& out) { out = {f_.bytes(), context_.owner}; }
  void read(DType& out) { out = static_cast<DType>(code(static_cast<int>(DType::float6e3m2), "element type")); }
  void read(AttributeProto::Type& out) {
    out =
        static_cast<AttributeProto::Type>(code(static_cast<int>(AttributeProto::Type::type_protos), "attribute type"));
  }
  void read(std::vector<std::string>& out) { out.emplace_back(f_.bytes()); }
  void read(std::vector<std::int64_t>& out) {
    f_.each_integer([&](std::int64_t value) { out.push_back(value); });
  }
  void read(std::vector<float>& out) {
    f_.each_real([&](float value) { out.push_back(value); });
  }
  void read(std::optional<std::int64_t>& out) { out = f_.integer(); }

  template <class Message>
  void read(std::vector<Message>& out) {
    read(out.emplace_back());
  }
  template <class Message>
  void read(std::shared_ptr<Message>& out) {
    if (!out) out = std::make_shared<Message>();
    read(*out);
  }
  template <class Message>
  void read(std::optional<Message>& out) {
    if (!out) out.emplace();
    read_message(context_, f_.bytes(), *out);
  }
  template <class Message>
  void read(Message& out) {
    read_message(context_, f_.bytes(), out);
  }

  static const std::string& last_of(const std::string& name) { return name; }
  static const std::string& last_of(const std::optional<std::string>& name) { return *name; }
  static const std::string& last_of(const std::vector<std::string>& names) { return names.back(); }

  void check_name(const std::string& name) const {
    if (is_text(name)) return;
    context_.refuse("damaged: got the name ", printable(name),
                    " with bytes that are not UTF-8 text, expected text; fetch or export the file again");
  }

  std::int64_t code(int greatest, const char* what) {
    const std::int64_t value = f_.integer();
    if (value < 0 || value > greatest) {
      context_.refuse(what, ": got number ", value, ", expected one that ONNX defines (1 to ", greatest, ")");
    }
    return value;
  }

  ReadContext& context_;
  Fields& f_;
  bool was_read_ = false;
};

/// Reads every field the schema knows; `other(Fields&)` takes or skips the rest.
template <class Message, std::invocable<Fields&> Other>
void read_fields(ReadContext& context, std::string_view bytes, Message& out, Other other) {
  for (Fields f = context.open(bytes); f.next();) {
    FieldReader reader(context, f);
    fields(out, reader);
    if (!reader.was_read()) other(f);
  }
}

template <class Message>
void read_fields(ReadContext& context, std::string_view bytes, Message& out) {
  read_fields(context, bytes, out, [](Fields& f) { f.skip(); });
}

template <class Message>
void read_message(ReadContext& context, std::string_view bytes, Message& out) {
  read_fields(context, bytes, out);
}

}  // namespace backpass::onnx_io
