// How the rows of a select are cut. Internal to planner/fuse.
#pragma once
#include <cstdint>

namespace ark::planner {

struct SelectParts {
  int count, size;
};
SelectParts select_parts(int64_t rows, int64_t size, int num_workers);

}  // namespace ark::planner
