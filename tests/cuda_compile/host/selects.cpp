// Row selects on the host, by the threads of a worker (threads.h, device/program/row_select.cuh), against sorted
// rows: rows of parts and of one worker, by vectors and by elements, of values and of distances, with ties of whole
// rows, neighbours that differ in their last bits, infinities and NaN. The last op may read what it has to only:
// nothing where all that is left has one digit, else the parts that have some of it.
#include <array>
#include <cstdio>
#include <limits>
#include <random>

#include "warps.h"

using namespace ark::device;

#include "device/program/row_select.cuh"

namespace {

using X = ark::abi::RowSelectOperand;
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

std::mt19937 engine(5);
int failures = 0, cases = 0, alike = 0, looked_at = 0;  // rows of the last op
int listed_rows = 0, searched_rows = 0;                 // of the last op that has lists
int short_rows = 0;                                     // of those: too few in the lists

struct Case {
  std::vector<std::vector<float>> rows;  // values, of one length
  std::vector<i64> count;                // of each row, or
  std::vector<float> share;
  int part, vector;
  bool of_values;  // distances are made from them; else they are distances
  int tops = 3;    // with lists where there are more, and with a cut by `cut`, of each row
  std::vector<float> cut = {};
  bool all_tops = false;  // maxima are the row's, each of them, as no planner makes them: lists are too short
};

i64 steps_of(float distance) {
  const double steps = static_cast<double>(distance) * ark::abi::kSelectSteps;
  return steps < ark::abi::kSelectFarthest ? static_cast<i64>(steps) : ark::abi::kSelectFarthest;
}

/// A tensor of the ops, and the operand that names it.
template <class T>
struct Data {
  std::vector<T> values;
  ark::abi::Operand operand{};
  Data(std::vector<i64> stride, i64 size) : values(static_cast<size_t>(size) + 16 / sizeof(T)) {
    const u64 at = (reinterpret_cast<u64>(values.data()) + 15) / 16 * 16;
    operand.offset = static_cast<i64>(at);
    std::copy(stride.begin(), stride.end(), operand.stride);
    memory.ranges.push_back({at, at + static_cast<u64>(size) * sizeof(T)});
  }
  T* data() { return reinterpret_cast<T*>(operand.offset); }
};

void run_op(const ark::abi::OpRecord& record, const std::vector<ark::abi::Operand>& operands) {
  const Task task{&record, operands.data(), 0, record.grid[0] * record.grid[1]};
  alignas(16) static unsigned char scratch[kScratchBytes];
  Meeting barrier(kConsumerThreads);
  std::vector<Warp> warps(kConsumerWarps);
  warps_of_worker = &warps;
  threads.run(kConsumerThreads, [&](int t) {
    Consumer consumer{t, &barrier, scratch};
    RowSelect<int>::consume(consumer, task);
  });
}

/// The last op again: of a row's distances it has those of the parts that it has to look at.
void run_with_what_it_needs(const Case& c, const ark::abi::OpRecord& record, const std::vector<ark::abi::Operand>& o,
                            Data<float>& distance, Data<i64>& out) {
  const i64 rows = static_cast<i64>(c.rows.size()), size = static_cast<i64>(c.rows[0].size());
  const std::vector<i64> found(out.data(), out.data() + rows);
  const u64 begin = reinterpret_cast<u64>(distance.data());
  std::erase_if(memory.ranges, [&](const auto& range) { return range.first == begin; });
  for (i64 r = 0; r < rows; ++r) {
    const float* row = distance.data() + r * distance.operand.stride[0];
    std::vector<bool> has(static_cast<size_t>((size + c.part - 1) / c.part));
    i64 least = 1 << 28, most = -1;
    for (i64 i = 0; i < size; ++i) {
      const i64 steps = steps_of(row[i]);
      if (steps >> 8 != found[static_cast<size_t>(r)] >> 8) continue;
      has[static_cast<size_t>(i / c.part)] = true;
      if (!c.count.empty() || row[i] < ark::abi::kSelectMassless)
        least = std::min(least, steps), most = std::max(most, steps);
    }
    ++(least < most ? looked_at : alike);
    for (i64 part = 0; part < static_cast<i64>(has.size()) && least < most; ++part)
      if (has[static_cast<size_t>(part)])
        memory.ranges.push_back({reinterpret_cast<u64>(row + part * c.part),
                                 reinterpret_cast<u64>(row + std::min<i64>(size, (part + 1) * c.part))});
  }
  std::fill_n(out.data(), rows, -1);
  run_op(record, o);
  if (!memory.fine || !std::equal(found.begin(), found.end(), out.data())) {
    ++failures;
    std::printf("a last op reads more than it needs, or finds something else\n");
  }
}

/// The last op again: nothing of a row whose lists have it all, and what is left of the lists' memory is as it was.
void run_with_lists(const Case& c, const ark::abi::OpRecord& record, const std::vector<ark::abi::Operand>& o,
                    Data<float>& distance, Data<i64>& out) {
  const i64 rows = static_cast<i64>(c.rows.size());
  const std::vector<i64> found(out.data(), out.data() + rows);
  const ark::abi::Operand& lists = o[X::kSumsBefore];
  const u64 begin = reinterpret_cast<u64>(distance.data());
  std::erase_if(memory.ranges, [&](const auto& range) { return range.first == begin; });
  for (i64 r = 0; r < rows; ++r) {
    u32 all = 0, longest = 0, all_near = 0;
    for (i64 part = 0; part < record.params.row_select.parts; ++part) {
      const u32 word = *(reinterpret_cast<const u32*>(lists.offset) + r * lists.stride[0] + part * lists.stride[1]);
      const u32 count = word & ~ark::abi::kSelectAllNear;
      all_near |= word ^ count;
      all += count, longest = std::max(longest, count);
    }
    const i64 k = c.count[static_cast<size_t>(r)];
    const bool enough = all_near != 0 || all >= k || k > static_cast<i64>(c.rows[0].size());
    const bool fits = longest < ark::abi::kSelectListWords && all <= 1024 && enough;
    short_rows += enough ? 0 : 1;
    ++(fits ? listed_rows : searched_rows);
    const u64 row = begin + static_cast<u64>(r * distance.operand.stride[0]) * 4;
    if (!fits) memory.ranges.push_back({row, row + c.rows[0].size() * 4});
  }
  std::fill_n(out.data(), rows, -1);
  run_op(record, o);
  if (!memory.fine || !std::equal(found.begin(), found.end(), out.data())) {
    ++failures;
    std::printf("a last op of lists reads more than it needs, or finds something else\n");
  }
}

/// All rounds, as the planner makes them (planner/fuse/row_select.cpp); the bits of each row, and its distances.
std::vector<i64> found_by(const Case& c, std::vector<std::vector<float>>& distances, std::vector<i64>& cuts) {
  const i64 rows = static_cast<i64>(c.rows.size()), size = static_cast<i64>(c.rows[0].size());
  const i64 pitch = (size + 3) / 4 * 4, parts = (size + c.part - 1) / c.part, tops = c.tops;
  const bool listed = c.tops > 3;
  constexpr i64 kWords = ark::abi::kSelectWords, kState = ark::abi::kSelectState;
  memory = {};
  Data<float> x({pitch, 1}, rows * pitch), made({pitch, 1}, rows * pitch), top({tops, 1}, rows * tops);
  Data<float> share({1}, rows);
  Data<i64> count({1}, rows), out({1}, rows), cut({1}, rows);
  std::vector<Data<u32>> sums;
  std::vector<Data<i64>> state;
  for (int i = 0; i < 3; ++i) {
    sums.emplace_back(std::vector<i64>{parts * kWords, kWords, 1}, rows * parts * kWords);
    state.emplace_back(std::vector<i64>{parts * kState, kState, 1}, rows * parts * kState);
  }
  for (i64 r = 0; r < rows; ++r) {
    std::copy(c.rows[r].begin(), c.rows[r].end(), x.data() + r * pitch);
    const i64 each = listed ? (size + tops - 1) / tops : size;
    for (i64 i = 0; i < tops; ++i) {
      float largest = -kInfinity;
      for (i64 k = c.all_tops ? 0 : i * each; k < (c.all_tops ? size : std::min(size, (i + 1) * each)); ++k)
        largest = maximum_or_nan(maximum_or_nan(largest, c.rows[r][k]), c.rows[r][k]);
      top.data()[r * tops + i] = largest;
    }
    if (c.count.empty())
      share.data()[r] = c.share[static_cast<size_t>(r)];
    else
      count.data()[r] = c.count[static_cast<size_t>(r)];
    if (!c.cut.empty()) share.data()[r] = c.cut[static_cast<size_t>(r)];
  }
  ark::abi::Operand absent{};
  absent.slot = ark::abi::kNoSlot;
  const bool whole = parts == 1;
  for (int round = 0; round <= (whole ? 0 : ark::abi::kSelectLast); round += listed ? ark::abi::kSelectLast : 1) {
    const bool last = whole || round == ark::abi::kSelectLast, joins = c.of_values && round == 0;
    ark::abi::OpRecord record{};
    record.params.row_select = {static_cast<int>(rows),
                                static_cast<int>(size),
                                c.vector,
                                c.count.empty(),
                                round,
                                static_cast<int>(parts),
                                c.part,
                                joins ? static_cast<int>(tops) : 0,
                                listed};
    record.grid[0] = static_cast<int>(rows), record.grid[1] = last ? 1 : static_cast<int>(parts), record.grid[2] = 1;
    std::vector<ark::abi::Operand> o(X::kCount, absent);
    Data<float>& distance = c.of_values && !joins ? made : x;
    o[X::kDistance] = distance.operand;
    if (joins) o[X::kTops] = top.operand, o[X::kMade] = made.operand;
    if (whole || listed || round == 1) o[X::kBound] = c.count.empty() ? share.operand : count.operand;
    if (last) o[X::kOut] = out.operand;
    if (last && !c.cut.empty()) o[X::kShare] = share.operand, o[X::kCut] = cut.operand;
    if (!last) o[X::kSums] = sums[static_cast<size_t>(round)].operand;
    if (!last && round > 0) o[X::kState] = state[static_cast<size_t>(round)].operand;
    if (round > 0) o[X::kSumsBefore] = sums[listed ? 0 : static_cast<size_t>(round - 1)].operand;
    if (round > 1 && !listed) o[X::kStateBefore] = state[static_cast<size_t>(round - 1)].operand;
    run_op(record, o);
    if (last && listed)
      run_with_lists(c, record, o, distance, out);
    else if (last && !whole)
      run_with_what_it_needs(c, record, o, distance, out);
  }
  cuts.assign(cut.data(), cut.data() + rows);
  distances = c.rows;
  for (i64 r = 0; r < rows && c.of_values; ++r)
    std::copy_n(made.data() + r * pitch, size, distances[static_cast<size_t>(r)].begin());
  return {out.data(), out.data() + rows};
}

bool right_count(std::vector<i64> steps, i64 count, i64 found) {
  std::sort(steps.begin(), steps.end());
  const i64 size = static_cast<i64>(steps.size());
  return found == (count <= 0 ? 0 : count > size ? (1 << 28) - 1 : steps[static_cast<size_t>(count - 1)]);
}

bool right_mass(const std::vector<float>& distances, const std::vector<i64>& steps, float share, i64 found) {
  double all = 0, not_below = 0, behind = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool has_mass = distances[i] < ark::abi::kSelectMassless;  // no NaN has
    const double mass = has_mass ? std::exp(-static_cast<double>(distances[i])) : 0;
    all += mass;
    not_below += steps[i] >= found ? mass : 0;
    behind += steps[i] > found ? mass : 0;
  }
  const double error = std::ldexp(all, -15);
  return (not_below > share * all - error || found == 0) && behind <= share * all + error;
}

