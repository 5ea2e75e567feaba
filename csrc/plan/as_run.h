// A plan as the GPU runs it. What an op of the planner's plan says is what the host target runs and the verifier reads;
// beside it stands what the loop kernel does otherwise (Op::flags), and a kernel that other plans share has numbers of
// its own for programs and forms (KernelNumbers). run_op applies all of it to one op, `pack` lays out what run_op
// gives, and as_run is the plan of these ops, for people (run.txt of a dump).
#pragma once
#include "plan/plan.h"
#include "plan/run_op.h"

namespace ark::plan {

/// The waits and arrivals that the flags leave; what is read before them (early_reads.h); flagged operands in
/// abi::kFlagSlot; boxes marked by abi::kBoxSlot and their group; counters of exchanges by group (run_counter); the
/// kernel's numbers of programs and forms; the record's number and lengths. Throws what check_limits throws.
RunOp run_op(const Plan& plan, size_t index, const KernelNumbers& numbers = {});

/// A slot as the kernel reads it: boxes are marked (abi::kBoxSlot), with their group.
uint32_t run_slot(const Plan& plan, uint32_t slot);

/// A counter of exchanges as the kernel reads it (abi::kCounterGroupShift), and the plan's number of such a one.
uint32_t run_counter(const Plan& plan, uint32_t counter);
uint32_t planned_counter(const Plan& plan, uint32_t run_counter);

/// The plan whose ops are those of run_op and say nothing beside. Programs stand at the kernel's numbers; those of the
/// kernel that the plan has not are empty. Few-row products, whose records name no programs (their forms do), name here
/// those of their forms. To be printed: pack, the verifier and the host target take the planner's plan.
Plan as_run(const Plan& plan, const KernelNumbers& numbers = {});

}  // namespace ark::plan
