#include "comm/agreement.h"

#include <algorithm>

#include "base/check.h"
#include "base/user_errors.h"

namespace ark::comm {
namespace {

constexpr char kAfterName = '\x1f', kAfterTerm = '\x1e';

std::string key_of(const GroupInfo& group, const std::string& tag, int rank) {
  return cat(group.name, "-", tag, "-terms-", rank);
}

std::string encode(const std::vector<Term>& terms) {
  std::string text;
  for (const Term& term : terms) text += term.name + kAfterName + term.value + kAfterTerm;
  return text;
}

std::vector<Term> decode(const std::string& text) {
  std::vector<Term> terms;
  for (size_t begin = 0; begin < text.size();) {
    const size_t middle = text.find(kAfterName, begin), end = text.find(kAfterTerm, begin);
    check(middle < end && end != std::string::npos, "the terms of a rank are cut off: ", text.size(), " bytes");
    terms.push_back({text.substr(begin, middle - begin), text.substr(middle + 1, end - middle - 1)});
    begin = end + 1;
  }
  return terms;
}

std::string describe(const std::vector<Term>& terms, size_t i, int rank) {
  if (i >= terms.size()) return cat("rank ", rank, " has no more than ", terms.size());
  return cat("rank ", rank, " has ", terms[i].name, " (", terms[i].value, ")");
}

void compare(const std::vector<Term>& first, const std::vector<Term>& other, int rank, const std::string& what) {
  const size_t most = std::max(first.size(), other.size());
  for (size_t i = 0; i < most; ++i) {
    if (i < first.size() && i < other.size() && first[i].value == other[i].value) continue;
    throw RanksDisagree(cat(what, ": ranks disagree: ", describe(first, i, 0), ", ", describe(other, i, rank)));
  }
}

}  // namespace

std::vector<std::string> agree(Store& store, const GroupInfo& group, const std::string& tag, const std::string& what,
                               const std::vector<Term>& terms, const std::string& besides, Clock::time_point deadline) {
  std::vector<Term> own = terms;
  own.push_back({besides, ""});
  store.set(key_of(group, tag, group.rank), encode(own));
  std::vector<std::vector<Term>> of_ranks(static_cast<size_t>(group.world));
  for (int rank = 0; rank < group.world; ++rank) {
    try {
      of_ranks[rank] = rank == group.rank ? own : decode(store.get(key_of(group, tag, rank), deadline, rank));
    } catch (const DeviceError& error) {
      throw DeviceError(cat(what, " on rank ", group.rank, ": rank ", rank, " did not come: ", error.what()));
    }
  }
  std::vector<std::string> said;
  for (auto& of_rank : of_ranks) {
    check(!of_rank.empty(), what, ": a rank has said nothing");
    said.push_back(of_rank.back().name);
    of_rank.pop_back();
  }
  for (int rank = 1; rank < group.world; ++rank) compare(of_ranks[0], of_ranks[rank], rank, what);
  return said;
}

void forget_terms(Store& store, const GroupInfo& group, const std::string& tag) {
  store.remove(key_of(group, tag, group.rank));
}

}  // namespace ark::comm
