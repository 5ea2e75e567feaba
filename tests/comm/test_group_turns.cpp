// launch_in_groups: nobody holds a turn while it waits for ranks, and whoever may wait for a launch that is not made
// hears why.
#include <memory>
#include <string>

#include "base/check.h"
#include "comm/group_turns.h"
#include "support/check.h"

using namespace ark;

namespace {

/// What happens, in order: m0 (met in group 0), t0 (took the turn), g0 (gave it back), l (launched), f0 (was told).
struct Story {
  std::string text;
  int meet_fails = -1, take_fails = -1;
  bool refuses = false, launch_fails = false, index_error = false;

  struct Turn {
    Story* story;
    size_t place;
    std::shared_ptr<void> held{};

    void take() {
      check<DeviceError>(static_cast<int>(place) != story->take_fails, "no CUDA side");
      story->text += cat(" t", place);
      held = {story, [place = place](void* of) { static_cast<Story*>(of)->text += cat(" g", place); }};
    }
  };

  Turn meet(size_t place) {
    const bool fails = static_cast<int>(place) == meet_fails;
    check<RanksDisagree>(!fails || !refuses, "ranks disagree");
    check<DeviceError>(!fails, "rank 1 did not come");
    text += cat(" m", place);
    return {this, place};
  }
  void launch() {
    check<DeviceError>(!launch_fails, "no memory");
    text += " l";
    if (index_error) throw IndexOutOfRange(4, 3, "gather");
  }
  std::string run(size_t groups) {
    try {
      comm::launch_in_groups(
          groups, [&](size_t place) { return meet(place); }, [&](const std::vector<Turn>&) { launch(); },
          [&](size_t place, const std::string&) { text += cat(" f", place); });
    } catch (const std::exception& error) {
      text += cat(" ! ", error.what());
    }
    return text;
  }
};

void test_order() {
  EXPECT_EQ(Story{}.run(1), std::string(" m0 t0 l g0"));
  EXPECT_EQ(Story{}.run(3), std::string(" m0 m1 m2 t0 t1 t2 l g0 g1 g2"));
}

void test_who_hears() {
  EXPECT_EQ(Story{.meet_fails = 1}.run(3), std::string(" m0 f0 f1 f2 ! rank 1 did not come"));
  EXPECT_EQ((Story{.meet_fails = 1, .refuses = true}.run(3)), std::string(" m0 f0 f2 ! ranks disagree"));
  EXPECT_EQ(Story{.take_fails = 1}.run(2), std::string(" m0 m1 t0 g0 f0 f1 ! no CUDA side"));
  EXPECT_EQ(Story{.launch_fails = true}.run(2), std::string(" m0 m1 t0 t1 g0 g1 f0 f1 ! no memory"));
  EXPECT_EQ(Story{.index_error = true}.run(2),
            std::string(" m0 m1 t0 t1 l g0 g1 ! index 4 is out of range for size 3 in op 'gather'"));
}

}  // namespace

int main() {
  test_order();
  test_who_hears();
  return test::result("group turns");
}
