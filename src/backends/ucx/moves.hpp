// The algorithms: what each collective makes of flows.
#pragma once

#include <isthmus/backend.h>

#include "backends/ucx/session.hpp"
#include "base/block_map.hpp"

namespace isthmus::ucx {

// In the order of the enumeration; NULL-terminated.
extern const char* const algorithm_names[];
enum class algorithm { direct, two_shot, tree, chain };

// NULL, or why the algorithm cannot do the operation.
const char* why_not(const isthmus_operation& operation, const char* name, int size, std::uint64_t piece_bytes);

// Not for messages.
void run_collective(session& ranks, const isthmus_operation& operation, const char* name);

// reductions.cpp: every sum is of all contributions in the order of the ranks, rounded once.
void reduce_direct(session& ranks, const isthmus_operation& operation, const block_map& blocks);
void reduce_two_shot(session& ranks, const isthmus_operation& operation, const block_map& blocks);
void reduce_tree(session& ranks, const isthmus_operation& operation);

// Every rank's block, of equal length, in all[0 .. size), at log2(size) steps. Own block in place before.
void gather_by_doubling(session& ranks, std::byte* all, std::uint64_t block_bytes);

}  // namespace isthmus::ucx
