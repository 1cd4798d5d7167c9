#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "backpass/error.hpp"
#include "onnx_io/checkpoint_file.hpp"
#include "onnx_io/checkpoint_verify.hpp"
#include "onnx_io/external_data.hpp"
#include "support/printable.hpp"

namespace backpass::onnx_io {
namespace {

namespace fs = std::filesystem;

std::string context_of(const fs::path& file) {
  return file.empty() ? "[checkpoint] " : concat("[checkpoint ", printable(file.string()), "] ");
}

class Reader {
 public:
  Reader(const odtc::Checkpoint& root, std::size_t size, const fs::path& file)
      : root_(root),
        file_(file),
        context_(context_of(file)),
        budget_(size),
        external_(file.empty() ? fs::path() : (file.has_parent_path() ? file.parent_path() : fs::path("."))) {}

  CheckpointState read() {
    if (root_.module_state() != nullptr) read_module(*root_.module_state());
    if (root_.optimizer_groups() != nullptr) {
      for (const auto* group : *root_.optimizer_groups()) read_group(*group);
    }
    Properties reserved;
    if (root_.property_bag() != nullptr) {
      read_properties(root_.property_bag()->ints(), reserved);
      read_properties(root_.property_bag()->floats(), reserved);
      read_properties(root_.property_bag()->strings(), reserved);
    }
    state_.resume() = to_resume_state(reserved, current_step(state_), context_);
    check_groups(state_, context_);
    return std::move(state_);
  }

 private:
  void read_module(const odtc::ModuleState& module) {
    if (module.requires_grad_params() == nullptr || module.frozen_params() == nullptr) {
      fail(context_, "the list of ", module.frozen_params() == nullptr ? "frozen" : "trained",
           " parameters is missing");
    }
    has_external_data_ = module.has_external_data();
    if (has_external_data_) open_external();
    state_.use_external_data(has_external_data_);
    for (const auto* tensor : *module.requires_grad_params()) read_parameter(*tensor, module.is_nominal_state(), true);
    for (const auto* tensor : *module.frozen_params()) read_parameter(*tensor, module.is_nominal_state(), false);
  }

  void open_external() {
    if (file_.empty()) {
      fail(context_, "its parameters are in a second file, which memory does not have; load it from a path");
    }
    std::error_code missing;  // reported when the first tensor is looked for
    const std::uintmax_t size = fs::file_size(data_file_of(file_), missing);
    external_budget_ = missing ? 0 : size;
  }

  void read_parameter(const odtc::Tensor& source, bool is_nominal, bool requires_grad) {
    std::string name = read_name(source.name(), "parameter");
    const std::string where = concat(context_, "parameter ", printable(name), ": ");
    if (state_.has_parameter(name)) fail(where, "the file has two of this name");
    if (is_nominal) {
      state_.add_nominal(std::move(name), read_dtype(source, where), requires_grad);
    } else {
      state_.add_parameter(std::move(name), read_tensor(source, where), requires_grad);
    }
  }

  void read_group(const odtc::OptimizerGroup& source) {
    OptimizerGroup group;
    group.name = read_name(source.group_name(), "optimizer group");
    group.step = source.step();
    group.initial_lr = source.initial_learning_rate();
    const std::string where = concat(context_, "optimizer group ", printable(group.name), ": ");
    if (group.step < 0) fail(where, "step: got ", group.step, ", expected 0 or more");
    if (source.optimizer_states() != nullptr) {
      for (const auto* entry : *source.optimizer_states()) read_momentums(*entry, group, where);
    }
    state_.optimizer_groups().push_back(std::move(group));
  }

  void read_momentums(const odtc::ParameterOptimizerState& source, OptimizerGroup& group, const std::string& where) {
    std::string name = read_name(source.param_name(), "parameter of an optimizer group");
    const std::string here = concat(where, "parameter ", printable(name), ": ");
    const auto [entry, is_new] = group.momentums.try_emplace(std::move(name));
    if (!is_new) fail(here, "the file has two of this name");
    if (source.momentums() == nullptr) return;
    for (const auto* tensor : *source.momentums()) {
      std::string momentum = read_name(tensor->name(), "momentum");
      if (entry->second.contains(momentum)) fail(here, "the file has two ", printable(momentum));
      const std::string where_momentum = concat(here, printable(momentum), ": ");
      entry->second.emplace(std::move(momentum), read_tensor(*tensor, where_momentum));
    }
  }

