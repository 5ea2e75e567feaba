#include "planner/verify/counter_blocks.h"

namespace ark::planner {

CounterBlocks counter_blocks(const abi::OpRecord& record, std::span<const RowMap> maps) {
  CounterBlocks out;
  out.maps = static_cast<int>(maps.size());
  const TileBlock whole = whole_grid(record);
  if (whole.empty()) return out;
  int64_t steps[3] = {1, 1, 1};  // of the coordinates that matter
  int innermost = 2;
  for (int i = 0; i < 3; ++i) {
    const bool used = std::any_of(maps.begin(), maps.end(), [&](const RowMap& m) { return m.coef[i] != 0; });
    if (used && record.grid[i] > 1) steps[i] = record.grid[i], innermost = i;
  }
  const auto most = static_cast<size_t>(steps[0] * steps[1] * steps[2]);
  out.blocks.reserve(most);
  out.ranges.reserve(most * maps.size());
  std::vector<CounterRange> now(maps.size());
  int64_t c[3];
  for (c[0] = 0; c[0] < steps[0]; ++c[0])
    for (c[1] = 0; c[1] < steps[1]; ++c[1])
      for (c[2] = 0; c[2] < steps[2]; ++c[2]) {
        for (size_t m = 0; m < maps.size(); ++m) now[m] = counters_at(maps[m], c);
        if (c[innermost] > 0 && std::equal(now.begin(), now.end(), out.of(out.size() - 1).begin())) {
          ++out.blocks.back().count[innermost];
          continue;
        }
        TileBlock block = whole;
        for (int i = 0; i < 3; ++i)
          if (steps[i] > 1) block.first[i] = c[i], block.count[i] = 1;
        out.blocks.push_back(block);
        out.ranges.insert(out.ranges.end(), now.begin(), now.end());
      }
  return out;
}

size_t find_block(const CounterBlocks& blocks, const TileBlock& other) {
  // blocks are in the order of their first tiles, and a block varies in the coordinates that others do not
  const auto& all = blocks.blocks;
  auto after = std::partition_point(all.begin(), all.end(), [&](const TileBlock& block) {
    for (int i = 0; i < 3; ++i) {
      if (other.first[i] > block.last(i)) return true;
      if (other.first[i] < block.first[i]) return false;
    }
    return false;
  });
  return static_cast<size_t>(after - all.begin());
}

std::vector<RowMap> wait_maps(const abi::OpRecord& record) {
  std::vector<RowMap> maps;
  for (int w = 0; w < record.num_waits; ++w) maps.push_back(row_map(record.wait[w]));
  return maps;
}
std::vector<RowMap> arrive_maps(const abi::OpRecord& record) {
  return {record.arrive, record.arrive + record.num_arrivals};
}

}  // namespace ark::planner
