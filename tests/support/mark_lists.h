// Lists that differ little, each held once: a list is a shorter one and a mark behind it. For memories of millions of
// cells, most of which have the list of their neighbour.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace ark::test {

class MarkLists {
 public:
  using List = int32_t;  // 0: the empty one

  /// The list with the mark behind it, unless it ends in that mark.
  List add(List list, int64_t mark) {
    if (links_[static_cast<size_t>(list)].mark == mark) return list;
    if (list == last_list_ && mark == last_mark_) return last_;
    const auto [at, fresh] = longer_.try_emplace({mark, list}, static_cast<List>(links_.size()));
    if (fresh) links_.push_back({mark, list});
    last_list_ = list, last_mark_ = mark, last_ = at->second;
    return last_;
  }
  /// Last mark first.
  std::vector<int64_t> marks(List list) const {
    std::vector<int64_t> out;
    for (; list != 0; list = links_[static_cast<size_t>(list)].shorter)
      out.push_back(links_[static_cast<size_t>(list)].mark);
    return out;
  }

 private:
  struct Link {
    int64_t mark;
    List shorter;
  };
  std::vector<Link> links_{{-1, 0}};
  std::map<std::pair<int64_t, List>, List> longer_;
  List last_list_ = -1, last_ = 0;
  int64_t last_mark_ = -1;
};

/// The lists of a memory, each once.
inline void add_different(const std::vector<MarkLists::List>& memory, std::set<MarkLists::List>& lists) {
  MarkLists::List before = 0;
  for (const MarkLists::List list : memory)
    if (list != before) lists.insert(before = list);
}

}  // namespace ark::test
