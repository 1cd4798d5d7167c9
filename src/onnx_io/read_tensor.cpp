// TensorProto and SparseTensorProto.
#include <algorithm>
#include <optional>

#include "onnx_io/fields.hpp"
#include "onnx_io/read_context.hpp"
#include "onnx_io/typed_data.hpp"

namespace backpass::onnx_io {
namespace {

constexpr std::int64_t kExternalLocation = 1;  // TensorProto.DataLocation.EXTERNAL

/// What a first walk over a TensorProto finds about its elements; they are taken when shape and type are known.
struct Found {
  std::string_view message = {};
  std::string_view raw_data = {};
  std::uint32_t typed = 0;  ///< the typed field with entries, 0 when none
  bool is_external = false;
};

std::string describe(const TensorProto& tensor, std::int64_t count) {
  return concat(count, " ", name_of(tensor.data_type), " elements");
}

std::string context_of(const ReadContext& context, const TensorProto& tensor) {
  return concat(context.label, "tensor '", tensor.name, "': ");
}

void read_dims(Fields& f, std::vector<std::int64_t>& out) {
  f.each_integer([&](std::int64_t dim) { out.push_back(dim); });
}

void read_segment(ReadContext& context, std::string_view bytes, TensorProto& out) {
  auto& segment = out.segment.emplace(0, 0);
  for (Fields f = context.open(bytes, "TensorProto.Segment"); f.next();) switch (f.number()) {
      case segment_field::begin:
        segment.first = f.integer();
        break;
      case segment_field::end:
        segment.second = f.integer();
        break;
      default:
        f.skip();
    }
}

void note_typed_field(ReadContext& context, Fields& f, TensorProto& out, Found& found) {
  const std::uint32_t field = f.number();
  if (field == tensor_field::string_data) {
    out.string_data.push_back(f.text());
  } else if (typed_entries(f).empty()) {
    return;
  }
  if (found.typed != 0 && found.typed != field) {
    context.refuse("tensor '", out.name, "': has both ", typed_field_name(found.typed), " and ",
                   typed_field_name(field), ", expected one of them; re-export the model");
  }
  found.typed = field;
}

Found walk(ReadContext& context, std::string_view bytes, TensorProto& out) {
  Found found{.message = bytes};
  for (Fields f = context.open(bytes, "TensorProto"); f.next();) switch (f.number()) {
      case tensor_field::dims:
        read_dims(f, out.dims);
        break;
      case tensor_field::data_type:
        out.data_type = read_dtype(context, f);
        break;
      case tensor_field::segment:
        read_segment(context, f.bytes(), out);
        break;
      case tensor_field::float_data:
      case tensor_field::int32_data:
      case tensor_field::string_data:
      case tensor_field::int64_data:
      case tensor_field::double_data:
      case tensor_field::uint64_data:
        note_typed_field(context, f, out, found);
        break;
      case tensor_field::name:
        out.name = f.text();
        break;
      case tensor_field::raw_data:
        found.raw_data = f.bytes();
        break;
      case tensor_field::doc_string:
        out.doc_string = f.text();
        break;
      case tensor_field::external_data:
        read_pair(context, f, out.external_data);
        break;
      case tensor_field::data_location:
        found.is_external = f.integer() == kExternalLocation;
        break;
      case tensor_field::metadata_props:
        read_pair(context, f, out.metadata_props);
        break;
      default:
        f.skip();
    }
  return found;
}

/// The number of elements; the size in bytes is known to be representable, also when zero dims are taken as ones.
std::int64_t count_elements(ReadContext& context, const TensorProto& tensor) {
  const std::string where = context_of(context, tensor);
  const auto rank = static_cast<std::int64_t>(tensor.dims.size());
  if (rank > context.limits.max_tensor_rank) {
    fail(where, "rank: got ", rank, ", expected at most ", context.limits.max_tensor_rank,
         " (ReadLimits::max_tensor_rank)");
  }
  constexpr std::int64_t widest = 32;  // bytes of the largest element: complex128 has 16, std::string 32
  std::int64_t extent = widest;
  bool is_empty = false;
  for (const std::int64_t dim : tensor.dims) {
    if (dim < 0) fail(where, "dimension: got ", dim, ", expected 0 or more");
    is_empty = is_empty || dim == 0;
    if (__builtin_mul_overflow(extent, std::max<std::int64_t>(dim, 1), &extent)) {
      fail(where, "shape: got more elements than 63 bits can count bytes for");
    }
  }
  return is_empty ? 0 : extent / widest;
}

void check_strings(ReadContext& context, const TensorProto& tensor, const Found& found, std::int64_t count) {
  if (found.is_external || !found.raw_data.empty()) {
    fail(context_of(context, tensor), "strings must stand in string_data, got ",
         found.is_external ? "external data" : "raw_data");
  }
  if (static_cast<std::int64_t>(tensor.string_data.size()) != count) {
    fail(context_of(context, tensor), "string_data: got ", tensor.string_data.size(), " entries, expected ", count);
  }
}

void check_source(ReadContext& context, const TensorProto& tensor, const Found& found) {
  const std::string where = context_of(context, tensor);
  if (tensor.data_type == DType::undefined) fail(where, "data_type: got none, expected an element type");
  if (found.typed != 0 && found.typed != typed_field(tensor.data_type)) {
    fail(where, "got ", typed_field_name(found.typed), ", expected ", typed_field_name(typed_field(tensor.data_type)),
         " or raw_data for ", name_of(tensor.data_type), " elements; re-export the model");
  }
  if ((found.typed != 0) + !found.raw_data.empty() + found.is_external > 1) {
    fail(where, "has its data in more than one place (raw_data, a typed field, an external file); re-export the model");
  }
}

Bytes find_data(ReadContext& context, const TensorProto& tensor, const Found& found, std::int64_t count) {
  const std::size_t size = byte_size(tensor.data_type, count);
  if (found.is_external) {
    if (count == 0) return {};
    return context.external.find(tensor.external_data, size, describe(tensor, count), context_of(context, tensor));
  }
  if (found.typed != 0) return read_typed_data(context, found.message, tensor, count, size);
  if (found.raw_data.size() != size) {
    fail(context_of(context, tensor), "data length: got ", found.raw_data.size(), ", expected ", size, " (",
         describe(tensor, count), "); re-export the model");
  }
  return {found.raw_data, context.owner};
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

TensorProto read_tensor(ReadContext& context, std::string_view bytes) {
  TensorProto out;
  const Found found = walk(context, bytes, out);
  check_source(context, out, found);
  const std::int64_t count = count_elements(context, out);
  if (out.data_type == DType::string) {
    check_strings(context, out, found, count);
  } else {
    out.data = find_data(context, out, found, count);
  }
  if (out.data_type == DType::boolean) out.data = with_canonical_bools(std::move(out.data));
  if (!found.is_external) out.external_data.clear();
  return out;
}

SparseTensorProto read_sparse_tensor(ReadContext& context, std::string_view bytes) {
  SparseTensorProto out;
  for (Fields f = context.open(bytes, "SparseTensorProto"); f.next();) switch (f.number()) {
      case sparse_field::values:
        out.values = read_tensor(context, f.bytes());
        break;
      case sparse_field::indices:
        out.indices = read_tensor(context, f.bytes());
        break;
      case sparse_field::dims:
        read_dims(f, out.dims);
        break;
      default:
        f.skip();
    }
  return out;
}

}  // namespace backpass::onnx_io
