#include "runtime/task_names.h"

namespace ark::runtime {

const char* task_name(abi::TaskKind kind) {
  static constexpr const char* kNames[] = {"pointwise",
                                           "row",
                                           "column",
                                           "matmul_rows",
                                           "matmul_tile",
                                           "matmul_simple",
                                           "attention_decode",
                                           "attention_forward",
                                           "attention_backward_rows",
                                           "attention_backward",
                                           "attention_simple",
                                           "mask_range",
                                           "attention_backward_query"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<int>(abi::TaskKind::kCount));
  int number = static_cast<int>(kind);
  return number >= 0 && number < static_cast<int>(abi::TaskKind::kCount) ? kNames[number] : "unknown";
}

}  // namespace ark::runtime
