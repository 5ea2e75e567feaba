// Ranks, threads of this process, compare what they have in common.
#include <thread>

#include "comm/agreement.h"
#include "support/check.h"
#include "support/map_store.h"

using namespace ark;
using namespace ark::comm;

namespace {

using test::MapStore;

struct Outcome {
  std::vector<std::string> said;
  std::string user_error, device_error;
};

/// `terms`: of each rank; a rank without any does not come.
std::vector<Outcome> run(MapStore& store, const std::vector<std::vector<Term>>& terms, int milliseconds = 20'000) {
  std::vector<Outcome> outcomes(terms.size());
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < terms.size(); ++rank) {
    if (terms[rank].empty()) continue;
    threads.emplace_back([&, rank] {
      const GroupInfo group{static_cast<int>(rank), static_cast<int>(terms.size()), "g"};
      const auto deadline = Clock::now() + std::chrono::milliseconds(milliseconds);
      try {
        outcomes[rank].said = agree(store, group, "t", "plan 'p'", terms[rank], cat("of rank ", rank), deadline);
      } catch (const UserError& error) {
        outcomes[rank].user_error = error.what();
      } catch (const DeviceError& error) {
        outcomes[rank].device_error = error.what();
      }
    });
  }
  threads.clear();
  return outcomes;
}

void test_equal() {
  MapStore store;
  // Names may differ, and values be empty or hold anything but the marks.
  const auto outcomes = run(store, {{{"a", "1, 2"}, {"b", ""}}, {{"c", "1, 2"}, {"", ""}}, {{"a", "1, 2"}, {"b", ""}}});
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.user_error + outcome.device_error, std::string());
    EXPECT(outcome.said == (std::vector<std::string>{"of rank 0", "of rank 1", "of rank 2"}));
  }
  EXPECT_EQ(store.size(), size_t{3});
  for (int rank = 0; rank < 3; ++rank) forget_terms(store, {rank, 3, "g"}, "t");
  EXPECT_EQ(store.size(), size_t{0});
}

void expect_all(const std::vector<std::vector<Term>>& terms, const std::string& text) {
  MapStore store;
  for (const Outcome& outcome : run(store, terms)) EXPECT_EQ(outcome.user_error, text);
}

/// Every rank says the same: the first term of the lowest rank that differs from rank 0.
void test_different() {
  expect_all({{{"a", "1"}, {"b", "2"}}, {{"a", "1"}, {"b", "2"}}, {{"a", "1"}, {"c", "3"}}},
             "plan 'p': ranks disagree: rank 0 has b (2), rank 2 has c (3)");
  expect_all({{{"a", "1"}, {"b", "2"}}, {{"a", "1"}}, {{"x", "7"}}},
             "plan 'p': ranks disagree: rank 0 has b (2), rank 1 has no more than 1");
  expect_all({{{"a", "1"}}, {{"a", "1"}, {"b", "2"}}},
             "plan 'p': ranks disagree: rank 0 has no more than 1, rank 1 has b (2)");
}

void test_absent() {
  MapStore store;
  const auto outcomes = run(store, {{{"a", "1"}}, {}, {{"a", "1"}}}, 100);
  for (size_t rank : {size_t{0}, size_t{2}})
    EXPECT(outcomes[rank].device_error.find(cat("plan 'p' on rank ", rank, ": rank 1 did not come: ")) == 0);
}

}  // namespace

int main() {
  test_equal();
  test_different();
  test_absent();
  return test::result("agreement");
}