void check(const char* name, const Case& c) {
  std::vector<std::vector<float>> distances;
  std::vector<i64> cuts;
  const std::vector<i64> found = found_by(c, distances, cuts);
  for (size_t r = 0; r < found.size(); ++r) {
    std::vector<i64> steps;
    float top = -kInfinity;
    bool same = memory.fine;
    for (const float x : c.rows[r]) top = maximum_or_nan(maximum_or_nan(top, x), x);
    for (size_t i = 0; i < distances[r].size(); ++i) {
      steps.push_back(steps_of(distances[r][i]));
      const float wanted = c.of_values ? top - c.rows[r][i] : c.rows[r][i];
      same = same && (distances[r][i] == wanted || (std::isnan(wanted) && std::isnan(distances[r][i])));
    }
    ++cases;
    same = same && (c.count.empty() ? right_mass(distances[r], steps, c.share[r], found[r])
                                    : right_count(steps, c.count[r], found[r]));
    if (!c.cut.empty()) {
      std::vector<float> kept = distances[r];
      std::vector<i64> steps_of_kept = steps;
      for (size_t i = 0; i < kept.size(); ++i)
        if (steps[i] > found[r]) kept[i] = kInfinity, steps_of_kept[i] = ark::abi::kSelectFarthest;
      same = same && right_mass(kept, steps_of_kept, c.cut[r], cuts[r]);
      i64 farthest = 0;  // that is not ark::abi::kSelectFarthest away, whichever way has found it
      for (const i64 n : steps_of_kept) farthest = std::max(farthest, n < ark::abi::kSelectFarthest ? n : 0);
      same = same && (c.cut[r] > 0 || cuts[r] == farthest);
    }
    if (same) continue;
    ++failures;
    std::printf("%s, row %zu: found %lld\n", name, r, static_cast<long long>(found[r]));
  }
}

