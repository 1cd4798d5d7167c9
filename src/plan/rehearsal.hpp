// A program walked through with numbers but without running: what it takes if the backward pass finds only some values
// of the forward pass kept, and makes the others again, once or as often as it comes back to them. Lifetimes, views and
// results in place of inputs are those of a binding; only the gaps that places in an arena leave are not known here.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "plan/fate.hpp"

namespace backpass {

/// Steps and values of a program under one set of extents.
struct Outline {
  enum class InPlace : unsigned char { never, first, any };  ///< which inputs a result may be written over

  struct Step {
    std::vector<int> inputs, outputs;  ///< values; none that is omitted
    double cost = 0;                   ///< of running it once
    std::size_t scratch = 0;           ///< bytes
    bool runs = false;                 ///< what it gives is not known before, and somebody needs it
    bool is_forward = false;
    bool is_view = false;
    bool is_repeatable = false;
    InPlace in_place = InPlace::never;
    int in_place_input = 0;  ///< place among `inputs`, if it is the first
  };

  struct Value {
    std::size_t bytes = 0;  ///< in the arena; 0: elsewhere
    int producer = -1;
    int root = -1;              ///< the value it is a view of, itself otherwise
    bool is_choosable = false;  ///< a root that may be kept or made again
    bool is_unwanted = false;   ///< made again, whatever it costs
    bool is_kept_to_the_end = false;
  };

  std::vector<Step> steps;
  std::vector<Value> values;
};

/// Of a step that runs again: that of the result which is needed longest.
Fate fate_of_step(const Outline& outline, std::size_t step, const Fates& fates);

class Rehearsal {
 public:
  explicit Rehearsal(const Outline& outline);

  struct Result {
    std::size_t peak = 0;
    int peak_at = 0;  ///< position in the walk
    double cost = 0;
  };

  Result run(const Fates& fates);
  /// The cost alone, which is found sooner.
  double cost(const Fates& fates);

  /// Steps gone through since the beginning: what all of it took so far.
  std::size_t walked() const { return walked_; }

  /// After run(): how often the step ran again.
  int repeats(int step) const { return repeats_[static_cast<std::size_t>(step)]; }
  /// After run(): whether a value of the forward pass was there at a position, as it was first made.
  bool is_alive(int value, int position) const;
  /// After run(): the values that were there at a position as they were made again.
  std::vector<int> copies_alive(int position) const;
  int lifetime(int value) const;

  /// What making the value again, or once more than now, would add to the cost, as things stand after run().
  double cost_of_repeating(int value, const Fates& fates);

 private:
  struct Entry {
    int step;
    bool is_repeat;
    std::size_t reads, writes;  // where their numbers begin
  };
  struct Storage {
    std::size_t bytes;
    int first, last;
  };

  void walk_through(const Fates& fates);
  bool is_available(int value, const Fates& fates) const;
  bool is_there(int step, const Moment& now, const Fates& fates) const;
  void add_repeats(int reader, const Fates& fates);
  template <class F>
  void collect_cone(int step, const Fates& fates, const F& takes);
  void add_entry(int step, bool is_repeat, const Fates& fates);
  std::span<const int> reads(const Entry& entry) const;
  std::span<const int> writes(const Entry& entry) const;
  void find_last_reads(Result& result);
  void place();
  void place_outputs(const Outline::Step& step, const Entry& entry, int at);
  bool reuse_input(const Outline::Step& step, const Entry& entry, int at);
  void find_peak(Result& result);

  const Outline& outline_;
  std::vector<int> epochs_;  // per step
  std::vector<Entry> walk_;
  std::size_t walked_ = 0;
  // Numbers of what entries read and write: values as they are first made, then as they are made again.
  std::vector<int> numbers_;
  std::vector<int> value_of_;  // per number
  std::vector<int> newest_;    // per value: the number of what was made of it last
  std::vector<Moment> made_;   // per step: when it ran again last
  std::vector<int> repeats_;   // per step
  std::vector<int> cone_, todo_;
  std::vector<char> marks_;
  std::vector<char> is_needed_;  // per entry
  std::vector<int> last_read_;   // per number
  std::vector<int> storage_of_;  // per number
  std::vector<Storage> storages_;
  std::vector<long long> change_;
};

}  // namespace backpass
