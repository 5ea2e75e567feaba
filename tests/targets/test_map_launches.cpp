// Numbers of launches by which SMs know which tensor maps are new to them: as they wrap, and behind a failed launch.
#include <random>
#include <vector>

#include "base/types.h"
#include "device/abi/map_launches.h"
#include "support/check.h"

using namespace ark;
using namespace ark::test;

namespace {

constexpr int kMaps = 5, kSms = 7;

/// A run's maps, and what each SM holds of them. Launches are counted from `first` on.
class Run {
 public:
  explicit Run(uint32_t first) : number_(first) {}

  /// Patches some maps, and each SM that takes part acquires what is new to it.
  void launch(const std::vector<bool>& patches, const std::vector<bool>& sms) {
    ++number_;
    for (int m = 0; m < kMaps; ++m)
      if (patches[m]) ++maps_[m].version, maps_[m].patched = newest_ = number_;
    for (int sm = 0; sm < kSms; ++sm)
      if (sms[sm]) acquire(sms_[sm]);
  }
  /// The launch has failed: the host zeroes the run state; what SMs keep of maps they keep.
  void fail() {
    number_ = newest_ = 0;
    for (Map& map : maps_) map.patched = 0;
    for (Sm& sm : sms_) sm.seen = 0;
  }
  int acquired() const { return acquired_; }
  uint32_t number() const { return number_; }

 private:
  struct Map {
    int version = 0;
    uint32_t patched = 0;
  };
  struct Sm {
    int version[kMaps] = {};
    uint32_t seen = 0;
  };

  void acquire(Sm& sm) {
    for (int m = 0; m < kMaps; ++m) {
      if (newest_ != sm.seen && abi::is_new_map(maps_[m].patched, sm.seen, newest_))
        sm.version[m] = maps_[m].version, ++acquired_;
      EXPECT_EQ(sm.version[m], maps_[m].version);
    }
    sm.seen = newest_;
  }

  uint32_t number_, newest_ = 0;
  Map maps_[kMaps];
  Sm sms_[kSms];
  int acquired_ = 0;
};

const std::vector<bool> kAllMaps(kMaps, true), kNoMaps(kMaps, false), kAllSms(kSms, true);

std::vector<bool> some(std::mt19937& random, int count, unsigned one_of) {
  std::vector<bool> chosen;
  for (int i = 0; i < count; ++i) chosen.push_back(random() % one_of == 0);
  return chosen;
}

/// Some maps change in some launches, which take some SMs; numbers wrap on the way.
void test_wrapping() {
  for (const uint32_t first : {0u, 0u - 40, 0u - 3, 0x7fffffffu - 40}) {
    std::mt19937 random(7);
    Run run(first);
    run.launch(kAllMaps, kAllSms);
    for (int i = 0; i < 100; ++i) run.launch(some(random, kMaps, 4), some(random, kSms, 2));
    EXPECT_EQ(run.number(), first + 101);
  }
}

void test_failed_launches() {
  std::mt19937 random(8);
  Run run(0);
  for (int failure = 0; failure < 20; ++failure) {
    run.launch(kAllMaps, some(random, kSms, 2));
    for (unsigned i = random() % 4; i > 0; --i) run.launch(some(random, kMaps, 3), some(random, kSms, 2));
    run.fail();
  }
}

/// Of maps that do not change nothing is acquired again, however often they are used.
void test_needless() {
  Run run(0u - 10);
  run.launch(kAllMaps, kAllSms);
  EXPECT_EQ(run.acquired(), kMaps * kSms);
  for (int i = 0; i < 30; ++i) run.launch(kNoMaps, kAllSms);
  EXPECT_EQ(run.acquired(), kMaps * kSms);
}

/// Every worker counts once a launch.
void test_targets() {
  for (const int workers : {1, 40, 132}) {
    const uint32_t first = 0u - 20;
    uint32_t ready = abi::maps_target(first, workers);
    for (uint32_t i = 1; i < 60; ++i)
      EXPECT_EQ(abi::maps_target(first + i, workers), ready += static_cast<uint32_t>(workers));
  }
}

}  // namespace

int main() {
  test_wrapping();
  test_failed_launches();
  test_needless();
  test_targets();
  return test::result("map_launches");
}
