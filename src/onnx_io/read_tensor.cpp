// TensorProto: the elements, wherever they are, as packed bytes that match the shape.
#include <algorithm>
#include <memory>
#include <string>

#include "onnx_io/read_message.hpp"
#include "onnx_io/tensor_check.hpp"
#include "onnx_io/typed_data.hpp"
#include "support/printable.hpp"

namespace backpass::onnx_io {
namespace {

std::string context_of(const ReadContext& context, const TensorProto& tensor) {
  return tensor.name.empty() ? concat(context.label, "unnamed tensor: ")
                             : concat(context.label, "tensor ", printable(tensor.name), ": ");
}

/// `typed` is the typed field that has entries, 0 when none has.
void check_source(const TensorProto& tensor, std::uint32_t typed, const std::string& where) {
  if (typed != 0 && typed != typed_field(tensor.data_type)) {
    fail(where, "got ", typed_field_name(typed), ", expected ", typed_field_name(typed_field(tensor.data_type)),
         " for ", name_of(tensor.data_type), " elements; re-export the model");
  }
  if ((typed != 0) + !tensor.data.view.empty() + (tensor.data_location != 0) > 1) {
    fail(where, "has its data in more than one place (raw_data, a typed field, an external file); re-export the model");
  }
}

/// `message` is what `tensor` was read from; tensor.data is its raw_data.
Bytes find_data(ReadContext& context, std::string_view message, const TensorProto& tensor, std::uint32_t typed,
                const std::string& where) {
  const auto rank = static_cast<std::int64_t>(tensor.dims.size());
  if (rank > context.limits.max_tensor_rank) {
    fail(where, "rank: got ", rank, ", expected at most ", context.limits.max_tensor_rank,
         " (ReadLimits::max_tensor_rank)");
  }
  const std::int64_t count = count_elements(tensor, where);
  if (tensor.data_type == DType::string) {
    check_strings(tensor, count, where);
    return {};
  }
  const std::size_t size = byte_size(tensor.data_type, count);
  if (tensor.data_location != 0) {
    if (count == 0) return {};
    return context.external.find(tensor.external_data, size, describe_elements(tensor, count), where);
  }
  if (typed != 0) return read_typed_data(context, message, tensor, count, where);
  check_data_size(tensor, count, tensor.data.view.size(), where);
  return tensor.data;
}

/// Makes every byte 0 or 1, as reading a C++ bool requires.
Bytes with_canonical_bools(Bytes data) {
  const auto is_odd = [](char byte) { return byte != 0 && byte != 1; };
  if (std::none_of(data.view.begin(), data.view.end(), is_odd)) return data;
  const auto copy = std::make_shared<std::string>(data.view);
  std::replace_if(copy->begin(), copy->end(), is_odd, char{1});
  return {*copy, copy};
}

}  // namespace

void read_message(ReadContext& context, std::string_view bytes, TensorProto& out) {
  out = {};
  std::uint32_t typed = 0;
  read_fields(context, bytes, out, [&](Fields& f) {
    const std::uint32_t number = f.number();
    if (typed_field_name(number).empty()) return f.skip();
    if (typed_entries(f).empty()) return;
    if (typed != 0 && typed != number) {
      fail(context_of(context, out), "got ", typed_field_name(typed), " and ", typed_field_name(number),
           ", expected one of them; re-export the model");
    }
    typed = number;
  });
  const std::string where = context_of(context, out);
  if (!out.string_data.empty()) {
    if (typed != 0) fail(where, "got string_data and ", typed_field_name(typed), ", expected one of them");
    typed = tensor_field::string_data;
  }
  check_dtype(out, where);
  check_source(out, typed, where);
  out.data = find_data(context, bytes, out, typed, where);
  if (out.data_type == DType::boolean) out.data = with_canonical_bools(std::move(out.data));
  if (out.data_location == 0) out.external_data.clear();
}

void read_message(ReadContext& context, std::string_view bytes, SparseTensorProto& out) {
  read_fields(context, bytes, out);
  const bool has_values = out.values.data_type != DType::undefined;
  const bool has_indices = out.indices.data_type != DType::undefined;
  const std::string where = concat(context.label, "sparse tensor ", printable(out.values.name), ": ");
  if (has_values && !has_indices && count_elements(out.values, where) == 0) {
    out.indices.data_type = DType::int64;  // ONNX lets a tensor of zeros leave them out
    out.indices.dims = {0};
  } else if (!has_values || !has_indices) {
    fail(where, "has no ", has_values ? "indices" : "values", "; re-export the model");
  }
}

}  // namespace backpass::onnx_io
