// Ranks compare what they have to have in common, before any of them relies on it.
#pragma once
#include <string>
#include <vector>

#include "comm/store.h"

namespace ark::comm {

struct Term {
  std::string name;   // what this rank calls it; not compared
  std::string value;  // compared
};

/// Collective; `tag` is unique in the store, `what` begins the texts. Throws UserError on every rank if the terms of
/// one differ from those of rank 0: the first of them that do, of the lowest such rank. DeviceError if a rank does not
/// come. Returns what each rank says besides, which need not be the same. forget_terms() when every rank has returned.
std::vector<std::string> agree(Store& store, const GroupInfo& group, const std::string& tag, const std::string& what,
                               const std::vector<Term>& terms, const std::string& besides, Clock::time_point deadline);
void forget_terms(Store& store, const GroupInfo& group, const std::string& tag);

}  // namespace ark::comm
