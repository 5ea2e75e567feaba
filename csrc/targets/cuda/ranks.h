// What a launch of a plan with exchanges has besides: the memory of the ranks, and errors that name them.
#pragma once
#include <string>

#include "device/abi/launch.h"
#include "targets/rank_memory.h"

namespace ark::targets {

void add_ranks(abi::LaunchHeader& header, const plan::Plan& plan, const RankMemory& memory);

/// `slots`: the table of a launch, of 8 bytes each. Boxes get their places in even launches; the kernel adds the rest.
void add_boxes(unsigned char* slots, const plan::Plan& plan, const RankMemory& memory);

/// Of an error about another rank; empty: it is about none.
std::string describe_ranks(const plan::Plan& plan, const abi::ErrorRecord& error);

}  // namespace ark::targets