/// Distances of each kind.
std::vector<std::vector<float>> kinds(int size) {
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> rows(10, std::vector<float>(static_cast<size_t>(size)));
  for (int i = 0; i < size; ++i) {
    const float x = std::abs(3 * normal(engine));
    const float of[] = {x,
                        2.5f,
                        engine() % 2 == 0 ? 0.5f : 1.25f,
                        3 + x * 0x1p-21f,
                        engine() % 10 == 0 ? x : kInfinity,
                        i == 7 ? 0.0f : 40 * x,
                        i % 100 == 3 ? kNan : x,
                        i == size - 1 ? 0.0f : 20.0f,
                        i == size - 3 || i == 9 ? 3 + static_cast<float>(i % 200) * 0x1p-22f : 8 + x,  // of two parts
                        3 + static_cast<float>(i % 2) * 0x1p-22f};
    for (size_t r = 0; r < rows.size(); ++r) rows[r][static_cast<size_t>(i)] = of[r];
  }
  return rows;
}

/// Rows with lists: some, none, and more than there is room for.
void check_lists(const char* name, int size, int part, int vector, int tops) {
  std::vector<std::vector<float>> rows = kinds(size);
  for (std::vector<float>& row : rows)
    for (float& x : row) x = 7 - x;
  rows[6][0] = kInfinity;  // beside NaN
  rows.resize(15, rows[0]);
  std::shuffle(rows[10].begin(), rows[10].end(), engine);
  std::fill(rows[11].begin(), rows[11].end(), -kInfinity);
  std::fill(rows[12].begin() + 40, rows[12].end(), -kInfinity);
  rows[13][size / 2] = kInfinity;
  for (int i = 5; i < size; i += 3) rows[14][static_cast<size_t>(i)] = -68;  // masses that count in no way
  for (const std::vector<i64>& count :
       {std::vector<i64>{50, 1, 7, 20, 50, 3, 2, 1, 2, 60, tops, 5, 41, 2, 30},
        std::vector<i64>{1, 0, tops + 1, 2, size, 1, size, size + 1, 1, tops, -3, size + 1, 40, 1, size},
        std::vector<i64>{tops, 2, 1, tops, 3, tops, size + 1, 5, 3, 2, tops + 1, 0, 39, size, size - 1}}) {
    if (count[0] == 50) check(name, {rows, count, {}, part, vector, true, tops});
    std::vector<float> cut;
    for (size_t r = 0; r < rows.size(); ++r) cut.push_back(std::array{0.1f, 0.5f, 0.7f, 0.02f, 0.99f}[engine() % 5]);
    if (count[0] != 50) cut[5] = cut[12] = cut[14] = 0;
    check(name, {rows, count, {}, part, vector, true, tops, cut});
    if (count[0] == 50) check(name, {rows, count, {}, part, vector, true, tops, cut, true});
  }
}