  template <class Table>
  void read_properties(const TableVector<Table>* properties, Properties& reserved) {
    if (properties == nullptr) return;
    for (const auto* property : *properties) {
      std::string name = read_name(property->name(), "property");
      if (state_.has_property(name) || reserved.contains(name)) {
        fail(context_, "property ", printable(name), ": the file has two of this name");
      }
      PropertyValue value;
      if constexpr (std::is_same_v<Table, odtc::StringProperty>) {
        value = read_text(property->value(), concat("property ", printable(name), ": "));
      } else {
        value = property->value();
      }
      if (name.starts_with(kReservedPrefix)) {
        reserved.emplace(std::move(name), std::move(value));
      } else {
        state_.set_property(std::move(name), std::move(value));
      }
    }
  }

  Tensor read_tensor(const odtc::Tensor& source, const std::string& where) {
    TensorHeader header = read_header(source, where);
    const std::string_view bytes = find_bytes(source, header, where);
    if (header.dtype == DType::boolean &&
        std::any_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) > 1; })) {
      fail(where, "got a bool that is neither 0 nor 1");
    }
    Tensor tensor(header.dtype, std::move(header.dims));
    if (!bytes.empty()) std::memcpy(tensor.mutable_data(), bytes.data(), bytes.size());
    return tensor;
  }

  std::string_view find_bytes(const odtc::Tensor& source, const TensorHeader& header, const std::string& where) {
    const std::size_t raw_size = source.raw_data() == nullptr ? 0 : source.raw_data()->size();
    const std::string elements = concat(name_of(header.dtype), to_string(header.dims));
    if (source.external_data_offset() < 0) {
      if (raw_size != header.bytes) {
        fail(where, "data length: got ", raw_size, ", expected ", header.bytes, " (", elements, ")");
      }
      charge(budget_, raw_size, where);
      if (raw_size == 0) return {};
      return {reinterpret_cast<const char*>(source.raw_data()->data()), raw_size};
    }
    if (!has_external_data_) fail(where, "is in a second file, but the checkpoint says there is none");
    if (raw_size != 0) fail(where, "got data both here and in the second file");
    const StringPairs place = {{"location", data_file_of(file_).filename().string()},
                               {"offset", std::to_string(source.external_data_offset())}};
    external_bytes_ = external_.find(place, header.bytes, elements, where);
    charge(external_budget_, header.bytes, where);
    return external_bytes_.view;
  }

  std::string read_name(const flatbuffers::String* name, std::string_view what) {
    if (name == nullptr || name->size() == 0) fail(context_, "got a ", what, " without a name");
    std::string text = read_string(name);
    if (!is_text(text))
      fail(context_, what, " ", printable(text), ": got bytes that are not UTF-8 text; it is damaged");
    return text;
  }

  std::string read_text(const flatbuffers::String* source, const std::string& where) {
    std::string text = read_string(source);
    if (!is_utf8(text)) fail(context_, where, "got bytes that are not UTF-8; the file is damaged");
    return text;
  }

  std::string read_string(const flatbuffers::String* text) {
    if (text == nullptr) return {};
    charge(budget_, text->size(), context_);
    return text->str();
  }

  /// Offsets may share what they lead to. Nobody writes such files, and without this a small one could unfold to fill
  /// the memory.
  static void charge(std::uint64_t& budget, std::uint64_t amount, std::string_view where) {
    if (amount > budget) fail(where, "the file is damaged: its pieces overlap");
    budget -= amount;
  }

  const odtc::Checkpoint& root_;
  fs::path file_;
  std::string context_;
  std::uint64_t budget_;
  std::uint64_t external_budget_ = 0;
  ExternalData external_;
  Bytes external_bytes_;  ///< found last
  bool has_external_data_ = false;
  CheckpointState state_;
};

}  // namespace

fs::path data_file_of(const fs::path& checkpoint) {
  fs::path data = checkpoint;
  return data += ".data";
}

CheckpointState read_checkpoint(std::string_view bytes, const fs::path& file) {
  const AlignedBytes aligned(bytes);
  return Reader(verified_root(aligned.view(), context_of(file)), bytes.size(), file).read();
}

}  // namespace backpass::onnx_io
