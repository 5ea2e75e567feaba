// What a launch of a plan with exchanges has besides: the memory of the ranks, and errors that name them.
#pragma once
#include <string>

#include "device/abi/launch.h"
#include "targets/rank_memory.h"

namespace ark::targets {

void add_ranks(abi::LaunchHeader& header, const plan::Plan& plan, const RankMemory& memory);

/// Where plan or kernel have several groups: what the kernel reads of each, `groups` of them; the header has group 0's
/// already. What the plan does not have is as group 0, of no ranks.
void add_groups(unsigned char* params, const abi::LaunchHeader& header, const plan::Plan& plan,
                const RankMemory* memory, int groups);

/// `slots`: the table of a launch, of 8 bytes each. Boxes get their places in even launches; the kernel adds the rest.
void add_boxes(unsigned char* slots, const plan::Plan& plan, const RankMemory& memory);

/// Every rank of every group hears why this one gives up.
void give_up_all(const RankMemory& memory, const std::string& why);

/// "counter 3", with its group where there are several.
std::string counter_text(const plan::Plan& plan, abi::i32 counter);

/// How many launches came before the one in which a counter was to reach `expected`, if each counts `target` on.
/// Counters wrap, so this is a division modulo 2^32, by the inverse of the target's odd part: right for 2^32 launches
/// over the target's power of two.
abi::u32 launches_before(abi::u32 expected, abi::u32 target);

/// Of an error about another rank; empty: it is about none.
std::string describe_ranks(const plan::Plan& plan, const abi::ErrorRecord& error);

}  // namespace ark::targets
