#include "support/random_seed.hpp"

#include <atomic>

namespace backpass {
namespace {

constexpr std::uint64_t kDefaultSeed = 20240229;
constexpr int kEntryBits = 24;  // of the offset count the subgraphs entered, the rest the runs

struct GlobalSeed {
  std::mutex mutex;
  std::uint64_t seed = kDefaultSeed;
  std::uint64_t epoch = 1;
  std::uint64_t followers = 0;  // sources that took their seed from this one
};

GlobalSeed& global_seed() {
  static GlobalSeed g;
  return g;
}

RandomSource& process_source() {
  static RandomSource source;
  return source;
}

struct Current {
  RandomRun run;
  std::uint64_t entries = 0;  // of subgraphs, so far
  std::uint64_t entry = 0;    // the one being run; 0: none
  bool is_set = false;
};

thread_local Current current;

std::uint64_t hash(std::string_view text) {  // FNV-1a
  std::uint64_t h = 0xcbf29ce484222325U;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return h;
}

}  // namespace

void set_random_seed(std::uint64_t seed) {
  GlobalSeed& g = global_seed();
  std::lock_guard lock(g.mutex);
  g.seed = seed;
  ++g.epoch;
  g.followers = 0;
}

bool is_random_seed_set() {
  GlobalSeed& g = global_seed();
  std::lock_guard lock(g.mutex);
  return g.epoch > 1;
}

void RandomSource::follow_global_seed() const {
  if (is_own_) return;
  GlobalSeed& g = global_seed();
  std::lock_guard lock(g.mutex);
  if (epoch_ == g.epoch) return;
  epoch_ = g.epoch;
  const Philox::Block b = Philox(g.seed, ~std::uint64_t{0}).block(g.followers++);
  upcoming_ = {(std::uint64_t{b[0]} << 32) | b[1], 0};
}

RandomRun RandomSource::next() {
  std::lock_guard lock(mutex_);
  follow_global_seed();
  RandomRun run = upcoming_;
  ++upcoming_.run;
  return run;
}

RandomRun RandomSource::peek() const {
  std::lock_guard lock(mutex_);
  follow_global_seed();
  return upcoming_;
}

void RandomSource::restore(RandomRun run) {
  std::lock_guard lock(mutex_);
  upcoming_ = run;
  is_own_ = true;
}

RandomScope::RandomScope(RandomRun run)
    : previous_(current.run),
      previous_entries_(current.entries),
      previous_entry_(current.entry),
      had_previous_(current.is_set) {
  current = {run, 0, 0, true};
}

RandomScope::~RandomScope() { current = {previous_, previous_entries_, previous_entry_, had_previous_}; }

SubgraphScope::SubgraphScope() : outer_(current.entry) { current.entry = ++current.entries; }

SubgraphScope::~SubgraphScope() { current.entry = outer_; }

RandomStream::RandomStream(std::optional<std::uint64_t> seed, std::string_view node) : seed_(seed), node_(hash(node)) {}

Philox RandomStream::next() const {
  const RandomRun run = current.is_set ? current.run : process_source().next();
  const std::uint64_t entry = current.entry & ((std::uint64_t{1} << kEntryBits) - 1);
  return {seed_ ? *seed_ : run.seed ^ node_, (run.run << kEntryBits) | entry};
}

}  // namespace backpass
