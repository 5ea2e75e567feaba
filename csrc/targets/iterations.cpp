#include "base/check.h"
#include "targets/target.h"

namespace ark::targets {

void check_iterations(const plan::Plan& plan, const Iterations& iterations) {
  check<UserError>(!plan.loop.carried.empty(), "plan '", plan.name, "' is no loop: it carries nothing");
  check<UserError>(iterations.most >= 0, "plan '", plan.name, "': ", iterations.most, " iterations");
  check<UserError>(plan.world == 1, "plan '", plan.name, "' has exchanges: one iteration a launch");
}

}  // namespace ark::targets
