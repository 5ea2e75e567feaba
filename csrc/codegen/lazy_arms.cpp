#include "codegen/lazy_arms.h"

#include <algorithm>

#include "base/check.h"
#include "codegen/expressions.h"
#include "codegen/instr_uses.h"

namespace ark::codegen {
namespace {

constexpr int kMuch = 60;  // machine instructions of an element, more than a branch is worth

/// `value`, where only `selection` takes it, once, and what nothing else needs; none otherwise.
std::vector<int> only_needed_by(const Program& program, const std::vector<bool>& needed,
                                const std::function<bool(int)>& movable, int selection, int value) {
  std::vector<bool> inside(program.instrs.size()), used(program.instrs.size());
  std::vector<int> found;
  for (int i = value; i >= 0; --i) {
    if (!needed[i] || !movable(i)) continue;
    bool only = true;
    for (int use = i + 1; use < static_cast<int>(program.instrs.size()) && only; ++use) {
      if (!needed[use]) continue;
      const std::vector<int> inputs = inputs_of(program.instrs[use]);
      const auto times = std::count(inputs.begin(), inputs.end(), i);
      if (times > 0) only = i == value ? use == selection && times == 1 : inside[use];
    }
    if (!only || (i != value && !used[i])) continue;
    inside[i] = true;
    found.push_back(i);
    for (const int input : inputs_of(program.instrs[i])) used[input] = true;
  }
  std::reverse(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<LazyArm> lazy_arms(const Program& program, const std::vector<bool>& needed,
                               const std::function<bool(int)>& movable) {
  std::vector<LazyArm> arms;
  std::vector<bool> claimed(program.instrs.size());
  for (int i = static_cast<int>(program.instrs.size()) - 1; i >= 0; --i) {
    const Instr& in = program.instrs[i];
    if (!needed[i] || claimed[i] || in.op != Opcode::kWhere || !movable(i)) continue;
    for (const bool first : {true, false}) {
      LazyArm arm{i, first ? in.b : in.c, first, {}};
      arm.instrs = only_needed_by(program, needed, movable, i, arm.value);
      int code = 0;
      for (const int k : arm.instrs) code += code_of(program.instrs[k]);
      if (code < kMuch) continue;
      for (const int k : arm.instrs) claimed[k] = true;
      arms.push_back(std::move(arm));
    }
  }
  return arms;
}

std::string lazy_source(const LazyArm& arm, const std::string& type, const std::string& condition,
                        const std::string& body) {
  const std::string r = cat("r", arm.value);
  return cat("    bool takes_", r, " = false; ARK_EACH takes_", r, " |= ", arm.taken_if ? "" : "!", condition, ";\n",
             "    ", type, " lazy_", r, "[V] = {};\n", "    if (takes_", r, ") {\n", body, "    ARK_EACH lazy_", r,
             "[i] = ", r, "[i];\n    }\n", "    const ", type, " (&", r, ")[V] = lazy_", r, ";\n");
}

}  // namespace ark::codegen
