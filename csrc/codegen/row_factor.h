// Prologues whose rows have a factor, as norms without a mean have: what divides a row is the same for all of its
// elements, so that a product may be multiplied by it behind the sum over k instead of before.
#pragma once
#include <optional>

#include "ir/program.h"

namespace ark::codegen {

struct RowFactor {
  Program rest;     // what yields the elements without the factor; other instructions keep their numbers
  int factor = -1;  // the instruction whose value is left out, the same for all of a row
  // Where the only reduction sums up squares of what a load brings, and the result is that, or its product with another
  // load: the loads, of bfloat16. Tensor cores do both without widening an element.
  int squared = -1, weight = -1, reduction = -1;
};

/// Nothing where the only result is no product of a row's factor, made of reductions over its elements, and of what
/// follows from no reduction. What is rounded on the way from the factor to the result is rounded no more: eager's
/// roundings between the two are those of other numbers. In float32 and bfloat16 alone, which have one range. Loads by
/// index or under a predicate make none: such a program is long, and walked row by row. Factors of more than two
/// reductions are none either: each has shared memory of its own.
std::optional<RowFactor> split_row_factor(const Program& program);

}  // namespace ark::codegen
