// Which counters an item's tiles add to (csrc/device/loop/item_arrivals.cuh), compiled for the host: for arrivals that
// are said to be known, every counter gets what its tiles one by one would add.
#include <algorithm>
#include <map>
#include <random>

#include "support/places_on_host.h"
// behind it, since the device headers need what it defines
#include "device/loop/item_arrivals.cuh"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::device;
using ark::test::expect;
using ark::test::finish;

namespace {

using Added = std::map<int, int>;

Added one_by_one(const abi::Arrive& map, const abi::OpRecord& r, int first, int count) {
  Added added;
  for (int tile = first; tile < first + count; ++tile) {
    const int c2 = tile % r.grid[2], rest = tile / r.grid[2];
    const int row = map.base + rest / r.grid[1] * map.coef[0] + rest % r.grid[1] * map.coef[1] + c2 * map.coef[2];
    const int begin = std::max(row, 0), end = std::min(row + map.extent, map.limit);
    for (int c = begin / map.div; begin < end && c <= (end - 1) / map.div; ++c) ++added[c];
  }
  return added;
}

Added known(const ItemArrivals& at) {
  Added added;
  for (int i = 0; i < 2; ++i)
    if (at.tiles[i] > 0) added[at.low + i] = at.tiles[i];
  return added;
}

abi::OpRecord of_grid(int a, int b, int c) {
  abi::OpRecord r{};
  r.grid[0] = a;
  r.grid[1] = b;
  r.grid[2] = c;
  return r;
}

void test_random() {
  std::mt19937 generator(7);
  auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(generator); };
  int are_known = 0, on_two = 0, without = 0;
  for (int round = 0; round < 200000; ++round) {
    const abi::OpRecord r = of_grid(draw(1, 4), draw(1, 4), draw(1, 4) == 1 ? 1 : draw(1, 9));
    const int tiles = r.grid[0] * r.grid[1] * r.grid[2], unit = draw(1, 4);
    abi::Arrive map{};
    map.base = draw(0, 2) == 0 ? draw(-20, 20) : unit * draw(-8, 8);
    for (int& coef : map.coef) coef = draw(0, 2) == 0 ? draw(0, 9) : unit * draw(0, 3);
    map.extent = draw(0, 2) == 0 ? draw(1, 9) : unit;
    map.div = draw(0, 2) == 0 ? draw(1, 30) : unit * draw(1, 12);
    map.limit = draw(1, 90);
    const int first = draw(0, tiles - 1), count = draw(1, tiles - first);
    const ItemArrivals at = ItemArrivals::of(map, r, abi::coordinates_of(r, first), count);
    if (!at.known) continue;
    const Added expected = one_by_one(map, r, first, count);
    ++are_known;
    on_two += expected.size() == 2;
    without += expected.empty();
    if (known(at) != expected) {
      expect(false, "an item of known arrivals adds what its tiles add");
      return;
    }
  }
  expect(are_known > 50000 && on_two > 1000 && without > 1000, "all sorts of items are known");
}

/// Columns of queries, keys and values, 31 a worker, for readers of 256 of them: two counters at most.
void test_columns() {
  const abi::OpRecord r = of_grid(4096, 1, 1);
  const abi::Arrive map{0, 0, {1, 0, 0}, 1, 256, 4096};
  for (int first = 0; first < 4096; first += 31) {
    const int count = std::min(31, 4096 - first);
    const ItemArrivals at = ItemArrivals::of(map, r, abi::coordinates_of(r, first), count);
    expect(at.known && known(at) == one_by_one(map, r, first, count), "31 columns fall on one counter or on two");
  }
  expect(!ItemArrivals::of(map, r, abi::coordinates_of(r, 0), 600).known, "600 columns fall on three");
}

void test_large() {
  const abi::OpRecord r = of_grid(1 << 20, 1, 1);
  const abi::Arrive map{0, 0, {2000, 0, 0}, 2000, 2000 << 19, 2000 << 20};
  const ItemArrivals at = ItemArrivals::of(map, r, abi::coordinates_of(r, (1 << 19) - 3), 5);
  expect(at.known && at.low == 0 && at.tiles[0] == 3 && at.tiles[1] == 2, "rows near the largest number");
}

}  // namespace

int main() {
  test_random();
  test_columns();
  test_large();
  return finish("test_item_arrivals");
}
