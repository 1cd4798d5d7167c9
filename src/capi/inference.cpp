#include "capi/handles.hpp"

using namespace backpass;
using namespace backpass::capi;

namespace {

const InferenceSession& session_of(const BpSession* s) { return *need(s, "session").session; }

}  // namespace

BpStatus bp_create_session(const char* model, const BpSessionOptions* options, BpSession** out) {
  return guarded([&] {
    need(out, "out");
    auto session =
        std::make_unique<InferenceSession>(std::filesystem::path(&need(model, "model")), to_options(options));
    *out = new BpSession{std::move(session)};
  });
}

void bp_release_session(BpSession* session) { delete session; }

BpStatus bp_get_input_count(const BpSession* session, size_t* out) {
  return guarded([&] { need(out, "out") = session_of(session).inputs().size(); });
}

BpStatus bp_get_input_name(const BpSession* session, size_t index, const char** out) {
  return guarded([&] { give_name(session_of(session).inputs(), index, out); });
}

BpStatus bp_get_output_count(const BpSession* session, size_t* out) {
  return guarded([&] { need(out, "out") = session_of(session).outputs().size(); });
}

BpStatus bp_get_output_name(const BpSession* session, size_t index, const char** out) {
  return guarded([&] { give_name(session_of(session).outputs(), index, out); });
}

BpStatus bp_run(const BpSession* session, const BpTensor* const* inputs, size_t input_count, BpTensor** outputs,
                size_t output_count) {
  return guarded([&] {
    const InferenceSession& s = session_of(session);
    std::vector<RuntimeValue> values = to_values(s.inputs(), inputs, input_count);
    Feeds feeds;
    for (size_t i = 0; i < input_count; ++i) {
      if (inputs[i] != nullptr) feeds.emplace_back(s.inputs()[i].name, values[i]);
    }
    give_out(s.run({}, feeds), outputs, output_count);
  });
}
