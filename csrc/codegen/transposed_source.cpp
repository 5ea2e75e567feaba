#include "codegen/transposed_source.h"

#include <algorithm>

#include "base/check.h"
#include "plan/transposed_operands.h"

namespace ark::codegen {

std::string transposed_source(const Program& program, uint32_t transposed) {
  std::string sizes;
  int bytes = 0;
  for (int operand = 0; operand < std::min(program.num_operands, 32); ++operand) {
    if ((transposed >> operand & 1) == 0) continue;
    const int size = plan::loaded_bytes(program, operand);
    sizes += cat("operand == ", operand, " ? ", size, " : ");
    bytes += size;
  }
  std::string text = cat("  static constexpr int kTransposedBytes = ", bytes, ";\n");
  if (bytes > 0)
    text += cat("  static constexpr ARK_DEVICE int transposed_size(int operand) { return ", sizes, "0; }\n");
  return text;
}

}  // namespace ark::codegen
