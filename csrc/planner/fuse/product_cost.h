// A product of few rows: by the family for few rows, or in tiles? What either takes of a machine that has nothing else
// to do, by the numbers of costs.h. What both wait for are weights; the family reads the activation once in every
// worker besides, and tiles may need parts of k and an op that adds them.
#pragma once
#include <cstdint>

#include "planner/options.h"

namespace ark::planner {

/// Of elements of 16 bits.
struct FewProduct {
  int64_t m, k, n;
  bool columns = false;  // weights [k][n], which the family reads by strips of columns; else [n][k]

  double weight_bytes() const { return static_cast<double>(2 * n * k); }
};

double few_rows_seconds(const FewProduct& product, const Machine& machine);
double tiles_seconds(const FewProduct& product, const Machine& machine);

}  // namespace ark::planner
