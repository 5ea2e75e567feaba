#include "bindings/distributed/plan_parts.h"

#include <algorithm>
#include <array>
#include <functional>
#include <sstream>

#include "base/check.h"
#include "base/user_errors.h"

namespace ark::bindings {
namespace {

using planner::RankParts;

/// Of exchange `number`; null: the rank neither stores nor reads any.
const RankParts* find(const std::vector<RankParts>& of_rank, int64_t number) {
  const auto found = std::ranges::find(of_rank, number, &RankParts::exchange);
  return found == of_rank.end() ? nullptr : &*found;
}
int64_t bytes_in(const RankParts* parts, size_t from) { return parts == nullptr ? 0 : parts->in[from]; }
int64_t bytes_out(const RankParts* parts, size_t to) { return parts == nullptr ? 0 : parts->out[to]; }

void check_pair(const RankParts* of_sender, const RankParts* of_reader, size_t sender, size_t reader,
                const std::string& what) {
  const int64_t sent = bytes_out(of_sender, reader), expected = bytes_in(of_reader, sender);
  if (sent == expected) return;
  const RankParts& known = of_sender != nullptr ? *of_sender : *of_reader;
  throw RanksDisagree(cat(what, ": split sizes of '", known.name, "' disagree: rank ", sender, " sends ",
                          sent / size_bytes(known.dtype), " elements to rank ", reader, ", rank ", reader, " expects ",
                          expected / size_bytes(known.dtype), " from rank ", sender));
}

}  // namespace

std::string encode(const RankSays& says) {
  std::ostringstream out;
  out << says.segment_bytes;
  for (const RankParts& parts : says.parts) {
    out << ' ' << parts.exchange << ' ' << parts.name << ' ' << static_cast<int>(parts.dtype) << ' '
        << parts.out.size();
    for (const std::vector<int64_t>* bytes : {&parts.out, &parts.in})
      for (const int64_t one : *bytes) out << ' ' << one;
  }
  return out.str();
}

RankSays decode(const std::string& text) {
  std::istringstream in(text);
  RankSays says;
  in >> says.segment_bytes;
  for (RankParts parts; in >> parts.exchange;) {
    size_t world = 0;
    int dtype = 0;
    in >> parts.name >> dtype >> world;
    parts.dtype = static_cast<DType>(dtype);
    for (std::vector<int64_t>* bytes : {&parts.out, &parts.in}) {
      bytes->assign(world, 0);
      for (int64_t& one : *bytes) in >> one;
    }
    check(static_cast<bool>(in), "what a rank says of its parts is cut off: ", text);
    says.parts.push_back(std::move(parts));
  }
  return says;
}

comm::LaunchNote launch_note(const plan::Plan& plan, const std::string& key) {
  const auto digest = [](const std::string& text) -> uint64_t { return std::hash<std::string>()(text); };
  std::string interface = plan.splits;
  for (const planner::RankTerm& term : planner::rank_interface(plan)) interface += term.value + '\n';
  comm::LaunchNote note{.plan = digest(key), .interface = digest(interface)};
  std::array<std::string, comm::kMaxHostRanks> to, from;
  for (const RankParts& parts : planner::rank_parts(plan)) {
    const auto add = [&](auto& texts, const std::vector<int64_t>& bytes) {
      for (size_t rank = 0; rank < bytes.size(); ++rank)
        if (bytes[rank] > 0) texts[rank] += cat(parts.exchange, ' ', name(parts.dtype), ' ', bytes[rank], '\n');
    };
    add(to, parts.out), add(from, parts.in);
  }
  for (size_t rank = 0; rank < static_cast<size_t>(plan.world); ++rank)
    note.to[rank] = digest(to[rank]), note.from[rank] = digest(from[rank]);
  return note;
}

PartLayout place_parts(const std::vector<std::vector<RankParts>>& of_ranks, int rank, int64_t box_bytes,
                       const std::string& what) {
  const size_t world = of_ranks.size();
  PartLayout layout;
  std::map<int64_t, std::vector<const RankParts*>> exchanges;
  for (const std::vector<RankParts>& of_rank : of_ranks)
    for (const RankParts& parts : of_rank) exchanges[parts.exchange].resize(world);
  for (auto& [number, by_rank] : exchanges) {
    for (size_t r = 0; r < world; ++r) by_rank[r] = find(of_ranks[r], number);
    for (size_t sender = 0; sender < world; ++sender)
      for (size_t reader = 0; reader < world; ++reader)
        check_pair(by_rank[sender], by_rank[reader], sender, reader, what);
    targets::PartPlaces& places = layout.parts[number];
    int64_t most = 0;
    for (size_t reader = 0; reader < world; ++reader) {
      int64_t place = 0;
      for (size_t sender = 0; sender < world; ++sender) {
        const int64_t at = box_bytes + layout.bytes + place;
        if (reader == static_cast<size_t>(rank)) places.in.push_back(at);
        if (sender == static_cast<size_t>(rank)) places.out.push_back(at);
        place += plan::box_stride(bytes_in(by_rank[reader], sender));
      }
      most = std::max(most, place);
    }
    layout.bytes += most;
  }
  return layout;
}

}  // namespace ark::bindings
