// A program walked through with numbers but without running: what it takes if the backward pass finds only some values
// of the forward pass kept, and makes the others again. Lifetimes, views and results in place of inputs are those of a
// binding; only the gaps that places in an arena leave are not known here.
#pragma once

#include <cstddef>
#include <vector>

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

/// Per value of the outline; of those that are not choosable it says nothing.
using Kept = std::vector<char>;

class Rehearsal {
 public:
  explicit Rehearsal(const Outline& outline);

  struct Result {
    std::size_t peak = 0;
    int peak_at = 0;  ///< position in the walk
    double cost = 0;
  };

  Result run(const Kept& kept);
  /// The cost alone, which is found sooner.
  double cost(const Kept& kept);

  /// After run(): whether the step ran a second time, and whether a value of the forward pass was there at a position.
  bool is_repeated(int step) const { return repeated_[static_cast<std::size_t>(step)] != 0; }
  bool is_alive(int value, int position) const;
  int lifetime(int value) const;

  /// What making the value again would add to the cost, as things stand after run().
  double cost_of_repeating(int value, const Kept& kept);

 private:
  struct Entry {
    int step;
    bool is_repeat;
  };
  struct Storage {
    std::size_t bytes;
    int first, last;
  };

  void walk_through(const Kept& kept);
  bool is_available(int value, const Kept& kept) const;
  void add_repeats(const std::vector<int>& needed, const Kept& kept);
  void collect_cone(int step, const Kept& kept, std::vector<char>& seen);
  int number(int value, bool is_forward, const Kept& kept) const;
  void find_last_reads(const Kept& kept, Result& result);
  void place(const Kept& kept);
  void place_outputs(const Outline::Step& step, const Entry& entry, int at, const Kept& kept);
  bool reuse_input(const Outline::Step& step, bool reads_kept, int out, int at, const Kept& kept);
  void find_peak(Result& result);

  const Outline& outline_;
  std::vector<Entry> walk_;
  std::vector<char> repeated_;
  std::vector<int> cone_, todo_;
  std::vector<char> marks_;
  std::vector<char> is_needed_;  // per entry
  std::vector<int> last_read_;   // per value and, behind them, per value made again
  std::vector<int> storage_of_;
  std::vector<Storage> storages_;
  std::vector<long long> change_;
};

}  // namespace backpass
