// Any bytes: either a checkpoint, which then survives a round trip, or Error. Nothing else may happen.
//
// `make fuzz` starts from the checkpoints that checkpoint_seeds.py writes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "backpass/checkpoint.hpp"

using namespace backpass;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  CheckpointState state;
  try {
    state = CheckpointState::load(std::as_bytes(std::span(data, size)));
  } catch (const Error&) {
    return 0;
  }
  const std::string written = state.to_bytes(true);
  if (CheckpointState::load(std::as_bytes(std::span(written))).to_bytes(true) != written) std::abort();
  return 0;
}
