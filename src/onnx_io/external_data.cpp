#include "onnx_io/external_data.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>

#include "backpass/error.hpp"
#include "support/printable.hpp"

namespace backpass::onnx_io {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> entry(const StringPairs& entries, std::string_view key) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& pair) { return pair.first == key; });
  if (found == entries.end()) return std::nullopt;
  return found->second;
}

std::optional<std::uint64_t> number(const StringPairs& entries, std::string_view key, std::string_view context) {
  const auto text = entry(entries, key);
  if (!text) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size()) {
    fail(context, "external data ", key, ": got ", printable(*text),
         ", expected a whole number of bytes; re-export the model");
  }
  return value;
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

}  // namespace

Bytes ExternalData::find(const StringPairs& entries, std::size_t size, std::string_view elements,
                         std::string_view context) {
  const auto location = entry(entries, "location");
  if (!location) fail(context, "external data has no location; re-export the model");
  const std::uint64_t offset = number(entries, "offset", context).value_or(0);
  const std::uint64_t length = number(entries, "length", context).value_or(size);
  if (length != size) {
    fail(context, "external data length: got ", length, ", expected ", size, " (", elements, "); re-export the model");
  }
  const auto mapped = file(*location, context);
  const std::string_view bytes = mapped->bytes();
  if (offset > bytes.size() || size > bytes.size() - offset) {
    fail(context, "external data ", printable(*location), ": got ", bytes.size(), " bytes in the file, expected ", size,
         " from offset ", offset, "; the file is truncated or belongs to another model");
  }
  return {bytes.substr(offset, size), mapped};
}

std::shared_ptr<const MappedFile> ExternalData::file(const std::string& location, std::string_view context) {
  auto& known = by_location_[location];
  if (known) return known;
  const fs::path path = resolve(location, context);
  auto& mapped = by_path_[path];
  if (!mapped) mapped = MappedFile::open(path, context, /*follow_link=*/false);
  return known = mapped;
}

fs::path ExternalData::resolve(const std::string& location, std::string_view context) const {
  const auto refuse = [&](std::string_view why) {
    fail(context, "external data location: got ", printable(location), ", ", why,
         "; external data must be a file inside the model's folder");
  };
  if (folder_.empty()) refuse("but the model was read from memory without a folder");
  if (location.empty() || location.find('\0') != std::string::npos) refuse("which is not a file name");
  const fs::path relative(location);
  if (relative.is_absolute()) refuse("which is an absolute path");
  if (std::find(relative.begin(), relative.end(), "..") != relative.end()) refuse("which contains '..'");
  std::error_code error;
  const fs::path folder = fs::canonical(folder_, error);
  if (error) fail(context, "cannot open folder '", folder_.string(), "': ", error.message());
  fs::path path = fs::canonical(folder / relative, error);
  if (error)
    fail(context, "cannot open external data ", printable((folder_ / relative).string()), ": ", error.message());
  if (!is_inside(path, folder)) refuse("a symbolic link leading out of the model's folder");
  return path;
}

}  // namespace backpass::onnx_io
