// Row draws on the host, by the threads of a worker (threads.h, device/program/row_draw.cuh), against what the whole
// row says: rows of many parts, of few and of one, by vectors and by elements, with ties, equals, both zeros, words
// taken away, infinities and NaN, and shares from nothing to everything, or NaN; items that begin anywhere. Where
// candidates tell, the last op reads nothing of the row; where shares are usual, they nearly always do.
#include <array>
#include <cstdio>
#include <random>

#include "warps.h"

using namespace ark::device;

#include "device/program/row_draw.cuh"

namespace {

using X = ark::abi::RowDrawOperand;
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

std::mt19937 engine(7);
int failures = 0, cases = 0;

/// A tensor of the ops, and the operand that names it.
template <class T>
struct Data {
  std::vector<T> values;
  ark::abi::Operand operand{};
  u64 bytes;
  Data(std::vector<i64> stride, i64 size)
      : values(static_cast<size_t>(size) + 16 / sizeof(T)), bytes(static_cast<u64>(size) * sizeof(T)) {
    operand.offset = static_cast<i64>((reinterpret_cast<u64>(values.data()) + 15) / 16 * 16);
    std::copy(stride.begin(), stride.end(), operand.stride);
    allow();
  }
  T* data() { return reinterpret_cast<T*>(operand.offset); }
  void allow() {
    memory.ranges.push_back({static_cast<u64>(operand.offset), static_cast<u64>(operand.offset) + bytes});
  }
  void forbid() {
    std::erase_if(memory.ranges, [&](const auto& range) { return range.first == static_cast<u64>(operand.offset); });
  }
};

using Rows = std::vector<std::vector<float>>;
struct Case {
  Rows values, noise;
  std::vector<float> share;
  int part, vector;
};
struct Drawn {
  std::vector<i64> token;
  std::vector<float> best;
  bool looked = false;  // at the row, by the last op
};

void run_op(const ark::abi::OpRecord& record, const std::vector<ark::abi::Operand>& operands, int first, int count) {
  const Task task{&record, operands.data(), first, count};
  alignas(16) static unsigned char scratch[kScratchBytes];
  Meeting barrier(kConsumerThreads);
  std::vector<Warp> warps(kConsumerWarps);
  warps_of_worker = &warps;
  threads.run(kConsumerThreads, [&](int t) {
    Consumer consumer{t, &barrier, scratch};
    RowDraw<int>::consume(consumer, task);
  });
}

/// All stages, as the planner makes them (planner/fuse/row_draw.cpp).
Drawn drawn(const Case& c) {
  const i64 rows = static_cast<i64>(c.values.size()), size = static_cast<i64>(c.values[0].size());
  const i64 pitch = (size + 3) / 4 * 4, parts = (size + c.part - 1) / c.part;
  constexpr i64 kWords = ark::abi::kDrawListWords, kMasses = ark::abi::kDrawMassWords;
  memory = {};
  Data<float> values({pitch, 1}, rows * pitch), noise({pitch, 1}, rows * pitch), share({1}, rows), best({1}, rows);
  Data<i64> token({1}, rows), masses({parts * kMasses, kMasses, 1}, rows * parts * kMasses);
  Data<u32> lists({parts * kWords, kWords, 1}, rows * parts * kWords);
  for (i64 r = 0; r < rows; ++r) {
    std::ranges::copy(c.values[static_cast<size_t>(r)], values.data() + r * pitch);
    std::ranges::copy(c.noise[static_cast<size_t>(r)], noise.data() + r * pitch);
    share.data()[r] = c.share[static_cast<size_t>(r)];
  }
  std::fill_n(lists.data(), rows * parts * kWords, 0xabababab);  // nobody relies on what was there
  std::fill_n(masses.data(), rows * parts * kMasses, 0x1212121212121212);
  ark::abi::Operand absent{};
  absent.slot = ark::abi::kNoSlot;
  Drawn result;
  for (int stage = parts == 1 ? 2 : 0; stage < 3; ++stage) {
    ark::abi::OpRecord record{};
    record.params.row_draw = {
        static_cast<int>(rows), static_cast<int>(size), c.vector, stage, static_cast<int>(parts), c.part};
    record.grid[0] = static_cast<int>(rows), record.grid[1] = stage == 2 ? 1 : static_cast<int>(parts);
    record.grid[2] = 1;
    std::vector<ark::abi::Operand> o(X::kCount, absent);
    o[X::kValues] = values.operand;
    if (stage != 1) o[X::kNoise] = noise.operand;
    if (stage != 0) o[X::kShare] = share.operand;
    if (stage == 0) o[X::kLists] = lists.operand;
    if (stage == 1) o[X::kListsBefore] = lists.operand, o[X::kMasses] = masses.operand;
    if (stage == 2) o[X::kToken] = token.operand, o[X::kBest] = best.operand;
    if (stage == 2 && parts > 1) o[X::kMassesBefore] = masses.operand;
    const int tiles = record.grid[0] * record.grid[1], first = static_cast<int>(engine() % static_cast<u32>(tiles));
    if (first > 0) run_op(record, o, 0, first);
    run_op(record, o, first, tiles - first);
    if (!memory.fine) ++failures, std::printf("stage %d touches what it may not\n", stage);
    if (stage < 2) continue;
    result.token.assign(token.data(), token.data() + rows), result.best.assign(best.data(), best.data() + rows);
    values.forbid(), noise.forbid();
    run_op(record, o, 0, tiles);
    result.looked = !memory.fine;
  }
  return result;
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// What the whole row says.
void wanted(const std::vector<float>& values, const std::vector<float>& noise, float share, i64& token, float& best) {
  float top = -kInfinity;
  for (const float x : values) top = maximum_or_nan(maximum_or_nan(top, x), x);
  if (!std::isfinite(top)) {
    best = top;
    token = std::ranges::find_if(values, [&](float x) { return same(x, top); }) - values.begin();
    return;
  }
  std::vector<u32> steps;
  for (const float x : values) steps.push_back(SelectHistogram::steps(top - x));
  const auto mass = [](u32 n) { return n > SelectMasses::kFarthest ? 0 : SelectMasses::mass_of(n); };
  std::vector<u32> ordered = steps;
  std::ranges::sort(ordered, std::greater());
  u64 all = 0, behind = 0;
  for (const u32 n : steps) all += mass(n);
  u32 last = 0;
  for (size_t i = 0; i < ordered.size() && last == 0; ++i) {
    behind += mass(ordered[i]);
    if (SelectMasses::exceeds(behind, share, all)) last = ordered[i];
  }
  token = -1;
  for (size_t i = 0; i < values.size(); ++i)
    if (steps[i] <= last && (token < 0 || values[i] + noise[i] > best))
      token = static_cast<i64>(i), best = values[i] + noise[i];
}

Drawn check(const char* name, const Case& c) {
  const Drawn found = drawn(c);
  for (size_t r = 0; r < c.values.size(); ++r) {
    i64 token;
    float best;
    wanted(c.values[r], c.noise[r], c.share[r], token, best);
    ++cases;
    if (found.token[r] == token && same(found.best[r], best)) continue;
    ++failures;
    std::printf("%s, row %zu, share %g: %lld (%g), expected %lld (%g)\n", name, r, c.share[r],
                static_cast<long long>(found.token[r]), found.best[r], static_cast<long long>(token), best);
  }
  return found;
}

std::vector<float> gumbel(int size) {
  std::uniform_real_distribution<double> uniform(1e-12, 1);
  std::vector<float> row(static_cast<size_t>(size));
  for (float& x : row) x = static_cast<float>(-std::log(-std::log(uniform(engine))));
  return row;
}

/// Values of each kind.
Rows kinds(int size) {
  std::normal_distribution<float> normal;
  Rows rows(15, std::vector<float>(static_cast<size_t>(size)));
  for (int i = 0; i < size; ++i) {
    const float x = 3 * normal(engine);
    const float of[] = {x,
                        std::round(x * 4) / 4,
                        -1.5f,
                        engine() % 2 == 0 ? 0.5f : 1.25f,
                        engine() % 10 == 0 ? x : -kInfinity,
                        i == 7 ? 0.0f : -40 * std::abs(x),
                        i == size / 2 ? 30.0f : x,
                        -static_cast<float>(i) / 16,
                        i < 40 ? x + 40 : x,
                        3 + x * 0x1p-21f,
                        i % 100 == 3 ? kNan : x,
                        i == size - 3 ? kInfinity : x,
                        -kInfinity,
                        i == size - 1 ? 0.0f : -20.0f,
                        engine() % 2 == 0 ? 0.0f : -0.0f};
    for (size_t r = 0; r < rows.size(); ++r) rows[r][static_cast<size_t>(i)] = of[r];
  }
  return rows;
}

/// The greatest sums lie side by side, and most of them are of elements that are not kept: what is drawn is in no list,
/// while kept ones of smaller sums are. `beside` elements are such.
void check_hidden(const char* name, int size, int part, int beside) {
  std::uniform_real_distribution<float> sum(0, 5);
  Case c{{}, {}, {}, part, 4};
  for (int r = 0; r < 12; ++r) {
    std::vector<float> values, noise;
    const int first = static_cast<int>(engine() % static_cast<u32>(size - beside));
    for (int i = 0; i < size; ++i) {
      const bool is_beside = i >= first && i < first + beside;
      values.push_back(is_beside ? (i % beside < (beside + 1) / 2 ? -20.0f : 0.0f) : i % 500 == 77 ? 0.0f : -30.0f);
      const bool kept = values.back() == 0;
      noise.push_back(sum(engine) - values.back() + (is_beside ? (kept ? 10.0f : 20.0f) : kept ? 5.0f : 0.0f));
    }
    c.values.push_back(values), c.noise.push_back(noise), c.share.push_back(0.3f);
  }
  check(name, c);
}

void check_all(const char* name, int size, int part, int vector) {
  const Rows rows = kinds(size);
  const std::array shares = {0.99f, 0.1f, 0.5f, 0.0f, 0.9f, 0.01f, 1.0f, -0.5f, 2.0f, kNan, -0.0f};
  for (size_t turn = 0; turn < 4; ++turn) {
    Rows noise;
    std::vector<float> share;
    for (size_t r = 0; r < rows.size(); ++r) {
      noise.push_back(gumbel(size));
      if (turn == 2 && r % 2 == 0) std::ranges::fill(noise.back(), 0.25f);  // sums are ties where values are
      if (turn == 3)                                                        // and of zeros
        for (float& x : noise.back()) x = engine() % 2 == 0 ? 0.0f : -0.0f;
      share.push_back(shares[(r + 4 * turn) % shares.size()]);
    }
    check(name, {rows, noise, share, part, vector});
  }
}

/// How many of so many rows the last op had to look at.
int looked_at(int size, int part, float share, int count) {
  int looked = 0;
  for (int i = 0; i < count; ++i)
    looked += check("one row", {{kinds(size)[0]}, {gumbel(size)}, {share}, part, 4}).looked;
  return looked;
}

}  // namespace

int main() {
  check_all("many parts", 12002, 164, 4);
  check_all("many parts, elements", 5401, 76, 1);
  check_all("few parts of several loads", 20002, 5004, 4);
  check_all("sixteen parts", 16384, 1024, 4);
  check_all("one worker's", 3001, 3004, 4);
  check_all("one worker's, elements", 4099, 4100, 1);
  check_all("fewer than a vector", 3, 4, 4);
  check_hidden("hidden by neighbours", 9000, 1028, 3);
  check_hidden("hidden in a warp", 9000, 1028, 40);
  check_hidden("hidden in a part", 12002, 164, 160);
  const int usual =
      looked_at(12002, 164, 0.1f, 12) + looked_at(16384, 1024, 0.1f, 12) + looked_at(20002, 5004, 0.1f, 12);
  const int rare = looked_at(12002, 164, 0.9f, 4) + looked_at(20002, 5004, 0.99f, 12);
  std::printf("%d cases, %d failures; rows looked at: %d with usual shares, %d with others\n", cases, failures, usual,
              rare);
  return failures != 0 || usual != 0 || rare == 0;
}
