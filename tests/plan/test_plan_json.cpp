// Plans as text: keys that older plans have and no field takes any more.
#include <string>

#include "plan/plan.h"
#include "support/check.h"

using namespace ark;

namespace {

/// A plan of one product; `plan` and `matmul` are further members of the two.
std::string text_with(const std::string& plan, const std::string& matmul) {
  return cat(R"({"name":"old",)", plan, R"("ops":[{"kind":"matmul_tile","matmul":{"m":3,)", matmul,
             R"("a_immutable":1}}]})");
}

void test_retired_keys_are_skipped() {
  const std::string expected = plan::to_json(plan::from_json(text_with("", "")));
  for (const char* layout : {R"("layout":{"pages":12,"cluster":1},)", R"("layout":{},)"}) {
    const plan::Plan old = plan::from_json(text_with(layout, R"("group_m":1,)"));
    EXPECT_EQ(old.ops.at(0).record.params.matmul.m, 3);
    EXPECT_EQ(old.ops.at(0).record.params.matmul.a_immutable, 1);
    EXPECT(plan::to_json(old) == expected);
  }
}

/// Only there, and only these.
void test_other_keys_are_refused() {
  EXPECT_THROW(UserError, plan::from_json(text_with(R"("group_m":1,)", "")), "plan: unknown key \"group_m\"");
  EXPECT_THROW(UserError, plan::from_json(text_with(R"("layouts":{},)", "")), "plan: unknown key \"layouts\"");
  EXPECT_THROW(UserError, plan::from_json(text_with("", R"("layout":{},)")),
               "plan.ops[0].matmul: unknown key \"layout\"");
  EXPECT_THROW(UserError, plan::from_json(text_with("", R"("group_n":1,)")), "unknown key \"group_n\"");
}

}  // namespace

int main() {
  test_retired_keys_are_skipped();
  test_other_keys_are_refused();
  return test::result("plan_json");
}
