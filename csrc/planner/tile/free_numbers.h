// Which numbers of a program may stand in the records of the ops that run it (share_programs.h).
#pragma once
#include <vector>

#include "ir/program.h"

namespace ark::planner {

/// Integers that are added, or that number a stream of random numbers; where sizes vary also what can only be a size or
/// a stride (and no main loop's index): the extent that an index has to lie in, factors in the place of an element (in
/// a cache, in a stream), and the length of a row's parts (split_places.h).
class FreeNumbers {
 public:
  /// The program must outlive this.
  FreeNumbers(const Program& program, bool sizes_vary);

  /// Numbers of instructions.
  std::vector<int> find() const;
  /// A number that varies with the sizes, whether the programs of this plan differ in it or not.
  bool is_size(int number) const;

 private:
  bool takes_freely(size_t i, int input) const;
  bool is_size_of(size_t i, int input) const;
  bool is_extent(size_t i, int input) const;
  bool is_part_length(size_t i, int input) const;
  bool is_place_factor(size_t i) const;
  void find_places();

  const Program& program_;
  const bool sizes_vary_;
  std::vector<bool> place_;
};

}  // namespace ark::planner
