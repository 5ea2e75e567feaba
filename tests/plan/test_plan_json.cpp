// Plans as text: keys that older plans have and no field takes any more.
#include <string>

#include "plan/plan.h"
#include "support/check.h"

using namespace ark;

namespace {

/// A plan of one product; `plan` and `matmul` are further members of the two.
std::string text_with(const std::string& plan, const std::string& matmul) {
  return cat(R"({"name":"old","buffers":[{"kind":"input","immutable":true},{"kind":"input"}],)", plan,
             R"("ops":[{"kind":"matmul_tile","operands":[{},{"slot":1}],"matmul":{"m":3,)", matmul,
             R"("a_immutable":1}}]})");
}

void test_retired_keys_are_skipped() {
  const std::string expected = plan::to_json(plan::from_json(text_with("", "")));
  for (const char* layout : {R"("layout":{"pages":12,"cluster":1},)", R"("layout":{},)"}) {
    const plan::Plan old = plan::from_json(text_with(layout, R"("group_m":1,)"));
    EXPECT_EQ(old.ops.at(0).record.params.matmul.m, 3);
    EXPECT_EQ(old.ops.at(0).record.params.matmul.a_immutable, 0);
    EXPECT_EQ(old.ops.at(0).early, 1u);
    EXPECT(plan::to_json(old) == expected);
  }
}

/// Of plans without Op::early: what records and buffers say.
void test_older_caches() {
  const plan::Plan plan =
      plan::from_json(R"({"name":"old","buffers":[{"kind":"input"},{"kind":"input","immutable":true}],)"
                      R"("ops":[{"kind":"attention_decode","operands":[{},{},{},{},{},{"slot":1},{},{},{},{}],)"
                      R"("attention":{"fresh_operand":9}}]})");
  EXPECT_EQ(plan.ops.at(0).early, 1u << 1 | 1u << 2 | 1u << 5 | 1u << 9);
  EXPECT_EQ(plan.ops.at(0).record.params.attention.fresh_operand, -1);
  EXPECT(plan::to_json(plan::from_json(plan::to_json(plan))) == plan::to_json(plan));
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
  test_older_caches();
  test_other_keys_are_refused();
  return test::result("plan_json");
}
