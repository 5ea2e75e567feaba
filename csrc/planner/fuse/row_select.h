// How the rows of a select are cut. Internal to planner/fuse.
#pragma once
#include <cstdint>

#include "base/types.h"

namespace ark::planner {

struct SelectParts {
  int count, size;
};
SelectParts select_parts(int64_t rows, int64_t size, int num_workers);
bool select_has_lists(DType bound, int64_t tops);

}  // namespace ark::planner