void check_all(const char* name, int size, int part, int vector, bool of_values) {
  std::vector<std::vector<float>> rows = kinds(size);
  if (of_values)
    for (std::vector<float>& row : rows)
      for (float& x : row) x = 7 - x;
  if (of_values) rows[6][0] = kInfinity;  // beside NaN
  check(name,
        {rows, {50, 1, size / 2, 100, size - 1, 3, size, size + 1, 2, size / 2 + 1}, {}, part, vector, of_values});
  check(name, {rows, {}, {0.1f, 0.5f, 0.7f, 0.2f, 0, 0.01f, 0.999f, 1, 0.7f, 0.4f}, part, vector, of_values});
}

}  // namespace

int main() {
  check_all("parts, vectors", 4099, 1028, 4, false);
  check_all("parts of several rounds of loads", 20002, 10004, 4, true);
  check_all("parts of values", 4100, 1028, 4, true);
  const std::vector<std::vector<float>> rows = kinds(532);  // more parts than all threads load at once
  check("many parts", {{rows[3], rows[8]}, {}, {0.3f, 0.7f}, 4, 4, false});
  check_all("parts, elements", 4099, 1028, 1, true);
  check_lists("lists, vectors", 8192, 1028, 4, 64);
  check_lists("lists of long parts", 20002, 5004, 4, 128);
  check_lists("lists, elements", 8195, 132, 1, 97);
  check_all("one worker's", 3001, 3004, 4, false);
  check_all("one worker's, elements", 9001, 9004, 1, false);
  check_all("fewer than a vector", 3, 4, 4, false);
  std::printf("%d cases, %d failures; last digits of %d rows told by marks, of %d looked for\n", cases, failures, alike,
              looked_at);
  std::printf("lists of %d rows have it all, of %d not, %d of them too few\n", listed_rows, searched_rows, short_rows);
  return failures != 0 || alike == 0 || looked_at == 0 || listed_rows == 0 || searched_rows == 0 || short_rows == 0;
}
