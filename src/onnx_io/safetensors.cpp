#include "backpass/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "onnx_io/atomic_file.hpp"
#include "onnx_io/mapped_file.hpp"
#include "onnx_io/safetensors_header.hpp"
#include "onnx_io/tensor_check.hpp"
#include "support/printable.hpp"

namespace backpass {
namespace {

namespace fs = std::filesystem;
using onnx_io::SafeTensorsEntry;
using onnx_io::SafeTensorsHeader;

constexpr std::size_t kLengthBytes = 8;

std::string context_of(const fs::path& file) { return concat("[safetensors ", printable(file.string()), "] "); }

SafeTensorsHeader read_header(std::string_view bytes, std::uint64_t& length, std::string_view where) {
  constexpr std::uint64_t largest = 100'000'000;  // the format's own limit
  if (bytes.size() < kLengthBytes) fail(where, "got ", bytes.size(), " bytes; the file is truncated");
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > bytes.size() - kLengthBytes || length > largest) {
    fail(where, "header: got a length of ", length, ", expected at most ",
         std::min<std::uint64_t>(largest, bytes.size() - kLengthBytes), "; the file is truncated or not safetensors");
  }
  const std::string_view text = bytes.substr(kLengthBytes, length);
  if (!text.starts_with('{')) fail(where, "header: expected '{' first; not a safetensors file");
  return onnx_io::parse_safetensors_header(text, where);
}

void check_entry(const SafeTensorsEntry& entry, std::string_view where) {
  constexpr std::size_t largest_rank = 64;
  if (entry.dims.size() > largest_rank) fail(where, "got ", entry.dims.size(), " dimensions, expected at most 64");
  onnx_io::TensorProto shape;
  shape.data_type = entry.dtype;
  shape.dims = entry.dims;
  const std::size_t size = byte_size(entry.dtype, onnx_io::count_elements(shape, where));
  if (entry.begin > entry.end || entry.end - entry.begin != size) {
    fail(where, "data_offsets: got [", entry.begin, ",", entry.end, "], expected ", size, " bytes (",
         name_of(entry.dtype), shown(entry.dims), ")");
  }
}

/// The tensors must cover the data exactly: neither can a small file unfold, nor hide anything.
void check_coverage(const SafeTensorsHeader& header, std::uint64_t size, std::string_view where) {
  std::vector<std::pair<const std::string*, const SafeTensorsEntry*>> order;
  for (const auto& [name, entry] : header.entries) order.emplace_back(&name, &entry);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  std::uint64_t covered = 0;
  for (const auto& [name, entry] : order) {
    const std::string here = concat(where, "tensor ", printable(*name), ": ");
    check_entry(*entry, here);
    if (entry->begin != covered) {
      fail(here, "data_offsets: got a start at ", entry->begin, ", expected ", covered,
           entry->begin < covered ? "; tensors overlap" : "; there is a gap");
    }
    covered = entry->end;
  }
  if (covered != size)
    fail(where, "got ", size, " bytes of data, expected ", covered, "; the file is truncated or damaged");
}

SafeTensors read(std::string_view bytes, std::string_view where) {
  std::uint64_t length = 0;
  SafeTensorsHeader header = read_header(bytes, length, where);
  const std::string_view data = bytes.substr(kLengthBytes + length);
  check_coverage(header, data.size(), where);
  SafeTensors content;
  content.metadata = std::move(header.metadata);
  for (auto& [name, entry] : header.entries) {
    const std::string_view source = data.substr(entry.begin, entry.end - entry.begin);
    if (entry.dtype == DType::boolean &&
        std::any_of(source.begin(), source.end(), [](char c) { return static_cast<unsigned char>(c) > 1; })) {
      fail(where, "tensor ", printable(name), ": got a bool that is neither 0 nor 1");
    }
    Tensor tensor(entry.dtype, std::move(entry.dims));
    if (!source.empty()) std::memcpy(tensor.mutable_data(), source.data(), source.size());
    content.tensors.emplace(name, std::move(tensor));
  }
  return content;
}

}  // namespace

SafeTensors load_safetensors(const fs::path& file) {
  const std::string where = context_of(file);
  return read(onnx_io::MappedFile::open(file, where)->bytes(), where);
}

SafeTensors load_safetensors(std::span<const std::byte> bytes) {
  return read({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "[safetensors] ");
}

void save_safetensors(const fs::path& file, const SafeTensors& content) {
  const std::string where = context_of(file);
  // Wide elements first: then every tensor is aligned as its elements are.
  std::vector<const std::pair<const std::string, Tensor>*> order;
  for (const auto& item : content.tensors) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return bit_width(a->second.dtype()) > bit_width(b->second.dtype());
  });
  SafeTensorsHeader header;
  header.metadata = content.metadata;
  for (const auto& [key, value] : content.metadata) {
    onnx_io::check_utf8(key, where);
    onnx_io::check_utf8(value, where);
  }
  std::uint64_t offset = 0;
  for (const auto* item : order) {
    onnx_io::check_utf8(item->first, where);
    const std::uint64_t end = offset + item->second.bytes();
    header.entries[item->first] = {item->second.dtype(), item->second.dims(), offset, end};
    offset = end;
  }
  std::string text = onnx_io::print_safetensors_header(header);
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  onnx_io::AtomicFile out(file);
  out.write({reinterpret_cast<const char*>(&length), kLengthBytes});
  out.write(text);
  for (const auto* item : order) out.write({static_cast<const char*>(item->second.data()), item->second.bytes()});
  out.finish();
  out.publish();
}

void export_parameters(const CheckpointState& state, const fs::path& file) {
  if (state.is_nominal()) fail("the state is nominal: it has no parameters to export; load parameters first");
  SafeTensors content;
  for (const Parameter& p : state.parameters()) content.tensors.emplace(p.name, p.tensor);
  save_safetensors(file, content);
}

void import_parameters(CheckpointState& state, const fs::path& file) {
  const SafeTensors content = load_safetensors(file);
  const std::string where = context_of(file);
  std::vector<Tensor> tensors;
  for (const Parameter& p : state.parameters()) {
    const auto found = content.tensors.find(p.name);
    if (found == content.tensors.end()) fail(where, "has no tensor for the parameter ", printable(p.name));
    const Tensor& t = found->second;
    if (t.dtype() != p.dtype || (!state.is_nominal() && t.dims() != p.tensor.dims())) {
      fail(where, "tensor ", printable(p.name), ": got ", name_of(t.dtype()), shown(t.dims()), ", expected ",
           name_of(p.dtype), state.is_nominal() ? "" : to_string(p.tensor.dims()));
    }
    tensors.push_back(t);
  }
  for (const auto& [name, tensor] : content.tensors) {
    if (!state.has_parameter(name)) fail(where, "tensor ", printable(name), ": the state has no such parameter");
  }
  if (state.is_nominal()) return state.complete(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) state.set_parameter(state.parameters()[i].name, tensors[i]);
}

}  // namespace backpass
